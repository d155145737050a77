"""Functions that stay, played by the test: whatever they do, each task is an event, once."""

from __future__ import annotations

import queue
import resource
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from seqgc.backends import MonotonicClock
from seqgc.backends.lambda_ import Reply, ResidentBackend, Staying, ThrottlePolicy
from seqgc.errors import ParameterError, SkewError, WorkerError
from seqgc.ports import Arrival, Clock, Failure, Leases
from seqgc.testing import PATIENCE_S, eventually
from seqgc.testing.scripted import task
from seqgc.wire import (
    CancelMessage,
    InvokeMessage,
    LeaveMessage,
    Message,
    ReadyMessage,
    ResultMessage,
    StayMessage,
    StoreRef,
    WorkloadRef,
    decode,
    decode_invocation,
    encode,
    from_json,
)
from tests.backends.lambda_.caller import Caller

RUN = "run"
BEAT_S = 60.0  # nobody is silent for long enough: the tests' functions do not beat


class Function:
    """A function that the test plays: it calls, and says what it is told to."""

    def __init__(self, tag: int, asked: StayMessage) -> None:
        self.tag, self.asked = tag, asked
        sock = socket.create_connection((asked.host, asked.port), timeout=PATIENCE_S)
        self._caller = Caller(sock)
        self._caller.prove(bytes.fromhex(asked.call), bytes.fromhex(asked.token))

    def say(self, message: Message, *, run_id: str = RUN) -> None:
        self._caller.send(encode(message, run_id=run_id))

    def ready(self, problem: str = "", *, final: bool = False) -> Function:
        self.say(ReadyMessage(worker=self.asked.worker, problem=problem, final=final))
        return self

    def hears(self) -> Any:
        return decode(self._caller.frame(), run_id=RUN)

    def answers(self, asked: InvokeMessage) -> None:
        results = {item.slot: np.ones(3) for item in asked.request.task.items}
        self.say(asked.request.result(results))

    def is_hung_up_on(self) -> bool:
        self._caller.rest()
        return True

    def dies(self) -> None:
        self._caller.sock.close()


class Invoked:
    """A transport on which invocations are functions that the test plays."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, StayMessage]] = []
        self._replies: list[Reply] = []
        self._woken = threading.Event()
        self._all: list[Function] = []

    def submit(self, tag: int, body: bytes) -> None:
        message = decode_invocation(from_json(body))[1]
        assert isinstance(message, StayMessage)
        self.asked.append((tag, message))
        self._woken.set()

    def flush(self) -> None:
        pass

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        self._woken.wait(min(timeout_s, 1.0))
        self._woken.clear()
        replies, self._replies = self._replies, []
        return replies

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        for each in self._all:
            each.dies()

    def next(self) -> Function:
        """The function that was invoked first, of those that have not called."""
        tag, asked = eventually(lambda: self.asked and self.asked.pop(0), "an invocation")
        self._all.append(Function(tag, asked))
        return self._all[-1]

    def reply(self, tag: int, **what: Any) -> None:
        self._replies.append(Reply(tag=tag, at=0.0, **what))
        self._woken.set()


class Play:
    """A backend of one worker, listened to by a thread, and the functions that stand for it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.transport, self._clock = Invoked(), clock or MonotonicClock()
        first: list[Function] = []
        helper = threading.Thread(target=lambda: first.append(self.transport.next().ready()))
        helper.start()
        self.backend = opened(self.transport, self._clock)
        helper.join()
        self.function = first[0]
        self.events: queue.SimpleQueue[Arrival | Failure] = queue.SimpleQueue()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over.wait(0.001):
            with self._lock:
                event = self.backend.receive(self._clock.now())
            if event is not None:
                self.events.put(event)

    def dispatch(self, round: int) -> None:
        with self._lock:
            self.backend.dispatch(round, [task(round, 0)])

    def ask(self, round: int) -> InvokeMessage:
        """Dispatch a task, and return what the function hears of it."""
        self.dispatch(round)
        asked = self.function.hears()
        assert isinstance(asked, InvokeMessage)
        return asked

    def cancel(self, round: int) -> None:
        with self._lock:
            self.backend.cancel(round, [0])

    def restart(self) -> None:
        with self._lock:
            self.backend.restart(0)

    def serves(self, function: Function) -> Function:
        self.function = function.ready()
        eventually(lambda: self.backend.ready[0], "being ready")
        return function

    def loses_it(self) -> bool:
        """Have the function end; return whether another one is invoked at once."""
        self.function.dies()
        eventually(lambda: not self.backend.ready[0], "its end")
        with self._lock:
            return bool(self.transport.asked)

    def next(self) -> tuple[str, int]:
        """What the next event is, and of which round."""
        event = self.events.get(timeout=PATIENCE_S)
        return type(event).__name__, event.round

    def failure(self) -> str:
        event = self.events.get(timeout=PATIENCE_S)
        assert isinstance(event, Failure)
        return event.reason

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.backend.close()
        assert self.events.empty()


def opened(transport: Invoked, clock: Clock | None = None) -> ResidentBackend:
    return ResidentBackend(
        1,
        transport,
        workload=WorkloadRef(name="any", settings={}),
        store=StoreRef(kind="inline"),
        staying=Staying(beat_s=BEAT_S),
        clock=clock,
    )


@pytest.fixture
def play() -> Iterator[Play]:
    play = Play()
    yield play
    play.close()


def test_a_task_of_a_function_that_dies_fails_and_the_next_function_takes_its_place(
    play: Play,
) -> None:
    play.ask(0)
    play.function.dies()
    assert play.next() == ("Failure", 0)
    play.dispatch(1)  # waits for the next
    second = play.transport.next().ready()
    second.answers(second.hears())
    assert play.next() == ("Arrival", 1)


def test_each_answer_counts_once_and_what_was_never_asked_not_at_all(play: Play) -> None:
    first, second = play.ask(0), play.ask(1)
    play.function.answers(first)
    play.function.answers(first)
    play.function.answers(replace(first, request=replace(first.request, task=task(7, 0))))
    play.function.answers(second)
    assert [play.next(), play.next()] == [("Arrival", 0), ("Arrival", 1)]


@pytest.mark.parametrize(
    "said",
    [
        ReadyMessage(worker=0),  # twice
        ReadyMessage(worker=1),
        CancelMessage(round=0, worker=0),
        LeaveMessage(worker=0, keeps=[]),  # was not asked to
        LeaveMessage(worker=3),
    ],
    ids=repr,
)
def test_a_function_that_says_what_none_says_is_hung_up_on(play: Play, said: Message) -> None:
    play.ask(0)
    play.function.say(said)
    assert "WireError: worker 0 sent an unexpected" in play.failure()
    assert play.function.is_hung_up_on()


def test_so_is_one_that_speaks_for_another_run_or_answers_another_question(play: Play) -> None:
    asked = play.ask(0)
    play.function.say(ResultMessage(subject=asked.request.subject, results={5: np.ones(3)}))
    assert "slots" in play.failure()
    play.function = play.transport.next().ready()
    play.ask(1)
    play.function.say(LeaveMessage(worker=0), run_id="another")
    assert "belongs to run" in play.failure()


def test_who_leaves_serves_until_the_next_is_ready_and_hands_back_what_it_did_not_begin(
    play: Play,
) -> None:
    begun = play.ask(0)
    play.function.say(LeaveMessage(worker=0, reason="its lease ends soon"))
    later = play.ask(1)  # although it is going to leave
    second = play.transport.next().ready()
    assert isinstance(play.function.hears(), LeaveMessage)
    play.function.say(LeaveMessage(worker=0, keeps=[(0, 0)]))
    handed = second.hears()
    assert handed.request.subject == later.request.subject
    second.answers(handed)
    assert play.next() == ("Arrival", 1)
    play.function.answers(begun)
    assert play.next() == ("Arrival", 0)
    assert play.function.is_hung_up_on()  # it owes nothing more


def test_what_is_cancelled_is_not_handed_back_and_fails_no_more(play: Play) -> None:
    play.ask(0)
    play.ask(1)
    play.function.say(LeaveMessage(worker=0))
    second = play.transport.next().ready()
    assert isinstance(play.function.hears(), LeaveMessage)
    play.cancel(1)
    assert play.function.hears() == CancelMessage(round=1, worker=0)
    play.function.say(LeaveMessage(worker=0, keeps=[(0, 0)]))
    play.function.dies()
    assert play.next() == ("Failure", 0)
    play.dispatch(2)
    assert second.hears().request.task.round == 2  # and not 1


def test_the_reply_of_an_invocation_says_why_a_function_ended(play: Play) -> None:
    play.ask(0)
    play.transport.reply(play.function.tag, error="Runtime exited with error: out of memory")
    assert "out of memory" in play.failure()


@pytest.mark.parametrize("ran", [None, False])  # which it has: the refusal is somebody else's
def test_one_who_serves_stays_though_its_invocation_s_connection_is_lost(
    play: Play, ran: bool | None
) -> None:
    asked = play.ask(0)
    play.transport.reply(play.function.tag, error="ConnectionResetError: reset", ran=ran)
    play.ask(1)  # the same one
    play.function.answers(asked)
    assert play.next() == ("Arrival", 0)
    assert not play.transport.asked  # nobody else was invoked
    play.function.dies()
    assert play.next() == ("Failure", 1)


def test_who_was_asked_to_leave_goes_once_what_it_kept_is_cancelled(play: Play) -> None:
    play.ask(0)
    play.function.say(LeaveMessage(worker=0))
    second = play.transport.next().ready()
    assert isinstance(play.function.hears(), LeaveMessage)
    play.function.say(LeaveMessage(worker=0, keeps=[(0, 0)]))
    play.dispatch(1)
    second.answers(second.hears())
    assert play.next() == ("Arrival", 1)  # so what was kept is known
    play.cancel(0)
    assert play.function.is_hung_up_on()


class Held:
    """A clock that the test winds."""

    time = 1000.0

    def now(self) -> float:
        return self.time


def test_functions_that_end_before_they_answer_anything_are_invoked_ever_less_often() -> None:
    clock = Held()
    with closing(Play(clock)) as play:
        assert play.loses_it(), "the first one's successor is invoked at once"
        for wait_s in (0.5, 1.0, 2.0):
            play.serves(play.transport.next())
            assert not play.loses_it()
            clock.time += wait_s
        play.serves(play.transport.next())
        play.function.answers(play.ask(0))
        assert play.next() == ("Arrival", 0)
        assert play.loses_it(), "this one was of use"


class Wound:
    """A clock, and a transport that winds it: nobody else tells the time."""

    def __init__(self) -> None:
        self.time, self.polls = 1000.0, 0
        self.tags: list[int] = []
        self.replies: list[Reply] = []
        self.refuses: dict[str, Any] | None = None  # what each invocation is replied

    def now(self) -> float:
        return self.time

    def submit(self, tag: int, body: bytes) -> None:  # noqa: ARG002 (nobody calls)
        self.tags.append(tag)
        if self.refuses is not None:
            self.time += 0.25
            self.replies.append(Reply(tag=tag, at=self.time, **self.refuses))

    def flush(self) -> None:
        pass

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        self.polls += 1
        assert self.polls < 100, "it does not wait"
        replies, self.replies = self.replies, []
        self.time += 0.0 if replies else timeout_s
        return replies

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


def fails_to_open(wound: Wound, **staying: Any) -> str:
    with pytest.raises(WorkerError) as failed:
        ResidentBackend(
            1,
            wound,
            workload=WorkloadRef(name="any", settings={}),
            store=StoreRef(kind="inline"),
            staying=Staying(beat_s=BEAT_S, **staying),
            clock=wound,
        )
    return str(failed.value)


def test_a_start_that_takes_too_long_is_given_up_when_it_does_and_not_after() -> None:
    wound = Wound()
    assert "was not ready within 120 s" in fails_to_open(wound)
    assert wound.time == 1120.0


@pytest.mark.parametrize(
    ("reply", "ended_ms", "count"),
    [
        ({"error": "WorkerError: no master"}, 750, 3),  # it has run, and failed
        ({"error": "HTTP 429", "throttled": True, "ran": False}, 0, 0),
        ({"error": "HTTP 403", "ran": False}, 0, 0),
    ],
    ids=["failed", "throttled", "forbidden"],
)
def test_a_start_that_failed_is_paid_for_as_long_as_it_ran(
    reply: dict[str, Any], ended_ms: int, count: int
) -> None:
    wound, leases = Wound(), Leases(longest_s=900.0)
    wound.refuses = reply
    patience = ThrottlePolicy(max_resubmissions=0)
    assert reply["error"] in fails_to_open(wound, leases=leases, throttling=patience)
    assert (leases.ended_ms, leases.open, leases.count) == (ended_ms, 0, count)


def test_of_a_start_that_nobody_heard_of_all_is_reserved() -> None:
    wound, leases = Wound(), Leases(longest_s=900.0)
    wound.refuses = {"error": "TimeoutError: no answer", "ran": None}
    fails_to_open(wound, leases=leases)
    assert (leases.ended_ms, leases.open_ms) == (0, 3 * 900_000)


def test_more_functions_than_there_may_be_connections_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [1024, 4000]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, now: limits.__setitem__(0, now[0]))
    with pytest.raises(ParameterError, match=r"`n` needs 4512 open files, .* got 1000 \(raise"):
        ResidentBackend(
            1000,
            Wound(),
            workload=WorkloadRef(name="any", settings={}),
            store=StoreRef(kind="inline"),
        )
    assert limits == [4000, 4000]
    limits[0] = 100
    fails_to_open(Wound())
    assert limits == [516, 4000]  # as many as it takes


def test_after_three_starts_that_fail_tasks_do_too_until_one_succeeds(play: Play) -> None:
    play.function.dies()
    for number in range(3):
        play.transport.next().ready(problem=f"no data {number}")
        if number == 0:
            play.dispatch(0)  # there is hope yet
    assert play.failure() == "no data 2"
    play.dispatch(1)
    assert play.next() == ("Failure", 1)  # at once
    play.restart()
    play.function = play.transport.next().ready()
    eventually(lambda: play.backend.ready[0], "being ready")
    play.function.answers(play.ask(2))
    assert play.next() == ("Arrival", 2)


@pytest.mark.parametrize("replaces", [False, True])
def test_a_function_that_differs_from_its_master_ends_the_run(replaces: bool) -> None:
    """At its start, or as one that replaces another in mid-run."""
    transport = Invoked()

    def start() -> None:
        if replaces:
            transport.next().ready().dies()
        transport.next().ready("other data", final=True)

    helper = threading.Thread(target=start)
    helper.start()
    with pytest.raises(SkewError, match=r"^other data$"), closing(opened(transport)) as backend:
        backend.receive(time.monotonic() + PATIENCE_S)
    helper.join()


def test_if_nobody_is_ever_ready_the_first_cause_is_named() -> None:
    transport = Invoked()

    def fail() -> None:
        for _ in range(3):
            transport.next().ready(problem="no data")

    helper = threading.Thread(target=fail)
    helper.start()
    with pytest.raises(WorkerError, match=r"^no function became resident: no data$"):
        opened(transport)
    helper.join()
