"""The backend's core, against a transport that the test answers by hand."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from seqgc.backends.lambda_ import Invoking, LambdaBackend, ThrottlePolicy
from seqgc.errors import ParameterError, SkewError, WireError, WorkerError
from seqgc.ports import Arrival, Failure, OutlastingBackend, WeightRef
from seqgc.stores import DirectoryStore, InlineStore, MemoryStore
from seqgc.testing.scripted import address, task
from seqgc.wire import CancelMessage, StoreRef, encode, to_json
from tests.backends.lambda_.in_memory import (
    INLINE,
    RUN,
    WORKLOAD,
    Clock,
    InMemory,
    failure_of,
    next_of,
    open_backend,
)

SHARED = StoreRef(kind="directory", location=RUN)


# ---- one event per invocation, and only for what was asked --------------------------------------


def test_what_is_asked_says_workload_store_code_and_limits() -> None:
    backend, wire = open_backend(code="gc:s=1", payload="float16", stochastic_rounding=True)
    backend.dispatch(3, [task(3, 1, points=5)])
    assert wire.flushed == 1
    message = wire.asked(0)
    assert (message.workload.name, message.store.kind) == ("twos", "inline")
    assert (message.request.code, message.request.payload) == ("gc:s=1", "float16")
    assert message.request.rounding_seed is not None
    assert message.weights == ()
    assert 0 < message.inline_limit_bytes < 6 * 1024 * 1024
    wire.run(0)
    event = next_of(backend)
    assert isinstance(event, Arrival)
    assert (address(event), event.results[0].tolist()) == (("Arrival", 3, 1, 0), [2.0] * 3)
    assert backend.outstanding == 0


def test_a_second_reply_and_one_to_nothing_are_no_events() -> None:
    backend, wire = open_backend()
    backend.dispatch(0, [task(0, 0)])
    body = wire.sent[0]
    wire.run(0)
    wire.sent[0] = wire.sent[77] = body
    wire.run(0)
    wire.run(77)
    assert address(next_of(backend)) == ("Arrival", 0, 0, 0)
    assert backend.receive(wire.clock.time) is None


def test_an_answer_that_outruns_the_last_task_is_stamped_as_it_came() -> None:
    backend, wire = open_backend()
    submit = wire.submit

    def slow(tag: int, body: bytes) -> None:  # sending one takes a second, its answer half of it
        submit(tag, body)
        wire.clock.time += 0.5
        if tag == 0:
            wire.run(0)
        wire.clock.time += 0.5

    wire.submit = slow  # type: ignore[method-assign]
    first, second = backend.dispatch(0, [task(0, 0), task(0, 1)])
    assert second == first + 1.0
    assert next_of(backend).at == first + 0.5
    wire.run(1)
    assert next_of(backend).at == wire.clock.time


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"round": 4}, "answer has round 4"),
        ({"worker": 0}, "answer has worker 0"),
        ({"attempt": 1}, "answer has attempt 1"),
        ({"weights_digest": "1" * 64}, "answer has weights_digest"),
        ({"code": "other"}, "answer has code 'other'"),
    ],
)
def test_an_answer_to_something_else_is_a_failure_of_what_was_asked(
    wrong: dict[str, object], reason: str
) -> None:
    backend, wire = open_backend()
    backend.dispatch(3, [task(3, 1)])
    answer = wire.asked(0).request.result({0: np.ones(3)})
    wire.say(0, replace(answer, subject=msgspec.structs.replace(answer.subject, **wrong)))
    failure = failure_of(backend)
    assert address(failure) == ("Failure", 3, 1, 0)
    assert failure.reason.startswith(f"WireError: {reason}")


def test_an_answer_of_another_run_is_a_failure() -> None:
    backend, wire = open_backend()
    backend.dispatch(0, [task(0, 0)])
    wire.say(0, wire.asked(0).request.result({0: np.ones(3)}), run_id="another")
    assert "belongs to run 'another'" in failure_of(backend).reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "WireError: envelope"),
        (b"null", "WireError: envelope"),
        (b'{"seqgc":1,"frame":"AAAA"}', "WireError: frame of 3 bytes is cut short"),
        (b"<html>504 Gateway Time-out</html>", "WireError: envelope is not JSON"),
    ],
)
def test_garbage_is_a_failure_with_its_reason(body: bytes, reason: str) -> None:
    backend, wire = open_backend()
    backend.dispatch(0, [task(0, 0)])
    wire.reply(0, body)
    assert failure_of(backend).reason.startswith(reason)


def test_a_flipped_bit_is_a_failure() -> None:
    backend, wire = open_backend()
    backend.dispatch(0, [task(0, 0)])
    asked = wire.asked(0).request
    frame = bytearray(encode(asked.result({0: np.ones(3)}), run_id=RUN))
    frame[-1] ^= 1
    wire.reply(0, to_json(frame))
    assert "its digest does not match" in failure_of(backend).reason


def test_a_message_that_is_no_answer_is_a_failure() -> None:
    backend, wire = open_backend()
    backend.dispatch(0, [task(0, 0)])
    wire.say(0, CancelMessage(round=0, worker=0))
    assert failure_of(backend).reason.startswith("WireError: a function answered with a Cancel")


def test_what_the_function_or_the_service_says_is_the_reason() -> None:
    backend, wire = open_backend()
    backend.dispatch(0, [task(0, 0), task(0, 1)])
    wire.say(0, wire.asked(0).request.failure("KeyError: no such model"))
    wire.fail(1, "Sandbox.Timedout: Task timed out after 3.00 seconds")
    assert [failure_of(backend).reason for _ in range(2)] == [
        "KeyError: no such model",
        "Sandbox.Timedout: Task timed out after 3.00 seconds",
    ]


def test_a_function_that_differs_from_its_master_ends_the_run_even_if_it_is_late() -> None:
    backend, wire = open_backend()
    backend.dispatch(0, [task(0, 0)])
    backend.cancel(0, [0])
    wire.say(0, wire.asked(0).request.failure("torch (master 2, function 1)", final=True))
    with pytest.raises(SkewError, match=r"^torch \(master 2, function 1\)$"):
        backend.receive(math.inf)


# ---- cancelling ---------------------------------------------------------------------------------


def test_a_late_answer_of_a_cancelled_round_arrives_and_its_failure_does_not() -> None:
    backend, wire = open_backend()
    backend.dispatch(0, [task(0, 0), task(0, 1)])
    backend.cancel(0, [0, 1])
    backend.dispatch(1, [task(1, 0)])
    wire.fail(0, "crashed")
    wire.run(1)
    wire.run(2)
    assert [address(next_of(backend)) for _ in range(2)] == [
        ("Arrival", 0, 1, 0),
        ("Arrival", 1, 0, 0),
    ]
    assert backend.receive(wire.clock.time) is None


def test_cancelling_takes_back_what_throttling_held_and_nothing_else() -> None:
    backend, wire = open_backend(throttling=ThrottlePolicy(first_s=10.0, longest_s=10.0))
    backend.dispatch(0, [task(0, 0), task(0, 1)])
    for tag in (0, 1):
        wire.fail(tag, "HTTP 429", throttled=True)
    assert backend.receive(wire.clock.time) is None
    backend.cancel(0, [0])
    assert backend.receive(wire.clock.time + 20.0) is None
    assert list(wire.sent) == [1]
    assert backend.outstanding == 1


def test_under_way_is_what_has_left_and_has_no_reply_cancelled_or_not() -> None:
    backend, wire = open_backend(3, throttling=ThrottlePolicy(first_s=10.0, longest_s=10.0))
    assert isinstance(backend, OutlastingBackend)
    backend.dispatch(0, [task(0, worker) for worker in range(3)])
    backend.cancel(0, [0, 1])
    assert backend.under_way == 3, "nobody can stop them"
    wire.fail(1, "crashed")
    wire.fail(2, "HTTP 429", throttled=True)
    assert backend.receive(wire.clock.time) is None
    assert (backend.under_way, backend.outstanding) == (1, 2)


def test_a_cancelled_invocation_that_is_throttled_is_not_submitted_again() -> None:
    backend, wire = open_backend()
    backend.dispatch(0, [task(0, 0)])
    backend.cancel(0, [0])
    wire.fail(0, "HTTP 429", throttled=True)
    assert backend.receive(wire.clock.time + 100.0) is None
    assert (len(wire.log), backend.outstanding) == (1, 0)


# ---- throttling ---------------------------------------------------------------------------------


def test_a_throttled_invocation_is_submitted_again_as_it_was() -> None:
    backend, wire = open_backend()
    backend.dispatch(0, [task(0, 1)])
    first = wire.sent[0]
    wire.fail(0, "HTTP 429", throttled=True)
    before = wire.clock.time
    assert backend.receive(before + 0.2) is None
    assert wire.sent == {0: first}
    assert before <= wire.log[1][0] <= before + 0.1
    wire.run(0)
    assert address(next_of(backend)) == ("Arrival", 0, 1, 0)


def test_a_throttled_invocation_waits_as_long_as_the_service_says() -> None:
    backend, wire = open_backend(throttling=ThrottlePolicy(first_s=0.1, longest_s=4.0))
    backend.dispatch(0, [task(0, 0), task(0, 1)])
    before = wire.clock.time
    wire.fail(0, "HTTP 429", throttled=True, retry_after_s=3.0)
    wire.fail(1, "HTTP 429", throttled=True, retry_after_s=900.0)
    assert backend.receive(before + 60.0) is None
    first, second = (at - before for at, _ in wire.log[2:])
    assert [tag for _, tag in wire.log[2:]] == [0, 1]
    assert 3.0 <= first <= 3.1
    assert 4.0 <= second <= 4.1


def test_when_patience_with_throttling_ends_it_is_a_failure() -> None:
    backend, wire = open_backend(throttling=ThrottlePolicy(max_resubmissions=3))
    backend.dispatch(0, [task(0, 1)])
    for _ in range(4):
        wire.fail(0, "HTTP 429 TooManyRequestsException: Rate Exceeded", throttled=True)
        event = backend.receive(wire.clock.time + 60.0)
    assert isinstance(event, Failure)
    assert event.reason.startswith("HTTP 429 TooManyRequestsException: Rate Exceeded; throttled 4")
    assert "raise the function's reserved concurrency" in event.reason
    assert len(wire.log) == 1 + 3
    assert backend.receive(wire.clock.time + 60.0) is None


def test_a_service_that_refuses_everybody_meets_no_storm() -> None:
    n, policy = 256, ThrottlePolicy(max_resubmissions=4, window=32)
    backend, wire = open_backend(n, throttling=policy)
    start, *_ = backend.dispatch(0, [task(0, worker) for worker in range(n)])
    failures = 0
    while failures < n:
        assert len(wire.sent) <= n if len(wire.log) == n else len(wire.sent) <= policy.window
        for tag in list(wire.sent):
            wire.fail(tag, "HTTP 429", throttled=True)
        failures += backend.receive(wire.clock.time + 0.05) is not None
    assert len(wire.log) == n * (1 + policy.max_resubmissions)
    again = sorted(at for at, _ in wire.log[n:])
    per_second = max(
        sum(at <= other < at + 1.0 for other in again) for at in again[:: len(again) // 64]
    )
    assert per_second <= 200, "re-submissions per second, of 256 refused at once"
    assert again[-1] - start > 1.0


def test_the_rest_of_a_round_gets_through_when_only_so_many_may_run() -> None:
    n, places = 64, 16
    backend, wire = open_backend(n)
    backend.dispatch(0, [task(0, worker) for worker in range(n)])
    arrived: set[int] = set()
    while len(arrived) < n:
        for place, tag in enumerate(list(wire.sent)):
            if place < places:
                wire.run(tag)
            else:
                wire.fail(tag, "HTTP 429", throttled=True)
        while (event := backend.receive(wire.clock.time + 0.01)) is not None:
            assert isinstance(event, Arrival)
            arrived.add(event.worker)
    assert len(wire.log) < 4 * n


# ---- sizes --------------------------------------------------------------------------------------


def test_a_task_too_large_to_send_stops_the_whole_dispatch_with_the_remedy() -> None:
    backend, wire = open_backend(max_body_bytes=20_000)
    with pytest.raises(
        WireError, match=r"round 0, worker 1: the task of 0.0\d MB .* 20000 bytes"
    ) as e:
        backend.dispatch(0, [task(0, 0), task(0, 1, points=2000)])
    assert "use a store (EFS or S3) for weights, or fewer points" in str(e.value)
    assert not wire.log


def test_a_gradient_that_no_reply_takes_is_refused_before_any_call() -> None:
    resnet = 11_227_812
    for payload, size in (("float16", 29.95), ("float32", 59.89)):
        backend, wire = open_backend(payload=payload)
        with pytest.raises(WireError, match=rf"its answer of {size} MB as JSON .*narrower") as e:
            backend.dispatch(0, [task(0, 0, size=resnet)])
        assert "use a store (EFS or S3)" in str(e.value)
        assert not wire.log
    backend, wire = open_backend(payload="float16", store=SHARED, shared=MemoryStore())
    backend.dispatch(0, [task(0, 0, size=resnet)])
    assert len(wire.log) == 1


def test_a_small_network_fits_and_in_its_own_dtype_only_if_that_does() -> None:
    backend, wire = open_backend(payload="float32")
    backend.dispatch(0, [task(0, 0, size=270_000)])
    assert len(wire.log) == 1
    backend, _ = open_backend()
    with pytest.raises(WireError, match="its answer"):  # the weights are float64
        backend.dispatch(0, [task(0, 0, size=600_000)])


# ---- weights ------------------------------------------------------------------------------------


def test_inline_weights_travel_once_per_version() -> None:
    store = InlineStore()
    ref = store.publish("w", 0, np.arange(3.0))
    backend, wire = open_backend(shared=store)
    asked = task(0, 0, "plain", "plain")
    for item in asked.items:
        object.__setattr__(item.parts[0], "weights", ref)
    backend.dispatch(0, [asked])
    ((sent, params),) = wire.asked(0).weights
    assert isinstance(sent, WeightRef)
    assert (sent, params.tolist()) == (ref, [0.0, 1.0, 2.0])


def test_a_store_must_be_there_for_the_master_too(tmp_path: object) -> None:
    with pytest.raises(ParameterError, match="`shared` must be given with a store"):
        open_backend(store=SHARED)
    open_backend(store=SHARED, shared=DirectoryStore(str(tmp_path)))
    another = StoreRef(kind="directory", location="run-2")
    with pytest.raises(ParameterError, match=r"`store` must .* 'run-1'"):
        open_backend(store=another, shared=DirectoryStore(str(tmp_path)))


# ---- warm-up, and the end -----------------------------------------------------------------------


class Answering:
    """Answers a transport's invocations as they are submitted, all but those it is told to fail."""

    def __init__(self, errors: dict[int, str]) -> None:
        self.errors = errors

    def __call__(self, wire: object, submit: object) -> object:
        def answer(tag: int, body: bytes) -> None:
            submit(tag, body)  # type: ignore[operator]
            message = wire.asked(tag).request  # type: ignore[attr-defined]
            if message.task.worker in self.errors:
                wire.fail(tag, self.errors[message.task.worker])  # type: ignore[attr-defined]
            else:
                wire.say(tag, message.result({}))  # type: ignore[attr-defined]

        return answer


def test_a_warm_up_invokes_everybody_and_is_no_event() -> None:
    backend, wire = open_backend(3)
    wire.submit = Answering({1: "cold"})(wire, wire.submit)  # type: ignore[method-assign, assignment]
    backend.warm_up(2)
    assert len(wire.log) == 6
    assert backend.receive(wire.clock.time) is None
    assert backend.outstanding == 0


def test_a_warm_up_that_nobody_answers_names_the_cause() -> None:
    backend, wire = open_backend(2)
    wire.submit = Answering({0: "no such factory", 1: "b"})(wire, wire.submit)  # type: ignore[method-assign, assignment]
    with pytest.raises(WorkerError, match="warm-up: no such factory"):
        backend.warm_up(1)
    silent, wire = open_backend(2)
    with pytest.raises(WorkerError, match="120 s"):
        silent.warm_up(1)
    assert silent.outstanding == 0
    wire.fail(0, "too late")
    assert silent.receive(wire.clock.time) is None
    with pytest.raises(ParameterError, match="`warm_up_rounds` must be an integer >= 0"):
        silent.warm_up(-1)


def test_a_backend_that_cannot_be_warmed_up_is_closed() -> None:
    wire = InMemory(clock := Clock())
    with pytest.raises(WorkerError, match="no answer within"):
        LambdaBackend(
            2,
            wire,
            workload=WORKLOAD,
            store=INLINE,
            invoking=Invoking(warm_up_rounds=1),
            clock=clock,
        )
    assert wire.closed


def test_closing_closes_the_transport_and_drops_what_waits() -> None:
    backend, wire = open_backend()
    with backend:
        backend.dispatch(0, [task(0, 0)])
        wire.run(0)
    assert wire.closed
    with pytest.raises(WorkerError, match="closed"):
        backend.receive(math.inf)


def test_importing_the_backend_loads_no_client_library() -> None:
    code = "import sys, seqgc.backends.lambda_; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"boto3", "botocore", "requests", "urllib3", "aiohttp"} & set(done.stdout.split())
