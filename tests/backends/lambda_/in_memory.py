"""A transport that tests answer by hand, on a clock that waiting winds."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from seqgc.backends import Messaging
from seqgc.backends.lambda_ import Invoking, LambdaBackend, Reply
from seqgc.ports import Arrival, Failure
from seqgc.testing import eventually
from seqgc.wire import (
    InvokeMessage,
    Message,
    StoreRef,
    WorkloadRef,
    decode_invocation,
    encode,
    from_json,
    to_json,
)
from seqgc.worker import FunctionWorker, Registry

RUN = "run-1"
WORKLOAD = WorkloadRef(name="twos", settings={})
INLINE = StoreRef(kind="inline")

REGISTRY = Registry()


@REGISTRY.register("twos")
def twos(settings: object, fetch_weights: object) -> Any:  # noqa: ARG001 (the registry's)
    return lambda parts: np.full(parts[0].weights.size, 2.0)


class Clock:
    """Wound by whoever waits."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time


class InMemory:
    """A transport whose replies the test makes; waiting for one winds the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.sent: dict[int, bytes] = {}  # by tag, what has not been replied to
        self.log: list[tuple[float, int]] = []  # when, tag
        self.closed = False
        self.flushed = 0  # what had been submitted when it was last flushed
        self._inbox: deque[Reply] = deque()
        self.woken = threading.Event()
        self._worker = FunctionWorker(REGISTRY, _no_store)

    # ---- as a transport -------------------------------------------------------------------------

    def submit(self, tag: int, body: bytes) -> None:
        assert tag not in self.sent, "an invocation was sent twice at once"
        self.sent[tag] = body
        self.log.append((self.clock.time, tag))

    def flush(self) -> None:
        self.flushed = len(self.log)

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        if not self._inbox and not self.woken.is_set():
            self.clock.time += timeout_s
        self.woken.clear()
        replies = list(self._inbox)
        self._inbox.clear()
        return replies

    def wake(self) -> None:
        self.woken.set()

    def close(self) -> None:
        self.closed = True

    # ---- as a test's hand -----------------------------------------------------------------------

    def asked(self, tag: int) -> InvokeMessage:
        return decode_invocation(from_json(self.sent[tag]))[1]

    def run(self, tag: int) -> None:
        """Let the real worker answer."""
        answer = self._worker.serve(self.sent[tag]).reply
        self.reply(tag, to_json(from_json(answer)))

    def reply(self, tag: int, body: bytes) -> None:
        self.sent.pop(tag, None)
        self._inbox.append(Reply(tag=tag, at=self.clock.time, body=body))

    def say(self, tag: int, message: Message, *, run_id: str = RUN) -> None:
        self.reply(tag, to_json(encode(message, run_id=run_id)))

    def fail(
        self, tag: int, error: str, *, throttled: bool = False, retry_after_s: float = 0.0
    ) -> None:
        self.sent.pop(tag, None)
        self._inbox.append(
            Reply(
                tag=tag,
                at=self.clock.time,
                error=error,
                throttled=throttled,
                retry_after_s=retry_after_s,
            )
        )


def _no_store(ref: StoreRef) -> Any:
    raise AssertionError(f"nobody needs a store here: {ref}")


def open_backend(n: int = 2, **options: Any) -> tuple[LambdaBackend, InMemory]:
    """Return a backend and its transport; close it where a store is: threads fetch from it."""
    clock = Clock()
    transport = InMemory(clock)
    groups: dict[str, Any] = {}
    for group, kind in (("messaging", Messaging), ("invoking", Invoking)):
        names = {each.name for each in fields(kind)} & options.keys()
        groups[group] = {name: options.pop(name) for name in names}
    return LambdaBackend(
        n,
        transport,
        clock=clock,
        messaging=Messaging(**({"run_id": RUN} | groups["messaging"])),
        invoking=Invoking(**groups["invoking"]),
        **({"workload": WORKLOAD, "store": INLINE} | options),
    ), transport


def next_of(backend: LambdaBackend) -> Arrival | Failure:
    """Return the next event, also if a thread has yet to fetch it, for which no clock is wound."""
    event = eventually(lambda: backend.receive(backend._clock.now() + 1e6), "an event")
    assert event is not None
    return event


def failure_of(backend: LambdaBackend) -> Failure:
    event = next_of(backend)
    assert isinstance(event, Failure), event
    return event
