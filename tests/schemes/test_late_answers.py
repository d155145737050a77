"""Late answers: gradients are exact under every pattern and every order in which they come."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from seqgc.errors import NotDecodableError, ScheduleError
from seqgc.master import Gatherer
from seqgc.ports import BoolArray, Decoding, FloatArray, LateAnswer, MiniTask
from seqgc.schemes import RASGC, Assignment, Schedule, Scheme, parse_scheme
from seqgc.schemes.ra_sgc import RASGCSchedule
from tests.kit import SOAK
from tests.schemes.patterns import masks

pytestmark = pytest.mark.timeout(0 if SOAK else 180)

TAKING = [
    "ra-sgc:s=0,q=0.5,r=2",
    "ra-sgc:s=1,q=0.5,r=3,p=3",
    "m-sgc:B=2,W=3,lam=2,late=take",
    "m-sgc-binary:B=1,W=3,lam=1,late=take",
    "m-sgc:B=1,W=2,lam=5,late=take",
    "sr-sgc:B=2,W=3,lam=3,late=take",
]
"""Of five workers."""


class Master:
    """What a master does with a schedule, results and all; partial gradients are integers.

    Results are gathered as they come, in the order of the answers, whatever they are good for. Sums
    of plain results are exact then, so that one that were added twice would show.
    """

    def __init__(self, scheme: Scheme, num_jobs: int) -> None:
        self.schedule = scheme.start(num_jobs)
        rng = np.random.default_rng(num_jobs)
        self.partials = rng.integers(1, 1000, (num_jobs, len(scheme.chunk_fractions), 2))
        self.given: tuple[Assignment, ...] = ()
        self.came: tuple[LateAnswer, ...] = ()  # all answers that were taken, in their order
        self.history = b""  # who responded in the closed rounds
        self.finished: tuple[int, ...] = ()

    def taking(self, late: Sequence[LateAnswer]) -> Master:
        """Return the master of the open round after late answers, in this order."""
        new = copy.copy(self)
        new.schedule = copy.copy(self.schedule)
        new.given = (*self.given, self.schedule.assignment())
        for each in late:
            new.schedule.take_late(*each)
        new.came = (*self.came, *late)
        return new

    def closing(self, responded: BoolArray) -> Master:
        """Return the master after the round, of which `taking` is to be called first."""
        new, round = copy.copy(self), self.schedule.round
        new.schedule = copy.copy(self.schedule)
        finished = new.schedule.close_round(responded)
        own = [(round, int(worker)) for worker in np.flatnonzero(responded)]
        new.came, new.history = (*self.came, *own), self.history + responded.tobytes()
        for job in finished:
            new.check(new.schedule.decoding(job))
        new.finished += finished
        return new

    def check(self, decoding: Decoding) -> None:
        """Require what is gathered and combined to be the gradient."""
        gatherer, job = Gatherer(), decoding.job
        owed = [
            (round, worker, [task for task in self.given[round][worker] if task.job == job])
            for round, worker in self.came
            if round >= job
        ]
        for round, worker, mine in owed:
            gatherer.expect(round, mine, worker=worker)
        for round, worker, mine in owed:
            for task in mine:
                gatherer.take(task, self.result(task), worker=worker, round=round)
        gradient, direct = gatherer.combine(decoding), self.partials[job].sum(axis=0)
        if isinstance(self.schedule, RASGCSchedule):
            assert gradient.tolist() == direct.tolist(), decoding
        else:
            np.testing.assert_allclose(gradient, direct, rtol=1e-9)

    def result(self, task: MiniTask) -> FloatArray:
        summed: FloatArray = task.coefficients @ self.partials[task.job][task.chunks]
        return summed.astype(np.float64)


def awaited(schedule: Schedule) -> list[LateAnswer]:
    """Which answers to closed rounds would be of use now."""
    pairs = itertools.product(range(schedule.round), range(schedule.n))
    return [pair for pair in pairs if schedule.awaits(*pair)]


def orders(schedule: Schedule) -> Iterator[tuple[LateAnswer, ...]]:
    """Every order of every set of late answers each of which is of use when it comes."""
    yield ()
    for late in awaited(schedule):
        after = copy.copy(schedule)
        after.take_late(*late)
        yield from ((late, *rest) for rest in orders(after))


def state(schedule: Schedule, start: Schedule) -> bytes:
    """Return all that a schedule goes by which the start of its run did not say."""
    now, then = vars(schedule), vars(start)
    unsaid = [name for name in now if now[name] is not then[name] and name != "_finished"]
    return pickle.dumps([(name, now[name]) for name in unsaid])


@pytest.mark.parametrize("spec", ["s=0,q=0.5,r=1", "s=0,q=0.5,r=2,p=2", "s=1,q=0.5,r=2"])
def test_ra_sgc_is_exact_whoever_straggles_and_however_late_answers_come(spec: str) -> None:
    """Exhaustively, for three workers and five rounds (three by default).

    What came late decides nothing once its job is finished: runs in which the same workers
    responded in every round are in the same state, and go on as one.
    """
    scheme = parse_scheme(f"ra-sgc:{spec}", n=3)
    num_jobs = 4 if SOAK else 2
    runs, closed, refused = [Master(scheme, num_jobs)], 0, 0
    start = runs[0].schedule
    for _ in range(num_jobs + 1):
        following: dict[bytes, tuple[Master, bytes]] = {}
        for run in runs:
            for late in orders(run.schedule):
                opened = run.taking(late)
                for responded in masks(scheme.n):
                    is_feasible = opened.schedule.feasible(responded)
                    try:
                        after = opened.closing(responded)
                    except NotDecodableError:
                        refused += 1
                        assert not is_feasible
                        continue
                    assert is_feasible
                    closed, reached = closed + 1, state(after.schedule, start)
                    _, same = following.setdefault(after.history, (after, reached))
                    assert reached == same
        runs = [run for run, _ in following.values()]
    print(f"{spec}: {len(runs)} patterns, {closed} rounds closed, {refused} refused")
    assert refused > 0
    assert len(runs) == 2 ** (scheme.n * (num_jobs + 1)), (
        "every pattern, some with late answers only"
    )
    for run in runs:
        assert sorted(run.finished) == list(range(num_jobs))


def random_run(scheme: Scheme, rng: np.random.Generator) -> int:
    """Follow a run through random rounds; return how many late answers it took."""
    run, taken = Master(scheme, scheme.delay + 3), 0
    rate = rng.choice([0.2, 0.5, 0.8, 1.0])
    while run.schedule.round < run.schedule.num_rounds:
        late: list[LateAnswer] = []
        trial = copy.copy(run.schedule)
        while (useful := awaited(trial)) and rng.random() < 0.7:
            late.append(useful[rng.integers(len(useful))])
            trial.take_late(*late[-1])
        responded = rng.random(scheme.n) >= rate
        for worker in rng.permutation(scheme.n):
            if trial.feasible(responded):
                break
            responded[worker] = True
        run = run.taking(late).closing(responded)
        taken += len(late)
    assert sorted(run.finished) == list(range(run.schedule.num_jobs))
    return taken


def test_ra_sgc_is_exact_in_random_runs_of_up_to_twelve_workers() -> None:
    taken = 0
    for seed in range(100_000 if SOAK else 60):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 13))
        scheme = RASGC(
            n=n,
            s=int(rng.integers(n)),
            q=float(rng.choice([0.2, 0.5, 0.8, 1.0])),
            r=int(rng.integers(1, n + 1)),
            p=int(rng.integers(1, min(n, 4) + 1)),
        )
        taken += random_run(scheme, rng)
    print(f"{seed + 1} runs, {taken} late answers taken")
    assert taken > 20


@pytest.mark.parametrize("spec", TAKING)
def test_whoever_takes_late_answers_is_exact(spec: str) -> None:
    scheme, taken = parse_scheme(spec, n=5), 0
    for seed in range(2000 if SOAK else 10):
        taken += random_run(scheme, np.random.default_rng(seed))
    assert taken > 3


@pytest.mark.parametrize("spec", TAKING)
def test_an_answer_of_no_use_is_refused_and_changes_nothing(spec: str) -> None:
    schedule = parse_scheme(spec, n=5).start(4)
    everyone = np.ones(5, dtype=np.bool_)
    for late in ((0, 0), (1, 0), (-1, 0)):
        with pytest.raises(ScheduleError, match="drop it"):
            schedule.take_late(*late)
    schedule.close_round(np.array([True, False, False, False, True]))
    before = copy.copy(schedule)
    schedule.take_late(0, 3)
    assert not schedule.awaits(0, 3), "it has come"
    assert before.awaits(0, 3), "a snapshot is one"
    for late in ((0, 3), (0, 0), (1, 0), (0, 5), (0, -1)):
        with pytest.raises(ScheduleError, match="drop it"):
            schedule.take_late(*late)
    while schedule.round < schedule.num_rounds:
        schedule.close_round(everyone)
    assert not awaited(schedule)


def test_what_takes_none_awaits_none() -> None:
    for spec in ("ra-sgc:s=0,q=0.5,r=2,late=drop", "m-sgc:B=2,W=3,lam=2", "gc:s=2"):
        schedule = parse_scheme(spec, n=5).start(3)
        schedule.close_round(np.arange(5) > 1)
        assert not awaited(schedule)


# ---- RA-SGC's dealing ----------------------------------------------------------------------------


def test_what_is_missing_is_dealt_to_those_who_were_late_least() -> None:
    """Four workers, a chunk each: 0 and 1 are late, then 0; 2 and 3, and then 1, stand in."""
    schedule = RASGC(n=4, s=0, q=0.5, r=2).start(3)
    schedule.close_round(np.array([False, False, True, True]))
    # Chunks 0 and 1 of job 0, each to two holders: the workers in order of their records.
    dealt = [[(t.job, t.place) for t in tasks if t.slot == 1] for tasks in schedule.assignment()]
    assert dealt == [[(0, 0)], [(0, 1)], [(0, 0)], [(0, 1)]]
    assert schedule.loads().tolist() == [0.5] * 4
    schedule.close_round(np.array([False, True, True, True]))
    dealt = [[(t.job, t.place) for t in tasks if t.slot == 1] for tasks in schedule.assignment()]
    assert dealt == [[], [], [(1, 0)], [(1, 0)]]
    assert schedule.loads().tolist() == [0.25, 0.25, 0.5, 0.5]


def test_a_missing_chunk_is_dealt_in_parts_as_far_as_there_are_workers() -> None:
    schedule = RASGC(n=6, s=0, q=0.5, r=1, p=3).start(3)
    schedule.close_round(np.array([False, True, True, True, True, True]))
    parts = [t.chunks.tolist() for tasks in schedule.assignment() for t in tasks if t.slot == 1]
    assert sorted(parts) == [[0], [1], [2]]
    assert sorted(schedule.loads()) == pytest.approx([1 / 6] * 3 + [1 / 6 + 1 / 18] * 3)
    schedule.close_round(np.array([True, True, True, True, False, True]))
    schedule.close_round(np.ones(6, dtype=np.bool_))
    assert schedule.round == 3


def test_the_last_round_has_as_many_holders_as_there_are_workers() -> None:
    schedule = RASGC(n=6, s=0, q=0.5, r=1).start(1)
    schedule.close_round(np.array([False, False, True, True, True, True]))
    dealt = [[t.place for t in tasks] for tasks in schedule.assignment()]
    assert sorted(itertools.chain(*dealt)) == [0, 0, 0, 1, 1, 1]
    assert schedule.loads().tolist() == [1 / 6] * 6


def test_a_share_of_the_own_job_is_waited_for_and_not_needed() -> None:
    schedule = RASGC(n=4, s=1, q=0.75, r=1).start(2)  # two chunks, both wanted
    one, both = np.array([True, False, True, False]), np.array([True, True, False, False])
    assert schedule.feasible(one), "no job is lost"
    assert not schedule.enough(one)
    assert schedule.enough(both)
