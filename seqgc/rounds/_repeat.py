"""`PastRound`: a round that closed after the checkpoint of a resumed run; `Repeat`: closing it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from seqgc.ports import BoolArray, LateAnswer, RoundRecord
from seqgc.rounds._rule import Setting

__all__ = ["PastRound", "Repeat"]

_PATIENCE: Final = 5.0
_LEAST_S: Final = 10.0  # a cold start may take this long


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PastRound:
    """A round that closed after the checkpoint from which a run is resumed.

    ``responded`` (n,) marks the workers whose answers the round used, and ``late`` lists the late
    answers that it took. The resumed run closes the round with the same answers. If ``responded``
    is None, it may use any answers. ``setting`` is the setting to which the run switched after the
    round; None means that it did not switch.
    """

    responded: BoolArray | None = None
    late: Sequence[LateAnswer] = ()
    setting: Setting | None = None

    def contradicts(self, record: RoundRecord) -> bool:
        """Return True if the round has closed now with other answers than it must."""
        if self.responded is None:
            return False
        same = np.array_equal(self.responded, record.responded)
        return not same or set(self.late) != set(record.late)


class Repeat:
    """An attempt to close a round of a resumed run with the same answers as before.

    ``answers`` (n,) marks the workers whose answers the round had then, and ``late`` lists the late
    answers that it took. The round waits for all of them for at most ``limit_s`` seconds. If other
    answers suffice earlier, after t seconds, it waits for ``max(5 t, 10 s)`` in all, asks the
    silent workers again, and gives the repetition up after twice this time.
    """

    def __init__(self, answers: BoolArray, late: Iterable[LateAnswer], *, limit_s: float) -> None:
        self.answers, self.late = answers, set(late)  # late answers are removed when taken
        self.withholds = False  # late answers have come that the round did not take before
        self._limit_s = self.ends_at = limit_s
        self._asks_at = math.inf

    @property
    def is_waiting(self) -> bool:
        """True if other answers suffice, or may suffice with the withheld late answers."""
        return self._asks_at < math.inf

    def is_complete(self, responded: BoolArray) -> bool:
        """Return True if all answers have come, given the workers (n,) that have ``responded``."""
        return not self.late and bool(responded[self.answers].all())

    def wait(self, elapsed: float) -> float:
        """Wait although other answers suffice; return the time until which to wait.

        The first call returns the time at which to ask the silent workers again. Later calls return
        the time at which to give up. Both are in seconds since the round began.
        """
        if self.is_waiting:
            return self.ends_at
        self._asks_at = min(self._limit_s, max(_PATIENCE * elapsed, _LEAST_S))
        self.ends_at = min(self._limit_s, 2 * self._asks_at)
        return self._asks_at
