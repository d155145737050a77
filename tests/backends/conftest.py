from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seqgc.local_lambda import LocalLambda
from tests.backends.lambda_.local import serve


@pytest.fixture(scope="session")
def lambda_mount(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `lambda_service` has for a shared file system."""
    return tmp_path_factory.mktemp("mount")


@pytest.fixture(scope="session", autouse=True)  # before any test looks what runs
def lambda_service(lambda_mount: Path) -> Iterator[LocalLambda]:
    """One local Lambda service for all tests; a function that hangs is killed after its time."""
    with serve(lambda_mount) as service:
        yield service
