"""Backends whose workers are AWS Lambda functions, and the transports that invoke functions."""

from seqgc.backends.lambda_._backend import Invoking as Invoking
from seqgc.backends.lambda_._backend import LambdaBackend as LambdaBackend
from seqgc.backends.lambda_._calls import ThrottlePolicy as ThrottlePolicy
from seqgc.backends.lambda_._curl import CurlTransport as CurlTransport
from seqgc.backends.lambda_._microvms import MicrovmFleet as MicrovmFleet
from seqgc.backends.lambda_._microvms import MicrovmLaunch as MicrovmLaunch
from seqgc.backends.lambda_._microvms import MicrovmTransport as MicrovmTransport
from seqgc.backends.lambda_._resident import ResidentBackend as ResidentBackend
from seqgc.backends.lambda_._stays import Staying as Staying
from seqgc.backends.lambda_._switchboard import MASTER_PORTS as MASTER_PORTS
from seqgc.backends.lambda_._switchboard import Address as Address
from seqgc.backends.lambda_._target import Signer as Signer
from seqgc.backends.lambda_._target import Target as Target
from seqgc.backends.lambda_._threads import Boto3Transport as Boto3Transport
from seqgc.backends.lambda_._threads import HttpTransport as HttpTransport
from seqgc.backends.lambda_._transport import Limits as Limits
from seqgc.backends.lambda_._transport import Reply as Reply
from seqgc.backends.lambda_._transport import Transport as Transport
