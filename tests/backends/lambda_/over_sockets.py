"""Transports over real sockets, to a peer that the test scripts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import boto3

from seqgc.backends.lambda_ import (
    Boto3Transport,
    CurlTransport,
    HttpTransport,
    Reply,
    Target,
    Transport,
)
from seqgc.testing import PATIENCE_S
from tests.backends.lambda_.peer import KEY, REGION, SECRET, Peer, Request, Response

Open: TypeAlias = Callable[..., Transport]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def make(kind: str, url: str, **options: object) -> Transport:
    if kind == "boto3":
        return Boto3Transport(
            "worker",
            qualifier="live",
            region=REGION,
            endpoint_url=url,
            **({"session": _session()} | options),  # type: ignore[arg-type]
        )
    api = Target.invoke_api("worker", region=REGION, qualifier="live", endpoint_url=url)
    if kind == "curl":
        return CurlTransport(api, **options)  # type: ignore[arg-type]
    return HttpTransport(api, **options)  # type: ignore[arg-type]


@cache
def _session() -> boto3.Session:
    """Return one for all tests: it reads the API's description from disk, once."""
    return boto3.Session(aws_access_key_id=KEY, aws_secret_access_key=SECRET)


def replies_of(transport: Transport, count: int) -> list[Reply]:
    replies: list[Reply] = []
    give_up_at = time.monotonic() + PATIENCE_S
    while len(replies) < count:
        assert time.monotonic() < give_up_at, f"{len(replies)} of {count} replies came"
        for reply in transport.poll(1.0):  # whose body is the transport's again at the next poll
            body = None if reply.body is None else bytes(reply.body)
            replies.append(replace(reply, body=body))
    return replies


def reply_to(transport: Transport, body: bytes = b"{}") -> Reply:
    transport.submit(7, body)
    (reply,) = replies_of(transport, 1)
    assert reply.tag == 7
    return reply


def silent(peer: Peer) -> Callable[[Request], Response]:
    def respond(_: Request) -> Response:
        peer.release.wait(PATIENCE_S)
        return Response()

    return respond
