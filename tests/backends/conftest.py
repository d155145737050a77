from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from seqgc.ports import Backend, Clock
from tests.backends.registry import BACKENDS, Delays, Opener
from tests.backends.scripted import Scripted

Open = Callable[..., Backend]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where workers and the test tell each other what has happened."""
    return tmp_path


@pytest.fixture(params=sorted(BACKENDS))
def open_backend(request: pytest.FixtureRequest, folder: Path) -> Iterator[Open]:
    """Opens a backend with a scripted computation; it is closed when the test ends."""
    with ExitStack() as stack:
        yield partial(_open, BACKENDS[request.param], stack, folder)


def _open(
    opener: Opener,
    stack: ExitStack,
    folder: Path,
    n: int,
    *,
    delays: Delays | None = None,
    clock: Clock | None = None,
) -> Backend:
    backend = opener(n, Scripted(folder=folder), delays=delays, clock=clock)
    stack.callback(backend.close)
    return backend
