"""Backends, which execute tasks on workers; `EventBackend` is the base of a custom backend."""

from seqgc.backends._events import Delays as Delays
from seqgc.backends._events import EventBackend as EventBackend
from seqgc.backends._events import Messaging as Messaging
from seqgc.backends._events import MonotonicClock as MonotonicClock
from seqgc.backends._events import TaskDelays as TaskDelays
from seqgc.backends._events import event_of as event_of
from seqgc.backends._events import failure_of as failure_of
from seqgc.backends._processes import follow_master as follow_master
from seqgc.backends._processes import fork_process as fork_process
from seqgc.backends._processes import start_fork_server as start_fork_server
from seqgc.backends.executors import ExecutorBackend as ExecutorBackend
from seqgc.backends.local import LocalBackend as LocalBackend
from seqgc.backends.local import require_local_files as require_local_files
from seqgc.backends.local import require_picklable as require_picklable
