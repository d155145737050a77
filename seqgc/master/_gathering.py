"""The results of the jobs in flight, which are added or stored as soon as they arrive.

The bits of a gradient must depend only on the set of workers that responded, never on the order of
their answers. Otherwise a run that was killed and resumed would end with other weights.
Floating-point sums depend on their order; therefore the order is fixed here. The summands of a
cover are added by a tree over their places (places 0 and 1, places 2 and 3, then both sums, and so
on). Each pair is added as soon as both summands have arrived. Every other result is stored in a
row, in the order of requests, and the rows of workers that did not respond are multiplied by 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from seqgc.errors import ScheduleError
from seqgc.master._replicas import Replicas, ResultKey
from seqgc.master._sums import CoverSum, Memory, Rows
from seqgc.ports import Decoding, FloatArray, MiniTask, Part, ResultForm, Term

_Kind: TypeAlias = tuple[np.dtype[np.floating], tuple[int, ...]]  # dtype and shape
_Note: TypeAlias = Callable[[str, dict[str, object]], None]
_Unused: TypeAlias = Callable[[int], Sequence[slice]]  # job -> the unused slices of its results


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldJob:
    """The stored results of one job in flight, for a checkpoint of a `Gatherer`.

    ``rows`` are the requested results, by round and in the order of their rows. ``stored`` are the
    results that have arrived and are stored as vectors. ``summed`` are the results that belong to a
    cover, each with its cover and place; a result that is not stored has been added to the sum.
    ``sums`` are the partial sums, by cover, level and index (module `seqgc.master._gathering`).
    ``asked`` are, in an audit, the workers that received a task for each place of a cover.
    """

    job: int
    kind: tuple[str, int] | None  # dtype and length of every result
    rows: dict[int, list[tuple[int, int]]]  # worker and slot, by round
    stored: dict[ResultKey, FloatArray] = field(repr=False)
    summed: dict[ResultKey, tuple[int, int]]
    sums: dict[tuple[int, int, int], FloatArray] = field(repr=False)
    parts: int = 0  # number of parts that were decoded separately
    asked: dict[tuple[int, int], list[int]] = field(default_factory=dict)


class Gatherer:
    """A store of the results of the jobs in flight, from which gradients are computed quickly.

    Some codes need only plain sums of results. Such a sum is a cover, and each of its terms is a
    place (see `MiniTask`). A result with a cover is added to the sum as soon as it arrives. Several
    workers may send the result of the same place; only the first one counts.

    Results without a cover are stored as rows of one array for each job and round. The gradient is
    the product of the decoding weights and this array. Memory is reused for later jobs.

    If ``audit`` is True, all results of a place are stored until the gradient is computed, and
    compared (`Replicas`). The gradient is then the sum of the results that the majority sent for
    each place. A worker that sent a different result is added to ``expelled``. If a worker is
    expelled, or if results could not be compared, ``note`` is called with the kind and the fields
    of a `Notice`. ``unused(job)`` returns the slices of a job's results that may differ.

    Examples
    --------
    >>> task = MiniTask(job=0, slot=0, chunks=np.array([0]), coefficients=np.ones(1))
    >>> gatherer = Gatherer()
    >>> gatherer.expect(0, [task], worker=4)
    >>> gatherer.take(task, np.full(3, 1.5), worker=4, round=0)
    >>> term = Term(worker=4, round=0, slot=0, weight=2.0)
    >>> gatherer.combine(Decoding(job=0, terms=(term,)))
    array([3., 3., 3.])
    """

    def __init__(
        self, *, audit: bool = False, note: _Note = lambda *_: None, unused: _Unused = lambda _: ()
    ) -> None:
        self._audit, self._note, self._unused = audit, note, unused
        self.expelled: Final[set[int]] = set()
        self._jobs: defaultdict[int, _Results] = defaultdict(_Results)
        self.forget_memory()

    def expect(self, round: int, mini_tasks: Sequence[MiniTask], *, worker: int) -> None:
        """Record the results that a worker is asked for, once, before any of them arrives."""
        for task in mini_tasks:
            if task.cover is None:
                rows = self._jobs[task.job].rows[round]
                rows.setdefault((worker, task.slot), len(rows))
            elif self._audit:
                self._replicas(task.job).ask((task.cover, task.place), worker)

    def require(self, job: int, form: ResultForm) -> None:
        """Require this dtype and length of every result of a job."""
        self._jobs[job].kind = (form.dtype, (form.size,))

    def flaw(self, owed: Mapping[int, MiniTask], results: Mapping[int, FloatArray]) -> str | None:
        """Return one line that says why an answer cannot be used; None if it can be used.

        ``owed`` are the requested mini-tasks, and ``results`` the arrays of the answer, by slot.
        Unless `require` was called, the first result of a job determines the form of all its
        results.
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
                rule = f"must be {due}, like all results of job {task.job}"
                return f"the result of slot {slot} {rule}; got {got}"
        return None

    def take(self, task: MiniTask, result: FloatArray, *, worker: int, round: int) -> None:
        """Add or copy the ``result`` (p,) of a mini-task; the array itself is not stored.

        `flaw` must have returned None for the answer, and each result may be taken only once.
        """
        job = self._jobs[task.job]
        job.kind = job.kind or (result.dtype, result.shape)
        key = (worker, round, task.slot)
        if task.cover is None:
            rows = job.rows[round]
            if round not in job.blocks:
                job.blocks[round] = Rows(self._of_blocks, len(rows), result)
            job.blocks[round].put(rows[worker, task.slot], result)
            job.stored.add(key)
        else:
            job.summed[key] = (task.cover, task.place)
            if self._audit:
                self._replicas(task.job).add(job.summed[key], result, key=key)
            else:
                self._add(job, job.summed[key], result)

    def combine(self, decoding: Decoding, *, marks: Sequence[slice] = ()) -> FloatArray:
        """Return the gradient (p,) of a job or of a part, and forget its results.

        The caller owns the array. Its dtype is the dtype of the results, or float32 if this has
        more bits. If finite results overflow, the array is not finite. ``marks`` are the marks of
        the job's `ResultForm`.

        Raises
        ------
        ScheduleError
            If the decoding uses a result that has not arrived, or only some places of a cover, or a
            place with a weight other than 1.
        AuditError
            If workers return different results for the same task, and there is no majority.
        """
        if decoding.part is not None:
            return self._part(decoding, decoding.part)
        job = self._jobs.pop(decoding.job, _Results())
        try:
            if job.replicas is not None:
                self._count(job, job.replicas, decoding)
            return job.combine(decoding, marks)
        finally:
            self._of_blocks.give(block.memory for block in job.blocks.values())
            self._of_sums.give(node for each in job.sums.values() for node in each.nodes.values())

    def _part(self, decoding: Decoding, part: Part) -> FloatArray:
        job = self._jobs.get(decoding.job, _Results())
        total = job.part(decoding, part.index)
        self._of_sums.give(node for node in job.forget(part.index).nodes.values())
        whole = (decoding.job,) if job.parts == part.of else ()
        for ended in whole if decoding.ends is None else decoding.ends:
            self._jobs.pop(ended, None)
        return total

    def _replicas(self, job: int) -> Replicas:
        results = self._jobs[job]
        results.replicas = results.replicas or Replicas(job=job)
        return results.replicas

    def _add(self, job: _Results, place: tuple[int, int], result: FloatArray) -> None:
        if place[0] not in job.sums:
            job.sums[place[0]] = CoverSum(self._of_sums, result.size)
        job.sums[place[0]].add(place[1], result)

    def _count(self, job: _Results, replicas: Replicas, decoding: Decoding) -> None:
        """Add the majority's result for each place of a decoding; expel workers that differ."""
        keys = [(term.worker, term.round, term.slot) for term in decoding.terms]
        places = sorted({job.summed[key] for key in keys if key in job.summed})
        verdict = replicas.count(places, unused=self._unused(decoding.job), but=self.expelled)
        for place, result in verdict.results.items():
            self._add(job, place, result)
        for worker in sorted(verdict.liars - self.expelled):
            self.expelled.add(worker)
            self._note("expelled", {"worker": worker, "job": decoding.job})
        if verdict.uncompared:
            self._note("uncompared", {"results": verdict.uncompared, "job": decoding.job})

    def forget_memory(self) -> None:
        """Free the memory that is reserved for the results of later jobs."""
        self._of_blocks, self._of_sums = Memory(), Memory()

    @property
    def in_dispute(self) -> bool:
        """True if workers returned different results for the same task without a majority."""
        return any(
            each.replicas is not None
            and each.replicas.in_dispute(self._unused(job), but=self.expelled)
            for job, each in self._jobs.items()
        )

    def held(self) -> list[HeldJob]:
        """Return copies of the results of all jobs in flight."""
        return [results.held(job) for job, results in sorted(self._jobs.items())]

    def restore(self, held: Iterable[HeldJob]) -> None:
        """Replace all results by the results ``held`` of another gatherer (see `held`)."""
        self._jobs.clear()
        for each in held:
            job = self._jobs[each.job]
            job.kind = each.kind and (np.dtype(each.kind[0]), (each.kind[1],))
            for round, rows in each.rows.items():
                job.rows[round] = {owed: row for row, owed in enumerate(rows)}
            for (worker, round, slot), vector in each.stored.items():
                if (key := (worker, round, slot)) in each.summed:
                    self._replicas(each.job).add(each.summed[key], vector, key=key)
                    continue
                if round not in job.blocks:
                    job.blocks[round] = Rows(self._of_blocks, len(job.rows[round]), vector)
                job.blocks[round].put(job.rows[round][worker, slot], vector)
                job.stored.add((worker, round, slot))
            for place, workers in each.asked.items():
                for worker in workers:
                    self._replicas(each.job).ask(place, worker)
            job.summed |= each.summed
            job.parts = each.parts
            for (cover, level, index), vector in each.sums.items():
                known = job.sums.setdefault(cover, CoverSum(self._of_sums, vector.size))
                known.place((level, index), vector)


class _Results:
    def __init__(self) -> None:
        self.kind: _Kind | None = None  # from the first result on
        self.rows: defaultdict[int, dict[tuple[int, int], int]] = defaultdict(dict)
        """The row of each (worker, slot), by round."""
        self.blocks: dict[int, Rows] = {}  # by round
        self.sums: dict[int, CoverSum] = {}  # by cover
        self.stored: set[ResultKey] = set()
        self.summed: dict[ResultKey, tuple[int, int]] = {}  # result -> cover and place
        self.replicas: Replicas | None = None  # until they are compared; then `sums`
        self.parts = 0  # number of parts that were decoded separately

    def combine(self, decoding: Decoding, marks: Sequence[slice]) -> FloatArray:
        """Return the sum that a decoding describes, in an array that the caller owns."""
        covers: defaultdict[int, list[int]] = defaultdict(list)
        weights = {round: np.zeros(len(block.array)) for round, block in self.blocks.items()}
        for term in decoding.terms:
            key = (term.worker, term.round, term.slot)
            if key in self.stored:
                weights[term.round][self.rows[term.round][term.worker, term.slot]] += term.weight
            elif key in self.summed:
                cover, place = self.summed[key]
                covers[cover].append(place)
                if term.weight != 1:
                    fault = f"a term of a plain sum, with weight {term.weight:g} instead of 1"
                    raise _broken(decoding.job, f"{_name(term)}, {fault}")
            else:
                raise _broken(decoding.job, f"{_name(term)}, which has not arrived")
        for cover, places in covers.items():
            if sorted(places) != sorted(self.sums[cover].places):
                raise _broken(decoding.job, f"cover {cover} incompletely, or a place of it twice")
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow is found at the end
            used = [(self.blocks[r], w) for r, w in sorted(weights.items()) if w.any()]
            parts = [block.weighted(w, marks) for block, w in used]
            parts += [self.sums[cover].taken() for cover in sorted(covers)]
            if not parts:
                raise _broken(decoding.job, "no result")
            total = parts[0]
            for part in parts[1:]:
                total += part
        return total

    def part(self, decoding: Decoding, cover: int) -> FloatArray:
        """Return the weighted sum of a cover, in an array that the caller owns.

        The terms of the decoding must be all places of the cover, with equal weights.

        Raises
        ------
        ScheduleError
            If the terms are not all places of the cover, or their weights differ.
        """
        keys = [(term.worker, term.round, term.slot) for term in decoding.terms]
        places = [self.summed.get(key) for key in keys]
        due = (
            [(cover, place) for place in sorted(self.sums[cover].places)]
            if cover in self.sums
            else []
        )
        weights = {term.weight for term in decoding.terms}
        if not due or None in places or sorted(filter(None, places)) != due or len(weights) != 1:
            raise _broken(decoding.job, f"results that do not add up to part {cover}")
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow is found at the end
            total = self.sums[cover].taken()
            if (weight := weights.pop()) != 1:
                total *= weight
        return total

    def forget(self, cover: int) -> CoverSum:
        """Remove a cover whose sum was taken, and return its `CoverSum`."""
        self.summed = {key: place for key, place in self.summed.items() if place[0] != cover}
        self.parts += 1
        return self.sums.pop(cover)

    def held(self, job: int) -> HeldJob:
        return HeldJob(
            job=job,
            kind=None if self.kind is None else (self.kind[0].name, self.kind[1][0]),
            rows={round: list(rows) for round, rows in self.rows.items()},
            stored={
                (i, round, slot): self.blocks[round].array[self.rows[round][i, slot]].copy()
                for i, round, slot in sorted(self.stored)
            }
            | ({} if self.replicas is None else self.replicas.stored),
            summed=dict(self.summed),
            sums={
                (cover, *node): vector
                for cover, each in self.sums.items()
                for node, vector in each.held().items()
            },
            parts=self.parts,
            asked={} if self.replicas is None else self.replicas.asked,
        )


def _name(term: Term) -> str:
    return f"the result of worker {term.worker}, round {term.round}, slot {term.slot}"


def _broken(job: int, what: str) -> ScheduleError:
    remedy = "the scheme's schedule is wrong; check it with seqgc.testing.check_scheme"
    return ScheduleError(f"the decoding of job {job} uses {what}: {remedy}")
