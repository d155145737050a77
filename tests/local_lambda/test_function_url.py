from __future__ import annotations

import base64
import json

import pytest

from seqgc.local_lambda import LocalLambda
from tests.local_lambda.calling import signed

requests = pytest.importorskip("requests")


def _post(service: LocalLambda, path: str, data: bytes = b"{}", kind: str = "application/json"):
    url = service.function_url + path
    headers = signed(service, url, data=data, content_type=kind)
    return requests.post(url, data=data, headers=headers, timeout=10)


def test_request_becomes_an_event(service: LocalLambda) -> None:
    event = _post(service, "echo?a=1&b=2&a=3", b'{"x": 1}').json()

    assert (event["version"], event["routeKey"]) == ("2.0", "$default")
    assert (event["rawPath"], event["rawQueryString"]) == ("/echo", "a=1&b=2&a=3")
    assert event["queryStringParameters"] == {"a": "1,3", "b": "2"}
    assert event["headers"]["content-type"] == "application/json"
    assert event["requestContext"]["http"]["method"] == "POST"
    assert event["requestContext"]["http"]["path"] == "/echo"
    assert (event["body"], event["isBase64Encoded"]) == ('{"x": 1}', False)


def test_binary_body_is_base64(service: LocalLambda) -> None:
    event = _post(service, "echo", b"\x00\xff", "application/octet-stream").json()

    assert event["isBase64Encoded"] is True
    assert base64.b64decode(event["body"]) == b"\x00\xff"


def test_described_response(service: LocalLambda) -> None:
    response = _post(service, "binary")

    assert (response.status_code, response.content) == (201, b"\x00\x01\x02")
    assert response.headers["x-a"] == "b"


def test_any_other_answer_is_a_body(service: LocalLambda) -> None:
    response = _post(service, "plain")

    assert (response.status_code, response.json()) == (200, {"message": "plain"})
    assert response.headers["content-type"] == "application/json"


def test_function_error_is_a_bad_gateway(service: LocalLambda) -> None:
    response = _post(service, "raise")

    assert (response.status_code, response.text) == (502, "Internal Server Error")


def test_too_large_and_unsigned(service: LocalLambda) -> None:
    assert _post(service, "echo", json.dumps("x" * 7_000_000).encode()).status_code == 413
    assert requests.post(service.function_url, data=b"{}", timeout=10).status_code == 403
