"""`Answers`: who responded, round by round, for as many rounds as a run has; `OnRecord`."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from seqgc.ports import BoolArray, LateAnswer

__all__ = ["Answers", "OnRecord"]


class _Masks(Sequence[BoolArray]):
    """Masks (n,), a bit each; all are as long as the first."""

    def __init__(self) -> None:
        self._n = self._stride = 0
        self._bits = bytearray()

    def __len__(self) -> int:
        return len(self._bits) // self._stride if self._bits else 0

    @overload
    def __getitem__(self, number: int) -> BoolArray: ...

    @overload
    def __getitem__(self, number: slice) -> list[BoolArray]: ...

    def __getitem__(self, number: int | slice) -> BoolArray | list[BoolArray]:
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        begin = range(len(self))[number] * self._stride
        row = np.frombuffer(self._bits[begin : begin + self._stride], dtype=np.uint8)
        mask: BoolArray = np.unpackbits(row, count=self._n).view(np.bool_)
        mask.flags.writeable = False
        return mask

    def add(self, mask: BoolArray) -> None:
        row = np.packbits(mask).tobytes()
        self._n, self._stride = len(mask), len(row)
        self._bits += row

    def cut(self, length: int) -> None:
        """Forget all but the first ones."""
        del self._bits[length * self._stride :]


class _Late(Mapping[int, tuple[LateAnswer, ...]]):
    """Which late answers rounds took, in the order of their own rounds and workers.

    For each earlier round of which one took some: the two rounds, and a bit a worker.
    """

    def __init__(self) -> None:
        self._rounds, self._own, self._masks = array("q"), array("q"), _Masks()

    def __getitem__(self, round: int) -> tuple[LateAnswer, ...]:
        first, last = bisect_left(self._rounds, round), bisect_right(self._rounds, round)
        if first == last:
            raise KeyError(round)
        own, masks = self._own[first:last], self._masks[first:last]
        return tuple(
            (of, worker) for of, mask in zip(own, masks, strict=True) for worker in _numbers(mask)
        )

    def __iter__(self) -> Iterator[int]:
        return iter(dict.fromkeys(self._rounds))

    def __len__(self) -> int:
        return len(dict.fromkeys(self._rounds))

    def add(self, round: int, late: Iterable[LateAnswer], *, n: int) -> None:
        """Take those of a round of n workers, after all rounds before it."""
        workers: defaultdict[int, list[int]] = defaultdict(list)
        for own, worker in late:
            workers[own].append(worker)
        for own in sorted(workers):
            mask = np.zeros(n, dtype=np.bool_)
            mask[workers[own]] = True
            self._rounds.append(round)
            self._own.append(own)
            self._masks.add(mask)

    def forget_from(self, round: int) -> None:
        """Forget those of a round and all after it."""
        first = bisect_left(self._rounds, round)
        del self._rounds[first:], self._own[first:]
        self._masks.cut(first)


class _Finished(Mapping[int, tuple[int, ...]]):
    """Which jobs rounds finished, of those rounds of which that is known."""

    def __init__(self) -> None:
        # A round, and a job that it finished; -1 if it finished none.
        self._rounds, self._jobs = array("q"), array("q")

    def __getitem__(self, round: int) -> tuple[int, ...]:
        first, last = bisect_left(self._rounds, round), bisect_right(self._rounds, round)
        if first == last:
            raise KeyError(round)
        return tuple(job for job in self._jobs[first:last] if job >= 0)

    def __iter__(self) -> Iterator[int]:
        return iter(dict.fromkeys(self._rounds))

    def __len__(self) -> int:
        return len(dict.fromkeys(self._rounds))

    def add(self, round: int, jobs: Iterable[int]) -> None:
        """Take those of a round after all rounds before it."""
        for job in tuple(jobs) or (-1,):
            self._rounds.append(round)
            self._jobs.append(job)

    def forget_from(self, round: int) -> None:
        """Forget those of a round and all after it."""
        first = bisect_left(self._rounds, round)
        del self._rounds[first:], self._jobs[first:]


def _numbers(mask: BoolArray) -> list[int]:
    numbers: list[int] = np.flatnonzero(mask).tolist()
    return numbers


class Answers(_Masks):
    """Masks (n,) of closed rounds, the first one first; a bit each, for they are kept for good.

    ``late`` says of the rounds which answers to earlier ones they took, where they took some, and
    ``finished`` which jobs they finished, where that is known.

    Examples
    --------
    >>> answers = Answers()
    >>> answers.append(np.array([True, False, True]))
    >>> answers.append(np.array([True, True, True]), late=[(0, 1)])
    >>> len(answers), answers[0].tolist(), dict(answers.late)
    (2, [True, False, True], {1: ((0, 1),)})
    """

    def __init__(self) -> None:
        super().__init__()
        self.late, self.finished = _Late(), _Finished()

    def append(
        self,
        responded: BoolArray,
        late: Sequence[LateAnswer] = (),
        finished: Iterable[int] | None = None,
    ) -> None:
        """Take the next round's; all are as long as the first."""
        self.late.add(len(self), late, n=len(responded))
        if finished is not None:
            self.finished.add(len(self), finished)
        self.add(responded)

    def forget_from(self, round: int) -> None:
        """Forget a round and all after it, as if they had not been closed."""
        self.cut(round)
        self.late.forget_from(round)
        self.finished.forget_from(round)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OnRecord:
    """How rounds of a run, by number, were closed before it was resumed.

    ``answers`` says on whose answers (n,), of rounds that are to close again; ``late`` which
    answers to earlier rounds they, and those before them, took; ``finished`` which of the run's
    jobs they finished, as far as that is known.
    """

    answers: Mapping[int, BoolArray] = field(default_factory=dict)
    late: Mapping[int, Sequence[LateAnswer]] = field(default_factory=dict)
    finished: Mapping[int, Sequence[int]] = field(default_factory=dict)
