"""Processes of this machine that the service is none of the business of."""

from __future__ import annotations

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from seqgc.local_lambda import MAX_REQUEST_BYTES, LocalLambda
from seqgc.testing import eventually
from tests.local_lambda.calling import HANDLER, REGION, call, client, signed

requests = pytest.importorskip("requests")
_RUNTIME = "/2018-06-01/runtime/invocation"
_FUNCTIONS = "/2015-03-31/functions"


def _ask(address: str, method: str, path: str, body: bytes = b"") -> int:
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request(method, path, body=body)
    with connection.getresponse() as response:
        response.read()
    connection.close()
    return response.status


def test_nobody_but_its_process_takes_or_answers_an_environments_requests() -> None:
    with LocalLambda(HANDLER, concurrency=1) as service, ThreadPoolExecutor(1) as pool:
        aws = client(service)
        address = call(aws, service, do="variables").value["AWS_LAMBDA_RUNTIME_API"]
        assert _ask(address, "GET", f"{_RUNTIME}/next") == 403, "before a request comes"
        pending = pool.submit(call, aws, service, do="context")
        assert _ask(address, "GET", f"/{'0' * 32}{_RUNTIME}/next") == 403
        assert _ask(address, "POST", f"{_RUNTIME}/x/response", b'"forged"') == 403
        assert _ask(address, "POST", "/2018-06-01/runtime/init/error", b"{}") == 403
        assert pending.result().value["name"] == service.function_name
        assert (call(aws, service).error, service.statistics().cold_starts) == ("", 1)
        aws.close()


@pytest.mark.parametrize(
    ("own", "code"),
    [((False, True), "UnrecognizedClientException"), ((True, False), "InvalidSignatureException")],
)
def test_other_keys_are_refused(service: LocalLambda, own: tuple[bool, ...], code: str) -> None:
    keys = [key if mine else "another" for key, mine in zip(service.keys, own, strict=True)]
    aws = boto3.Session(*keys).client(
        "lambda", endpoint_url=service.endpoint_url, region_name=REGION
    )
    before = service.statistics().requests
    with pytest.raises(ClientError) as caught:
        aws.invoke(FunctionName=service.function_name, Payload=b"{}")
    aws.close()
    assert caught.value.response["Error"]["Code"] == code
    assert service.statistics().requests == before


def _post(url: str, headers: dict[str, str], data: bytes = b"{}") -> int:
    return int(requests.post(url, data=data, headers=headers, timeout=20).status_code)


def test_a_signature_is_for_one_request_and_five_minutes(
    service: LocalLambda, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{service.function_url}plain?b=2&a=%20"
    headers = signed(service, url, data=b"{}")
    assert _post(url, headers) == 200
    assert _post(url, headers, b"[]") == 403, "another body"
    assert _post(f"{service.function_url}echo?b=2&a=%20", headers) == 403, "another path"
    assert _post(f"{service.function_url}plain?b=2", headers) == 403, "another query"
    assert _post(url, {**headers, "Content-Type": "text/plain"}) == 403, "a changed header"
    assert _post(url, {**headers, "X-Amz-Log-Type": "Tail"}) == 403, "an unsigned header"
    assert (
        _post(url, {**headers, "Authorization": headers["Authorization"][:-64] + "0" * 64}) == 403
    )
    for seconds, status in ((-250, 200), (-350, 403), (350, 403)):
        request = AWSRequest("POST", url, data=b"{}")
        then = time.gmtime(time.time() + seconds)
        auth = SigV4Auth(Credentials(*service.keys), "lambda", REGION)
        monkeypatch.setattr(
            "botocore.auth.get_current_datetime", lambda *_, then=then: _At(then), raising=True
        )
        auth.add_auth(request)
        assert _post(url, dict(request.headers)) == status, seconds


class _At:
    """A moment, as botocore asks for it."""

    def __init__(self, then: time.struct_time) -> None:
        self._then = then

    def strftime(self, form: str) -> str:
        return time.strftime(form, self._then)


def test_what_is_too_long_to_be_verified_is_told_nothing(service: LocalLambda) -> None:
    path = f"{_FUNCTIONS}/{service.function_name}/aliases/live"
    scope = f"{service.keys.access_key_id}/20260101/{REGION}/lambda/aws4_request"
    forged = f"Credential={scope}, SignedHeaders=host, Signature={'0' * 64}"
    url = service.endpoint_url + path
    for body, status in ((b"", 403), (bytes(MAX_REQUEST_BYTES + 1), 413)):
        headers = {"Authorization": f"AWS4-HMAC-SHA256 {forged}"}
        answer = requests.get(url, data=body, headers=headers, timeout=20)
        assert (answer.status_code, "AliasArn" in answer.text) == (status, False)


def test_no_number_of_a_version_is_too_long_for_an_answer(service: LocalLambda) -> None:
    url = f"{service.endpoint_url}{_FUNCTIONS}/{service.function_name}/invocations?Qualifier="
    for number, status in (("9" * 5000, 404), ("0", 404), ("1", 200)):
        assert _post(url + number, signed(service, url + number, data=b"{}")) == status


def test_connections_that_say_nothing_keep_nobody_out() -> None:
    with LocalLambda(HANDLER, concurrency=1) as service:
        aws: Any = client(service)
        call(aws, service)
        address = urlsplit(service.endpoint_url)
        where = str(address.hostname), int(address.port or 0)
        idle = [socket.create_connection(where) for _ in range(600)]
        for each in idle[:100]:
            each.sendall(b"POST / HTTP/1.1\r\nContent-Length: 6000000\r\nX: ")
        assert call(aws, service).error == ""
        other = client(service)
        assert call(other, service).error == "", "over a connection of its own"
        for each in idle:
            each.setblocking(False)
        eventually(lambda: sum(map(_is_over, idle)) >= 300, "the end of the oldest")
        for each in idle:
            each.close()
        aws.close()
        other.close()


def _is_over(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_keys_are_a_services_own(service: LocalLambda) -> None:
    with LocalLambda(HANDLER, concurrency=1) as other:
        assert set(other.keys).isdisjoint(service.keys)
        aws = client(service)
        variables = json.dumps(call(aws, service, do="variables").value)
        aws.close()
    assert service.keys.secret_access_key not in variables
