"""The loop: what reaches the workload, and when, whatever the workers send and in what order."""

from __future__ import annotations

import gc
import math
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from seqgc import master
from seqgc.errors import AuditError, NotDecodableError, ScheduleError, WorkerError
from seqgc.master import Held
from seqgc.ports import (
    Action,
    Arrival,
    Backend,
    Close,
    Decoding,
    Dispatch,
    Event,
    Failure,
    Finish,
    Flaw,
    FloatArray,
    MiniTask,
    Notice,
    Seen,
    Task,
    WeightedPoints,
    WorkItem,
    without_diverged,
)
from seqgc.rounds import ClosingRule, RoundPolicy, Setting
from seqgc.rounds import policy_of as policy_under
from seqgc.schemes import GC, Scheme, parse_scheme
from seqgc.search import ReplayBackend
from seqgc.testing import ChunkWorkload, ScriptedBackend
from tests.kit import SOAK

N, JOBS = 6, 7
SPECS = [
    "uncoded",
    "gc:s=2",  # 3 | 6: all coefficients are one
    "gc:s=3",
    "gc-rep:s=2",
    "gc-binary:s=2",
    "gc-binary:s=3",  # two covers
    "sr-sgc:B=1,W=2,lam=2",
    "sr-sgc:B=2,W=3,lam=5",
    "sr-sgc-rep:B=1,W=2,lam=3",
    "m-sgc:B=1,W=2,lam=2",
    "m-sgc:B=2,W=3,lam=3",
    "m-sgc:B=2,W=3,lam=6",
    "m-sgc-rep:B=2,W=3,lam=1",
]
PLAIN = ["uncoded", "gc:s=2", "gc-rep:s=2", "gc-binary:s=2", "sr-sgc-rep:B=1,W=2,lam=3"]


def policy_of(scheme: Scheme, *, jobs: int = JOBS) -> RoundPolicy:
    return RoundPolicy(scheme.start(jobs), ClosingRule(mu=0.1, wait_out="feasible"))


def random_times(rounds: int, *, seed: int) -> FloatArray:
    return 1 + np.random.default_rng(seed).pareto(1.1, size=(rounds, N))


class Babbling:
    """A backend that says everything twice, the second time wrong, and uses its buffers again."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._again: Arrival | None = None
        self.first: dict[tuple[int, int, int], FloatArray] = {}

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        return self._inner.dispatch(round, tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        self._inner.cancel(round, workers)

    def receive(self, until: float) -> Arrival | Failure | None:
        if self._again is not None:
            again, self._again = self._again, None
            for result in again.results.values():
                result[:] = 1e6  # also the buffer of the first time
            return again
        event = self._inner.receive(until)
        if isinstance(event, Arrival):
            self._again = event
            for slot, result in event.results.items():
                self.first[event.worker, event.round, slot] = result.copy()
        return event

    def close(self) -> None:
        self._inner.close()


class Keeping(ChunkWorkload):
    """Keeps the gradients that it is given."""

    def __init__(self, scheme: Scheme, *, seed: int) -> None:
        super().__init__(scheme, seed=seed)
        self.gradients: dict[int, FloatArray] = {}

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        super().finish(decoding, gradient)
        self.gradients[decoding.job] = gradient


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spec", SPECS)
def test_a_gradient_is_the_decodings_sum_of_the_first_answers(spec: str, seed: int) -> None:
    scheme = parse_scheme(spec, n=N)
    workload = Keeping(scheme, seed=seed)
    times = random_times(JOBS + scheme.delay, seed=seed)
    backend = Babbling(ReplayBackend(times, compute=workload.compute))
    expected: dict[int, FloatArray] = {}

    def watch(seen: Event | Action) -> None:
        if isinstance(seen, Finish):
            expected[seen.job] = sum(
                term.weight * backend.first[term.worker, term.round, term.slot]
                for term in seen.decoding().terms
            )

    master.run(policy_of(scheme), backend, workload, observe=watch)
    assert sorted(workload.gradients) == list(range(JOBS))
    for job, gradient in workload.gradients.items():
        np.testing.assert_allclose(gradient, expected[job], rtol=0, atol=1e-11)
    assert max(workload.errors.values()) <= 1e-10


@pytest.mark.parametrize("spec", PLAIN)
def test_where_all_coefficients_are_one_every_result_is_added_when_it_comes(spec: str) -> None:
    assignment = parse_scheme(spec, n=N).start(1).assignment()
    assert {task.cover is None for tasks in assignment for task in tasks} == {False}


def last_number(value: float) -> Callable[[FloatArray], FloatArray]:
    return lambda result: np.append(result[:-1], value)


DAMAGES: dict[str, tuple[Callable[[FloatArray], FloatArray], str]] = {
    "short": (
        lambda result: result[:-1],
        "must be 5 numbers of float64, like all results of job 0; got 4 numbers of float64",
    ),
    "dtype": (
        lambda result: result.astype(np.float32),
        "must be 5 numbers of float64, like all results of job 0; got 5 numbers of float32",
    ),
    "nan": (last_number(math.nan), "model 'm': its results are not finite"),
    "inf": (last_number(-math.inf), "model 'm': its results are not finite"),
    "huge": (last_number(1e300), "a result's norm is 1e+300, above max_norm, 1e+06"),
}


class Faulty(ReplayBackend):
    """Worker 1 answers round 0, after worker 0, with results that are damaged.

    Asked again, it does so again, at once.
    """

    def __init__(self, workload: ChunkWorkload, damage: str = "short") -> None:
        super().__init__(np.cumsum(np.ones((JOBS + 9, N)), axis=1), compute=workload.compute)
        self._damage = DAMAGES[damage][0]
        self._again: list[Arrival] = []
        self._given: Arrival | None = None
        self._now = 0.0

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        if not tasks[0].attempt:
            return super().dispatch(round, tasks)
        assert self._given is not None
        self._again.append(replace(self._given, attempt=tasks[0].attempt, at=self._now))
        return [self._now]

    def receive(self, until: float) -> Arrival | Failure | None:
        event = self._again.pop() if self._again else super().receive(until)
        self._now = until if event is None else event.at
        if isinstance(event, Arrival) and (event.round, event.worker, event.attempt) == (0, 1, 0):
            bad = {slot: self._damage(result) for slot, result in event.results.items()}
            event = self._given = replace(event, results=bad)
        return event


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_result_that_cannot_be_used_is_its_workers_failure(damage: str) -> None:
    scheme = parse_scheme("m-sgc:B=1,W=2,lam=4", n=N)
    workload, seen = ChunkWorkload(scheme, seed=0), []
    policy = RoundPolicy(scheme.start(JOBS), ClosingRule(mu=0.0, wait_out="all", max_attempts=1))
    backend = Faulty(workload, damage)
    master.run(policy, backend, workload, observe=seen.append, max_norm=1e6)
    (failure,) = [event for event in seen if isinstance(event, Failure)]
    assert (failure.worker, failure.round) == (1, 0)
    assert DAMAGES[damage][1] in failure.reason
    assert list(failure.flaws) == ([] if damage in ("short", "dtype") else ["m"])
    assert sorted(workload.errors) == list(range(JOBS))
    assert max(workload.errors.values()) <= 1e-10


class Deceitful(ReplayBackend):
    """Some workers add something of their own to what they answer, now and then."""

    def __init__(self, workload: ChunkWorkload, *, liars: set[int], seed: int) -> None:
        rng = self._rng = np.random.default_rng(seed)
        times = 1 + rng.pareto(1.1, size=(JOBS + 9, N))
        super().__init__(np.minimum(times, 50), compute=workload.compute)
        self._liars = liars

    def receive(self, until: float) -> Arrival | None:
        event = super().receive(until)
        if event is None or event.worker not in self._liars or self._rng.random() < 0.7:
            return event
        lie = self._rng.choice([1e-9, 1.0, -1e200]) * (1 + event.worker)
        return replace(event, results={slot: r + lie for slot, r in event.results.items()})


@pytest.mark.parametrize("spec", ["gc-rep:s=1", "gc-rep:s=2", "gc-binary:s=2", "gc-rep:s=5"])
def test_with_an_audit_no_lie_of_up_to_s_workers_is_applied(spec: str) -> None:
    """Either it is outvoted, or the run ends there and names the workers who differ."""
    scheme, outcomes = parse_scheme(spec, n=N), Counter[str]()
    for seed in range(360 if SOAK else 20):
        rng = np.random.default_rng(seed)
        liars = {int(w) for w in rng.choice(N, size=rng.integers(1, scheme.s + 1))}
        workload, seen = ChunkWorkload(scheme, seed=seed), list[Seen]()
        rule = ClosingRule(mu=0.1, timeout_s=60.0, max_attempts=1)
        policy = RoundPolicy(scheme.start(JOBS), rule, audit=True)
        backend, named = Deceitful(workload, liars=liars, seed=seed), set[int]()
        try:
            master.run(policy, backend, workload, observe=seen.append, audit=True)
        except AuditError as error:
            outcomes["ended"] += 1
            named |= set(error.workers)
        assert not named or named & liars
        expelled = {e.fields["worker"] for e in seen if getattr(e, "kind", "") == "expelled"}
        assert expelled <= liars
        outcomes["expelled"] += bool(expelled)
        assert max(workload.errors.values(), default=0.0) <= 1e-12, "not a lie was applied"
    pairs = spec == "gc-rep:s=1"  # of replicas, among which there is no majority
    assert outcomes["ended" if pairs else "expelled"] > 5


def disputed(held: Held) -> bool:
    """Say whether it has results of one place of which no more than half are equal."""
    votes: defaultdict[object, Counter[bytes]] = defaultdict(Counter)
    for job in held.jobs:
        for key, place in job.summed.items():
            votes[job.job, place][job.stored[key].tobytes()] += 1
    return any(2 * max(cast.values()) <= cast.total() for cast in votes.values())


def test_what_is_in_dispute_is_in_no_checkpoint() -> None:
    """Else every resumed run would compare it, and end there again."""
    scheme, ended = parse_scheme("gc-rep:s=1", n=N), 0
    for seed in range(5):
        workload, held = ChunkWorkload(scheme, seed=seed), list[Held | None]()
        policy = RoundPolicy(scheme.start(JOBS), ClosingRule(max_attempts=1), audit=True)
        backend = Deceitful(workload, liars={seed}, seed=seed)
        try:
            master.run(policy, backend, workload, rest=lambda h: held.append(h()), audit=True)  # noqa: B023
        except AuditError:
            ended += 1
            assert held.count(None), "no checkpoint while it lasts"
        assert not any(map(disputed, filter(None, held)))
        assert sum(len(each.jobs) for each in held if each) > 2
    assert ended > 2


def test_without_a_limit_any_finite_result_is_taken() -> None:
    workload = ChunkWorkload(parse_scheme("uncoded", n=N), seed=0)
    task = MiniTask(job=0, slot=0, chunks=np.array([0]), coefficients=np.ones(1))
    for size, dtype in [(1e300, "float64"), (1.7e308, "float64"), (3e38, "float32")]:
        result = np.full(4, size, dtype=dtype)
        item = WorkItem(slot=0, parts=workload.resolve(task))
        assert without_diverged(item, result)[0] is result
        limit = 1.01 * size
        assert not without_diverged(item, result[:1], max_norm=limit)[1]
        zeros, flaws = without_diverged(item, result, max_norm=limit)
        assert (zeros.tolist(), zeros.dtype, list(flaws)) == ([0.0] * 4, result.dtype, ["m"])


class Parts(ChunkWorkload):
    """Takes gradients that come in parts, too."""

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        if decoding.part is None:
            super().finish(decoding, gradient)


class Trying(ScriptedBackend):
    """All that worker 0 sends first in a round is too large; what it sends next is right.

    Before that, it fails so often as ``resets`` says.
    """

    def __init__(self, workload: ChunkWorkload, *, resets: int = 0) -> None:
        super().__init__({(0, 0, attempt): (0.5, "reset") for attempt in range(resets)})
        self._compute, self._bad = workload.compute, (0, resets)
        self._items: dict[tuple[int, int, int], tuple[WorkItem, ...]] = {}

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        self._items |= {(round, task.worker, task.attempt): task.items for task in tasks}
        return super().dispatch(round, tasks)

    def receive(self, until: float) -> Arrival | Failure | None:
        event = super().receive(until)
        if not isinstance(event, Arrival):
            return event
        items = self._items.pop((event.round, event.worker, event.attempt))
        factor = 1e9 if (event.worker, event.attempt) == self._bad else 1.0
        return replace(event, results={i.slot: factor * self._compute(i.parts) for i in items})


@pytest.mark.parametrize("resets", [0, 1, 4])
@pytest.mark.parametrize("spec", ["uncoded", "backup:b=0"])
def test_the_first_bad_result_is_a_failure_whatever_else_has_failed_before(
    spec: str, resets: int
) -> None:
    workload = ChunkWorkload(scheme := parse_scheme(spec, n=4), seed=0)
    policy = RoundPolicy(scheme.start(1), ClosingRule(wait_out="all", max_attempts=9))
    backend, seen = Trying(workload, resets=resets), list[Seen]()
    master.run(policy, backend, workload, observe=seen.append, max_norm=1e6)
    reasons = [each.reason for each in seen if isinstance(each, Failure)]
    assert [reason == "reset" for reason in reasons] == [True] * resets + [False]
    assert workload.errors[0] < 1e-12


@pytest.mark.parametrize(("spec", "least"), [("uncoded", 900), ("ssp:slack=1", 20)])
def test_what_is_remembered_of_bad_results_ends_with_their_jobs(spec: str, least: int) -> None:
    rounds, of_master, marks, failures = 900, [tracemalloc.Filter(True, "*/master/*")], [], 0
    scheme = parse_scheme(spec, n=4)
    workload = Parts(scheme, seed=0)

    def watch(seen: Seen) -> None:
        nonlocal failures
        failures += isinstance(seen, Failure)
        if isinstance(seen, Close) and seen.record.round in (rounds // 3, rounds - 1):
            traces = tracemalloc.take_snapshot().filter_traces(of_master).traces
            marks.append(sum(trace.size for trace in traces))

    gc.collect()  # memory that Python keeps for tuples is not traced again
    tracemalloc.start()
    try:
        policy = policy_under(Setting(scheme=scheme), num_jobs=rounds)
        master.run(policy, Trying(workload), workload, observe=watch, max_norm=1e6)
    finally:
        tracemalloc.stop()
    assert failures >= least
    assert marks[1] < marks[0] + 30_000, "50 bytes a round"


class Pair(ChunkWorkload):
    """Each job is of two models, of which the second may be parked."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__(scheme, seed=0, size=4)
        self.parked: list[str] = []

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        (part,) = super().resolve(mini_task)
        halves = [replace(part.weights, model=model, size=2) for model in "ab"]
        return tuple(replace(part, model=half.model, weights=half) for half in halves)

    def compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        return super().compute(parts[:1])

    def park(self, names: Sequence[str], *, why: str, kind: str) -> None:  # noqa: ARG002
        self.parked += names

    def unused(self, job: int) -> list[slice]:  # noqa: ARG002
        return [slice(2, 4)] if self.parked else []

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        direct = self.partials(decoding.job).sum(axis=0)
        self.errors[decoding.job] = float(np.linalg.norm((gradient - direct)[:2]))


class Strained(Trying):
    """On workers 1 and 2 the second model has no room; nothing is too large."""

    def __init__(self, workload: ChunkWorkload) -> None:
        super().__init__(workload, resets=-1)

    def receive(self, until: float) -> Arrival | Failure | None:
        event = super().receive(until)
        if not isinstance(event, Arrival) or event.worker not in (1, 2):
            return event
        rest = {slot: np.append(result[:2], [0.0, 0.0]) for slot, result in event.results.items()}
        return replace(event, results=rest, flaws={"b": Flaw(kind="raised", why="no memory")})


@pytest.mark.parametrize(("spec", "n"), [("gc-rep:s=1", 4), ("gc-rep:s=2", 3)])
def test_who_can_compute_a_model_that_others_cannot_is_no_liar(spec: str, n: int) -> None:
    workload = Pair(scheme := parse_scheme(spec, n=n))
    policy = RoundPolicy(scheme.start(3), ClosingRule(timeout_s=60.0), audit=True)
    seen, held = list[Seen](), list[Held | None]()

    def rest(hold: Callable[[], Held | None]) -> None:
        held.append(hold())

    master.run(policy, Strained(workload), workload, observe=seen.append, rest=rest, audit=True)
    assert workload.parked[0] == "b"
    assert not any(isinstance(each, Notice) for each in seen)
    assert len(workload.errors) == 3
    assert max(workload.errors.values()) < 1e-12
    assert None not in held


def test_if_nobody_else_has_its_result_the_run_ends_and_names_it() -> None:
    scheme = parse_scheme("uncoded", n=N)
    workload = ChunkWorkload(scheme, seed=0)
    policy = RoundPolicy(scheme.start(JOBS), ClosingRule(mu=0.0, wait_out="all", max_attempts=1))
    with pytest.raises(WorkerError, match="first failure, worker 1: the result of slot 0 must be"):
        master.run(policy, Faulty(workload), workload)


def test_a_sum_that_overflows_ends_the_run_and_names_the_job() -> None:
    scheme = GC(n=N, s=2, family="rep")
    workload = ChunkWorkload(scheme, seed=0)

    def huge(parts: tuple[WeightedPoints, ...]) -> FloatArray:
        result = workload.compute(parts)
        return result if parts[0].weights.version != 2 else np.full(result.shape, 1.5e308)

    backend = ReplayBackend(np.ones((JOBS, N)), compute=huge)
    with pytest.raises(NotDecodableError, match="job 2: the sum of finite results overflows"):
        master.run(policy_of(scheme), backend, workload)
    assert sorted(workload.errors) == [0, 1]


# ---- decoding while the workers compute (paper, Appendix K.1) -----------------------------------


class Diary:
    """A backend and a workload in one, of ``models`` that take turns; notes what is done when."""

    def __init__(self, scheme: Scheme, *, models: int, seed: int = 0) -> None:
        self.entries: list[tuple[str, int]] = []
        self._inner = ChunkWorkload(scheme, seed=seed)
        times = random_times(JOBS + scheme.delay, seed=seed)
        self._backend = ReplayBackend(times, compute=self._inner.compute)
        self._models = models
        self.resolve = self._inner.resolve
        self.cancel, self.close = self._backend.cancel, self._backend.close

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        self.entries.append(("dispatch", round))
        return self._backend.dispatch(round, tasks)

    def receive(self, until: float) -> Arrival | Failure | None:
        if self.entries[-1][0] != "receive":
            self.entries.append(("receive", 0))
        return self._backend.receive(until)

    def result_form(self, job: int) -> None:  # noqa: ARG002 (the protocol's)
        return None

    def needs(self, job: int, finished: int) -> bool:
        return finished <= job - self._models and (job - finished) % self._models == 0

    def begin(self, job: int) -> None:
        late = [j for j in range(job) if self.needs(job, j) and j not in self._inner.errors]
        assert not late, f"job {job} begins without the gradients of {late}"
        self.entries.append(("begin", job))
        self._inner.begin(job)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        self.entries.append(("finish", decoding.job))
        self._inner.finish(decoding, gradient)

    def observe(self, seen: Event | Action) -> None:
        if isinstance(seen, Close):
            self.entries.append(("close", seen.record.round))
        elif isinstance(seen, Finish):
            self.entries.append(("decode", seen.job))


def diary(spec: str, *, models: int, seed: int = 0) -> list[tuple[str, int]]:
    scheme = parse_scheme(spec, n=N)
    both = Diary(scheme, models=models, seed=seed)
    master.run(policy_of(scheme), both, both, observe=both.observe)
    return both.entries


def test_with_one_model_more_than_needed_gradients_are_made_after_the_next_tasks_left() -> None:
    assert diary("gc-rep:s=2", models=2)[:13] == [
        ("begin", 0),
        ("dispatch", 0),
        ("receive", 0),
        ("close", 0),
        ("decode", 0),
        ("begin", 1),
        ("dispatch", 1),
        ("finish", 0),
        ("receive", 0),
        ("close", 1),
        ("decode", 1),
        ("begin", 2),
        ("dispatch", 2),
    ]


def test_with_no_more_models_than_needed_they_are_made_before() -> None:
    assert diary("gc-rep:s=2", models=1)[:8] == [
        ("begin", 0),
        ("dispatch", 0),
        ("receive", 0),
        ("close", 0),
        ("decode", 0),
        ("finish", 0),
        ("begin", 1),
        ("dispatch", 1),
    ]


@pytest.mark.parametrize("more", [0, 1, 3])
@pytest.mark.parametrize("spec", SPECS)
def test_every_gradient_is_handed_over_as_late_as_is_allowed_and_no_later(
    spec: str, more: int
) -> None:
    """After the next dispatch, unless a job of it needs this gradient or one decoded later."""
    delay = parse_scheme(spec, n=N).delay
    models = delay + 1 + more
    for seed in range(3):
        entries = diary(spec, models=models, seed=seed)
        finished = [job for what, job in entries if what == "finish"]
        assert finished == [job for what, job in entries if what == "decode"]
        assert sorted(finished) == list(range(JOBS))
        for place, (what, job) in enumerate(entries):
            if what != "decode":
                continue
            done = entries.index(("finish", job))
            between = entries[place:done]
            assert "receive" not in [entry for entry, _ in between], "before anything is awaited"
            batch = [j for entry, j in _until_dispatch(entries[place:]) if entry == "decode"]
            begins = [j for entry, j in _until_dispatch(entries[place:]) if entry == "begin"]
            needed = any(j <= b - models and (b - j) % models == 0 for b in begins for j in batch)
            sent = any(entry == "dispatch" for entry, _ in between)
            goes_on = len(_until_dispatch(entries[place:])) < len(entries[place:])
            assert sent == (goes_on and not needed), f"job {job}, {between}"


def _until_dispatch(entries: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return what follows until the next dispatch, or all, if there is none before an answer."""
    for place, (what, _) in enumerate(entries):
        if what == "dispatch":
            return entries[:place]
        if what == "receive":
            break
    return entries


def test_a_workload_without_jobs_to_come_gets_the_last_gradient_before_the_run_ends() -> None:
    assert diary("gc-rep:s=2", models=5)[-1] == ("finish", JOBS - 1)
    assert diary("m-sgc:B=1,W=2,lam=2", models=5)[-1][0] == "finish"


# ---- runs that fail -----------------------------------------------------------------------------


class Failing:
    """A workload and a backend of which one fails at job or round 1."""

    def __init__(self, inner: ChunkWorkload, *, fails: Sequence[str]) -> None:
        self._inner, self._fails = inner, fails
        self._backend = ReplayBackend(np.ones((JOBS, N)), compute=inner.compute)
        self.resolve, self.needs = inner.resolve, inner.needs
        self.result_form = inner.result_form
        self.receive, self.cancel = self._backend.receive, self._backend.cancel
        self.close = self._backend.close

    def _fail(self, what: str, number: int) -> None:
        if what in self._fails and number == self._fails.index(what):
            raise KeyboardInterrupt if what == "interrupt" else OSError(f"no room to {what}")

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        self._fail("dispatch", round - 1)
        self._fail("interrupt", round - 1)
        return self._backend.dispatch(round, tasks)

    def begin(self, job: int) -> None:
        self._fail("begin", job - 1)
        self._inner.begin(job)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        self._fail("finish", decoding.job + 1)
        self._inner.finish(decoding, gradient)


@pytest.mark.parametrize("what", ["dispatch", "begin", "interrupt"])
def test_a_run_that_fails_before_the_next_tasks_left_hands_over_what_was_decoded(what: str) -> None:
    scheme = parse_scheme("gc-rep:s=2", n=N)
    inner = ChunkWorkload(scheme, seed=0)
    failing = Failing(inner, fails=[what])
    error = KeyboardInterrupt if what == "interrupt" else OSError
    with pytest.raises(error) as caught:
        master.run(policy_of(scheme), failing, failing)
    assert list(inner.errors) == [0]
    assert not hasattr(caught.value, "__notes__")


def test_what_cannot_be_handed_over_then_is_a_note_to_the_error_that_ended_the_run() -> None:
    scheme = parse_scheme("gc-rep:s=2", n=N)
    failing = Failing(ChunkWorkload(scheme, seed=0), fails=["dispatch", "finish"])
    with pytest.raises(OSError, match="no room to dispatch") as caught:
        master.run(policy_of(scheme), failing, failing)
    assert caught.value.__notes__ == ["the gradient of job 0 is lost: no room to finish"]


class Mute(RoundPolicy):
    """Sends its first tasks, if it is told to, and answers nothing from then on."""

    def __init__(self, scheme: Scheme, *, sends: bool) -> None:
        super().__init__(scheme.start(JOBS), ClosingRule(mu=0.1))
        self._sends = sends

    @property
    def wake_at(self) -> float:
        return math.inf

    def start(self) -> Sequence[Dispatch]:
        return super().start() if self._sends else []

    def on(self, event: Event) -> Sequence[Action]:  # noqa: ARG002 (it does not care)
        return []


class Endless:
    """A backend of workers who answer once: asked for more, it would wait for ever."""

    def __init__(self) -> None:
        self._left: list[Task] = []

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:  # noqa: ARG002
        self._left += tasks
        return [0.0] * len(tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None: ...

    def receive(self, until: float) -> Arrival:  # noqa: ARG002 (nobody waits)
        assert self._left, "the loop waits for ever"
        task = self._left.pop()
        return Arrival(round=0, worker=task.worker, attempt=0, at=1.0, results={0: np.zeros(1)})


@pytest.mark.parametrize("sends", [False, True])
def test_a_policy_that_waits_for_nothing_ends_the_run(sends: bool) -> None:
    scheme = parse_scheme("uncoded", n=N)
    with pytest.raises(ScheduleError, match="waits for ever: no task is in flight"):
        master.run(Mute(scheme, sends=sends), Endless())
