"""Answers that lie in a store: what is fetched, by whom, when it arrives, and what is not."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from msgspec.structs import replace

from seqgc.backends import Messaging
from seqgc.backends.lambda_ import Invoking, LambdaBackend
from seqgc.errors import StoreError
from seqgc.local_lambda import LocalLambda
from seqgc.ports import Arrival, BlobStore
from seqgc.stores import DirectoryStore, MemoryStore
from seqgc.testing import PATIENCE_S, eventually
from seqgc.testing.scripted import address, next_event, task
from seqgc.wire import StoreRef, Subject, encode
from tests.backends.lambda_.in_memory import RUN, InMemory, failure_of, next_of, open_backend
from tests.backends.lambda_.local import TRANSPORTS, open_transport, scripted_workload
from tests.backends.scripted import Scripted

SHARED = StoreRef(kind="directory", location=RUN)
Open: TypeAlias = Callable[..., tuple[LambdaBackend, InMemory]]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens a backend whose functions share a store with the master; closed when the test ends."""
    with ExitStack() as stack:

        def make(store: BlobStore, n: int = 2) -> tuple[LambdaBackend, InMemory]:
            backend, wire = open_backend(n, store=SHARED, shared=store)
            return stack.enter_context(backend), wire

        yield make


def receipt(wire: InMemory, tag: int, store: MemoryStore, **wrong: Any) -> str:
    """Put an answer into the store as the function does, and reply with its receipt."""
    request = wire.asked(tag).request
    frame = encode(request.result({0: np.full(3, 7.0)}), run_id=RUN)
    digest = wrong.pop("digest", hashlib.sha256(frame).hexdigest())
    message = request.receipt(digest=digest, size_bytes=len(frame))
    store.put(message.key, frame)
    wire.say(tag, replace(message, **wrong))
    return str(message.key)


def stored(store: MemoryStore) -> list[str]:
    return sorted(store._blobs)


def test_a_receipt_is_redeemed_and_what_lay_there_removed(opened: Open) -> None:
    store = MemoryStore()
    backend, wire = opened(store)
    backend.dispatch(0, [task(0, 0)])
    receipt(wire, 0, store)
    event = next_of(backend)
    assert isinstance(event, Arrival)
    assert event.results[0].tolist() == [7.0] * 3
    assert stored(store) == []


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"digest": "0" * 64}, "StoreError: .*digest"),
        ({"size_bytes": 3}, "StoreError: .*bytes instead of 3"),
        ({"key": "../../etc"}, "WireError: answer has key '../../etc'"),
        ({"subject": Subject(round=5, worker=0, attempt=0)}, "WireError: answer has round 5"),
    ],
)
def test_a_receipt_that_is_not_kept_is_a_failure(
    opened: Open, wrong: dict[str, object], reason: str
) -> None:
    store = MemoryStore()
    backend, wire = opened(store)
    backend.dispatch(0, [task(0, 0)])
    receipt(wire, 0, store, **wrong)
    assert re.match(reason, failure_of(backend).reason)


def test_a_receipt_without_its_blob_is_a_failure(opened: Open) -> None:
    store = MemoryStore()
    backend, wire = opened(store)
    backend.dispatch(0, [task(0, 0)])
    store.remove(receipt(wire, 0, store))
    reason = failure_of(backend).reason
    assert reason.startswith("StoreError: nothing is stored under 'result-0-0-0-")


@pytest.mark.parametrize("late", [False, True])
def test_a_receipt_for_another_answers_key_touches_nothing(opened: Open, late: bool) -> None:
    store = MemoryStore()
    backend, wire = opened(store)
    backend.dispatch(0, [task(0, 0), task(0, 1)])
    others = receipt(wire, 1, store)
    assert isinstance(next_of(backend), Arrival)
    store.put(others, b"still of use")
    if late:
        backend.cancel(0, [0])
    own = receipt(wire, 0, store, key=others)
    if late:
        assert backend.receive(wire.clock.time) is None
    else:
        assert re.match(f"WireError: answer has key '{others}'", failure_of(backend).reason)
    assert stored(store) == sorted([own, others])


class Broken(MemoryStore):
    """Fails at what it is told to fail at."""

    def __init__(self, **errors: Exception) -> None:
        super().__init__()
        self.errors = errors

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        if "get" in self.errors:
            raise self.errors["get"]
        return super().get(key, digest=digest, size_bytes=size_bytes)

    def remove(self, key: str) -> None:
        if "remove" in self.errors:
            raise self.errors["remove"]
        super().remove(key)


@pytest.mark.parametrize("error", [OSError("read-only mount"), StoreError("no permission")])
def test_a_blob_that_cannot_be_removed_is_redeemed_all_the_same(
    opened: Open, error: Exception
) -> None:
    store = Broken(remove=error)
    backend, wire = opened(store)
    backend.dispatch(0, [task(0, 0)])
    receipt(wire, 0, store)
    event = next_of(backend)
    assert isinstance(event, Arrival)
    assert event.results[0].tolist() == [7.0] * 3


def test_a_blob_that_cannot_be_read_is_that_workers_failure(opened: Open) -> None:
    store = Broken(get=OSError("stale\nfile handle"), remove=OSError("stale"))
    backend, wire = opened(store)
    backend.dispatch(0, [task(0, 0)])
    receipt(wire, 0, store)
    reason = failure_of(backend).reason
    assert re.match("StoreError: the answer under 'result-0-0-0-.*' cannot be read: stale", reason)
    assert "\n" not in reason


def test_a_late_receipt_is_removed_unread(opened: Open) -> None:
    store = MemoryStore()
    backend, wire = opened(store)
    backend.dispatch(0, [task(0, 0)])
    backend.cancel(0, [0])
    receipt(wire, 0, store, digest="0" * 64)  # reading it would fail
    event = next_of(backend)
    assert isinstance(event, Arrival)
    assert (event.results, stored(store)) == ({}, [])


# ---- fetched aside ------------------------------------------------------------------------------


class Gated(MemoryStore):
    """A slow store: whoever gets a key waits until it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[str] = []
        self.now = self.most = 0  # who is in `get`
        self._gates: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        with self._lock:
            self.begun.append(key)
            self.now += 1
            self.most = max(self.most, self.now)
            gate = self._gates.setdefault(key, threading.Event())
        assert gate.wait(PATIENCE_S)
        with self._lock:
            self.now -= 1
        return super().get(key, digest=digest, size_bytes=size_bytes)

    def let_through(self, *keys: str) -> None:
        for key in keys:
            with self._lock:
                self._gates.setdefault(key, threading.Event()).set()


@pytest.fixture
def gated(opened: Open) -> Iterator[Gated]:  # opened: it closes after the gates are open
    del opened
    store = Gated()
    yield store
    store.let_through(*store.begun)


def begin(backend: LambdaBackend, store: Gated, count: int) -> None:
    """Have the backend see receipts until so many answers are being fetched."""

    def begun() -> bool:
        assert backend.receive(backend._clock.now()) is None
        return len(store.begun) >= count

    eventually(begun, f"fetching {count} answers")


def fetchers() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("seqgc-lambda")]


def test_a_store_that_is_slow_holds_up_neither_others_nor_the_deadline(
    opened: Open, gated: Gated
) -> None:
    backend, wire = opened(gated)
    backend.dispatch(0, [task(0, 0), task(0, 1)])
    key = receipt(wire, 0, gated)
    begin(backend, gated, 1)
    deadline = wire.clock.time + 5.0
    assert backend.receive(deadline) is None
    assert wire.clock.time == deadline
    wire.run(1)
    assert address(next_of(backend)) == ("Arrival", 0, 1, 0)
    wire.clock.time += 3.0
    gated.let_through(key)
    assert address(next_of(backend)) == ("Arrival", 0, 0, 0)


def test_an_answer_arrives_when_its_results_are_there(opened: Open, gated: Gated) -> None:
    backend, wire = opened(gated, 3)
    backend.dispatch(0, [task(0, worker) for worker in range(3)])
    keys = [receipt(wire, tag, gated) for tag in (0, 1)]
    begin(backend, gated, 2)
    wire.clock.time = 1010.0
    wire.run(2)
    for at, key in ((1020.0, keys[1]), (1030.0, keys[0])):
        wire.clock.time = at
        gated.let_through(key)
        eventually(wire.woken.is_set, "the end of fetching")
        wire.woken.clear()
    wire.clock.time = 1040.0
    events = [next_of(backend) for _ in range(3)]
    assert [(event.worker, event.at) for event in events] == [(2, 1010.0), (1, 1020.0), (0, 1030.0)]


def test_a_few_are_fetched_at_once_and_no_more(opened: Open, gated: Gated) -> None:
    n = 20
    backend, wire = opened(gated, n)
    eventually(lambda: fetchers() == [], "the end of other tests' threads")
    backend.dispatch(0, [task(0, worker) for worker in range(n)])
    keys = [receipt(wire, tag, gated) for tag in range(n)]
    begin(backend, gated, 8)
    gated.let_through(*keys)
    arrived = [next_of(backend) for _ in range(n)]
    assert sorted(event.worker for event in arrived) == list(range(n))
    assert [event.at for event in arrived] == sorted(event.at for event in arrived)
    assert (gated.most, len(fetchers()), stored(gated)) == (8, 8, [])
    backend.close()
    eventually(lambda: fetchers() == [], "the end of its threads")


def test_an_answer_that_is_cancelled_while_it_is_fetched_is_late(
    opened: Open, gated: Gated
) -> None:
    backend, wire = opened(gated)
    backend.dispatch(0, [task(0, 0), task(0, 1)])
    good, bad = receipt(wire, 0, gated), receipt(wire, 1, gated, digest="0" * 64)
    begin(backend, gated, 2)
    assert backend.outstanding == 2
    backend.cancel(0, [0, 1])
    gated.let_through(good, bad)
    assert address(next_of(backend)) == ("Arrival", 0, 0, 0)
    eventually(lambda: backend.receive(wire.clock.time) or not backend.outstanding, "the failure")
    assert backend.receive(wire.clock.time) is None
    assert stored(gated) == []


def test_what_is_cancelled_before_its_turn_is_removed_unread(opened: Open, gated: Gated) -> None:
    n = 10
    backend, wire = opened(gated, n)
    backend.dispatch(0, [task(0, worker) for worker in range(n)])
    keys = [receipt(wire, tag, gated) for tag in range(n)]
    begin(backend, gated, 8)
    waiting = [worker for worker in range(n) if keys[worker] not in gated.begun]
    backend.cancel(0, waiting)
    gated.let_through(*keys)
    empty = set()
    for _ in range(n):
        event = next_of(backend)
        assert isinstance(event, Arrival)
        if not event.results:
            empty.add(event.worker)
    assert (sorted(empty), len(gated.begun), stored(gated)) == (waiting, 8, [])


def test_a_receipt_that_comes_twice_is_one_event(opened: Open, gated: Gated) -> None:
    backend, wire = opened(gated)
    backend.dispatch(0, [task(0, 0)])
    body = wire.sent[0]
    key = receipt(wire, 0, gated)
    begin(backend, gated, 1)
    wire.sent[0] = body
    receipt(wire, 0, gated)
    wire.fail(0, "HTTP 429", throttled=True)
    assert backend.receive(wire.clock.time) is None
    gated.let_through(key)
    assert address(next_of(backend)) == ("Arrival", 0, 0, 0)
    assert backend.receive(wire.clock.time + 100.0) is None
    assert (len(gated.begun), len(wire.log)) == (1, 1)


@pytest.mark.parametrize("error", [RuntimeError("the region\nis down"), KeyError("bucket")])
def test_whatever_the_store_raises_is_that_workers_failure(opened: Open, error: Exception) -> None:
    store = Broken(get=error, remove=error)
    backend, wire = opened(store)
    backend.dispatch(0, [task(0, 0)])
    receipt(wire, 0, store)
    assert failure_of(backend).reason.startswith(f"{type(error).__name__}: ")
    backend.dispatch(1, [task(1, 0)])
    wire.run(1)
    assert address(next_of(backend)) == ("Arrival", 1, 0, 0)


def test_closing_does_not_wait_for_a_store_that_hangs(opened: Open, gated: Gated) -> None:
    backend, wire = opened(gated)
    backend.dispatch(0, [task(0, 0)])
    receipt(wire, 0, gated)
    begin(backend, gated, 1)
    begun = time.monotonic()
    backend.close()
    assert time.monotonic() - begun < PATIENCE_S / 2, "the store hangs for longer"
    assert wire.closed


class Held(DirectoryStore):
    """A folder that lets nobody get anything until it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.let_through = threading.Event()

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        assert self.let_through.wait(PATIENCE_S)
        return super().get(key, digest=digest, size_bytes=size_bytes)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_whoever_waits_hears_of_a_fetched_answer_at_once(
    lambda_service: LocalLambda, lambda_mount: Path, tmp_path: Path, transport: str
) -> None:
    ref = StoreRef(kind="directory", location=f"receipts-{transport}")
    store = Held(lambda_mount / ref.location)
    with LambdaBackend(
        2,
        open_transport(transport, lambda_service),
        workload=scripted_workload(Scripted(folder=tmp_path)),
        store=ref,
        shared=store,
        messaging=Messaging(run_id=ref.location),
        invoking=Invoking(max_body_bytes=12_000),
    ) as backend:
        backend.dispatch(0, [task(0, 0, size=4000), task(0, 1)])
        assert address(next_event(backend)) == ("Arrival", 0, 1, 0)
        assert backend.receive(time.monotonic() + 0.02) is None
        let_through_at: list[float] = []

        def let_through() -> None:
            let_through_at.append(time.monotonic())
            store.let_through.set()

        alarm = threading.Timer(0.02, let_through)
        alarm.start()
        event = next_event(backend)
        alarm.join()
    assert isinstance(event, Arrival)
    assert (event.worker, event.results[0].size) == (0, 4000)
    assert event.at >= let_through_at[0]
    assert list((store.root / "blobs").iterdir()) == []
