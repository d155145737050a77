"""Which defence is best on a profile: all of them by one yardstick."""

from typing import TYPE_CHECKING

from seqgc.comparison._compare import compare as compare
from seqgc.comparison._compare import default_defences as default_defences
from seqgc.comparison._compare import require_comparable as require_comparable
from seqgc.comparison._curve import Curve as Curve
from seqgc.comparison._judge import interval_words as interval_words
from seqgc.comparison._problem import SoftmaxProblem as SoftmaxProblem
from seqgc.comparison._rows import Comparison as Comparison
from seqgc.comparison._rows import Metering as Metering
from seqgc.comparison._rows import Row as Row
from seqgc.comparison._rows import Trial as Trial
from seqgc.comparison._run import Course as Course
from seqgc.comparison._run import Workers as Workers
from seqgc.comparison._run import course_of as course_of
from seqgc.comparison._run import trained as trained
from seqgc.comparison._training import SoftmaxTrainees as SoftmaxTrainees
from seqgc.comparison._training import exact_curve as exact_curve
from seqgc.search import ProfileReading as ProfileReading

if TYPE_CHECKING:
    from seqgc.comparison._torch import TorchTrainees as TorchTrainees


def __getattr__(name: str) -> object:
    if name == "TorchTrainees":  # torch takes seconds, and most comparisons have no use for it
        from seqgc.comparison._torch import TorchTrainees

        return TorchTrainees
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
