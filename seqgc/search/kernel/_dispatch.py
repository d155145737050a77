"""What a search may know of a scheme beyond its contract, by dispatch on its type.

All of it is optional: it saves time, and decides nothing. A scheme that says nothing is replayed in
general, one candidate after another.

- `necessary_answers` says what its rounds cannot close without, so that candidates which cannot win
  are not replayed.
- `kernel_of` gives the thresholds by which thousands are replayed at once (see `_batch`).
- `conforms_as_feasible` and `stands_for_others` keep one candidate from being replayed under two
  names.
- `adds_results` says which decode well among thousands of workers.

The scheme's own file in this folder registers them: ``@necessary_answers.register``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import singledispatch

from seqgc.schemes import GC, MSGC, SRSGC, Scheme
from seqgc.search.kernel._thresholds import Thresholds

__all__ = [
    "Kernel",
    "Need",
    "adds_results",
    "conforms_as_feasible",
    "kernel_of",
    "necessary_answers",
    "stands_for_others",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Answers that a round cannot close without: ``answers`` of them, or such as decode ``code``.

    A code is its kind and s. ``to_the_end``: rounds of the tail have work too, whoever answers.
    """

    answers: int | None = None
    code: tuple[str, int] | None = None
    to_the_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """How one candidate is replayed together with others.

    ``group`` is what schemes must agree on to be replayed together. ``decisions`` is what decides:
    schemes that agree on it have one load and the same closings. ``thresholds`` makes those of
    some candidates: ``(schemes of one group, history, num_jobs) -> Thresholds``.
    """

    group: Hashable
    decisions: Hashable
    thresholds: Callable[..., Thresholds]


@singledispatch
def necessary_answers(scheme: Scheme, *, conforms: bool) -> Need:  # noqa: ARG001
    """Return what no round of the scheme closes without; ``conforms``: if it must conform."""
    return Need(answers=0)


@singledispatch
def kernel_of(scheme: Scheme, *, feasible: bool, bursty_only: bool) -> Kernel | None:  # noqa: ARG001
    """Return how the scheme is replayed with others; None: in general, by itself.

    ``feasible``: rounds wait only until no job is lost, and nobody asks what conforms. If somebody
    does, ``bursty_only`` says that the bursty model alone conforms.
    """
    return None


@singledispatch
def adds_results(scheme: Scheme) -> bool:  # noqa: ARG001
    """Whether every gradient is a plain sum of results, which decodes well whoever answers."""
    return True


@adds_results.register
def _(scheme: GC | SRSGC | MSGC) -> bool:
    return scheme.family != "cyclic"


@singledispatch
def conforms_as_feasible(scheme: Scheme) -> bool:  # noqa: ARG001
    """Whether no other answers than those that conform are feasible."""
    return False


@singledispatch
def stands_for_others(scheme: Scheme) -> bool:  # noqa: ARG001
    """Whether, closed by ``feasible``, no earlier candidate does the same under another name."""
    return True
