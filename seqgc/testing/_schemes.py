"""`check_scheme`: whether a scheme keeps its contract, whoever straggles."""

from __future__ import annotations

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
_SLACK: Final = 1e-12  # of sums of fractions
_RATES: Final = (0.0, 0.1, 0.3, 0.6)  # of stragglers, in the patterns that are drawn
_LATE: Final = 0.3  # of the answers that came late
_SIZE: Final = 3  # parameters of the partial gradients


def check_scheme(scheme: Scheme, *, patterns: int = 20, seed: int = 0) -> None:
    """Check that a scheme keeps the contract of `seqgc.schemes.Scheme` and `Schedule`.

    It is a value (frozen, picklable, ``eval(repr(x)) == x``, spelt by its spec); its tasks touch no
    more than its loads say, with nominal batches and with batches that are cut to whole points;
    every job is decoded once, by its deadline and correctly, from results that have arrived, over
    random patterns of stragglers and late answers; more answers never hurt; what conforms loses no
    job; a refused transition changes nothing; a run that repeats its first rounds goes on as
    before; what a search may know of it is what a replay does. A scheme that is not exact must stay
    within the error that it reports, and name the chunks that are lost. Take few workers: each of
    the ``patterns``, drawn from ``seed``, is followed round by round.

    `AssertionError` says in one line what is broken, in which round, with which seed.

    Examples
    --------
    >>> from seqgc.schemes import MSGC
    >>> check_scheme(MSGC(n=5, B=1, W=2, lam=2), patterns=3)
    """
    with complaining(repr(scheme), f" (seed {seed})"):
        _check_content(scheme)
        for number in range(patterns):
            # Draw what conforms, or whatever loses no job.
            _check_run(scheme, np.random.default_rng([seed, number]), conforming=bool(number % 2))
            _check_repetition(scheme, np.random.default_rng([seed, number, 1]))
        _check_refusal(scheme)
        _check_candidates(scheme)
        _check_replays(scheme, np.random.default_rng(seed))


def _check_content(scheme: Scheme) -> None:
    """Require a frozen value that its spec spells, and numbers of the right kind."""
    names = vars(seqgc.schemes) | {type(scheme).__name__: type(scheme)}
    list(check_value(scheme, names, field="n"))
    with calling("reading its spec"):  # which looks at loads, fractions, delay and promise
        assert parse_scheme(scheme.spec, n=scheme.n) == scheme, "must be what its spec names"
    for name in ("worker_loads", "chunk_fractions"):
        assert not getattr(scheme, name).flags.writeable, f"{name} must be read-only"
    assert type(scheme.delay) is int, "delay must be an int"
    assert isinstance(scheme.promise, StragglerModel), "promise must be a StragglerModel"
    if scheme.exact:
        least = scheme.load_lower_bound
        line = f"no exact scheme keeps this promise below load {least:.6g}"
        assert scheme.normalized_load >= least * (1 - _SLACK), line


def _check_run(scheme: Scheme, rng: np.random.Generator, *, conforming: bool) -> None:
    """Follow one run through a random pattern; every job is decoded once, in time and right."""
    run = _Followed(scheme, rng)
    schedule, finished = run.schedule, list[int]()
    while schedule.round < schedule.num_rounds:
        round = schedule.round
        run.begin_round()
        run.take(_take_late(schedule, rng))
        responded = _answers(schedule, rng, conforming=conforming)
        run.used.append(responded & ~schedule.excused)
        for job in schedule.close_round(responded):
            in_time = job <= round <= job + scheme.delay
            assert in_time, f"round {round} finishes job {job}, not between its rounds"
            assert job not in finished, f"job {job} is finished twice"
            finished.append(job)
            run.check_gradient(schedule.decoding(job))
    left = sorted(set(range(schedule.num_jobs)) - set(finished))
    assert not left, f"jobs {left} are never finished"


class _Followed:
    """One run of a scheme, on nominal batches or on one that is cut to whole points."""

    def __init__(self, scheme: Scheme, rng: np.random.Generator) -> None:
        self._scheme = scheme
        batches = [int(rng.integers(1, 4 * scheme.n))] * int(rng.integers(2))
        self.schedule = scheme.begin(scheme.delay + 3, batches=batches)
        self._fractions, self._most = scheme.chunk_fractions, scheme.worker_loads
        self._charges_points = True  # False: loads are nominal, also where a batch is cut to points
        for size in batches:
            self._fractions, self._most = scheme.cut(size) / size, scheme.loads_of(size)
            self._charges_points = scheme.points_touched(scheme.cut(size)) is not None
        shape = (self.schedule.num_jobs, len(self._fractions), _SIZE)
        self._partials = rng.normal(size=shape) * (self._fractions > 0)[:, None]
        self._assignments: list[Assignment] = []
        self.used: list[BoolArray] = []  # by round: workers whose answers have arrived (n,)

    def begin_round(self) -> None:
        """Check the tasks of the open round."""
        self._assignments.append(self.schedule.assignment())
        self._check_tasks(self._assignments[-1])

    def take(self, late: list[LateAnswer]) -> None:
        """Record answers to closed rounds that the schedule has taken."""
        for round, worker in late:
            self.used[round][worker] = True

    def _check_tasks(self, assignment: Assignment) -> None:
        """Tasks are of jobs in flight, of known chunks, and touch no more than the loads say."""
        scheme, schedule, fractions = self._scheme, self.schedule, self._fractions
        round = schedule.round
        assert len(assignment) == scheme.n, f"round {round} must have a task for each worker"
        in_flight = range(max(0, round - scheme.delay), min(round + 1, schedule.num_jobs))
        loads = schedule.loads()
        within = loads.shape == (scheme.n,) and (loads <= self._most * (1 + 1e-9)).all()
        line = f"round {round}: loads must be {scheme.n} numbers, none above what loads_of says"
        assert within, line
        for worker, (tasks, load) in enumerate(zip(assignment, loads, strict=True)):
            where = f"round {round}, worker {worker}"
            assert len({task.slot for task in tasks}) == len(tasks), (
                f"{where}: a slot is used twice"
            )
            for task in tasks:
                assert task.job in in_flight, f"{where}: job {task.job}"
                known = ((task.chunks >= 0) & (task.chunks < len(fractions))).all()
                assert known, f"{where}: chunks {task.chunks} of {len(fractions)}"
                paired = task.chunks.shape == task.coefficients.shape
                assert paired, f"{where}: each chunk must have its coefficient"
            touched = sum(float(fractions[task.chunks].sum()) for task in tasks)
            exceeds = self._charges_points and touched > load * (1 + 1e-9)
            assert not exceeds, f"{where}: touches {touched:.6g}, above its load {load:.6g}"

    def check_gradient(self, decoding: Decoding) -> None:
        """Require that the decoding's sum is the job's gradient, up to the reported error."""
        job, gradient, held = decoding.job, np.zeros(_SIZE), set[int]()
        partials = self._partials[job]
        for term in decoding.terms:
            tasks = {t.slot: t for t in self._assignments[term.round][term.worker]}
            owed = term.slot in tasks and tasks[term.slot].job == job
            assert owed, f"job {job} uses what nobody was asked for: {term}"
            assert self.used[term.round][term.worker], f"job {job} uses what has not come: {term}"
            task = tasks[term.slot]
            gradient += term.weight * (task.coefficients @ partials[task.chunks])
            held.update(task.chunks[task.coefficients * term.weight != 0].tolist())
        self._check_lost(decoding, held)
        direct = partials.sum(axis=0)
        missed = float(np.linalg.norm(gradient - direct))
        if self._scheme.exact:
            assert decoding.error == 0, f"job {job} reports an error, and is exact"
            right = missed <= _TOLERANCE * max(1.0, float(np.linalg.norm(direct)))
            assert right, f"job {job}: the decoded gradient is off by {missed:.3g}"
            return
        fractions = self._scheme.chunk_fractions[:, None]
        spread = float(np.sqrt((partials**2 / np.where(fractions > 0, fractions, np.inf)).sum()))
        bound = decoding.error * spread * (1 + _TOLERANCE) + _TOLERANCE
        assert missed <= bound, f"job {job}: off by {missed:.3g}, above its bound"

    def _check_lost(self, decoding: Decoding, held: set[int]) -> None:
        """Require that ``lost`` names the chunks that no term holds, and no others."""
        job, lost = decoding.job, set(decoding.lost)
        without = set(range(len(self._fractions))) - held
        known = len(lost) == len(decoding.lost) and without.issuperset(lost)
        line = f"job {job}: lost are chunks that no term holds, each once, and not {decoding.lost}"
        assert known, line
        if not self._scheme.exact:  # else the gradient is wrong
            unnamed = sorted(k for k in without - lost if self._fractions[k] > 0)
            assert not unnamed, f"job {job}: chunks {unnamed} are lost, and not named (lost)"


def _take_late(schedule: Schedule, rng: np.random.Generator) -> list[LateAnswer]:
    """Take some answers to closed rounds, in any order, if they are of use."""
    closed = range(max(0, schedule.round - schedule.num_rounds + schedule.num_jobs), schedule.round)
    pairs = [(round, worker) for round in closed for worker in range(schedule.n)]
    taken: list[LateAnswer] = []
    for index in rng.permutation(len(pairs)) if schedule.takes_late else ():
        round, worker = pairs[index]
        if rng.random() < _LATE and schedule.awaits(round, worker):
            assert schedule.asked(round)[worker], (
                f"worker {worker}, round {round}: awaited, unasked"
            )
            schedule.take_late(round, worker)
            again = schedule.awaits(round, worker)
            assert not again, f"worker {worker}, round {round}: awaited though it has come"
            taken.append(pairs[index])
    return taken


def _answers(
    schedule: Schedule,
    rng: np.random.Generator,
    *,
    conforming: bool,
    rates: Sequence[float] = _RATES,
) -> BoolArray:
    """Draw who answers: one worker after another, until the round may close.

    On the way, more answers must never hurt, and where all conforms no job may be lost.
    """
    everyone = np.ones(schedule.n, dtype=np.bool_)
    where = f"round {schedule.round}"
    assert schedule.feasible(everyone), f"{where}: all answers must suffice"
    responded: BoolArray = rng.random(schedule.n) >= rng.choice(rates)
    was_feasible = False
    for worker in (*rng.permutation(schedule.n), None):
        conforms, feasible = schedule.conforms(responded), schedule.feasible(responded)
        assert feasible or not was_feasible, f"{where}: one more answer hurts"
        if conforms and conforming:  # what went before conforms, too
            assert feasible, f"{where}: what conforms must lose no job"
        if conforms if conforming else feasible:
            return responded
        was_feasible = feasible
        if worker is not None:
            responded[worker] = True
    return everyone


def _check_repetition(scheme: Scheme, rng: np.random.Generator) -> None:
    """Require a schedule that repeats rounds to go on as the one did which closed them at first.

    It may be told which jobs these finished, or not.
    """
    reach = scheme.start(1)._reach or 1  # None: nothing is left out
    num_jobs = 2 * (reach + scheme.delay) + 1
    batches = [int(rng.integers(1, 2 * scheme.n))] * int(rng.integers(2))
    wide = Arbitrary(N=1, W=reach + 3, lam=scheme.n)  # what the state forgets, this still judges
    model = wide if rng.integers(2) else scheme.promise
    one = scheme.begin(num_jobs, conformity=model, batches=batches, payload="float64")
    rates = (rng.choice(_RATES[1:]),)  # the same in every round: what is remembered lasts longest
    cut = int(rng.integers(reach, one.num_rounds + 1))
    answers: list[BoolArray] = []
    late: dict[int, list[LateAnswer]] = {}
    finished: tuple[int, ...] = ()
    known: dict[int, tuple[int, ...]] = {}
    knows = rng.integers(2)
    while one.round < cut:
        late[one.round] = _take_late(one, rng)
        answers.append(_answers(one, rng, conforming=False, rates=rates))
        finished = one.close_round(answers[-1])
        if knows:
            known[one.round - 1] = finished
    other = scheme.begin(num_jobs, conformity=model, batches=batches, payload="float64")
    name = f"going on after {cut} repeated rounds"
    with calling(name):
        other.repeat(answers, late, known)
        assert other.round == cut, f"{name}: the open round is {other.round}"
        while True:
            for job in finished:
                same = one.decoding(job) == other.decoding(job)
                assert same, f"{name}: job {job} is decoded otherwise"
            if one.round == one.num_rounds:
                return
            where = f"otherwise in round {one.round}"
            assert _tasks(one) == _tasks(other), f"{name}: it asks {where}"
            for rate in _RATES:
                mask = rng.random(one.n) >= rate
                assert _judged(one, mask) == _judged(other, mask), f"{name}: it judges {where}"
            responded = _answers(one, rng, conforming=False, rates=rates)
            finished = one.close_round(responded)
            assert other.close_round(responded) == finished, f"{name}: it finishes {where}"


def _tasks(schedule: Schedule) -> list[list[tuple[object, ...]]]:
    """Return what each worker is asked for, to be compared."""
    return [
        [
            (t.job, t.slot, t.chunks.tolist(), t.coefficients.tolist(), t.cover, t.place)
            for t in tasks
        ]
        for tasks in schedule.assignment()
    ]


def _judged(schedule: Schedule, responded: BoolArray) -> tuple[bool, ...]:
    of = schedule
    return of.conforms(responded), of.feasible(responded)


def _check_refusal(scheme: Scheme) -> None:
    """Require that a round which would lose the job due does not close, or change anything."""
    schedule = scheme.start(1)
    nobody = np.zeros(scheme.n, dtype=np.bool_)
    while schedule.round < scheme.delay:
        schedule.close_round(nobody)
    if not schedule.feasible(nobody):
        name = "closing a round that loses the job due"
        refuses(name, NotDecodableError, schedule.close_round, nobody)
        assert schedule.round == scheme.delay, "a round that is refused must change nothing"


def _check_candidates(scheme: Scheme) -> None:
    """Require what a search is offered to be of this class, distinct, and within the grid."""
    found = list(type(scheme).candidates(scheme.n, Grid(max_delay=3, inexact=True)))
    assert len(set(found)) == len(found), "candidates must differ"
    for candidate in found:
        fits = type(candidate) is type(scheme) and candidate.n == scheme.n and candidate.delay <= 3
        assert fits, f"{candidate} is not in the grid"
        entry_of(candidate)


def _check_replays(scheme: Scheme, rng: np.random.Generator) -> None:
    """Require the batched replay to decide what the general one does."""
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
        assert same, f"replayed with others ({wait_out}) it decides otherwise"
