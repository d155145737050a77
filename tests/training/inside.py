"""What tests look at inside training: how a run is recorded, compared and copied.

Users have none of these, so they may change at any time; tests take them from here.
"""

from seqgc.runs.folder import EventLog
from seqgc.runs.metrics import MetricsLog
from seqgc.training.checkpointer import Checkpointer, RunState
from seqgc.training.fingerprint import changes, fingerprint
from seqgc.training.session import TrainingSession

__all__ = [
    "Checkpointer",
    "EventLog",
    "MetricsLog",
    "RunState",
    "TrainingSession",
    "changes",
    "fingerprint",
]
