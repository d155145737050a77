"""`Answers`: who responded, round by round, for as many rounds as a run has; `OnRecord`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from seqgc.ports import BoolArray, LateAnswer

__all__ = ["Answers", "OnRecord"]


class Answers(Sequence[BoolArray]):
    """Masks (n,) of closed rounds, the first one first; a bit each, for they are kept for good.

    ``late`` says of the rounds which answers to earlier ones they took, where they took some.

    Examples
    --------
    >>> answers = Answers()
    >>> answers.append(np.array([True, False, True]))
    >>> len(answers), answers[0].tolist()
    (1, [True, False, True])
    """

    def __init__(self) -> None:
        self._n = self._stride = 0
        self._bits = bytearray()
        self.late: dict[int, tuple[LateAnswer, ...]] = {}

    def __len__(self) -> int:
        return len(self._bits) // self._stride if self._bits else 0

    @overload
    def __getitem__(self, round: int) -> BoolArray: ...

    @overload
    def __getitem__(self, round: slice) -> list[BoolArray]: ...

    def __getitem__(self, round: int | slice) -> BoolArray | list[BoolArray]:
        if isinstance(round, slice):
            return [self[each] for each in range(len(self))[round]]
        begin = range(len(self))[round] * self._stride
        row = np.frombuffer(self._bits[begin : begin + self._stride], dtype=np.uint8)
        responded: BoolArray = np.unpackbits(row, count=self._n).view(np.bool_)
        responded.flags.writeable = False
        return responded

    def append(self, responded: BoolArray, late: Sequence[LateAnswer] = ()) -> None:
        """Take the next round's; all are as long as the first."""
        if late:
            self.late[len(self)] = tuple(late)
        row = np.packbits(responded).tobytes()
        self._n, self._stride = len(responded), len(row)
        self._bits += row

    def forget_from(self, round: int) -> None:
        """Forget a round and all after it, as if they had not been closed."""
        del self._bits[round * self._stride :]
        for later in [each for each in self.late if each >= round]:
            del self.late[later]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OnRecord:
    """How rounds of a run, by number, were closed before it was resumed.

    ``answers`` says on whose answers (n,), of rounds that are to close again; ``late`` which
    answers to earlier rounds they, and those before them, took.
    """

    answers: Mapping[int, BoolArray] = field(default_factory=dict)
    late: Mapping[int, Sequence[LateAnswer]] = field(default_factory=dict)
