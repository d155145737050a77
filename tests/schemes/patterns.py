"""Runs a scheme over many straggler patterns at once, as a tree of snapshots, and checks every
gradient that it decodes."""

from __future__ import annotations

import bisect
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from seqgc._types import BoolArray, Decoding, FloatArray, MiniTask
from seqgc.schemes import Assignment, Schedule, Scheme

TOLERANCE = 1e-10
_RATES = (0.1, 0.3, 0.6, 1.0)


def masks(n: int) -> list[BoolArray]:
    """All 2^n answers of one round."""
    return [np.array(bits) for bits in itertools.product((False, True), repeat=n)]


Check = Callable[[int, Decoding, tuple[Assignment, ...]], None]
"""Called with a job, its decoding, and all tasks that were given out by then."""


class Run:
    """A snapshot of a run: its schedule, and the tasks it gave out so far."""

    def __init__(
        self,
        schedule: Schedule,
        given: tuple[Assignment, ...] = (),
        finished: tuple[int, ...] = (),
    ) -> None:
        self.schedule = schedule
        self.given = given
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
        finished = schedule.close_round(responded)
        delay = schedule.num_rounds - schedule.num_jobs
        for job in finished:
            assert 0 <= self.schedule.round - job <= delay, f"job {job} is not on time"
            check(job, schedule.decoding(job), given)
        return Run(schedule, given, self.finished + finished)


class GradientCheck:
    """Compares decoded gradients with direct ones, for random partial gradients (chunks, 3)."""

    def __init__(self, scheme: Scheme, seed: int = 0) -> None:
        chunks = len(scheme.chunk_fractions)
        self.partials = np.random.default_rng(seed).normal(size=(chunks, 3))
        self.direct = self.partials.sum(axis=0)
        # By the arrays' identity, which keeping the task preserves.
        self._kept: dict[tuple[int, int], tuple[MiniTask, FloatArray]] = {}

    def __call__(self, job: int, decoding: Decoding, given: tuple[Assignment, ...]) -> None:
        gradient = np.zeros(3)
        assert decoding.job == job
        for term in decoding.terms:
            (task,) = [m for m in given[term.round][term.worker] if m.slot == term.slot]
            assert task.job == job, f"{term} belongs to job {task.job}"
            gradient += term.weight * self._result(task)
        error = float(np.linalg.norm(gradient - self.direct) / np.linalg.norm(self.direct))
        assert error <= TOLERANCE, f"job {job}: relative error {error}"

    def _result(self, task: MiniTask) -> FloatArray:
        """What the worker returns; computed once, as long as schemes share the arrays."""
        key = (id(task.chunks), id(task.coefficients))
        if key not in self._kept:
            self._kept[key] = (task, task.coefficients @ self.partials[task.chunks])
        return self._kept[key][1]


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
    answers = masks(scheme.n)
    stack = [Run(scheme.start(num_jobs))]
    while stack:
        run = stack.pop()
        if run.done:
            yield run
            continue
        stack += [run.after(a, check) for a in answers if run.schedule.conforms(a)]


def sampled_conforming(
    scheme: Scheme, num_jobs: int, check: Check, *, patterns: int, seed: int
) -> Iterable[Run]:
    """About ``patterns`` finished runs over random patterns that conform.

    A tree: each level has twice the runs of the one before, so early rounds are shared.
    """
    rng = np.random.default_rng(seed)
    runs = [Run(scheme.start(num_jobs))]
    while not runs[0].done:
        left = runs[0].schedule.num_rounds - runs[0].schedule.round - 1
        wanted = max(1, patterns >> left)
        parents = rng.integers(len(runs), size=wanted)
        runs = [runs[p].after(_random_answers(runs[p], scheme.n, rng), check) for p in parents]
    return runs


def _random_answers(run: Run, n: int, rng: np.random.Generator) -> BoolArray:
    """Random answers that conform: the fewest stragglers, in random order, are taken back."""
    straggles = rng.random(n) < _RATES[rng.integers(len(_RATES))]
    order = rng.permutation(np.flatnonzero(straggles))

    def answers(taken_back: int) -> BoolArray:
        responded = ~straggles
        responded[order[:taken_back]] = True
        return responded

    # Fewer stragglers never break a promise: bisect.
    return answers(
        bisect.bisect_left(range(len(order)), True, key=lambda k: run.schedule.conforms(answers(k)))
    )
