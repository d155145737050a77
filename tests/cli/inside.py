"""What tests look at inside the command line: verbs, names, what a configuration becomes.

Users have none of these, so they may change at any time; tests take them from here.
"""

from seqgc.cli._main import command
from seqgc.cli._messages import speaking
from seqgc.cli._names import DATA, LOSSES, MODULES, NOT_TAKEN, OPTIMIZERS, SCHEDULERS
from seqgc.cli._run import (
    PreparedRun,
    make_callbacks,
    make_models,
    make_plan,
    make_workers,
    prepare,
)
from seqgc.cli._show import busy
from seqgc.cli._statuses import MEANINGS, Status
from seqgc.cli._words import words

__all__ = [
    "DATA",
    "LOSSES",
    "MEANINGS",
    "MODULES",
    "NOT_TAKEN",
    "OPTIMIZERS",
    "SCHEDULERS",
    "PreparedRun",
    "Status",
    "busy",
    "command",
    "make_callbacks",
    "make_models",
    "make_plan",
    "make_workers",
    "prepare",
    "speaking",
    "words",
]
