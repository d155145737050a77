from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from seqgc.local_lambda import LocalLambda
from seqgc.ports import Backend, Clock, Payload
from tests.backends.lambda_.local import serve
from tests.backends.registry import BACKENDS, Delays, Kind
from tests.backends.scripted import Scripted

Open = Callable[..., Backend]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where workers and the test tell each other what has happened."""
    return tmp_path


@pytest.fixture(scope="session")
def lambda_mount(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `lambda_service` has for a shared file system."""
    return tmp_path_factory.mktemp("mount")


@pytest.fixture(scope="session", autouse=True)  # before any test looks what runs
def lambda_service(lambda_mount: Path) -> Iterator[LocalLambda]:
    """One local Lambda service for all tests; a function that hangs is killed after its time."""
    with serve(lambda_mount) as service:
        yield service


@pytest.fixture(params=sorted(BACKENDS))
def open_backend(request: pytest.FixtureRequest, folder: Path) -> Iterator[Open]:
    """Opens a backend with a scripted computation; it is closed when the test ends."""
    yield from _opener(BACKENDS[request.param], request, folder)


@pytest.fixture(params=sorted(name for name, kind in BACKENDS.items() if kind.serial))
def open_serial(request: pytest.FixtureRequest, folder: Path) -> Iterator[Open]:
    """Opens a backend whose workers take their tasks in order, and hear of cancelling."""
    yield from _opener(BACKENDS[request.param], request, folder)


@pytest.fixture(params=sorted(name for name, kind in BACKENDS.items() if kind.lets_go))
def open_letting_go(request: pytest.FixtureRequest, folder: Path) -> Iterator[Open]:
    """Opens a backend that closes although its workers compute."""
    yield from _opener(BACKENDS[request.param], request, folder)


def _opener(kind: Kind, request: pytest.FixtureRequest, folder: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def opened(
            n: int,
            *,
            delays: Delays | None = None,
            clock: Clock | None = None,
            payload: Payload | None = None,
        ) -> Backend:
            fixture: Callable[[str], Any] = request.getfixturevalue
            backend = kind.open(
                n,
                Scripted(folder=folder),
                fixture=fixture,
                delays=delays,
                clock=clock,
                payload=payload,
            )
            stack.callback(backend.close)
            return backend

        yield opened
