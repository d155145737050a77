"""An emulator of AWS Lambda on this machine, with its Invoke API, function URL and Runtime API."""

from seqgc.local_lambda._faults import FaultKind as FaultKind
from seqgc.local_lambda._faults import FaultPlan as FaultPlan
from seqgc.local_lambda._faults import RequestFault as RequestFault
from seqgc.local_lambda._settings import MAX_REQUEST_BYTES as MAX_REQUEST_BYTES
from seqgc.local_lambda._settings import MAX_RESPONSE_BYTES as MAX_RESPONSE_BYTES
from seqgc.local_lambda._settings import DeployedAs as DeployedAs
from seqgc.local_lambda._settings import KeyPair as KeyPair
from seqgc.local_lambda.service import LocalLambda as LocalLambda
from seqgc.local_lambda.service import ServiceStatistics as ServiceStatistics
