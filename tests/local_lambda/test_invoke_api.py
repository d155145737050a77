from __future__ import annotations

import base64
import http.client
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from seqgc.local_lambda import MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES, LocalLambda
from seqgc.testing import eventually
from tests.local_lambda.calling import HANDLER, Reply, call, client


def test_one_environment_answers_all_that_come_one_by_one(aws: Any, service: LocalLambda) -> None:
    first, second = call(aws, service), call(aws, service)

    assert (first.error, second.error) == ("", "")
    assert second.value["pid"] == first.value["pid"]
    assert second.value["seen"] == first.value["seen"] + 1
    assert first.version == "$LATEST"


def test_log_tail_has_the_lines_of_its_request_only(aws: Any, service: LocalLambda) -> None:
    call(aws, service, do="print", text="one")
    reply = call(aws, service, do="print", text="two")

    start, said, end, report = reply.log.strip().splitlines()
    assert start == f"START RequestId: {reply.request_id} Version: $LATEST"
    assert said == "two"
    assert end == f"END RequestId: {reply.request_id}"
    figures = r"Duration: (\S+) ms\tBilled Duration: (\d+) ms\tMemory Size: 1769 MB\tMax Memory Us"
    match = re.fullmatch(rf"REPORT RequestId: (\S+)\t{figures}ed: \d+ MB", report)
    assert match is not None, report
    assert match[1] == reply.request_id
    assert int(match[3]) == math.ceil(float(match[2]))
    assert service.log(reply.request_id) == reply.log


def test_log_tail_is_four_kilobytes(aws: Any, service: LocalLambda) -> None:
    reply = call(aws, service, do="print", text="x" * 200_000)

    assert len(reply.log) == 4096
    assert len(service.log(reply.request_id)) > 200_000


def test_exception_is_a_function_error_with_its_trace(aws: Any, service: LocalLambda) -> None:
    reply = call(aws, service, do="raise")

    assert reply.error == "Unhandled"
    assert (reply.value["errorType"], reply.value["errorMessage"]) == ("ValueError", "on purpose")
    assert "functions.py" in reply.value["stackTrace"][0]
    assert "[ERROR] ValueError: on purpose\nTraceback" in reply.log


def test_timeout_kills_the_environment(hasty: LocalLambda) -> None:
    aws = client(hasty)
    reply = call(aws, hasty, do="wait", seconds=5)
    seen = eventually(lambda: call(aws, hasty).value.get("seen"), "an answer in time")
    aws.close()

    assert reply.error == "Unhandled"
    assert reply.value["errorMessage"].endswith("Task timed out after 0.50 seconds")
    assert f"{reply.request_id} Task timed out after 0.50 seconds" in reply.log
    assert seen == 1, "by another environment"


@pytest.mark.parametrize(
    ("event", "how"),
    [
        ({"do": "kill"}, "Runtime exited with error: signal: killed"),
        ({"do": "exit", "code": 3}, "Runtime exited with error: exit status 3"),
        ({"do": "exit", "code": 0}, "Runtime exited without providing a reason"),
    ],
)
def test_end_of_the_process_is_a_function_error(
    aws: Any, service: LocalLambda, event: dict[str, Any], how: str
) -> None:
    reply = call(aws, service, **event)

    assert reply.value["errorType"] == "Runtime.ExitError"
    assert reply.value["errorMessage"] == f"RequestId: {reply.request_id} Error: {how}"
    assert call(aws, service).error == ""


def test_largest_request_and_one_more_byte(patient: LocalLambda) -> None:
    service, aws = patient, client(patient)
    room = MAX_REQUEST_BYTES - len(json.dumps({"padding": ""}))

    assert call(aws, service, padding="x" * room).value["size"] == room
    with pytest.raises(ClientError) as caught:
        call(aws, service, padding="x" * (room + 1))
    assert caught.value.response["Error"]["Code"] == "RequestEntityTooLargeException"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 413
    assert call(aws, service).error == ""  # over the same connection
    aws.close()


def test_response_too_large(patient: LocalLambda) -> None:
    aws = client(patient)
    room = MAX_RESPONSE_BYTES - len('""')
    assert len(call(aws, patient, do="answer", bytes=room).value) == room
    reply = call(aws, patient, do="answer", bytes=room + 1)
    aws.close()

    assert reply.error == "Unhandled"
    assert reply.value["errorType"] == "Function.ResponseSizeTooLarge"


def test_request_beyond_the_concurrency_is_throttled(aws: Any, service: LocalLambda) -> None:
    def one(_: int) -> Reply | str:
        try:
            return call(aws, service, do="wait", seconds=0.3)
        except aws.exceptions.TooManyRequestsException as error:
            return str(error.response["Reason"])

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(8)))

    refused = [answer for answer in answers if isinstance(answer, str)]
    assert refused
    assert set(refused) == {"ReservedFunctionConcurrentInvocationLimitExceeded"}
    assert len(answers) - len(refused) >= 3
    assert service.statistics().environments <= 3


def test_event_invocation_is_accepted_and_done_later(aws: Any, service: LocalLambda) -> None:
    def invoke(**event: Any) -> int:
        payload = json.dumps(event).encode()
        name = service.function_name
        got = aws.invoke(FunctionName=name, Payload=payload, InvocationType="Event")
        return int(got["StatusCode"])

    codes = [invoke(do="print", text=f"event {i}") for i in range(6)]  # more than environments

    assert codes == [202] * 6
    eventually(lambda: all(f"event {i}\n" in service.log() for i in range(6)), "all events")


def test_dry_run_computes_nothing(aws: Any, service: LocalLambda) -> None:
    before = service.statistics().requests
    name = service.function_name
    got = aws.invoke(FunctionName=name, Payload=b"{}", InvocationType="DryRun")

    assert got["StatusCode"] == 204
    assert service.statistics().requests == before


@pytest.mark.parametrize("name", ["{}", "{}:live", "123456789012:function:{}", "arn"])
def test_names_of_the_function(aws: Any, service: LocalLambda, name: str) -> None:
    named = service.function_arn if name == "arn" else name.format(service.function_name)

    got = aws.invoke(FunctionName=named, Payload=b"{}")

    assert got["ExecutedVersion"] == ("1" if name.endswith("live") else "$LATEST")


@pytest.mark.parametrize(
    "name", ["another", "seqgc-worker:nonsense", "999999999999:function:seqgc-worker"]
)
def test_unknown_function(aws: Any, name: str) -> None:
    with pytest.raises(aws.exceptions.ResourceNotFoundException, match="Function not found"):
        aws.invoke(FunctionName=name, Payload=b"{}")


@pytest.mark.parametrize("body", [b"{nope", b"[" * 100_000])
def test_body_that_is_no_json(aws: Any, service: LocalLambda, body: bytes) -> None:
    with pytest.raises(aws.exceptions.InvalidRequestContentException, match="Could not parse"):
        aws.invoke(FunctionName=service.function_name, Payload=body)


def test_unsigned_request_is_turned_away(service: LocalLambda) -> None:
    connection = http.client.HTTPConnection(urlsplit(service.endpoint_url).netloc)
    path = f"/2015-03-31/functions/{service.function_name}/invocations"
    connection.request("POST", path, body=b"{}")
    response = connection.getresponse()
    response.read()
    connection.close()

    assert response.status == 403
    assert response.headers["x-amzn-ErrorType"] == "MissingAuthenticationTokenException"


def test_context_of_a_request(aws: Any, service: LocalLambda) -> None:
    custom = base64.b64encode(json.dumps({"custom": {"a": "b"}}).encode()).decode()
    payload = json.dumps({"do": "context"}).encode()
    got = aws.invoke(FunctionName=service.function_name, Payload=payload, ClientContext=custom)
    told = json.loads(got["Payload"].read())

    assert 0 < told.pop("left_ms") <= 20_000 + 1  # the deadline is told in whole milliseconds
    assert told == {
        "arn": service.function_arn,
        "name": "seqgc-worker",
        "memory": 1769,
        "client": {"a": "b"},
    }


def test_environments_have_random_numbers_of_their_own() -> None:
    with LocalLambda(HANDLER, concurrency=1) as service:
        aws = client(service)
        drawn = set()
        for _ in range(3):
            drawn.add(call(aws, service, do="random").value)
            assert call(aws, service, do="exit", code=1).error == "Unhandled"
        aws.close()

    assert len(drawn) == 3


def test_handler_that_cannot_be_imported() -> None:
    with LocalLambda("tests.local_lambda.nowhere.handler", concurrency=1) as service:
        aws = client(service)
        reply = call(aws, service)
        aws.close()

    assert reply.error == "Unhandled"
    assert reply.value["errorType"] == "Runtime.ImportModuleError"
    assert "nowhere" in reply.value["errorMessage"]
