from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("awslambdaric")
pytest.importorskip("boto3")

from seqgc.local_lambda import LocalLambda
from tests.local_lambda.calling import HANDLER, client


@pytest.fixture(scope="module")
def service() -> Iterator[LocalLambda]:
    """Three environments that have time, whatever else the machine does."""
    with LocalLambda(HANDLER, concurrency=3, timeout_s=20.0) as service:
        yield service


@pytest.fixture
def hasty() -> Iterator[LocalLambda]:
    """An environment that may compute for half a second."""
    with LocalLambda(HANDLER, concurrency=1, timeout_s=0.5) as service:
        yield service


@pytest.fixture
def patient() -> Iterator[LocalLambda]:
    """An environment that has time for large answers, whatever else the machine does."""
    with LocalLambda(HANDLER, concurrency=1, timeout_s=60) as service:
        yield service


@pytest.fixture(scope="module")
def aws(service: LocalLambda) -> Iterator[Any]:
    aws = client(service)
    yield aws
    aws.close()
