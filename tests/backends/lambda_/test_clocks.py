"""Clocks that are wrong, of a master or of its functions: a signature holds for five minutes."""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterator
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgc import master
from seqgc.backends import Messaging
from seqgc.backends.lambda_ import LambdaBackend, ResidentBackend, Staying
from seqgc.local_lambda import LocalLambda
from seqgc.ports import Action, Event, Notice
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import parse_scheme
from seqgc.stores import open_store, unique_name
from seqgc.testing import eventually
from seqgc.wire import StoreRef
from tests.backends.lambda_ import wrong_clock
from tests.backends.lambda_.descent import Descent, undisturbed
from tests.backends.lambda_.local import TRANSPORTS, open_transport, serve
from tests.backends.lambda_.over_sockets import Open, replies_of, reply_to
from tests.backends.lambda_.peer import Peer, Request, Response, signature_is_right

HOUR_S = 3600.0


class Aws:
    """Answers as AWS would whose clock is ``ahead_s`` seconds ahead of this machine's."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.ahead_s, self.knows_us = peer, 0.0, True

    def respond(self, request: Request) -> Response:
        at, stamp = time.time() + self.ahead_s, request.headers["x-amz-date"]
        off_s = at - calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ"))
        right = self.knows_us and signature_is_right(request, self.peer.url)
        date = formatdate(at, usegmt=True)
        if right and abs(off_s) <= 300:
            return Response(body=request.body, date=date)
        message = b'{"message":"Signature expired or not yet current"}'
        kind = {"x-amzn-ErrorType": "InvalidSignatureException"}
        return Response(status=403, body=message, headers=kind, date=date)


@pytest.fixture
def aws(peer: Peer) -> Aws:
    aws = Aws(peer)
    peer.respond = aws.respond
    return aws


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_a_wrong_clock_costs_one_refusal_and_a_step_another(
    open_transport: Open, aws: Aws, ahead_s: float
) -> None:
    transport, asked = open_transport(), aws.peer.requests
    for aws.ahead_s, count in [(0.0, 1), (ahead_s, 3), (ahead_s, 4), (-ahead_s, 6), (0.0, 8)]:
        assert reply_to(transport, b'{"a": 1}').body == b'{"a": 1}'
        assert len(asked) == count


def test_what_is_under_way_together_is_refused_together(open_transport: Open, aws: Aws) -> None:
    transport, aws.ahead_s = open_transport(), HOUR_S
    for tag in range(20):
        transport.submit(tag, b"%d" % tag)
    replies = {reply.tag: reply.body for reply in replies_of(transport, 20)}
    assert replies == {tag: b"%d" % tag for tag in range(20)}
    assert len(aws.peer.requests) <= 40


@pytest.mark.parametrize(("ahead_s", "count"), [(0.0, 1), (200.0, 1), (HOUR_S, 2)])
def test_who_may_not_call_is_told_so_whatever_the_clock(
    open_transport: Open, aws: Aws, ahead_s: float, count: int
) -> None:
    aws.knows_us, aws.ahead_s = False, ahead_s
    assert reply_to(open_transport()).error.startswith("HTTP 403 InvalidSignatureException")
    assert len(aws.peer.requests) == count


NO_DATES = ["", "yesterday", "Thu, 99 Jan 99999 00:00:00 GMT", "Mon, 01 Jan 0101 00:00:00 GMT"]


@pytest.mark.parametrize("date", NO_DATES)
def test_a_refusal_that_says_no_date_is_one(open_transport: Open, peer: Peer, date: str) -> None:
    peer.respond = lambda _: Response(status=403, date=date)
    assert reply_to(open_transport()).error.startswith("HTTP 403")
    assert len(peer.requests) == 1


# ---- whole runs ---------------------------------------------------------------------------------

JOBS = 8


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """By how much this process's clock is ahead of the service's, of another process."""
    ahead, right = [HOUR_S], time.time
    monkeypatch.setattr(time, "time", lambda: right() + ahead[0])
    return ahead


def train(
    service: LocalLambda, mount: Path, kind: str, ahead: list[float], *, stay: bool = False
) -> None:
    """Train, by functions that ``stay`` or not; every second round ``ahead`` changes its sign."""
    scheme, ref = (
        parse_scheme("gc:s=1", n=4),
        StoreRef(kind="directory", location=unique_name(kind)),
    )
    store = open_store(ref, mount=mount)
    work = Descent(scheme, store)

    def observe(seen: Event | Action | Notice) -> None:
        if type(seen).__name__ == "Close" and seen.record.round % 2:  # type: ignore[union-attr]
            ahead[0] = -ahead[0]

    made: Any = partial(ResidentBackend, staying=Staying(beat_s=0.2)) if stay else LambdaBackend
    with made(
        4,
        open_transport(kind, service),
        workload=work.ref,
        store=ref,
        shared=store,
        messaging=Messaging(run_id=ref.location, code="clocks"),
    ) as backend:
        policy = RoundPolicy(scheme.start(JOBS), ClosingRule(timeout_s=30.0, max_attempts=1))
        master.run(policy, backend, work, observe=observe)
    for job, due in enumerate(undisturbed(JOBS, delay=0)):
        np.testing.assert_allclose(work.gradients[job], due, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_masters_clock_that_steps_disturbs_no_run(
    lambda_service: LocalLambda, lambda_mount: Path, kind: str, stepping: list[float]
) -> None:
    train(lambda_service, lambda_mount, kind, stepping)


def test_a_masters_clock_that_steps_disturbs_no_function_that_stays(
    lambda_service: LocalLambda, lambda_mount: Path, stepping: list[float]
) -> None:
    train(lambda_service, lambda_mount, "curl", stepping, stay=True)


@pytest.fixture(scope="module", params=[HOUR_S, -HOUR_S])
def elsewhere(request: pytest.FixtureRequest, lambda_mount: Path) -> Iterator[LocalLambda]:
    """A service whose functions' clocks are wrong."""
    seconds = {wrong_clock.VARIABLE: str(request.param)}
    with serve(lambda_mount, factories=[wrong_clock.__name__], environment=seconds) as service:
        yield service


@pytest.mark.parametrize("stay", [False, True])
def test_functions_whose_clocks_are_wrong_disturb_no_run(
    elsewhere: LocalLambda, lambda_mount: Path, stay: bool
) -> None:
    train(elsewhere, lambda_mount, "curl", [0.0], stay=stay)
    eventually(lambda: "by a wrong clock" in elsewhere.log(), "the log, of functions that ended")
