"""Comparison of all defences on one delay profile, by the time to a target loss."""

from typing import TYPE_CHECKING

from seqgc.comparison._apps import AppTrainees as AppTrainees
from seqgc.comparison._compare import compare as compare
from seqgc.comparison._compare import default_defences as default_defences
from seqgc.comparison._compare import require_comparable as require_comparable
from seqgc.comparison._evaluation import interval_words as interval_words
from seqgc.comparison._rows import Comparison as Comparison
from seqgc.comparison._rows import Metering as Metering
from seqgc.comparison._rows import Row as Row
from seqgc.comparison._rows import Trial as Trial
from seqgc.comparison._softmax import SoftmaxProblem as SoftmaxProblem
from seqgc.comparison._softmax import SoftmaxTrainees as SoftmaxTrainees
from seqgc.comparison._softmax import exact_curve as exact_curve
from seqgc.comparison._training import Curve as Curve
from seqgc.comparison._training import PacedWorkers as PacedWorkers
from seqgc.comparison._training import Race as Race
from seqgc.comparison._training import TimedRun as TimedRun
from seqgc.comparison._training import time_run as time_run
from seqgc.comparison._training import trained as trained
from seqgc.search import ProfileReading as ProfileReading

# The old names, used until version 0.1.0.
Course, Workers, course_of = TimedRun, PacedWorkers, time_run

if TYPE_CHECKING:
    from seqgc.comparison._torch import TorchTrainees as TorchTrainees


def __getattr__(name: str) -> object:
    if name == "TorchTrainees":  # torch takes seconds, and most comparisons have no use for it
        from seqgc.comparison._torch import TorchTrainees

        return TorchTrainees
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
