"""Repeated rounds: a resumed run closes rounds with the same answers as before it was interrupted.

`PastRound` describes such a round, and `Repeat` decides how long to wait for its answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from seqgc.ports import BoolArray, LateAnswer, RoundRecord
from seqgc.rounds._rule import Setting

__all__ = ["PastRound", "Repeat"]

_PATIENCE: Final = 5.0  # a multiple of the time after which other answers suffice
_LEAST_S: Final = 10.0  # the cold start of a worker may take this long


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PastRound:
    """A round that closed after the checkpoint from which a run is resumed.

    ``responded`` (n,) marks the workers whose answers the round used, and ``late`` lists the late
    answers that the round took. The resumed run closes the round with the same answers. If
    ``responded`` is None, the resumed run may use any answers. ``setting`` is the setting to which
    the run switched after the round; None means that it did not switch.
    """

    responded: BoolArray | None = None
    late: Sequence[LateAnswer] = ()
    setting: Setting | None = None

    def contradicts(self, record: RoundRecord) -> bool:
        """Return True if the resumed run has closed the round with other answers."""
        if self.responded is None:
            return False
        same = np.array_equal(self.responded, record.responded)
        return not same or set(self.late) != set(record.late)


class Repeat:
    """An attempt to close a round of a resumed run with the same answers as before.

    ``answers`` (n,) marks the workers whose answers the round used before, and ``late`` lists the
    late answers that it took. The round waits for all these answers for at most ``limit_s``
    seconds. Suppose that other answers suffice t seconds after the round began. The silent workers
    are then asked again ``max(5 t, 10 s)`` after the round began, and the attempt is given up after
    twice this time. Both times are at most ``limit_s``.
    """

    def __init__(self, answers: BoolArray, late: Iterable[LateAnswer], *, limit_s: float) -> None:
        self.answers, self.late = answers, set(late)  # the gate removes late answers that it takes
        self.withholds = False  # late answers have come that the round did not take before
        self._limit_s = self.ends_at = limit_s
        self._asks_at = math.inf

    @property
    def is_waiting(self) -> bool:
        """True after the first call of `wait`."""
        return self._asks_at < math.inf

    def is_complete(self, responded: BoolArray) -> bool:
        """Return True if all answers have come; ``responded`` (n,) marks the present answers."""
        return not self.late and bool(responded[self.answers].all())

    def wait(self, elapsed: float) -> float:
        """Return the time until which to wait, given that other answers suffice already.

        The gate also calls this if withheld late answers may make the answers suffice. The first
        call returns the time at which to ask the silent workers again. Later calls return the time
        at which to give up. All times are in seconds since the round began.
        """
        if self.is_waiting:
            return self.ends_at
        self._asks_at = min(self._limit_s, max(_PATIENCE * elapsed, _LEAST_S))
        self.ends_at = min(self._limit_s, 2 * self._asks_at)
        return self._asks_at
