"""One nursery for all: to import what masters need takes some seconds. And short paths."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.masters.kit import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short name: masters make sockets in it, whose paths may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="masters-") as folder:
        yield Path(folder)
