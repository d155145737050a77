"""Runs a scheme over many straggler patterns at once, as a tree of snapshots, and checks every
gradient that it decodes."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from seqgc.ports import BoolArray, Decoding, IntArray, MiniTask
from seqgc.schemes import Assignment, Schedule, Scheme
from tests.schemes.promises import is_promised, latest

TOLERANCE = 1e-10
_RATES = (0.1, 0.3, 0.6, 1.0)
_JUDGED = 16  # runs in each round whose schedule must judge as the promise is written


def masks(n: int) -> list[BoolArray]:
    """All 2^n answers of one round."""
    return [np.array(bits) for bits in itertools.product((False, True), repeat=n)]


Check = Callable[[int, Decoding, tuple[Assignment, ...]], None]
"""Called with a job, its decoding, and all tasks that were given out by then."""


class Run:
    """A snapshot of a run: its schedule, the tasks it gave out so far, and who answered."""

    def __init__(
        self,
        schedule: Schedule,
        given: tuple[Assignment, ...] = (),
        answered: tuple[list[bool], ...] = (),
        finished: tuple[int, ...] = (),
    ) -> None:
        self.schedule = schedule
        self.given = given
        self.answered = answered
        self.finished = finished
        self._assigned: Assignment | None = None

    @property
    def done(self) -> bool:
        """Whether every round is closed; then every job must have been decoded, once."""
        done = self.schedule.round >= self.schedule.num_rounds
        assert not done or sorted(self.finished) == list(range(self.schedule.num_jobs))
        return done

    def after(self, responded: BoolArray, check: Check) -> Run:
        """The run after one more round; checks every job that it finishes."""
        if self._assigned is None:
            self._assigned = self.schedule.assignment()
        schedule, given = copy.copy(self.schedule), (*self.given, self._assigned)
        answered = (*self.answered, responded.tolist())
        finished = schedule.close_round(responded)
        delay = schedule.num_rounds - schedule.num_jobs
        for job in finished:
            assert 0 <= self.schedule.round - job <= delay, f"job {job} is not on time"
            decoding = schedule.decoding(job)
            came = all(answered[t.round][t.worker] for t in decoding.terms)
            assert came, f"job {job} is decoded from results that did not come"
            check(job, decoding, given)
        return Run(schedule, given, answered, self.finished + finished)


Owed = dict[tuple[int, int, int], int]
"""(worker, slot, job) → the row of the result among all that a check has seen."""


class GradientCheck:
    """Compares decoded gradients with direct ones, for random partial gradients (chunks, 3)."""

    def __init__(self, scheme: Scheme, seed: int = 0) -> None:
        chunks = len(scheme.chunk_fractions)
        self.partials = np.random.default_rng(seed).normal(size=(chunks, 3))
        self.direct = self.partials.sum(axis=0)
        self._size = float(np.linalg.norm(self.direct))
        # By objects' identities, which keeping the objects preserves: each task's row of the
        # results, as long as schemes share its arrays; who owes which row in an assignment.
        self._results = np.zeros((0, 3))
        self._rows: dict[tuple[int, int], tuple[int, MiniTask]] = {}
        self._owed: dict[int, tuple[Owed, Assignment]] = {}

    def __call__(self, job: int, decoding: Decoding, given: tuple[Assignment, ...]) -> None:
        assert decoding.job == job
        owed = [self._owed_in(assignment) for assignment in given]
        rows = [owed[t.round][t.worker, t.slot, job] for t in decoding.terms]
        weights = np.array([t.weight for t in decoding.terms])
        difference = weights @ self._results[rows] - self.direct
        error = math.sqrt(difference @ difference) / self._size
        assert error <= TOLERANCE, f"job {job}: relative error {error}"

    def _owed_in(self, assignment: Assignment) -> Owed:
        if id(assignment) not in self._owed:
            tasks = [(worker, m) for worker, own in enumerate(assignment) for m in own]
            owed = {(worker, m.slot, m.job): self._row(m) for worker, m in tasks}
            assert len({key[:2] for key in owed}) == len(tasks), "two tasks in one slot"
            self._owed[id(assignment)] = owed, assignment
        return self._owed[id(assignment)][0]

    def _row(self, task: MiniTask) -> int:
        key = (id(task.chunks), id(task.coefficients))
        if key not in self._rows:
            self._rows[key] = len(self._rows), task
            result = task.coefficients @ self.partials[task.chunks]
            self._results = np.vstack([self._results, result])
        return self._rows[key][0]


class CoverCheck:
    """Checks that results with a cover enter a gradient as a plain sum, as `MiniTask` says.

    ``used`` counts them.
    """

    def __init__(self) -> None:
        self.used = 0

    def __call__(self, job: int, decoding: Decoding, given: tuple[Assignment, ...]) -> None:
        own = [m for tasks in given for row in tasks for m in row if m.job == job]
        chunks: dict[int | None, dict[int, list[int]]] = {}
        for task in own:
            assert task.cover is None or (task.coefficients == 1).all()
            held = chunks.setdefault(task.cover, {}).setdefault(task.place, task.chunks.tolist())
            assert task.cover is None or held == task.chunks.tolist(), "one place, two results"
        used: dict[int, list[int]] = {}
        for term in decoding.terms:
            (task,) = [m for m in given[term.round][term.worker] if m.slot == term.slot]
            if task.cover is not None:
                assert term.weight == 1.0
                used.setdefault(task.cover, []).append(task.place)
        for cover, places in used.items():
            assert sorted(places) == sorted(chunks[cover]), "one result of each place"
        self.used += sum(map(len, used.values()))


def every_conforming(scheme: Scheme, num_jobs: int, check: Check) -> Iterator[Run]:
    """Finished runs over all patterns that conform, exhaustively."""
    answers = np.array(masks(scheme.n))
    # By the stragglers of the earlier rounds in a window: answers, and the next round's such rows.
    conforming: dict[bytes, list[tuple[BoolArray, BoolArray]]] = {}
    stack = [(Run(scheme.start(num_jobs)), np.zeros((0, scheme.n), dtype=np.bool_))]
    while stack:
        run, past = stack.pop()
        if run.done:
            yield run
            continue
        key = past.tobytes()
        if key not in conforming:
            windows = with_round(np.broadcast_to(past, (len(answers), *past.shape)), ~answers)
            promised = is_promised(scheme, windows)
            if len(conforming) < _JUDGED:
                assert [run.schedule.conforms(a) for a in answers] == promised.tolist(), past
            following = latest(scheme, windows[promised])
            conforming[key] = list(zip(answers[promised], following, strict=True))
        stack += [(run.after(a, check), rows) for a, rows in conforming[key]]


def sampled_conforming(
    scheme: Scheme, num_jobs: int, check: Check, *, patterns: int, seed: int
) -> list[Run]:
    """About ``patterns`` finished runs over random patterns that conform.

    A tree: each level has twice the runs of the one before, so early rounds are shared.
    """
    rng = np.random.default_rng(seed)
    runs = [Run(scheme.start(num_jobs))]
    past = np.zeros((1, 0, scheme.n), dtype=np.bool_)  # stragglers (runs, rounds, n)
    while not runs[0].done:
        left = runs[0].schedule.num_rounds - runs[0].schedule.round - 1
        parents = rng.integers(len(runs), size=max(1, patterns >> left))
        runs, past = [runs[p] for p in parents], past[parents]
        wanted = rng.random((len(runs), scheme.n)) < rng.choice(_RATES, size=(len(runs), 1))
        stragglers = _as_many_as_promised(scheme, past, wanted, rng)
        for run, more, row in zip(runs[:_JUDGED], wanted, stragglers, strict=False):
            assert run.schedule.conforms(~row), row
            assert run.schedule.conforms(~more) == (more == row).all(), more
        runs = _all_after(runs, stragglers, check)
        past = latest(scheme, with_round(past, stragglers))
    return runs


def _all_after(runs: list[Run], stragglers: BoolArray, check: Check) -> list[Run]:
    """Each run after one more round; runs of one pattern are one run."""
    keys = [(id(run), row.tobytes()) for run, row in zip(runs, stragglers, strict=True)]
    after: dict[tuple[int, bytes], Run] = {}
    for key, run, row in zip(keys, runs, stragglers, strict=True):
        if key not in after:
            after[key] = run.after(~row, check)
    return [after[key] for key in keys]


def _as_many_as_promised(
    scheme: Scheme, past: BoolArray, wanted: BoolArray, rng: np.random.Generator
) -> BoolArray:
    """The wanted stragglers (runs, n) after a past (runs, rounds, n), some taken back.

    As few as make the pattern conform, in random order.
    """
    turn = rng.random(wanted.shape).argsort(axis=1)

    def first(count: IntArray) -> BoolArray:
        return wanted & (turn < count[:, None])

    kept = np.zeros(len(wanted), dtype=np.intp)
    for power in reversed(range(scheme.n.bit_length())):
        # Fewer stragglers never break a promise: bisect.
        more = kept + 2**power
        kept = np.where(is_promised(scheme, with_round(past, first(more))), more, kept)
    return first(kept)


def with_round(past: BoolArray, stragglers: BoolArray) -> BoolArray:
    """Patterns (m, rounds, n) and the stragglers (m, n) of one round more."""
    return np.concatenate([past, stragglers[:, None]], axis=1)
