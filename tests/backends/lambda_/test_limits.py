"""What just fits is carried both ways, and one byte more is refused before any call."""

from __future__ import annotations

import bisect
from pathlib import Path
from typing import Any

import pytest

from seqgc.backends.lambda_ import Invoking, LambdaBackend, Transport
from seqgc.errors import WireError
from seqgc.local_lambda import LocalLambda
from seqgc.ports import Arrival
from seqgc.testing import Scripted
from seqgc.testing.scripted import next_event, task
from seqgc.wire import MESSAGE_LIMIT_BYTES, envelope_bytes
from tests.backends.lambda_.constant import Constant
from tests.backends.lambda_.in_memory import open_backend
from tests.backends.lambda_.local import TRANSPORTS, inline, open_transport, scripted_workload


def _is_refused(size: int) -> bool:
    work = Constant(size)
    backend, _ = open_backend(1, payload="float32")
    try:
        backend.dispatch(0, [work.task(0, 0)])
    except WireError:
        return True
    return False


_LARGEST = bisect.bisect_left(range(MESSAGE_LIMIT_BYTES // 4), True, key=_is_refused) - 1


def _ask(service: LocalLambda, transport: str, size: int, most: int = MESSAGE_LIMIT_BYTES) -> int:
    """Ask for a gradient of so many numbers; return how many came."""
    work = Constant(size)
    with LambdaBackend(
        1,
        open_transport(transport, service),
        workload=work.ref,
        store=inline(),
        invoking=Invoking(max_body_bytes=most),
    ) as backend:
        backend.dispatch(0, [work.task(0, 0)])
        event = next_event(backend)
    assert isinstance(event, Arrival), event
    return int(event.results[0].size)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_largest_answer_comes_and_a_larger_one_is_not_asked_for(
    lambda_service: LocalLambda, transport: str
) -> None:
    assert envelope_bytes(4 * _LARGEST) > MESSAGE_LIMIT_BYTES - 6000, "little is given away"
    for size in (_LARGEST - 1, _LARGEST):
        assert _ask(lambda_service, transport, size) == size
    before = lambda_service.statistics().requests
    with pytest.raises(WireError, match=r"its answer of 6\.\d+ MB .* use a store \(EFS or S3\)"):
        _ask(lambda_service, transport, _LARGEST + 1)
    assert lambda_service.statistics().requests == before


class Measured:
    """A transport that knows how long what it carries is."""

    def __init__(self, transport: Transport) -> None:
        self.sizes: list[int] = []
        for name in ("flush", "poll", "wake", "close"):
            setattr(self, name, getattr(transport, name))
        self._submit = transport.submit

    def submit(self, tag: int, body: bytes) -> None:
        self.sizes.append(len(body))
        self._submit(tag, body)


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_the_largest_task_leaves_and_a_larger_one_does_not(
    lambda_service: LocalLambda, tmp_path: Path, kind: str
) -> None:
    transport: Any = Measured(open_transport(kind, lambda_service))
    workload = scripted_workload(Scripted(folder=tmp_path))
    for more in (0, 1, 0, -1):
        size = transport.sizes[-1] if transport.sizes else 30_000
        backend = LambdaBackend(
            1,
            transport,
            workload=workload,
            store=inline(),
            invoking=Invoking(max_body_bytes=size + more),
        )
        if more < 0:
            with pytest.raises(WireError, match=rf"the task of 0.0\d MB .* {size - 1} bytes .*use"):
                backend.dispatch(0, [task(0, 0, points=1000)])
        else:
            backend.dispatch(0, [task(0, 0, points=1000)])
            assert isinstance(next_event(backend), Arrival)
    assert len(transport.sizes) == 3
    backend.close()
