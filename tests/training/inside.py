"""What tests look at inside training: how a run is recorded, compared and copied.

Users have none of these, so they may change at any time; tests take them from here.
"""

from seqgc.training._accepted import KINDS
from seqgc.training._checkpointer import Checkpointer, RunState
from seqgc.training._fingerprint import changes, fingerprint
from seqgc.training._forms import form_of
from seqgc.training._made_of import _data as data_line
from seqgc.training._session import Session
from seqgc.training.rundir import EventLog, MetricsLog

__all__ = [
    "KINDS",
    "Checkpointer",
    "EventLog",
    "MetricsLog",
    "RunState",
    "Session",
    "changes",
    "data_line",
    "fingerprint",
    "form_of",
]
