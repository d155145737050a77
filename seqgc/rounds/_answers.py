"""`Answers`: a compact record of the workers that responded in each round; `OnRecord`."""

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
    """A list of masks (n,) with one bit for each worker; all are as long as the first."""

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
        """Remove all masks after the first ``length``."""
        del self._bits[length * self._stride :]


class _Late(Mapping[int, tuple[LateAnswer, ...]]):
    """The late answers that each round took, sorted by their own rounds and workers.

    An entry is a round, an earlier round of which it took answers, and a mask of the workers.
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
        """Add the late answers that a round took. Call it in the order of the rounds."""
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
        """Remove the entries of a round and of all later rounds."""
        first = bisect_left(self._rounds, round)
        del self._rounds[first:], self._own[first:]
        self._masks.cut(first)


class _Finished(Mapping[int, tuple[int, ...]]):
    """The jobs that each round finished, for the rounds for which they are known."""

    def __init__(self) -> None:
        # An entry is a round and a job that it finished; -1 if it finished none.
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
        """Add the jobs that a round finished. Call it in the order of the rounds."""
        for job in tuple(jobs) or (-1,):
            self._rounds.append(round)
            self._jobs.append(job)

    def forget_from(self, round: int) -> None:
        """Remove the entries of a round and of all later rounds."""
        first = bisect_left(self._rounds, round)
        del self._rounds[first:], self._jobs[first:]


def _numbers(mask: BoolArray) -> list[int]:
    numbers: list[int] = np.flatnonzero(mask).tolist()
    return numbers


class Answers(_Masks):
    """The masks (n,) of the workers that responded, for each closed round of a run.

    A mask takes one bit for each worker, because all masks are kept until the run ends. ``late``
    has the late answers of the rounds that took some, and ``finished`` has the jobs that rounds
    finished, for the rounds for which they are known.

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
        """Add the next round. All masks must be as long as the first."""
        self.late.add(len(self), late, n=len(responded))
        if finished is not None:
            self.finished.add(len(self), finished)
        self.add(responded)

    def forget_from(self, round: int) -> None:
        """Remove a round and all later rounds, as if they had not been closed."""
        self.cut(round)
        self.late.forget_from(round)
        self.finished.forget_from(round)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OnRecord:
    """The closing of rounds before a run was resumed, by the number of the round.

    ``answers`` has a mask (n,) for each round that must be closed again: the workers whose answers
    the round used. ``late`` has the late answers that rounds took, and ``finished`` the jobs that
    rounds finished, for the rounds for which they are known. Both also contain earlier rounds.
    """

    answers: Mapping[int, BoolArray] = field(default_factory=dict)
    late: Mapping[int, Sequence[LateAnswer]] = field(default_factory=dict)
    finished: Mapping[int, Sequence[int]] = field(default_factory=dict)
