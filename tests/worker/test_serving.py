"""What a worker does next: tasks in their order, answers in their time, nothing unwanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from seqgc.errors import WireError
from seqgc.ports import Task
from seqgc.wire import (
    CancelMessage,
    FailureMessage,
    InvokeMessage,
    LeaveMessage,
    Message,
    ResultMessage,
    TaskMessage,
    decode,
    encode,
)
from seqgc.worker import TaskServer

RUN = "r"


class Scripted:
    """A connection on which the master says what a script has for each time it is listened to."""

    def __init__(self, *turns: Sequence[Message]) -> None:
        self._turns = list(turns)
        self.sent: list[Message] = []

    @property
    def ended(self) -> bool:
        return not self._turns

    def receive(self, timeout_s: float) -> Sequence[bytes]:  # noqa: ARG002 (nothing takes time)
        return [encode(each, run_id=RUN) for each in self._turns.pop(0)] if self._turns else []

    def send(self, frame: bytes) -> None:
        self.sent.append(decode(frame, run_id=RUN))


def task(round: int, *, delay_s: float = 0.0) -> TaskMessage:
    return TaskMessage(task=Task(round=round, worker=2, attempt=0, items=()), delay_s=delay_s)


def served(
    connection: Scripted, *, mini_tasks: int = 0, fails: tuple[int, ...] = ()
) -> tuple[list[int], TaskServer]:
    """Serve; return the rounds whose tasks were gone through with. Each mini-task listens once."""
    done: list[int] = []

    def answer(
        message: TaskMessage | InvokeMessage, cancelled: Callable[[], bool]
    ) -> Iterator[tuple[float, bytes]]:
        assert isinstance(message, TaskMessage)
        if message.task.round in fails:
            raise ValueError("no gradient")
        if any(cancelled() for _ in range(mini_tasks)):
            return
        done.append(message.task.round)
        yield message.delay_s, encode(message.result({}), run_id=RUN)

    server = TaskServer(connection, answer, run_id=RUN)
    server.serve()
    return done, server


def told(connection: Scripted) -> list[tuple[str, int]]:
    kinds = {ResultMessage: "result", FailureMessage: "failure"}
    return [
        (kinds[type(each)], each.subject.round)
        for each in connection.sent
        if isinstance(each, ResultMessage | FailureMessage)
    ]


IDLE: Sequence[Message] = ()


def test_tasks_are_answered_in_their_order_and_failures_told() -> None:
    connection = Scripted([task(0), task(1), task(2)], *[IDLE] * 8)
    done, server = served(connection, fails=(1,))
    assert done == [0, 2]
    assert told(connection) == [("result", 0), ("failure", 1), ("result", 2)]
    assert (server.tasks, server.failures) == (3, 1)


def test_what_is_cancelled_is_not_begun_not_gone_on_with_and_not_sent() -> None:
    cancel = [CancelMessage(round=round, worker=2) for round in range(3)]
    # Round 0 waits for its time, 1 is at work and 2 in the queue when they are cancelled.
    turns = [task(0, delay_s=1e4), task(1), task(2)], IDLE, IDLE, IDLE, IDLE, cancel, [task(3)]
    connection = Scripted(*turns, *[IDLE] * 8)
    done, _ = served(connection, mini_tasks=2)
    assert done == [0, 3]
    assert told(connection) == [("result", 3)]


def test_delays_of_one_worker_do_not_overlap_and_a_cancelled_one_ends() -> None:
    begun = time.monotonic()
    sent_at: list[float] = []

    class Timed(Scripted):
        def receive(self, timeout_s: float) -> Sequence[bytes]:
            time.sleep(min(timeout_s, 0.001))
            return super().receive(timeout_s)

        def send(self, frame: bytes) -> None:
            sent_at.append(time.monotonic() - begun)
            super().send(frame)

    tasks = [task(0, delay_s=0.02), task(1), task(2, delay_s=0.03), task(3, delay_s=1e4)]
    then = [CancelMessage(round=3, worker=2), task(4, delay_s=0.01)]
    connection = Timed(tasks, *[IDLE] * 10, then, *[IDLE] * 200)
    assert served(connection)[0] == [0, 1, 2, 3, 4]
    assert [round for _, round in told(connection)] == [1, 0, 2, 4]
    for at, least_s in zip(sent_at, (0.0, 0.02, 0.05, 0.06), strict=True):
        assert at >= least_s


def test_what_was_cancelled_once_can_be_asked_for_again() -> None:
    again = [CancelMessage(round=0, worker=2), task(0)]
    connection = Scripted(again, *[IDLE] * 4)
    assert served(connection, mini_tasks=1)[0] == [0]
    assert told(connection) == [("result", 0)]


def test_who_is_asked_to_leave_hands_back_what_was_not_begun_and_answers_the_rest() -> None:
    leave = [LeaveMessage(worker=2)]
    tasks = [task(0, delay_s=0.01), task(1), task(2), task(3)]
    connection = Scripted(tasks, IDLE, IDLE, IDLE, IDLE, leave, *[IDLE] * 10_000)
    done, _ = served(connection, mini_tasks=2)
    (said,) = (each for each in connection.sent if isinstance(each, LeaveMessage))
    assert said.keeps == [(0, 0), (1, 0)]
    assert done == [0, 1]


def test_an_answer_on_its_way_is_not_handed_back() -> None:
    said: list[list[tuple[int, int]]] = []

    class Slow(Scripted):
        """The master asks to leave while an answer is sent."""

        def send(self, frame: bytes) -> None:
            reply = server.take_in(encode(LeaveMessage(worker=2), run_id=RUN))
            assert reply is not None
            said.append(decode(reply, run_id=RUN).keeps)  # type: ignore[union-attr]
            super().send(frame)

    connection = Slow([task(3)], IDLE, IDLE, [task(4)], *[IDLE] * 8)
    server = TaskServer(connection, _answer, run_id=RUN)
    server.serve()
    assert said == [[(3, 0)], [(4, 0)]]  # 3 has left by then


def _answer(
    message: TaskMessage | InvokeMessage, _: Callable[[], bool]
) -> Iterator[tuple[float, bytes]]:
    assert isinstance(message, TaskMessage)
    yield 0.0, encode(message.result({}), run_id=RUN)


def test_after_the_end_nothing_is_computed() -> None:
    connection = Scripted([task(0), task(1)])
    assert served(connection, mini_tasks=1)[0] == []


def test_a_frame_of_another_run_is_no_task() -> None:
    server = TaskServer(Scripted(), lambda *_: (), run_id=RUN)
    for frame in (encode(task(0), run_id="another"), b"noise" * 10):
        try:
            server.take_in(frame)
        except WireError:
            continue
        raise AssertionError("it was taken in")
