"""`check_scheme`, which checks the contract of a scheme with random patterns of stragglers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import numpy as np

import seqgc.schemes
from seqgc.errors import NotDecodableError
from seqgc.ports import BoolArray, Decoding, LateAnswer
from seqgc.profiles import DelayProfile, ProfileMeta
from seqgc.rounds import ClosingRule, Setting, WaitOut
from seqgc.schemes import Assignment, Grid, Schedule, Scheme, entry_of, parse_scheme
from seqgc.search import Rehearsal, batch_replay, replay
from seqgc.stragglers import Arbitrary, StragglerModel
from seqgc.testing._codes import calling, check_value, complaining, refuses

_TOLERANCE: Final = 1e-8  # relative, of decoded gradients
_SLACK: Final = 1e-12  # relative, of sums of fractions
_RATES: Final = (0.0, 0.1, 0.3, 0.6)  # rates of stragglers in the random patterns
_LATE: Final = 0.3  # fraction of the missing answers that come late
_SIZE: Final = 3  # parameters of the partial gradients


def check_scheme(scheme: Scheme, *, patterns: int = 20, seed: int = 0) -> None:
    """Check that a scheme fulfils the contract of `seqgc.schemes.Scheme` and `Schedule`.

    The scheme must be frozen and picklable, with ``eval(repr(x)) == x``, and its spec must describe
    it. Then its schedules run over random patterns of stragglers and late answers. The check
    requires:

    - A task processes at most its load, for nominal batches and for batches cut into whole points.
    - Every job is decoded once, by its deadline, correctly, and from results that have arrived. If
      the scheme is not exact, the error is at most the reported error, and lost chunks are listed.
    - One more answer never makes a round infeasible. A conforming pattern loses no job.
    - A transition that raises changes nothing.
    - A schedule that is restored from a snapshot continues like the original schedule, and
      snapshots do not grow with the number of rounds.
    - The batched replay of a search agrees with the general replay.

    Use few workers: each of the ``patterns``, drawn with ``seed``, is followed round by round.

    Raises
    ------
    AssertionError
        If the contract is broken; one line names the scheme, the fault, the round and the seed.

    Examples
    --------
    >>> from seqgc.schemes import MSGC
    >>> check_scheme(MSGC(n=5, B=1, W=2, lam=2), patterns=3)
    """
    with complaining(repr(scheme), f" (seed {seed})"):
        _check_content(scheme)
        for number in range(patterns):
            # Draw patterns that conform, and patterns that do not conform but lose no job.
            _check_run(scheme, np.random.default_rng([seed, number]), conforming=bool(number % 2))
            _check_restored(scheme, np.random.default_rng([seed, number, 1]))
        _check_snapshot_size(scheme, np.random.default_rng(seed))
        _check_refusal(scheme)
        _check_candidates(scheme)
        _check_replays(scheme, np.random.default_rng(seed))


def _check_content(scheme: Scheme) -> None:
    names = vars(seqgc.schemes) | {type(scheme).__name__: type(scheme)}
    list(check_value(scheme, names, field="n"))
    with calling("reading its spec"):  # also checks loads, fractions, delay and promise
        assert parse_scheme(scheme.spec, n=scheme.n) == scheme, "must equal its parsed spec"
    for name in ("worker_loads", "chunk_fractions"):
        assert not getattr(scheme, name).flags.writeable, f"{name} must be read-only"
    assert type(scheme.delay) is int, f"delay must be an int, got {scheme.delay!r}"
    assert isinstance(scheme.promise, StragglerModel), "promise must be a StragglerModel"
    if scheme.exact:
        least = scheme.load_lower_bound
        line = f"no exact scheme keeps this promise below load {least:.6g}"
        assert scheme.normalized_load >= least * (1 - _SLACK), line


def _check_run(scheme: Scheme, rng: np.random.Generator, *, conforming: bool) -> None:
    """Follow a run through a random pattern, and check every job that it decodes."""
    run = _FollowedRun(scheme, rng)
    schedule, finished = run.schedule, list[int]()
    while schedule.round < schedule.num_rounds:
        round = schedule.round
        run.begin_round()
        run.take(_take_late(schedule, rng))
        responded = _answers(schedule, rng, conforming=conforming)
        run.used.append(responded & ~schedule.excused)
        for job in schedule.close_round(responded):
            in_time = job <= round <= job + scheme.delay
            assert in_time, f"round {round} finishes job {job}, too early or after its deadline"
            assert job not in finished, f"job {job} is finished twice"
            finished.append(job)
            run.check_gradient(schedule.decoding(job))
    unfinished = sorted(set(range(schedule.num_jobs)) - set(finished))
    assert not unfinished, f"jobs {unfinished} are never finished"


class _FollowedRun:
    """A run of a scheme, on nominal batches or on batches that are cut into whole points."""

    def __init__(self, scheme: Scheme, rng: np.random.Generator) -> None:
        self._scheme = scheme
        batches = [int(rng.integers(1, 4 * scheme.n))] * int(rng.integers(2))
        self.schedule = scheme.begin(scheme.delay + 3, batches=batches)
        self._fractions, self._most = scheme.chunk_fractions, scheme.worker_loads
        self._charges_points = True  # False: loads stay nominal if a batch is cut to points
        for size in batches:
            self._fractions, self._most = scheme.cut(size) / size, scheme.loads_of(size)
            self._charges_points = scheme.points_touched(scheme.cut(size)) is not None
        shape = (self.schedule.num_jobs, len(self._fractions), _SIZE)
        self._partials = rng.normal(size=shape) * (self._fractions > 0)[:, None]
        self._assignments: list[Assignment] = []
        self.used: list[
            BoolArray
        ] = []  # for each round, the workers whose answers have arrived (n,)

    def begin_round(self) -> None:
        self._assignments.append(self.schedule.assignment())
        self._check_tasks(self._assignments[-1])

    def take(self, late: list[LateAnswer]) -> None:
        """Record the answers to closed rounds that the schedule has taken."""
        for round, worker in late:
            self.used[round][worker] = True

    def _check_tasks(self, assignment: Assignment) -> None:
        """Require that tasks belong to jobs in flight, use valid chunks, and keep their loads."""
        scheme, schedule, fractions = self._scheme, self.schedule, self._fractions
        round = schedule.round
        assert len(assignment) == scheme.n, f"round {round} must have a task for each worker"
        in_flight = range(max(0, round - scheme.delay), min(round + 1, schedule.num_jobs))
        loads = schedule.loads()
        within = loads.shape == (scheme.n,) and (loads <= self._most * (1 + 1e-9)).all()
        line = f"round {round}: loads must be {scheme.n} numbers, none above its loads_of"
        assert within, line
        for worker, (tasks, load) in enumerate(zip(assignment, loads, strict=True)):
            where = f"round {round}, worker {worker}"
            assert len({task.slot for task in tasks}) == len(tasks), (
                f"{where}: a slot is used twice"
            )
            for task in tasks:
                assert task.job in in_flight, f"{where}: job {task.job}"
                valid = ((task.chunks >= 0) & (task.chunks < len(fractions))).all()
                assert valid, f"{where}: chunks {task.chunks} of {len(fractions)}"
                paired = task.chunks.shape == task.coefficients.shape
                assert paired, f"{where}: each chunk must have its coefficient"
            touched = sum(float(fractions[task.chunks].sum()) for task in tasks)
            exceeds = self._charges_points and touched > load * (1 + 1e-9)
            assert not exceeds, f"{where}: touches {touched:.6g}, above its load {load:.6g}"

    def check_gradient(self, decoding: Decoding) -> None:
        """Require that the decoding gives the gradient of its job, up to the reported error."""
        job, gradient, held = decoding.job, np.zeros(_SIZE), set[int]()
        partials = self._partials[job]
        for term in decoding.terms:
            tasks = {t.slot: t for t in self._assignments[term.round][term.worker]}
            owed = term.slot in tasks and tasks[term.slot].job == job
            assert owed, f"job {job} uses a result that no worker was asked for: {term}"
            assert self.used[term.round][term.worker], (
                f"job {job} uses a result that has not arrived: {term}"
            )
            task = tasks[term.slot]
            gradient += term.weight * (task.coefficients @ partials[task.chunks])
            held.update(task.chunks[task.coefficients * term.weight != 0].tolist())
        self._check_lost(decoding, held)
        direct = partials.sum(axis=0)
        missed = float(np.linalg.norm(gradient - direct))
        if self._scheme.exact:
            assert decoding.error == 0, f"job {job} reports an error, but the scheme is exact"
            right = missed <= _TOLERANCE * max(1.0, float(np.linalg.norm(direct)))
            assert right, f"job {job}: the decoded gradient is off by {missed:.3g}"
            return
        fractions = self._scheme.chunk_fractions[:, None]
        spread = float(np.sqrt((partials**2 / np.where(fractions > 0, fractions, np.inf)).sum()))
        bound = decoding.error * spread * (1 + _TOLERANCE) + _TOLERANCE
        assert missed <= bound, f"job {job}: off by {missed:.3g}, above its bound {bound:.3g}"

    def _check_lost(self, decoding: Decoding, held: set[int]) -> None:
        """Require that ``lost`` lists only chunks that are in no term.

        For inexact schemes, ``lost`` must list all these chunks, except for empty ones.
        """
        job, lost = decoding.job, set(decoding.lost)
        without = set(range(len(self._fractions))) - held
        valid = len(lost) == len(decoding.lost) and without.issuperset(lost)
        line = f"job {job}: lost must name chunks that no term holds, each once: {decoding.lost}"
        assert valid, line
        if not self._scheme.exact:  # else the gradient is wrong
            unnamed = sorted(k for k in without - lost if self._fractions[k] > 0)
            assert not unnamed, f"job {job}: chunks {unnamed} are lost, but not named in `lost`"


def _take_late(schedule: Schedule, rng: np.random.Generator) -> list[LateAnswer]:
    """Pass some of the awaited late answers to the schedule, in random order; return them."""
    closed = range(max(0, schedule.round - schedule.num_rounds + schedule.num_jobs), schedule.round)
    pairs = [(round, worker) for round in closed for worker in range(schedule.n)]
    taken: list[LateAnswer] = []
    for index in rng.permutation(len(pairs)) if schedule.takes_late else ():
        round, worker = pairs[index]
        if rng.random() < _LATE and schedule.awaits(round, worker):
            assert schedule.asked(round)[worker], (
                f"worker {worker}, round {round}: awaited, but never asked"
            )
            schedule.take_late(round, worker)
            again = schedule.awaits(round, worker)
            assert not again, f"worker {worker}, round {round}: still awaited after it was taken"
            taken.append(pairs[index])
    return taken


def _answers(
    schedule: Schedule,
    rng: np.random.Generator,
    *,
    conforming: bool,
    rates: Sequence[float] = _RATES,
) -> BoolArray:
    """Draw a pattern of answers, and add one worker after another until the round may close.

    One more answer must never make the round infeasible, and a conforming pattern must be feasible.
    """
    everyone = np.ones(schedule.n, dtype=np.bool_)
    where = f"round {schedule.round}"
    assert schedule.feasible(everyone), f"{where}: the answers of all workers must suffice"
    responded: BoolArray = rng.random(schedule.n) >= rng.choice(rates)
    was_feasible = False
    for worker in (*rng.permutation(schedule.n), None):
        conforms, feasible = schedule.conforms(responded), schedule.feasible(responded)
        assert feasible or not was_feasible, f"{where}: one more answer makes the round infeasible"
        if conforms and conforming:  # the earlier rounds conform, too
            assert feasible, f"{where}: a conforming pattern must lose no job"
        if conforms if conforming else feasible:
            return responded
        was_feasible = feasible
        if worker is not None:
            responded[worker] = True
    return everyone


def _check_restored(scheme: Scheme, rng: np.random.Generator) -> None:
    """Require that a schedule restored from a snapshot continues like the original schedule."""
    num_jobs = 3 * scheme.delay + 5
    batches = [int(rng.integers(1, 2 * scheme.n))] * int(rng.integers(2))
    wide = Arbitrary(N=1, W=scheme.delay + 4, lam=scheme.n)
    model = wide if rng.integers(2) else scheme.promise
    one = scheme.begin(num_jobs, conformity=model, batches=batches, payload="float64")
    rates = (rng.choice(_RATES[1:]),)
    cut = int(rng.integers(1, one.num_rounds + 1))
    while one.round < cut:
        _take_late(one, rng)
        one.close_round(_answers(one, rng, conforming=False, rates=rates))
    if cut < one.num_rounds:
        _take_late(one, rng)
    other = scheme.begin(num_jobs, conformity=model, batches=batches, payload="float64")
    name = f"restored in round {cut}"
    with calling(f"a schedule {name}"):
        state = json.dumps(one.snapshot())
        other.restore(json.loads(state))
        assert other.round == cut, f"{name}: the open round is {other.round}"
        assert json.dumps(other.snapshot()) == state, f"{name}: its snapshot differs"
        while one.round < one.num_rounds:
            where = f"differ in round {one.round}"
            for late in _take_late(one, rng) if one.round > cut else ():
                assert other.awaits(*late), f"{name}: the late answers that it awaits {where}"
                other.take_late(*late)
            assert _tasks(one) == _tasks(other), f"{name}: its tasks {where}"
            for rate in _RATES:
                mask = rng.random(one.n) >= rate
                assert _judged(one, mask) == _judged(other, mask), f"{name}: its judgements {where}"
            responded = _answers(one, rng, conforming=False, rates=rates)
            finished = one.close_round(responded)
            assert other.close_round(responded) == finished, f"{name}: its finished jobs {where}"
            for job in finished:
                same = one.decoding(job) == other.decoding(job)
                assert same, f"{name}: job {job} is decoded differently"


def _check_snapshot_size(scheme: Scheme, rng: np.random.Generator) -> None:
    """Require that snapshots do not become larger during a long run."""
    part = 4 * (scheme.delay + 1)
    schedule, sizes = scheme.begin(8 * part), list[int]()
    while schedule.round < 8 * part:
        schedule.close_round(_answers(schedule, rng, conforming=False))
        sizes.append(len(json.dumps(schedule.snapshot())))
    first, last = max(sizes[:part]), max(sizes[-part:])
    line = f"snapshots grow with the rounds: {first} bytes at first, {last} in round {8 * part}"
    assert last <= 2 * first + 200, line


def _tasks(schedule: Schedule) -> list[list[tuple[object, ...]]]:
    """Return the content of each worker's tasks, for comparisons."""
    return [
        [
            (t.job, t.slot, t.chunks.tolist(), t.coefficients.tolist(), t.cover, t.place)
            for t in tasks
        ]
        for tasks in schedule.assignment()
    ]


def _judged(schedule: Schedule, responded: BoolArray) -> tuple[bool, ...]:
    return schedule.conforms(responded), schedule.feasible(responded)


def _check_refusal(scheme: Scheme) -> None:
    """Require that closing a round raises, and changes nothing, if the job due would be lost."""
    schedule = scheme.start(1)
    nobody = np.zeros(scheme.n, dtype=np.bool_)
    while schedule.round < scheme.delay:
        schedule.close_round(nobody)
    if not schedule.feasible(nobody):
        name = "closing a round that loses the job due"
        refuses(name, NotDecodableError, schedule.close_round, nobody)
        assert schedule.round == scheme.delay, "a refused transition must change nothing"


def _check_candidates(scheme: Scheme) -> None:
    """Require that the candidates are of the scheme's class, all different, and in the grid."""
    candidates = list(type(scheme).candidates(scheme.n, Grid(max_delay=3, inexact=True)))
    assert len(set(candidates)) == len(candidates), "candidates must differ from each other"
    for candidate in candidates:
        fits = type(candidate) is type(scheme) and candidate.n == scheme.n and candidate.delay <= 3
        assert fits, f"{candidate} is not in the grid"
        entry_of(candidate)


def _check_replays(scheme: Scheme, rng: np.random.Generator) -> None:
    """Require that the batched replay agrees with the general replay."""
    times = 0.1 + rng.exponential(size=(scheme.delay + 4, scheme.n))
    profile = DelayProfile.from_times(times, meta=ProfileMeta(alpha=0.5))
    rehearsal = Rehearsal(profile=profile, num_jobs=4)
    rules: tuple[WaitOut, ...] = ("all", "conform", "feasible")
    for wait_out in rules:
        rule = ClosingRule(mu=0.2, wait_out=wait_out)
        with calling(f"replay ({wait_out})"):
            alone = replay(Setting(scheme=scheme, rule=rule), rehearsal).round_seconds
            (batch,) = batch_replay([scheme], rehearsal, rule=rule).round_seconds
        same = batch[: len(alone)].tolist() == alone.tolist()
        assert same, f"its batched replay ({wait_out}) differs from its general replay"
