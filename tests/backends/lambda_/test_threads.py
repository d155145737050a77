"""Threads that make calls: what they hold on to, and how few of them will do."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from seqgc.backends import MonotonicClock
from seqgc.errors import WorkerError
from seqgc.testing import PATIENCE_S, eventually
from tests.backends.lambda_.parts import CallThreads


class Large:
    """Stands for a request, or an answer."""


class Failing:
    """A call whose request is known for as long as anybody holds it."""

    def __init__(self) -> None:
        self.request = Large()

    def __call__(self) -> Large:
        large = self.request
        raise KeyError(f"no such thing as {large}")


@pytest.fixture
def threads() -> Iterator[CallThreads[Large]]:
    threads = CallThreads[Large](limit=1, clock=MonotonicClock())
    yield threads
    threads.close()


@contextmanager
def no_collection() -> Iterator[None]:
    """What goes in this block goes by itself: nothing that holds itself does."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_thread_that_waits_holds_neither_request_nor_answer(threads: CallThreads[Large]) -> None:
    request = Large()
    answers: list[weakref.ref[Large]] = []

    def call(request: Large = request) -> Large:
        del request
        answer = Large()
        answers.append(weakref.ref(answer))
        return answer

    asked = weakref.ref(request)
    threads.submit(0, call)
    assert len(threads.take(PATIENCE_S)) == 1
    del request, call
    eventually(lambda: answers[0]() is None and asked() is None, "the end of both")


def test_a_call_that_raises_is_held_by_nothing_but_its_error(threads: CallThreads[Large]) -> None:
    with no_collection():
        call = Failing()
        asked = weakref.ref(call.request)
        threads.submit(0, call)
        (ended,) = threads.take(PATIENCE_S)
        del call
        eventually(lambda: asked() is None, "the end of the request")
        assert isinstance(ended.value, KeyError)


def test_calls_wait_for_the_threads_that_the_system_lets_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    gate = threading.Event()
    with closing(CallThreads[bool](limit=2, clock=MonotonicClock())) as calls:
        with monkeypatch.context() as few:
            few.setattr(threading.Thread, "start", start)
            with pytest.raises(WorkerError, match="can't start new thread: raise the limit"):
                calls.submit(0, gate.is_set)
        calls.submit(1, lambda: gate.wait(PATIENCE_S))
        with monkeypatch.context() as few:
            few.setattr(threading.Thread, "start", start)
            calls.submit(2, gate.is_set)
        gate.set()
        ended = calls.take(PATIENCE_S)
        ended += calls.take(PATIENCE_S) if len(ended) < 2 else []
    assert [(each.tag, each.value) for each in ended] == [(1, True), (2, True)]
