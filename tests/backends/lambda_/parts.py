"""Parts of the Lambda backend, and of a worker, that tests look at by themselves: no public names.

They have no other way in, and whoever renames one finds all that is to be changed here.
"""

from __future__ import annotations

from seqgc.backends.lambda_._calls import Throttle as Throttle
from seqgc.backends.lambda_._switchboard import Switchboard as Switchboard
from seqgc.backends.lambda_._switchboard import tls_server as tls_server
from seqgc.backends.lambda_._threads import CallThreads as CallThreads
from seqgc.worker._resident import Stranger as Stranger
from seqgc.worker._resident import stay as stay
from seqgc.worker._resident import tls_client as tls_client
