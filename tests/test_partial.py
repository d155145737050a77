"""A worker that is asked for it answers each mini-task as soon as it is done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from examples.multimessage import MultiMessage
from seqgc import master
from seqgc.backends import Messaging
from seqgc.errors import ParameterError, ScheduleError, WireError
from seqgc.ports import (
    Arrival,
    Cancel,
    Close,
    Decoding,
    Dispatch,
    Dispatched,
    Drop,
    Failure,
    FloatArray,
    MiniTask,
    Notice,
    PartialArrival,
    ResultForm,
    Seen,
    Task,
    Tick,
    Update,
    WeightedPoints,
    WeightRef,
)
from seqgc.profiles import ByInvocation, ByRound, ByTime, DelayProfile, Pace, ProfileMeta
from seqgc.rounds import ClosingRule, Setting, policy_of
from seqgc.search import Rehearsal, replay
from seqgc.testing import ScriptedBackend
from seqgc.testing.scripted import task
from seqgc.virtual import Fault, VirtualBackend
from seqgc.wire import ResultMessage, TaskMessage, decode, encode
from seqgc.workers import InjectedDelays

LOADS = (0.25, 0.125, 0.5)


def asked(worker: int = 0, *, round: int = 0, loads: Sequence[float] = LOADS) -> Task:
    """Return a task that asks for an answer to each of its mini-tasks, of these loads."""
    whole = task(round, worker, *["plain"] * len(loads))
    return replace(whole, load=sum(loads), item_loads=tuple(loads))


def told(backend: VirtualBackend, until: float = 1e6) -> list[tuple[str, float, list[int]]]:
    """Return the kind, the time and the slots of all events until a time."""
    events = []
    while (event := backend.receive(until)) is not None:
        slots = [event.slot] if isinstance(event, PartialArrival) else []
        events.append((type(event).__name__, event.at, slots))
    return events


# ---- virtual time -------------------------------------------------------------------------------


def test_the_k_th_answer_comes_when_a_task_of_the_first_k_would_end() -> None:
    pace = ByRound(latencies_s=[[1.0, 3.0]], rates=[[8.0, 16.0]])
    backend = VirtualBackend(2, pace, workers="function", message_s=0.5)
    backend.dispatch(0, [asked(0), asked(1)])
    # One message to the worker, the latency once, the work of the first k items, one message back.
    first, second = [2.0 + 8.0 * load for load in (0.25, 0.375)], 2.0 + 8.0 * 0.875
    other = [4.0 + 16.0 * load for load in (0.25, 0.375, 0.875)]
    answers = [("PartialArrival", first[0], [0]), ("PartialArrival", first[1], [10])]
    answers += [("Arrival", second, [])]
    answers += [("PartialArrival", other[0], [0]), ("PartialArrival", other[1], [10])]
    answers += [("Arrival", other[2], [])]
    assert told(backend) == sorted(answers, key=lambda answer: answer[1])


@pytest.mark.parametrize(
    "pace",
    [
        ByRound(latencies_s=[[0.5]], rates=[[3.0]]),
        ByTime(rates=[[4.0], [1.0]], width_s=0.75, latencies_s=[[0.25], [0.5]]),
        ByInvocation(before_s=np.array([[0.5]]), after_s=np.array([[0.25]]), rate=2.0),
    ],
)
@pytest.mark.parametrize("kind", ["function", "resident"])
def test_a_prefix_takes_as_long_as_a_task_of_its_load(pace: Pace, kind: Any) -> None:
    """Also behind another task of the worker."""

    def ends(loads: Sequence[float], *, is_asked: bool) -> list[float]:
        backend = VirtualBackend(1, pace, workers=kind)
        backend.dispatch(0, [asked(round=0, loads=(0.5,))])
        sent = asked(round=1, loads=loads)
        backend.dispatch(1, [sent if is_asked else replace(sent, item_loads=())])
        times = []
        while (event := backend.receive(1e6)) is not None:
            times += [event.at] if event.round == 1 else []
        return times

    alone = [ends(LOADS[:count], is_asked=False)[0] for count in (1, 2, 3)]
    assert ends(LOADS, is_asked=True) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("dies", [False, True])
def test_what_was_done_before_a_fault_is_answered(dies: bool) -> None:
    pace = ByRound(latencies_s=[[0.0]], rates=[[8.0]])
    backend = VirtualBackend(1, pace, faults=lambda _: Fault(share=0.5, dies=dies))
    backend.dispatch(0, [asked()])  # it fails after 3.5 s
    expected = [("PartialArrival", 2.0, [0]), ("PartialArrival", 3.0, [10]), ("Failure", 3.5, [])]
    assert told(backend) == expected


def test_what_was_done_before_a_restart_is_answered_and_nothing_else() -> None:
    backend = VirtualBackend(1, ByRound(latencies_s=[[0.0]], rates=[[8.0]]), message_s=1.0)
    backend.dispatch(0, [asked()])
    assert backend.receive(3.5) is None  # the first item was done at 3 s
    backend.restart(0)
    assert told(backend) == [("Failure", 3.5, []), ("PartialArrival", 4.0, [0])]


@pytest.mark.parametrize("kind", ["function", "resident"])
def test_the_rest_of_a_cancelled_task_is_not_answered(kind: Any) -> None:
    backend = VirtualBackend(1, ByRound(latencies_s=[[0.0]], rates=[[8.0]]), workers=kind)
    backend.dispatch(0, [asked()])
    assert isinstance(backend.receive(2.0), PartialArrival)
    backend.cancel(0, [0])
    assert told(backend) == []


# ---- delays of real workers ---------------------------------------------------------------------


def test_injected_delays_are_the_times_of_virtual_workers() -> None:
    meta = ProfileMeta(alpha=8.0, base_load=0.25)
    delays = InjectedDelays(DelayProfile.from_times([[2.5, 3.0]], meta=meta))
    messaging = Messaging(task_delays=lambda task: delays(task.round, task.worker, task.load))
    backend = VirtualBackend(2, ByRound(latencies_s=[[2.5, 3.0]], rates=[[8.0]], base_load=0.25))
    for worker in (0, 1):
        sent = asked(worker)
        message = messaging.message(sent)
        backend.dispatch(0, [sent])
        assert message.delay_s == message.part_delays_s[-1]
        assert message.part_delays_s == pytest.approx([at for _, at, _ in told(backend)[-3:]])
        backend = VirtualBackend(
            2, ByRound(latencies_s=[[2.5, 3.0]], rates=[[8.0]], base_load=0.25)
        )
    assert messaging.message(replace(asked(), item_loads=())).part_delays_s == ()


def test_delays_that_know_no_load_come_before_the_first_answer() -> None:
    message = Messaging(delays=lambda *_: 1.5).message(asked())
    assert message.part_delays_s == (1.5, 1.5, 1.5)


# ---- messages -----------------------------------------------------------------------------------


def test_a_request_for_parts_and_a_part_survive_the_wire() -> None:
    message = TaskMessage(task=asked(), delay_s=3.0, part_delays_s=(1.0, 1.0, 3.0))
    read = decode(encode(message, run_id="r"), run_id="r")
    assert isinstance(read, TaskMessage)
    assert (read.delay_s, read.part_delays_s) == (3.0, (1.0, 1.0, 3.0))
    part = read.result({10: np.array([1.0, 2.0])}, is_last=False)
    back = decode(encode(part, run_id="r"), run_id="r")
    assert isinstance(back, ResultMessage)
    assert (back.is_last, list(back.results), read.delay_of(back)) == (False, [10], 1.0)
    with pytest.raises(WireError, match="is_last"):
        read.check(back)  # only a backend that asks for parts accepts one


@pytest.mark.parametrize(
    "delays_s", [(1.0, 3.0), (2.0, 1.0, 3.0), (1.0, 2.0, 2.5), (-1.0, 1.0, 3.0)]
)
def test_delays_that_do_not_fit_the_task_are_refused(delays_s: tuple[float, ...]) -> None:
    message = TaskMessage(task=asked(), delay_s=3.0, part_delays_s=delays_s)
    with pytest.raises(WireError, match=r"delays of a task's items must be .* 3 items"):
        encode(message, run_id="r")


def test_a_part_with_two_results_is_refused() -> None:
    message = TaskMessage(task=asked(), part_delays_s=(0.0, 0.0, 0.0))
    both = message.result({0: np.ones(2), 10: np.ones(2)}, is_last=False)
    with pytest.raises(WireError, match="one result"):
        decode(encode(both, run_id="r"), run_id="r")


# ---- the loop -----------------------------------------------------------------------------------


class Sums:
    """A workload that adds the parts of each job. Chunk c of job t has the gradient (t + 1, c)."""

    def __init__(self, n: int) -> None:
        self._n = n
        self.sums: dict[int, FloatArray] = {}
        self.parts: dict[int, list[int]] = {}

    def needs(self, job: int, finished: int) -> bool:
        return finished < job

    def begin(self, job: int) -> None:
        assert all(len(parts) == self._n for parts in self.parts.values()), "jobs overlap"
        self.sums[job], self.parts[job] = np.zeros(2), []

    def result_form(self, job: int) -> ResultForm:  # noqa: ARG002 (the protocol's)
        return ResultForm(np.dtype(np.float64), 2)

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        job = mini_task.job
        ref = WeightRef(model="m", version=job, digest="0" * 64, dtype="float64", size=2)
        points, ones = mini_task.chunks, mini_task.coefficients
        return (WeightedPoints(model="m", weights=ref, points=points, coefficients=ones),)

    def compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        (part,) = parts
        return np.array([part.weights.version + 1.0, float(part.points[0])])

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        assert decoding.part is not None
        self.sums[decoding.job] += gradient
        self.parts[decoding.job].append(decoding.part.index)


def multi(n: int, r: int, *, jobs: int = 1, **rule: Any) -> Any:
    setting = Setting(scheme=MultiMessage(n=n, r=r), rule=ClosingRule(**rule))
    return policy_of(setting, num_jobs=jobs)


def test_a_round_closes_on_partial_answers() -> None:
    """Workers 0 and 2 complete nothing, but each of their first chunks counts."""
    script = {(0, 0, 0): [1.0, 60.0], (0, 1, 0): [2.0, 3.0], (0, 2, 0): [2.5, 61.0]}
    seen: list[Seen] = []
    master.run(multi(3, 2), ScriptedBackend(script), observe=seen.append)
    assert [each.at - 100 for each in seen if isinstance(each, PartialArrival)] == [1.0, 2.0, 2.5]
    (close,) = (each for each in seen if isinstance(each, Close))
    assert (close.record.duration_s, close.record.kappa_s) == (2.5, 1.0)
    (cancel,) = (each for each in seen if isinstance(each, Cancel))
    assert cancel.workers == (0, 1, 2)


def test_what_came_twice_is_dropped_and_the_last_answer_counts() -> None:
    script = {(0, 0, 0): [1.0, 2.0], (0, 1, 0): [1.5, 50.0], (0, 2, 0): [40.0, math.inf]}
    seen: list[Seen] = []
    master.run(multi(3, 2), ScriptedBackend(script), observe=seen.append)
    drops = [each.event for each in seen if isinstance(each, Drop)]
    assert [(type(each).__name__, each.worker) for each in drops] == [("Arrival", 0)]
    (close,) = (each for each in seen if isinstance(each, Close))
    assert close.record.duration_s == 40.0


def test_a_failure_leaves_what_was_answered() -> None:
    """Only the chunk that is missing is asked for again."""

    silent = [math.inf, math.inf]
    backend = ScriptedBackend({(0, 0, 0): [1.0, (1.5, "killed")], (0, 1, 0): silent})
    seen: list[Seen] = []
    master.run(multi(2, 2, timeout_s=1e3), backend, observe=seen.append)
    asked_for = [
        (worker, [task.slot for task in tasks])
        for each in seen
        if isinstance(each, Dispatch)
        for worker, tasks in each.assignment.items()
    ]
    assert asked_for == [(0, [0, 1]), (1, [1, 0]), (0, [1])]
    updates = [each.decoding().terms[0] for each in seen if isinstance(each, Update)]
    assert [(term.worker, term.slot) for term in updates] == [(0, 0), (0, 1)]


def test_a_worker_that_answers_in_parts_is_not_silent() -> None:
    script = {(0, 0, 0): [9.0, 18.0, 27.0], (0, 1, 0): [math.inf] * 3, (0, 2, 0): [math.inf] * 3}
    seen: list[Seen] = []
    master.run(multi(3, 3, timeout_s=10.0), ScriptedBackend(script), observe=seen.append)
    ticks = [each.at - 100 for each in seen if isinstance(each, Tick)]
    assert min(ticks) == 10.0  # workers 1 and 2, whose tasks have had no answer
    assert all(each.worker != 0 for each in seen if isinstance(each, Failure))
    (close,) = (each for each in seen if isinstance(each, Close))
    assert close.record.duration_s <= 27.0


@pytest.mark.parametrize("kind", ["function", "resident"])
def test_a_run_that_computes_decides_as_a_replay_does(kind: Any) -> None:
    rng = np.random.default_rng(3)
    n, jobs = 5, 8
    profile = DelayProfile.from_times(
        1 + rng.exponential(size=(jobs, n)), meta=ProfileMeta(alpha=2.0, base_load=1 / n)
    )
    setting = Setting(scheme=MultiMessage(n=n, r=3))
    rehearsal = Rehearsal(profile=profile)
    replayed = replay(setting, rehearsal)
    workload, seen = Sums(n), list[Seen]()
    backend = VirtualBackend(n, rehearsal.pace(), workers=kind, compute=workload.compute)
    master.run(policy_of(setting, num_jobs=jobs), backend, workload, observe=seen.append)
    records = [each.record for each in seen if isinstance(each, Close)]
    if kind == "function":  # as in the replay
        assert [record.duration_s for record in records] == replayed.round_seconds.tolist()
        assert [record.responded.tolist() for record in records] == replayed.responded.tolist()
    assert sum(isinstance(each, PartialArrival) for each in seen) > jobs
    for job in range(jobs):
        assert workload.sums[job].tolist() == [n * (job + 1), sum(range(n))]
        assert sorted(workload.parts[job]) == list(range(n))


class Answering:
    """A backend of one worker whose answers a test chooses, results included."""

    sends_parts = True

    def __init__(self, *answers: tuple[dict[int, FloatArray], bool]) -> None:
        self._answers, self._at = list(answers), 0.0
        self._address = (0, 0)

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        self._address = round, tasks[0].attempt
        return [self._at] * len(tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None: ...

    def close(self) -> None: ...

    def receive(self, until: float) -> Arrival | PartialArrival | Notice:  # noqa: ARG002
        self._at += 1.0
        results, is_last = self._answers.pop(0)
        about = {
            "round": self._address[0], "worker": 0, "attempt": self._address[1], "at": self._at,
        }  # fmt: skip
        if is_last:
            return Arrival(**about, results=results)
        (slot,) = results
        return PartialArrival(**about, slot=slot, results=results)


class OneTask:
    """A policy that sends one task of two mini-tasks, once more after each failure."""

    needs = frozenset({"partial"})
    wake_at = math.inf

    def __init__(self) -> None:
        self.done, self.events, self._attempt = False, list[Any](), 0

    def _send(self) -> list[Dispatch]:
        one = np.ones(1)
        tasks = tuple(
            MiniTask(job=0, slot=c, chunks=np.array([c]), coefficients=one, cover=c) for c in (0, 1)
        )
        loads = np.array([1.0])
        return [
            Dispatch(
                round=0,
                attempt=self._attempt,
                assignment={0: tasks},
                loads=loads,
                item_loads={0: (0.5, 0.5)},
            )
        ]

    def start(self) -> list[Dispatch]:
        return self._send()

    def on(self, event: Any) -> list[Any]:
        if isinstance(event, Dispatched):
            return []
        self.events.append(event)
        if isinstance(event, Failure):
            self._attempt += 1
            return self._send()
        self.done = isinstance(event, Arrival)
        return []


SOUND, LARGE = np.array([1.0, 2.0]), np.array([1e9, 2.0])


@pytest.mark.parametrize("wrong", [LARGE, np.array([1.0, np.nan]), np.array([1.0])])
def test_a_part_that_cannot_be_used_waits_for_the_judgement_of_the_whole(wrong: Any) -> None:
    """The policy hears nothing of it; the task then fails, as any answer with this result."""
    backend = Answering(
        ({0: wrong}, False), ({1: SOUND}, True), ({0: SOUND}, False), ({1: SOUND}, True)
    )
    policy = OneTask()
    master.run(policy, backend, Sums(2), max_norm=1e6)  # type: ignore[arg-type]
    kinds = [type(event).__name__ for event in policy.events]
    assert kinds == ["Failure", "PartialArrival", "Arrival"]


def test_a_part_that_comes_again_is_not_used_again() -> None:
    """As after the process of its worker was replaced; the policy may hear of it."""
    backend = Answering(({0: SOUND}, False), ({0: LARGE}, False), ({1: SOUND}, True))
    policy = OneTask()
    master.run(policy, backend, Sums(2), max_norm=1e6)  # type: ignore[arg-type]
    kinds = [type(event).__name__ for event in policy.events]
    assert kinds == ["PartialArrival", "PartialArrival", "Arrival"]


def test_a_last_answer_that_lacks_a_result_is_a_failure() -> None:
    backend = Answering(({1: SOUND}, True), ({0: SOUND}, False), ({1: SOUND}, True))
    policy = OneTask()
    master.run(policy, backend, Sums(2))  # type: ignore[arg-type]
    assert "lacks the result of slot 0" in policy.events[0].reason


# ---- who is refused -----------------------------------------------------------------------------


class Plain(Answering):
    sends_parts = False


def test_a_backend_that_cannot_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ParameterError, match=r"answer each mini-task .* got 'Plain' \(use local"):
        master.run(OneTask(), Plain())  # type: ignore[arg-type]
    policy = OneTask()
    policy.needs = frozenset()
    with pytest.raises(ScheduleError, match=r'Plain cannot .* capability "partial"'):
        master.run(policy, Plain())  # type: ignore[arg-type]


@pytest.mark.parametrize("loads", [(0.5,), (0.5, -0.5), ()])
def test_loads_that_do_not_fit_the_mini_tasks_are_refused(loads: tuple[float, ...]) -> None:
    class Wrong(OneTask):
        def _send(self) -> list[Dispatch]:
            return [replace(each, item_loads={0: loads}) for each in super()._send()]

    with pytest.raises(ScheduleError, match=r"`item_loads` of round 0 .* 2 mini-tasks of worker 0"):
        master.run(Wrong(), Answering())  # type: ignore[arg-type]
