from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings

from seqgc.errors import ParameterError
from seqgc.local_lambda import FaultPlan, LocalLambda
from seqgc.wire import InvokeMessage, encode, to_json
from seqgc.worker import task_address, worker_address
from tests.backends.lambda_.local import TRANSPORTS, open_transport
from tests.local_lambda.calling import HANDLER, Reply, call, client
from tests.wire.messages import invocations


def _calls(plan: FaultPlan, count: int) -> tuple[list[Reply | int], dict[str, int]]:
    with LocalLambda(HANDLER, concurrency=1, timeout_s=1.0, faults=plan) as service:
        aws = client(service)
        replies: list[Reply | int] = []
        for _ in range(count):
            try:
                replies.append(call(aws, service))
            except ClientError as error:
                replies.append(error.response["ResponseMetadata"]["HTTPStatusCode"])
            except ValueError:  # the answer is no JSON any more
                replies.append(0)
        faults = dict(service.statistics().faults)
        aws.close()
    return replies, faults


def test_scripted_faults_happen_to_their_requests() -> None:
    plan = FaultPlan(
        script={(1,): "throttle", (2,): "error", (3,): "duplicate", (4,): "crash", (6,): "hang"}
    )
    replies, faults = _calls(plan, 8)

    first, refused, wrong, again, dead, fresh, hung, last = replies
    assert isinstance(first, Reply)
    assert refused == 429
    assert isinstance(wrong, Reply)
    assert wrong.value["errorType"] == "ScriptedFault"
    assert isinstance(again, Reply)
    assert again.value == first.value  # not computed: the same count of requests seen
    assert isinstance(dead, Reply)
    assert dead.value["errorMessage"].endswith("signal: killed")
    assert isinstance(fresh, Reply)
    assert fresh.value["pid"] != first.value["pid"]
    assert isinstance(hung, Reply)
    assert "Task timed out after 1.00 seconds" in hung.value["errorMessage"]
    assert isinstance(last, Reply)
    assert last.value["seen"] == 1
    assert faults == {"throttle": 1, "error": 1, "duplicate": 1, "crash": 1, "hang": 1}


def test_a_throttled_request_is_told_how_long_to_wait() -> None:
    plan = FaultPlan(rates={"throttle": 1.0})
    with LocalLambda(HANDLER, concurrency=1, faults=plan, retry_after_s=2) as service:
        aws = client(service)
        with pytest.raises(aws.exceptions.TooManyRequestsException) as refused:
            call(aws, service)
        aws.close()
        assert refused.value.response["retryAfterSeconds"] == "2"
        for kind in TRANSPORTS:  # "requests" asks the function's URL
            transport = open_transport(kind, service)
            transport.submit(1, b"{}")
            (reply,) = transport.poll(60.0)
            transport.close()
            assert (reply.throttled, reply.retry_after_s) == (True, 2.0)


@pytest.mark.parametrize("seconds", [-1, 0.5])
def test_a_wait_that_no_header_can_tell_is_refused(seconds: float) -> None:
    with pytest.raises(ParameterError, match="`retry_after_s` must be an integer >= 0"):
        LocalLambda(HANDLER, concurrency=1, retry_after_s=seconds)  # type: ignore[arg-type]


def test_delay_holds_a_request_back() -> None:
    begin = time.monotonic()
    (reply,), _ = _calls(FaultPlan(script={(0,): "delay"}, delay_s=0.1), 1)

    assert isinstance(reply, Reply)
    assert (reply.error, reply.value["seen"]) == ("", 1)
    assert time.monotonic() - begin >= 0.1


def test_corrupt_answer_differs_from_what_was_computed() -> None:
    (bad, good), faults = _calls(FaultPlan(script={(0,): "corrupt"}), 2)

    assert isinstance(good, Reply)
    assert good.value["seen"] == 2  # the first was computed
    assert bad == 0 or (isinstance(bad, Reply) and bad.value != good.value | {"seen": 1})
    assert faults == {"corrupt": 1}


def test_draws_are_the_same_every_time_and_as_frequent_as_asked() -> None:
    plan = FaultPlan(seed=3, rates={"crash": 0.1, "hang": 0.2})

    def kinds_of(plan: FaultPlan) -> list[str]:
        return [plan.fault(request=i, environment=0).kind for i in range(4000)]

    kinds = kinds_of(plan)

    assert kinds == kinds_of(plan)
    counts = Counter(kinds)
    assert abs(counts["crash"] / 4000 - 0.1) < 0.02
    assert abs(counts["hang"] / 4000 - 0.2) < 0.025
    other = FaultPlan(seed=4, rates=plan.rates)
    assert kinds != kinds_of(other)


def test_keys_of_a_plan() -> None:
    for by, key in {
        "request": (9,),
        "environment": (2,),
        "seqgc.worker.task_address": (5, 1, 0),
    }.items():
        plan = FaultPlan(by=by, script={key: "crash"})
        assert plan.fault(request=9, environment=2, body=(5, 1, 0)).kind == "crash", by
        assert eval(repr(plan)) == plan
    plan = FaultPlan(by="seqgc.worker.task_address", rates={"crash": 1.0})
    assert plan.fault(request=0, environment=0).kind == "none"  # it names no task


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"by": "moon"}, "`by` must be 'request', 'environment', or a"),
        ({"rates": {"crash": 0.6, "hang": 0.6}}, "`rates` .* 1.2"),
        ({"rates": {"crash": -0.1}}, "`rates` .*-0.1"),
        ({"script": {(1,): "crush"}}, "did you mean 'crash'"),
        ({"delay_s": -1.0}, "`delay_s` must be"),
    ],
)
def test_bad_plans(bad: dict, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        FaultPlan(**bad)


@settings(max_examples=20, deadline=None)
@given(invocations())
def test_task_of_a_request(message: InvokeMessage) -> None:
    task = message.request.task
    body = to_json(encode(message, run_id=message.store.location.rpartition("/")[2]))

    assert FaultPlan(by="seqgc.worker.task_address").reader() is task_address
    assert task_address(body) == (task.round, task.worker, task.attempt)
    assert worker_address(body) == (task.worker,)
    assert task_address(b"{}") is None is worker_address(b"{}")


def test_a_plan_by_a_function_that_is_not_there() -> None:
    with pytest.raises(ParameterError, match="`by` must name a function that can be imported"):
        FaultPlan(by="seqgc.worker.nobody").reader()


def test_faults_by_what_a_request_says() -> None:
    plan = FaultPlan(by=f"{__name__}.first_number", script={(7,): "error"})
    with LocalLambda(HANDLER, concurrency=1, faults=plan) as service:
        aws = client(service)
        assert call(aws, service, number=7).value["errorType"] == "ScriptedFault"
        assert "errorType" not in call(aws, service, number=8).value
        aws.close()


def first_number(body: bytes | bytearray) -> tuple[int, ...] | None:
    number = json.loads(body).get("number")
    return None if number is None else (number,)
