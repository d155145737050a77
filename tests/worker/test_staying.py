"""A function that is to stay, and whom it finds at the address that it was given."""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from seqgc.errors import WorkerError
from seqgc.ports import Task
from seqgc.testing import PATIENCE_S
from seqgc.wire import (
    InvokeMessage,
    LeaveMessage,
    ReadyMessage,
    ResultMessage,
    StayMessage,
    StoreRef,
    TaskMessage,
    WorkloadRef,
    decode,
    encode,
    from_json,
    to_mapping,
)
from seqgc.worker import FunctionWorker, StayReport
from tests.backends.lambda_.parts import Stranger, stay
from tests.kit import at_some_pace
from tests.worker.asking import INLINE, Scales, invocation

RUN = "r"
BEAT_S = 0.1
TOKEN = secrets.token_bytes(32)


class Master:
    """A master's end, written after what `seqgc.worker._resident` says of the bytes."""

    def __init__(self, token: bytes = TOKEN) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._token = token
        self.port: int = self._listener.getsockname()[1]
        self.heard = b""

    def answer(self) -> None:
        self.sock, _ = self._listener.accept()
        self.sock.settimeout(PATIENCE_S)
        self.heard = self.exactly(54)
        call, theirs, nonce = self.heard[6:22], self.heard[22:], secrets.token_bytes(32)
        about = call + theirs + nonce
        proof = hmac.new(self._token, b"master" + about, "sha256").digest()
        self.sock.sendall(nonce + proof)
        if self.exactly(32) != hmac.new(self._token, b"function" + about, "sha256").digest():
            raise Stranger

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            if not (piece := self.sock.recv(count - len(data))):
                raise ConnectionError("hung up")
            data += piece
        return data

    def frame(self) -> Any:
        while not (size := struct.unpack("<Q", self.exactly(8))[0]):
            pass  # a beat
        return decode(self.exactly(size), run_id=RUN)

    def send(self, frame: bytes) -> None:
        self.sock.sendall(struct.pack("<Q", len(frame)) + frame)

    def close(self) -> None:
        self._listener.close()
        if hasattr(self, "sock"):
            self.sock.close()


@contextmanager
def listening(token: bytes = TOKEN) -> Iterator[Master]:
    master = Master(token)
    try:
        yield master
    finally:
        master.close()


def message(port: int, **changes: Any) -> StayMessage:
    usual: dict[str, Any] = {
        "worker": 1,
        "workload": WorkloadRef(name="scale", settings={}),
        "store": INLINE,
        "host": "127.0.0.1",
        "port": port,
        "call": "ab" * 16,
        "token": TOKEN.hex(),
        "beat_s": BEAT_S,
        "leave_s": 100.0,
        "end_s": 200.0,
    }
    return StayMessage(**usual | changes)


class Function:
    """A function in a thread."""

    def __init__(self, asked: StayMessage) -> None:
        self.report: Any = None
        self._worker = FunctionWorker(Scales().registry, lambda _: None)  # type: ignore[arg-type,return-value]
        self._event = to_mapping(encode(asked, run_id=RUN))
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        try:
            self.report = self._worker.serve(self._event)
        except WorkerError as error:
            self.report = error

    def __enter__(self) -> Function:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def test_it_calls_is_asked_answers_and_ends_when_it_is_hung_up_on() -> None:
    with listening() as master, Function(message(master.port)) as function:
        master.answer()
        assert master.frame() == ReadyMessage(worker=1)
        asked = invocation(bring=False, task=Task(round=4, worker=1, attempt=0, items=()))
        master.send(encode(asked, run_id=RUN))
        answer = master.frame()
        assert isinstance(answer, ResultMessage)
        asked.request.check(answer)
        master.sock.close()
    report = function.report
    assert isinstance(report, StayReport)
    assert (report.worker, report.tasks, report.failures) == (1, 1, 0)
    assert "connection ended" in report.reason
    assert isinstance(decode(from_json(report.reply), run_id=RUN), LeaveMessage)


def test_what_cannot_be_made_is_said_before_anything_is_asked() -> None:
    unknown = WorkloadRef(name="unknown", settings={})
    with listening() as master, Function(message(master.port, workload=unknown)):
        master.answer()
        assert "`workload` must be registered" in master.frame().problem
        master.sock.close()


def test_an_impostor_hears_a_call_and_nonces_and_no_proof() -> None:
    with listening(secrets.token_bytes(32)) as master:
        with Function(message(master.port)) as function, pytest.raises(ConnectionError):
            master.answer()  # and no more comes
        assert len(master.heard) == 54
        assert TOKEN not in master.heard
        master.close()
    assert "is not the master that invoked this function" in str(function.report) or (
        "does not answer" in str(function.report)
    )


def test_a_master_that_has_gone_is_called_for_six_beats_and_no_longer() -> None:
    with listening() as master:
        pass
    began = time.monotonic()
    with Function(message(master.port)) as function:
        pass
    assert isinstance(function.report, WorkerError)
    assert "the network blocks the call" in str(function.report)
    assert time.monotonic() - began >= 5 * BEAT_S


def test_a_master_that_is_silent_for_30_beats_has_gone() -> None:
    def check(beat_s: float) -> None:
        began = time.monotonic()
        with (
            listening() as master,
            Function(message(master.port, beat_s=beat_s)) as function,
            suppress(ConnectionError),  # it was too busy to wait
        ):
            master.answer()
            assert master.frame() == ReadyMessage(worker=1)
        assert getattr(function.report, "reason", "") == "silent for 30 heartbeats"
        assert time.monotonic() - began >= 30 * beat_s

    at_some_pace(check, 0.02, 0.2, 1.0)


def test_its_lease_is_announced_and_then_ends() -> None:
    def check(leave_s: float) -> None:
        said = []
        with listening() as master:
            asked = message(master.port, leave_s=leave_s, end_s=2 * leave_s)
            with Function(asked) as function, suppress(ConnectionError):  # or it ends before
                master.answer()
                said = [master.frame(), master.frame()]
        assert {type(each) for each in said} == {ReadyMessage, LeaveMessage}
        assert getattr(function.report, "reason", "") == "its lease has ended"

    at_some_pace(check, 0.05, 0.5, 5.0)


def test_its_lease_began_when_the_invocation_was_received(monkeypatch: pytest.MonkeyPatch) -> None:
    now, late = time.monotonic, iter([150.0])  # s, until the master took the call
    monkeypatch.setattr(
        "seqgc.worker._resident.time", SimpleNamespace(monotonic=lambda: now() - next(late, 0.0))
    )
    asked: dict[str, float] = {"leave_s": 50.0, "end_s": 100.0}
    with (
        listening() as master,
        Function(message(master.port, **asked)) as function,
        suppress(ConnectionError),
    ):
        master.answer()
        while True:
            master.frame()
    assert function.report.reason == "its lease has ended"


def test_noise_from_the_master_ends_it_and_not_the_process() -> None:
    with listening() as master, Function(message(master.port)) as function:
        master.answer()
        master.frame()
        master.send(b"noise" * 20)
    assert "WireError" in function.report.reason


def test_who_computes_too_long_for_a_master_that_has_gone_is_abandoned() -> None:
    abandoned, began, go = threading.Event(), threading.Event(), threading.Event()

    def answer(*_: object) -> bytes | None:
        began.set()
        assert go.wait(PATIENCE_S)
        return None

    def abandon() -> None:
        abandoned.set()
        go.set()  # in place of the process's end

    with listening() as master:
        thread = threading.Thread(
            target=stay,
            args=(RUN, message(master.port)),
            kwargs={"make": lambda: None, "answer": answer, "abandon": abandon},
        )
        thread.start()
        master.answer()
        master.frame()
        task = InvokeMessage(
            request=TaskMessage(task=Task(round=0, worker=1, attempt=0, items=())),
            workload=WorkloadRef(name="scale", settings={}),
            store=StoreRef(kind="inline"),
            inline_limit_bytes=100,
        )
        master.send(encode(task, run_id=RUN))
        assert began.wait(PATIENCE_S)
        master.sock.close()
        assert abandoned.wait(PATIENCE_S)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
