from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from seqgc.backends.lambda_ import Transport
from tests.backends.lambda_.local import TRANSPORTS
from tests.backends.lambda_.over_sockets import Open, make
from tests.backends.lambda_.peer import KEY, SECRET, Peer, serving


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    """A scripted server, and credentials for whoever looks for some."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    with serving() as peer:
        yield peer


@pytest.fixture(params=TRANSPORTS)
def open_transport(request: pytest.FixtureRequest, peer: Peer) -> Iterator[Open]:
    """Opens a transport, to the peer unless told otherwise; closed when the test ends."""
    with ExitStack() as stack:

        def opened(url: str = "", **options: object) -> Transport:
            transport = make(request.param, url or peer.url, **options)
            stack.callback(transport.close)
            return transport

        yield opened
