"""The contracts of `seqgc.testing` find what breaks them: a suite that all pass would be none."""

from __future__ import annotations

import numpy as np
import pytest

from seqgc.errors import StoreError
from seqgc.ports import FloatArray, Task, WeightRef
from seqgc.stores import MemoryStore
from seqgc.testing import (
    BackendContract,
    BlobStoreContract,
    HandWoundClock,
    ScriptedBackend,
    eventually,
)


class Aliasing:
    """A store that hands out what it was given, and keeps what is discarded."""

    def __init__(self) -> None:
        self._kept: dict[WeightRef, FloatArray] = {}

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        ref = MemoryStore().publish(model, version, params)
        self._kept[ref] = params
        return ref

    def fetch(self, ref: WeightRef) -> FloatArray:
        return self._kept[ref]

    def discard(self, ref: WeightRef) -> None:
        pass

    def put(self, key: str, data: bytes) -> None:
        pass

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        raise StoreError(f"{key}: {digest} of {size_bytes} bytes is not here")

    def remove(self, key: str) -> None:
        pass


def test_a_store_that_breaks_its_contract_is_found_out() -> None:
    contract, store = BlobStoreContract(), Aliasing()
    with pytest.raises(AssertionError):
        contract.test_the_callers_array_may_change_afterwards(store)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        contract.test_discarded_weights_are_gone_and_the_others_are_not(store)
    with pytest.raises(StoreError):
        contract.test_bytes_come_back(store, b"x")


def test_a_backend_that_breaks_its_contract_is_found_out() -> None:
    def careless(*_: object, **__: object) -> ScriptedBackend:
        return ScriptedBackend()  # answers without results, and takes whatever it is given

    contract = BackendContract()
    with pytest.raises(AssertionError):
        contract.test_every_task_is_answered_once_with_its_own_results(careless)
    with pytest.raises(AssertionError):
        contract.test_a_task_leaves_at_its_own_time_its_answer_later(careless)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        contract.test_a_closed_backend_refuses_but_to_close_again(careless)


def test_a_script_says_who_answers_and_when_and_nobody_waits() -> None:
    backend = ScriptedBackend({(0, 0, 0): np.inf, (0, 1, 0): (9e6, "killed")})
    tasks = [Task(round=0, worker=worker, attempt=0, items=()) for worker in range(3)]
    assert backend.dispatch(0, tasks) == [100.0] * 3
    first, second = backend.receive(200.0), backend.receive(np.inf)
    assert (first and first.at, second and second.at) == (101.0, 9e6 + 100)
    assert backend.receive(1e9) is None
    assert backend.clock.now() == 1e9


def test_what_does_not_happen_is_named_with_its_time() -> None:
    with pytest.raises(AssertionError, match=r"^rain did not happen in 0 s$"):
        eventually(lambda: False, "rain", within_s=0)


def test_a_clock_with_a_step_never_shows_a_time_twice() -> None:
    clock = HandWoundClock(5.0, step=0.5)
    assert [clock.now() for _ in range(3)] == [5.0, 5.5, 6.0]
