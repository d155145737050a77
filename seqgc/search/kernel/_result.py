"""`BatchReplay`: what many runs come to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqgc.ports import FloatArray, IntArray

__all__ = ["BatchReplay"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchReplay:
    """What the runs of many candidates on recorded times come to.

    ``round_seconds`` (candidates, most rounds) seconds, 0 beyond a candidate's own rounds;
    ``num_rounds`` (candidates,); ``waited_out`` (candidates,), how many rounds stayed open beyond
    ``(1+mu) * kappa``. Read-only.

    Examples
    --------
    >>> BatchReplay(
    ...     round_seconds=np.array([[1.0, 2.0], [3.0, 0.0]]),
    ...     num_rounds=np.array([2, 1]),
    ...     waited_out=np.array([0, 0]),
    ... ).runtime_s
    array([3., 3.])
    """

    round_seconds: FloatArray
    num_rounds: IntArray
    waited_out: IntArray

    def __post_init__(self) -> None:
        for array in (self.round_seconds, self.num_rounds, self.waited_out):
            array.flags.writeable = False

    @property
    def runtime_s(self) -> FloatArray:
        """Seconds of all rounds together, (candidates,)."""
        seconds = np.empty(len(self.num_rounds))
        for rounds in np.unique(self.num_rounds):
            rows = self.num_rounds == rounds
            # Of their own rounds alone: then it is `Replay.runtime_s` to the last bit.
            own = np.ascontiguousarray(self.round_seconds[rows, :rounds])
            seconds[rows] = own.sum(axis=1)
        return seconds
