"""One nursery for all: to import what masters need takes some seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.masters.kit import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()
