"""A function that is asked out of nowhere: what it computes, keeps, and never takes for granted."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgc.errors import WireError
from seqgc.ports import BlobStore, FloatArray, WeightRef
from seqgc.stores import DirectoryStore, InlineStore, MemoryStore
from seqgc.testing import HandWoundClock
from seqgc.wire import (
    CancelMessage,
    FailureMessage,
    ReceiptMessage,
    ResultMessage,
    StoreRef,
    decode,
    encode,
    envelope_bytes,
    to_mapping,
)
from seqgc.worker import FunctionWorker
from tests.worker.asking import Scales, ask, invocation, ref_of, task_of

SHARED = StoreRef(kind="directory", location="r")
WEIGHTS = np.arange(5.0)


class CountingStore(MemoryStore):
    """Counts what is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[int] = []

    def fetch(self, ref: WeightRef) -> FloatArray:
        self.fetched.append(ref.version)
        return super().fetch(ref)


def worker_of(scales: Scales, store: BlobStore | None = None, **arguments: Any) -> FunctionWorker:
    return FunctionWorker(scales.registry, lambda _: store or InlineStore(), **arguments)


def failure(answer: object) -> str:
    assert isinstance(answer, FailureMessage)
    assert "\n" not in answer.reason
    return answer.reason


def results(answer: object) -> list[float]:
    assert isinstance(answer, ResultMessage)
    (result,) = answer.results.values()
    return [float(value) for value in result]


# ---- what it answers ----------------------------------------------------------------------------


def test_it_computes_with_the_weights_that_came_along() -> None:
    answer = ask(worker_of(Scales()), invocation(WEIGHTS, WEIGHTS + 1))
    assert results(answer) == [*(2.5 * WEIGHTS), *(2.5 * (WEIGHTS + 1))]


def test_it_computes_with_the_weights_in_the_store() -> None:
    store = CountingStore()
    ref = store.publish("cnn", 0, WEIGHTS)
    answer = ask(worker_of(Scales(), store), invocation(WEIGHTS, bring=False))
    assert results(answer) == [*(2.5 * WEIGHTS)]
    assert ref == ref_of(WEIGHTS)


def test_what_fits_the_reply_is_in_the_reply_and_what_does_not_is_in_the_store() -> None:
    store = MemoryStore()
    worker = worker_of(Scales(), store)
    big = np.random.default_rng(0).standard_normal(1000)
    message = invocation(big)
    result = message.request.result({0: 2.5 * big})
    frame = encode(result, run_id="r")
    fits = envelope_bytes(len(frame) + 100)  # for the phases
    assert results(ask(worker, invocation(big, limit_bytes=fits))) == [*(2.5 * big)]
    receipt = ask(worker, invocation(big, limit_bytes=envelope_bytes(len(frame)) - 1))
    assert isinstance(receipt, ReceiptMessage)
    assert (receipt.size_bytes, receipt.digest) == (len(frame), hashlib.sha256(frame).hexdigest())
    stored = store.get(receipt.key, digest=receipt.digest, size_bytes=receipt.size_bytes)
    answer: Any = decode(stored, run_id="r")
    message.request.check(answer)
    assert results(answer) == [*(2.5 * big)]


def test_a_repeated_invocation_with_another_result_does_not_replace_the_first() -> None:
    store = MemoryStore()
    worker = worker_of(Scales(), store)
    receipts = []
    for value in (1, 2, 1):
        message = invocation(WEIGHTS, settings={"value": value}, limit_bytes=0)
        receipts.append(ask(worker, message))
    for receipt in receipts:
        assert isinstance(receipt, ReceiptMessage)
        assert store.get(receipt.key, digest=receipt.digest, size_bytes=receipt.size_bytes)
    assert len({receipt.key for receipt in receipts}) == 2


def test_gradients_of_megabytes_go_through_a_folder_both_ways(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    weights = np.random.default_rng(1).standard_normal(2_000_003).astype(np.float32)
    ref = store.publish("resnet", 0, weights.astype(np.float16))
    scales = Scales()

    def to_float32(_: Any, fetch_weights: Any) -> Any:
        return lambda parts: fetch_weights(parts[0].weights).astype(np.float32)

    scales.registry.register("widen")(to_float32)
    message = invocation(name="widen", store=SHARED, task=task_of(ref))
    receipt = ask(worker_of(scales, store), message)
    assert isinstance(receipt, ReceiptMessage)
    stored = store.get(receipt.key, digest=receipt.digest, size_bytes=receipt.size_bytes)
    answer = decode(stored, run_id="r")
    assert isinstance(answer, ResultMessage)
    np.testing.assert_array_equal(answer.results[0], weights.astype(np.float16))


# ---- what goes wrong ----------------------------------------------------------------------------


def test_without_a_store_what_does_not_fit_is_a_failure_with_the_remedy() -> None:
    reason = failure(ask(worker_of(Scales()), invocation(WEIGHTS, limit_bytes=100)))
    assert "StoreError: the answer '" in reason
    assert "use a directory (EFS) or an S3 store" in reason


def test_an_exception_is_told_by_its_line_and_the_next_task_is_computed() -> None:
    worker = worker_of(Scales())
    message = invocation(WEIGHTS, settings={"fail": "no such\ndigit"})
    assert failure(ask(worker, message)).startswith("ValueError: no such digit (")
    assert results(ask(worker, invocation(WEIGHTS))) == [*(2.5 * WEIGHTS)]


def test_a_result_that_is_not_finite_names_its_model() -> None:
    answer = ask(worker_of(Scales()), invocation(WEIGHTS, settings={"value": "nan"}))
    assert isinstance(answer, ResultMessage)
    assert (list(answer.flaws), results(answer)) == (["cnn"], [0.0] * 3)


def test_weights_that_are_nowhere_are_a_failure() -> None:
    worker = worker_of(Scales(), MemoryStore())
    reason = failure(ask(worker, invocation(WEIGHTS, bring=False)))
    assert reason.startswith("StoreError: weights of 'cnn', version 0, are missing")


@pytest.mark.parametrize("name", ["os:system", "os.system", "seqgc.worker._invocations", "scales"])
def test_a_name_that_is_not_registered_is_refused_and_imports_nothing(name: str) -> None:
    reason = failure(ask(worker_of(Scales()), invocation(WEIGHTS, name=name)))
    assert f"must be registered in this image, as are scale; got {name!r}" in reason


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"seqgc": 1, "frame": "AAAA"},
        to_mapping(encode(CancelMessage(round=0, worker=0), run_id="r")),
    ],
)
def test_what_is_no_invocation_raises(event: dict[str, object]) -> None:
    with pytest.raises(WireError):
        worker_of(Scales()).serve(event)


def test_a_frame_above_the_limit_raises() -> None:
    worker = worker_of(Scales(), max_bytes=1000)
    event = to_mapping(encode(invocation(np.zeros(200)), run_id="r"))
    with pytest.raises(WireError, match="more than 1000 bytes"):
        worker.serve(event)


# ---- what it keeps ------------------------------------------------------------------------------


def test_a_compute_is_made_once_for_a_run_and_workload() -> None:
    scales = Scales()
    worker = worker_of(scales)
    for settings in ({"a": 1, "b": 2}, {"b": 2, "a": 1}):
        ask(worker, invocation(WEIGHTS, settings=settings))
    assert len(scales.made) == 1
    ask(worker, invocation(WEIGHTS, settings={"a": 1, "b": 3}))
    assert len(scales.made) == 2
    ask(worker, invocation(WEIGHTS, settings={"a": 1, "b": 3}), run_id="another")
    assert len(scales.made) == 3


def test_runs_do_not_pile_up() -> None:
    scales = Scales()
    worker = worker_of(scales)
    for run in ("a", "b", "a", "b"):
        ask(worker, invocation(WEIGHTS), run_id=run)
    assert len(scales.made) == 2
    ask(worker, invocation(WEIGHTS), run_id="c")  # in the place of a
    ask(worker, invocation(WEIGHTS), run_id="b")
    assert len(scales.made) == 3
    ask(worker, invocation(WEIGHTS), run_id="a")
    assert len(scales.made) == 4


def test_weights_are_fetched_once_in_a_run_and_again_in_another() -> None:
    store = CountingStore()
    store.publish("cnn", 0, WEIGHTS)
    worker = worker_of(Scales(), store)
    for run in ("a", "a", "b", "a"):
        assert results(ask(worker, invocation(WEIGHTS, bring=False), run_id=run))
    assert store.fetched == [0, 0]


def test_weights_that_came_along_are_kept_but_not_for_another_run() -> None:
    worker = worker_of(Scales(), MemoryStore())
    ask(worker, invocation(WEIGHTS), run_id="a")
    assert results(ask(worker, invocation(WEIGHTS, bring=False), run_id="a"))
    assert "weights of 'cnn', version 0, are missing" in failure(
        ask(worker, invocation(WEIGHTS, bring=False), run_id="b")
    )


def test_one_version_number_with_other_content_is_other_weights() -> None:
    worker = worker_of(Scales(), MemoryStore())
    ask(worker, invocation(WEIGHTS))
    assert results(ask(worker, invocation(WEIGHTS + 1))) == [*(2.5 * (WEIGHTS + 1))]


def test_kept_weights_are_bounded_and_the_oldest_version_goes_first() -> None:
    store = CountingStore()
    refs = [store.publish("cnn", version, WEIGHTS + version) for version in range(4)]
    worker = worker_of(Scales(), store, cached_bytes=2 * WEIGHTS.nbytes)
    for version in (0, 1, 0, 2, 1, 3, 2, 0, 3):
        message = invocation(store=SHARED, task=task_of(refs[version]))
        assert results(ask(worker, message)) == [*(2.5 * (WEIGHTS + version))]
    assert store.fetched == [0, 1, 2, 3, 0], "0 went for 2 although it was used after 1"


def test_runs_share_the_bound_and_the_one_that_was_not_used_for_longest_goes_first() -> None:
    store = CountingStore()
    refs = [store.publish("cnn", version, WEIGHTS + version) for version in range(3)]
    worker = worker_of(Scales(), store, cached_bytes=2 * WEIGHTS.nbytes)
    for run, version in (("a", 2), ("b", 0), ("b", 1), ("b", 0), ("a", 2), ("b", 1), ("a", 2)):
        message = invocation(store=SHARED, task=task_of(refs[version]))
        assert results(ask(worker, message, run_id=run))
    assert store.fetched == [2, 0, 1, 2]


def test_a_run_that_is_forgotten_leaves_its_room() -> None:
    store = CountingStore()
    refs = [store.publish("cnn", version, WEIGHTS + version) for version in range(2)]
    worker = worker_of(Scales(), store, cached_bytes=3 * WEIGHTS.nbytes)
    for run in ("a", "b", "c", "d"):  # of which two are kept
        ask(worker, invocation(store=SHARED, task=task_of(refs[0])), run_id=run)
    assert store.fetched == [0] * 4
    for run, version in (("d", 1), ("c", 0), ("d", 0), ("d", 1)):  # three fit
        ask(worker, invocation(store=SHARED, task=task_of(refs[version])), run_id=run)
    assert store.fetched == [*[0] * 4, 1]


@pytest.mark.parametrize(
    ("memory_mb", "kept_mb"), [("128", 32), ("1769", 256), (None, 256), ("plenty", 256)]
)
def test_what_is_kept_is_a_quarter_of_the_functions_memory_at_most(
    monkeypatch: pytest.MonkeyPatch, memory_mb: str | None, kept_mb: int
) -> None:
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", raising=False)
    if memory_mb is not None:
        monkeypatch.setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory_mb)
    assert worker_of(Scales()).cached_bytes == kept_mb << 20


def test_weights_that_two_threads_of_a_compute_fetch_at_once_count_once() -> None:
    both = threading.Barrier(2)

    class Together(CountingStore):
        def fetch(self, ref: WeightRef) -> FloatArray:
            if ref.version == 0:
                both.wait(10.0)
            return super().fetch(ref)

    def in_threads(_: Any, fetch_weights: Any) -> Any:
        def compute(parts: Any) -> FloatArray:
            (part,) = parts
            count = 2 - part.weights.version
            with ThreadPoolExecutor(count) as pool:
                return sum(pool.map(fetch_weights, [part.weights] * count))

        return compute

    scales, store = Scales(), Together()
    scales.registry.register("threads")(in_threads)
    refs = [store.publish("cnn", version, WEIGHTS) for version in (0, 1)]
    worker = worker_of(scales, store, cached_bytes=2 * WEIGHTS.nbytes)
    for ref in (*refs, refs[0]):
        ask(worker, invocation(name="threads", store=SHARED, task=task_of(ref)))
    assert store.fetched == [0, 0, 1], "there is room for both versions"


def test_one_version_larger_than_the_bound_is_kept_while_it_is_used() -> None:
    store = CountingStore()
    store.publish("cnn", 0, WEIGHTS)
    worker = worker_of(Scales(), store, cached_bytes=1)
    for _ in range(2):
        ask(worker, invocation(WEIGHTS, bring=False))
    assert store.fetched == [0]


def test_a_store_is_opened_once() -> None:
    opened: list[StoreRef] = []

    def open_store(ref: StoreRef) -> BlobStore:
        opened.append(ref)
        return store

    store = MemoryStore()
    store.publish("cnn", 0, WEIGHTS)
    worker = FunctionWorker(Scales().registry, open_store)
    for run in ("a", "b", "a"):
        ask(worker, invocation(WEIGHTS, store=SHARED, bring=False, limit_bytes=0), run_id=run)
    assert [ref.location for ref in opened] == ["a", "b"]


@pytest.mark.parametrize("location", ["", "another", "r/deeper", "xr", "a/xr"])
def test_a_store_that_may_be_another_runs_is_refused(location: str) -> None:
    worker = worker_of(Scales(), MemoryStore())
    for good in ("r", "a/r"):
        store = StoreRef(kind="directory", location=good)
        assert worker.serve(to_mapping(encode(invocation(WEIGHTS, store=store), run_id="r")))
    store = StoreRef(kind="directory", location=location)
    with pytest.raises(WireError, match="location must end in the run's id, 'r'"):
        worker.serve(to_mapping(encode(invocation(WEIGHTS, store=store), run_id="r")))


def test_a_store_that_is_not_needed_is_not_opened() -> None:
    def refuse(_: StoreRef) -> BlobStore:
        raise AssertionError("opened")

    worker = FunctionWorker(Scales().registry, refuse)
    assert results(ask(worker, invocation(WEIGHTS, store=SHARED))) == [*(2.5 * WEIGHTS)]


# ---- when it answers ----------------------------------------------------------------------------


@pytest.mark.parametrize(("delay_s", "slept"), [(0.0, []), (3.0, [1.0]), (1.5, [])])
def test_an_answer_leaves_no_earlier_than_it_is_due(delay_s: float, slept: list[float]) -> None:
    clock, scales = HandWoundClock(), Scales()

    def slow(_: Any, __: Any) -> Any:
        def compute(_: Any) -> FloatArray:
            clock.wind(2.0)
            return np.ones(1)

        return compute

    scales.registry.register("slow")(slow)
    worker = worker_of(scales, now=clock.now, sleep=clock.sleep)
    message = invocation(WEIGHTS, name="slow", delay_s=delay_s)
    report = worker.serve(to_mapping(encode(message, run_id="r")))
    assert clock.slept == slept
    assert report.compute_s == 2.0


def test_a_failure_is_not_held_back() -> None:
    clock = HandWoundClock()
    worker = worker_of(Scales(), now=clock.now, sleep=clock.sleep)
    failure(ask(worker, invocation(WEIGHTS, settings={"fail": "no"}, delay_s=60.0)))
    assert not clock.slept


# ---- its report ----------------------------------------------------------------------------------


def test_the_report_says_how_an_invocation_went() -> None:
    store = MemoryStore()
    worker = worker_of(Scales(), store)
    event = to_mapping(encode(invocation(WEIGHTS), run_id="r"))
    first, second = worker.serve(event), worker.serve(event)
    assert (first.run_id, first.round, first.worker, first.attempt) == ("r", 4, 1, 0)
    assert (first.warm, second.warm, first.failure) == (False, True, "")
    assert (first.stored_bytes, first.sent_bytes > 40, first.received_bytes > 80) == (0, True, True)
    large = worker.serve(to_mapping(encode(invocation(WEIGHTS, limit_bytes=0), run_id="r")))
    assert 0 < large.stored_bytes < first.sent_bytes  # the phases are in the receipt
    message = invocation(WEIGHTS, settings={"fail": "no\nway"})
    failed = worker.serve(to_mapping(encode(message, run_id="r")))
    assert failed.failure.startswith("ValueError: no way (")
    assert failed.failure.endswith(", in compute)")


@pytest.mark.parametrize(
    "said", ["a\nb", "a\r\nb", "a\x0bb", "a\x1cb", "a\x85b", "a\u2028b", "\x1b[31m"]
)
def test_a_failure_is_told_in_one_line_that_any_log_takes(said: str) -> None:
    message = invocation(WEIGHTS, settings={"fail": said})
    report = worker_of(Scales()).serve(to_mapping(encode(message, run_id="r")))
    assert report.failure.startswith("ValueError: ")
    assert report.failure.splitlines() == [report.failure]
    assert report.failure.isprintable()


def test_a_failed_factory_is_asked_again() -> None:
    scales, attempts = Scales(), []

    def shy(_: Any, __: Any) -> Any:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("the mount is not ready")
        return lambda _: np.ones(1)

    scales.registry.register("shy")(shy)
    worker = worker_of(scales)
    reason = failure(ask(worker, invocation(name="shy")))
    assert reason.startswith("OSError: the mount is not ready (")
    assert "test_function.py:" in reason
    assert results(ask(worker, invocation(name="shy"))) == [1.0]
