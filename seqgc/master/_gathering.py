"""Results of the jobs in flight, added up or stored as they arrive: little is left for the end."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seqgc.errors import NotDecodableError, ScheduleError
from seqgc.ports import Decoding, FloatArray, MiniTask, Term

_Kind: TypeAlias = tuple[np.dtype[np.floating], tuple[int, ...]]  # dtype and shape
_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Key: TypeAlias = tuple[int, int, int]  # worker, round, slot


class Gatherer:
    """What has arrived for the jobs in flight, in the form from which gradients are made fastest.

    A result with a `MiniTask.cover` is added to its cover's sum, the first of each place only: once
    the last place is filled, the gradient is there. Any other result is copied into the next row of
    its job's block of the round, and the gradient is one product of weights and block. Memory goes
    from job to job.
    """

    def __init__(self) -> None:
        self._jobs: defaultdict[int, _Results] = defaultdict(_Results)
        self.forget_memory()

    def expect(self, round: int, mini_tasks: Sequence[MiniTask]) -> None:
        """Take note of what a worker owes, once, before any of these results arrives."""
        for task in mini_tasks:
            if task.cover is None:
                self._jobs[task.job].rows[round] += 1

    def require(self, job: int, dtype: np.dtype[np.floating], size: int) -> None:
        """Have every result of a job be of a dtype and length, from the first one on."""
        self._jobs[job].kind = (dtype, (size,))

    def flaw(self, owed: Mapping[int, MiniTask], results: Mapping[int, FloatArray]) -> str | None:
        """Say in one line why an answer cannot be used, if so: mini-tasks and results by slot.

        Unless `require` has said it, a job's first result says what all of them must be like.
        """
        kinds: dict[int, _Kind] = {}
        for slot, task in owed.items():
            if slot not in results:
                return f"the answer lacks the result of slot {slot}"
            kind = (results[slot].dtype, results[slot].shape)
            if results[slot].ndim != 1:
                return f"the result of slot {slot} must be a vector; got shape {kind[1]}"
            job = self._jobs.get(task.job)
            known = kinds.setdefault(task.job, job.kind if job and job.kind else kind)
            if kind != known:
                due, got = (f"{shape[0]} numbers of {dtype}" for dtype, shape in (known, kind))
                rule = f"must be {due}, as all of job {task.job}"
                return f"the result of slot {slot} {rule}; got {got}"
        return None

    def take(self, task: MiniTask, result: FloatArray, *, worker: int, round: int) -> None:
        """Add or copy the ``result`` (p,) of a mini-task; nothing refers to it afterwards.

        It must have passed `flaw`, and each result may be taken once.
        """
        job = self._jobs[task.job]
        job.kind = job.kind or (result.dtype, result.shape)
        key = (worker, round, task.slot)
        if task.cover is None:
            if round not in job.blocks:
                job.blocks[round] = _Rows(self._of_blocks, job.rows[round], result)
            job.stored[key] = job.blocks[round].append(result)
        else:
            if task.cover not in job.sums:
                job.sums[task.cover] = _Sum(self._of_sums, result)
            job.sums[task.cover].add(task.place, result)
            job.summed[key] = (task.cover, task.place)

    def combine(self, decoding: Decoding) -> FloatArray:
        """Return the gradient (p,) of a job, and forget the job.

        The array is the caller's own, of the dtype that results are added in: float32 at least.

        Raises
        ------
        ScheduleError
            If the decoding uses a result that has not arrived, or not a whole cover with weight 1.
        NotDecodableError
            If the gradient is not finite: finite results overflowed.
        """
        job = self._jobs.pop(decoding.job, _Results())
        gradient = job.combine(decoding)
        self._of_blocks.give(block.memory for block in job.blocks.values())
        self._of_sums.give(s.memory for s in job.sums.values() if s.vector is not gradient)
        if not np.isfinite(gradient).all():
            fault = f"the sum of finite results overflows {gradient.dtype}"
            remedy = "lower the learning rate, or train in float64"
            raise NotDecodableError(f"job {decoding.job}: {fault}; {remedy}", job=decoding.job)
        return gradient

    def forget_memory(self) -> None:
        """Free the memory that is kept for later jobs: they may need less, or none."""
        self._of_blocks, self._of_sums = _Memory(), _Memory()


class _Results:
    """The results of one job."""

    def __init__(self) -> None:
        self.kind: _Kind | None = None  # from the first result on
        self.rows: defaultdict[int, int] = defaultdict(int)  # expected, by round
        self.blocks: dict[int, _Rows] = {}  # by round
        self.sums: dict[int, _Sum] = {}  # by cover
        self.stored: dict[_Key, int] = {}  # result -> row of its round's block
        self.summed: dict[_Key, tuple[int, int]] = {}  # result -> cover and place

    def combine(self, decoding: Decoding) -> FloatArray:
        """Return the decoding's sum, which may be the memory of one of the job's own sums."""
        covers: defaultdict[int, list[int]] = defaultdict(list)
        weights = {round: np.zeros(block.filled) for round, block in self.blocks.items()}
        for term in decoding.terms:
            key = (term.worker, term.round, term.slot)
            if key in self.stored:
                weights[term.round][self.stored[key]] += term.weight
            elif key in self.summed:
                cover, place = self.summed[key]
                covers[cover].append(place)
                if term.weight != 1:
                    fault = f"a part of a plain sum, with weight {term.weight:g}"
                    raise _broken(decoding.job, f"{_name(term)}, {fault}")
            else:
                raise _broken(decoding.job, f"{_name(term)}, which has not arrived")
        for cover, places in covers.items():
            if sorted(places) != sorted(self.sums[cover].places):
                raise _broken(decoding.job, f"a part of cover {cover}, or a place of it twice")
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow is found at the end
            parts = [self.blocks[r].weighted(w) for r, w in weights.items() if w.any()]
            sums = [self.sums[cover].vector for cover in covers]
            if not parts and not sums:
                raise _broken(decoding.job, "no result")
            total = parts.pop() if parts else sums.pop()
            for part in [*parts, *sums]:
                total += part
        return total


class _Sum:
    """The running sum of a cover; ``places`` are those that it holds."""

    def __init__(self, source: _Memory, result: FloatArray) -> None:
        self.memory, matrix = source.take(1, result)
        self.vector: FloatArray = matrix[0]
        self.places: set[int] = set()

    def add(self, place: int, result: FloatArray) -> None:
        if not self.places:
            self.vector[:] = result
        elif place not in self.places:  # or it is equal to the one that is in the sum
            with np.errstate(over="ignore", invalid="ignore"):  # an overflow is found at the end
                self.vector += result
        self.places.add(place)


class _Rows:
    """The rows of a matrix, filled from the top; the others hold anything."""

    def __init__(self, source: _Memory, rows: int, result: FloatArray) -> None:
        self._source = source
        self.memory, self.array = source.take(rows, result)
        self.filled = 0

    def append(self, result: FloatArray) -> int:
        row, full, rows = self.filled, self.memory, self.array
        if row == len(rows):  # tasks that left after the first answers of their round
            self.memory, self.array = self._source.take(2 * row, result)
            self.array[:row] = rows
            self._source.give([full])
        self.array[row] = result
        self.filled += 1
        return row

    def weighted(self, weights: FloatArray) -> FloatArray:
        """Return ``weights @ rows`` over the rows that are filled, as one new vector."""
        product: FloatArray = weights.astype(self.array.dtype) @ self.array[: self.filled]
        return product


class _Memory:
    """Memory that is used again, so that the system need not map and clear pages each round."""

    def __init__(self) -> None:
        self._free: list[_Bytes] = []  # in order of size

    def take(self, rows: int, result: FloatArray) -> tuple[_Bytes, FloatArray]:
        """Return memory, and on it a matrix that holds anything, for results like ``result`` (p,).

        It has ``rows`` rows, and is at least as wide as float32 adds.
        """
        dtype = np.promote_types(result.dtype, np.float32)
        size = rows * result.size * dtype.itemsize
        index = bisect_left(self._free, size, key=len)
        if index < len(self._free):
            memory = self._free.pop(index)
        else:
            memory = np.empty(size, dtype=np.uint8)
            if self._free:
                self._free.pop()  # replaced by the new: there are as many as were in use at once
        return memory, memory[:size].view(dtype).reshape(rows, result.size)

    def give(self, memories: Iterable[_Bytes]) -> None:
        """Take back what `take` returned and nobody may use any more."""
        self._free = sorted([*self._free, *memories], key=lambda memory: memory.size)


def _name(term: Term) -> str:
    return f"the result of worker {term.worker}, round {term.round}, slot {term.slot}"


def _broken(job: int, what: str) -> ScheduleError:
    return ScheduleError(f"the decoding of job {job} uses {what}: the scheme's schedule is wrong")
