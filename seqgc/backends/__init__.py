"""Where tasks are executed."""

from seqgc.backends._forkserver import start_fork_server as start_fork_server
from seqgc.backends.local import LocalBackend as LocalBackend
