"""Where tasks are executed; those who write a backend of their own begin with `EventBackend`."""

from seqgc.backends._events import EventBackend as EventBackend
from seqgc.backends._events import event_of as event_of
from seqgc.backends._events import failure_of as failure_of
from seqgc.backends._forkserver import start_fork_server as start_fork_server
from seqgc.backends._tasks import Delays as Delays
from seqgc.backends._tasks import Messaging as Messaging
from seqgc.backends._tasks import MonotonicClock as MonotonicClock
from seqgc.backends._tasks import TaskMessages as TaskMessages
from seqgc.backends.local import LocalBackend as LocalBackend
