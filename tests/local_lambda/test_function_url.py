from __future__ import annotations

import base64
import json
import math
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

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


FORGED = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nFORGED"


@pytest.mark.parametrize(
    ("described", "due"),
    [
        ({"statusCode": 204, "body": FORGED}, (204, "")),
        ({"statusCode": 304, "body": FORGED}, (304, "")),
        ({"statusCode": 200, "body": FORGED, "headers": {"Content-Length": "0"}}, (200, FORGED)),
        (
            {"statusCode": 200, "body": FORGED, "headers": {"transfer-encoding ": "chunked"}},
            (200, FORGED),
        ),
        (
            {"statusCode": 200, "body": FORGED, "headers": {"content-length: 0": "x"}},
            (200, FORGED),
        ),
        ({"statusCode": 200, "body": "", "headers": {"x": f"\r\n\r\n{FORGED}"}}, (200, "")),
        ({"statusCode": 101, "body": ""}, (502, "Internal Server Error")),
        ({"statusCode": -5, "body": ""}, (502, "Internal Server Error")),
        ({"statusCode": 10**400, "body": ""}, (502, "Internal Server Error")),
        ({"statusCode": math.inf, "body": ""}, (502, "Internal Server Error")),
        ({"statusCode": "x", "body": ""}, (502, "Internal Server Error")),
    ],
)
def test_no_function_answers_for_another_on_the_same_connection(
    service: LocalLambda, described: dict[str, object], due: tuple[int, str]
) -> None:
    text = json.dumps(described).encode()
    url, address = service.function_url + "described", urlsplit(service.function_url)
    with closing(HTTPConnection(str(address.hostname), address.port, timeout=10)) as connection:
        for body, status, answer in (
            (text, *due),
            (b'{"statusCode": 200, "body": "own"}', 200, "own"),
        ):
            connection.request("POST", "/described", body, signed(service, url, data=body))
            response = connection.getresponse()
            assert (response.status, response.read().decode()) == (status, answer)
            assert response.headers.get_all("Content-Length") == [str(len(answer))]


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
