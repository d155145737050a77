"""`check_scheme`: whether a scheme keeps its contract, whoever straggles."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Final

import numpy as np

import seqgc.schemes
from seqgc.errors import NotDecodableError, SeqgcError
from seqgc.ports import BoolArray, Decoding, FloatArray
from seqgc.profiles import DelayProfile, ProfileMeta
from seqgc.rounds import ClosingRule, Setting, WaitOut
from seqgc.schemes import Assignment, Grid, Schedule, Scheme, entry_of, parse_scheme
from seqgc.search import Rehearsal, batch_replay, replay
from seqgc.stragglers import StragglerModel

__all__ = ["check_scheme"]

_TOLERANCE: Final = 1e-8  # relative, of decoded gradients
_SLACK: Final = 1e-12  # of sums of fractions
_RATES: Final = (0.0, 0.1, 0.3, 0.6)  # of stragglers, in the patterns that are drawn
_SIZE: Final = 3  # parameters of the partial gradients


def check_scheme(scheme: Scheme, *, patterns: int = 20, seed: int = 0) -> None:
    """Check that a scheme keeps the contract of `seqgc.schemes.Scheme` and `Schedule`.

    It is a value (frozen, picklable, ``eval(repr(x)) == x``, spelt by its spec); its loads and
    chunks are what its tasks touch; every job is decoded once, by its deadline and right, over
    random patterns of stragglers; more answers never hurt; what conforms loses no job; a refused
    transition changes nothing; what a search may know of it is what a replay does. A scheme that
    is not exact must stay within the error that it reports.

    Parameters
    ----------
    scheme
        Of few workers: each pattern is followed round by round.
    patterns : int
        How many runs are drawn.
    seed : int
        Of everything drawn; part of every complaint.

    Raises
    ------
    AssertionError
        In one line: what is broken, in which round, with which seed.

    Examples
    --------
    >>> from seqgc.schemes import MSGC
    >>> check_scheme(MSGC(n=5, B=1, W=2, lam=2), patterns=3)
    """
    check = _SchemeCheck(scheme=scheme, seed=seed)
    check.value()
    check.numbers()
    for number in range(patterns):
        check.run(number)
    check.refusals()
    check.candidates()
    check.replays()


@dataclass(frozen=True, slots=True, kw_only=True)
class _SchemeCheck:
    scheme: Scheme
    seed: int

    def require(self, holds: bool, complaint: str) -> None:
        if not holds:
            raise AssertionError(f"{self.scheme!r}: {complaint} (seed {self.seed})")

    # ---- the specification ----------------------------------------------------------------------

    def value(self) -> None:
        """Require a frozen value that its spec and its repr spell."""
        scheme = self.scheme
        self.require(pickle.loads(pickle.dumps(scheme)) == scheme, "must survive pickling")
        self.require(hash(copy.copy(scheme)) == hash(scheme), "must be hashable by its content")
        try:
            scheme.n = scheme.n
        except AttributeError:
            pass
        else:
            self.require(False, "must be frozen")
        names = vars(seqgc.schemes) | {type(scheme).__name__: type(scheme)}
        self.require(eval(repr(scheme), names) == scheme, "must be what its repr evaluates to")
        entry_of(scheme)
        self.require(parse_scheme(scheme.spec, n=scheme.n) == scheme, "must be what its spec names")

    def numbers(self) -> None:
        """Require loads, fractions, delay and promise of the right kind, that go together."""
        scheme = self.scheme
        loads, fractions = scheme.worker_loads, scheme.chunk_fractions
        self.require(loads.shape == (scheme.n,), f"worker_loads must be ({scheme.n},)")
        self.require(bool((loads > 0).all() and np.isfinite(loads).all()), "loads must be > 0")
        self.require(bool((fractions >= 0).all()), "chunk_fractions must be >= 0")
        self.require(abs(fractions.sum() - 1) < 1e-9, "chunk_fractions must sum to 1")
        for name, array in (("worker_loads", loads), ("chunk_fractions", fractions)):
            self.require(not array.flags.writeable, f"{name} must be read-only")
        self.require(type(scheme.delay) is int and scheme.delay >= 0, "delay must be an int >= 0")
        self.require(type(scheme.exact) is bool, "exact must be True or False")
        self.require(isinstance(scheme.promise, StragglerModel), "promise must be a StragglerModel")
        if scheme.exact:
            least = scheme.load_lower_bound
            within = scheme.normalized_load >= least * (1 - _SLACK)
            self.require(within, f"no exact scheme keeps this promise below load {least:.6g}")

    # ---- a run ----------------------------------------------------------------------------------

    def run(self, number: int) -> None:
        """Follow one run through a random pattern; every job is decoded once, in time and right."""
        rng = np.random.default_rng([self.seed, number])
        num_jobs = self.scheme.delay + 3
        schedule = self.scheme.start(num_jobs)
        conforming = bool(number % 2)  # draw what conforms, or whatever loses no job
        assignments: list[Assignment] = []
        finished: list[int] = []
        partials = rng.normal(size=(num_jobs, len(self.scheme.chunk_fractions), _SIZE))
        while schedule.round < schedule.num_rounds:
            assignments.append(schedule.assignment())
            self._check_tasks(schedule, assignments[-1])
            responded = self._answers(schedule, rng, conforming=conforming)
            round = schedule.round
            for job in schedule.close_round(responded):
                late = not job <= round <= job + self.scheme.delay
                self.require(not late, f"round {round} finishes job {job}, not between its rounds")
                self.require(job not in finished, f"job {job} is finished twice")
                finished.append(job)
                self._check_gradient(schedule.decoding(job), assignments, partials[job])
        left = sorted(set(range(num_jobs)) - set(finished))
        self.require(not left, f"jobs {left} are never finished")

    def _check_tasks(self, schedule: Schedule, assignment: Assignment) -> None:
        """Tasks are of jobs in flight, of known chunks, and touch no more than the loads say."""
        scheme, round = self.scheme, schedule.round
        self.require(len(assignment) == scheme.n, f"round {round} must have a task for each worker")
        fractions, loads = scheme.chunk_fractions, scheme.worker_loads
        for worker, tasks in enumerate(assignment):
            where = f"round {round}, worker {worker}"
            slots = [task.slot for task in tasks]
            self.require(len(set(slots)) == len(slots), f"{where}: a slot is used twice")
            for task in tasks:
                in_flight = max(0, round - scheme.delay) <= task.job <= round
                self.require(in_flight and task.job < schedule.num_jobs, f"{where}: job {task.job}")
                known = bool(((task.chunks >= 0) & (task.chunks < len(fractions))).all())
                self.require(known, f"{where}: chunks {task.chunks} of {len(fractions)}")
                paired = task.chunks.shape == task.coefficients.shape
                self.require(paired, f"{where}: each chunk must have its coefficient")
            touched = sum(float(fractions[task.chunks].sum()) for task in tasks)
            within = touched <= loads[worker] * (1 + 1e-9)
            self.require(within, f"{where}: touches {touched:.6g}, above its load")

    def _answers(
        self, schedule: Schedule, rng: np.random.Generator, *, conforming: bool
    ) -> BoolArray:
        """Draw who answers: one worker after another, until the round may close.

        On the way, more answers must never hurt, and where all conforms no job may be lost.
        """
        everyone = np.ones(schedule.n, dtype=np.bool_)
        where = f"round {schedule.round}"
        self.require(schedule.feasible(everyone), f"{where}: all answers must suffice")
        responded: BoolArray = rng.random(schedule.n) >= rng.choice(_RATES)
        order, was_feasible = rng.permutation(schedule.n), False
        for worker in (*order, None):
            conforms, feasible = schedule.conforms(responded), schedule.feasible(responded)
            self.require(feasible or not was_feasible, f"{where}: one more answer hurts")
            kept = feasible or not (conforms and conforming)  # what went before conforms, too
            self.require(kept, f"{where}: what conforms must lose no job")
            if (conforms and conforming) or (feasible and not conforming):
                return responded
            was_feasible = feasible
            if worker is not None:
                responded[worker] = True
        return everyone

    def _check_gradient(
        self, decoding: Decoding, assignments: list[Assignment], partials: FloatArray
    ) -> None:
        """Require that the decoding's sum is the job's gradient, or as close as it says."""
        gradient = np.zeros(_SIZE)
        for term in decoding.terms:
            tasks = {task.slot: task for task in assignments[term.round][term.worker]}
            owed = term.slot in tasks and tasks[term.slot].job == decoding.job
            self.require(owed, f"job {decoding.job} uses what nobody was asked for: {term}")
            task = tasks[term.slot]
            gradient += term.weight * (task.coefficients @ partials[task.chunks])
        direct = partials.sum(axis=0)
        missed = float(np.linalg.norm(gradient - direct))
        if self.scheme.exact:
            right = missed <= _TOLERANCE * max(1.0, float(np.linalg.norm(direct)))
            self.require(decoding.error == 0, f"job {decoding.job} reports an error, and is exact")
            self.require(right, f"job {decoding.job}: the decoded gradient is off by {missed:.3g}")
            return
        fractions = self.scheme.chunk_fractions[:, None]
        spread = float(np.sqrt((partials**2 / np.where(fractions > 0, fractions, np.inf)).sum()))
        bound = decoding.error * spread * (1 + _TOLERANCE) + _TOLERANCE
        self.require(missed <= bound, f"job {decoding.job}: off by {missed:.3g}, above its bound")

    def refusals(self) -> None:
        """Require that a round which would lose the job due does not close, or change anything."""
        schedule = self.scheme.start(1)
        nobody = np.zeros(self.scheme.n, dtype=np.bool_)
        while schedule.round < self.scheme.delay:
            schedule.close_round(nobody)
        if schedule.feasible(nobody):
            return
        try:
            schedule.close_round(nobody)
        except NotDecodableError:
            kept = schedule.round == self.scheme.delay
            self.require(kept, "a round that is refused must change nothing")
        else:
            self.require(False, "a round that loses the job due must not close")

    # ---- the search -----------------------------------------------------------------------------

    def candidates(self) -> None:
        """Require what a search is offered to be of this class, distinct, and within the grid."""
        grid = Grid(max_delay=3, inexact=True)
        found = list(type(self.scheme).candidates(self.scheme.n, grid))
        self.require(len(set(found)) == len(found), "candidates must differ")
        for candidate in found:
            fits = type(candidate) is type(self.scheme) and candidate.n == self.scheme.n
            self.require(fits and candidate.delay <= 3, f"{candidate} is not in the grid")
            entry_of(candidate)

    def replays(self) -> None:
        """Require the batched replay to decide what the general one does."""
        rng = np.random.default_rng(self.seed)
        times = 0.1 + rng.exponential(size=(self.scheme.delay + 4, self.scheme.n))
        profile = DelayProfile.from_times(times, meta=ProfileMeta(alpha=0.5))
        rehearsal = Rehearsal(profile=profile, num_jobs=4)
        rules: tuple[WaitOut, ...] = ("all", "conform", "feasible")
        for wait_out in rules:
            rule = ClosingRule(mu=0.2, wait_out=wait_out)
            try:
                alone = replay(Setting(scheme=self.scheme, rule=rule), rehearsal).round_seconds
                (batch,) = batch_replay([self.scheme], rehearsal, rule=rule).round_seconds
            except SeqgcError as error:
                raise AssertionError(f"{self.scheme!r}: {error} (seed {self.seed})") from error
            same = batch[: len(alone)].tolist() == alone.tolist()
            self.require(same, f"replayed with others ({wait_out}) it decides otherwise")
