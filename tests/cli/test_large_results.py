"""Gradients as large as ResNet-18's, on functions of this machine: through files, both ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import numpy as np
import pytest

from seqgc.backends import Messaging
from seqgc.backends.lambda_ import Boto3Transport, LambdaBackend
from seqgc.errors import WireError
from seqgc.local_lambda import LocalLambda
from seqgc.ports import Arrival, Task, WeightedPoints, WeightRef, WorkItem
from seqgc.stores import DirectoryStore
from seqgc.testing.scripted import next_event
from seqgc.wire import StoreRef, WorkloadRef
from tests.backends.lambda_.in_memory import Clock, InMemory
from tests.kit import SOAK

PARAMETERS = 11_227_812  # of ResNet-18 for 100 classes: 22.5 MB in 16 bit
WORKERS = 2


@pytest.fixture
def functions(tmp_path: Path) -> Iterator[LocalLambda]:
    mount = tmp_path / "mount"
    mount.mkdir()
    with LocalLambda(
        "lambda_handlers.gradient_worker.handler.handler",
        concurrency=WORKERS,
        timeout_s=60.0,
        mount=mount,
        environment={
            "OMP_NUM_THREADS": "1",
            "SEQGC_FACTORIES": "lambda_handlers.gradient_worker.numpy_factories",
        },
    ) as service:
        yield service


def transport(service: LocalLambda) -> Boto3Transport:
    return Boto3Transport(
        service.function_name,
        region="us-east-1",
        endpoint_url=service.endpoint_url,
        session=boto3.Session(*service.keys),
    )


def task(worker: int, weights: WeightRef) -> Task:
    part = WeightedPoints(
        model="resnet", weights=weights, points=np.array([0]), coefficients=np.array([0.5])
    )
    items = (WorkItem(slot=0, parts=(part,)),)
    return Task(round=0, worker=worker, attempt=0, items=items)


@pytest.mark.parametrize("payload", ["float16", "bfloat16"] if SOAK else ["bfloat16"])
def test_weights_and_results_of_22_mb_travel_through_files(
    payload: str, functions: LocalLambda, tmp_path: Path
) -> None:
    store = DirectoryStore(tmp_path / "mount" / "run")
    values = np.linspace(-1.0, 1.0, PARAMETERS, dtype=np.float16)
    weights = store.publish("resnet", 0, values)
    with LambdaBackend(
        WORKERS,
        transport(functions),
        workload=WorkloadRef(name="weight-decay", settings={"dtype": "float32"}),
        store=StoreRef(kind="directory", location="run"),
        shared=store,
        messaging=Messaging(run_id="run", payload=payload),  # type: ignore[arg-type]
    ) as backend:
        backend.dispatch(0, [task(worker, weights) for worker in range(WORKERS)])
        events = [next_event(backend) for _ in range(WORKERS)]
    for event in events:
        assert isinstance(event, Arrival), event
        error = np.abs(event.results[0] - 0.5 * values.astype(np.float32)).max()
        assert error <= 2.0**-9, "rounded to 8 bits of a largest value of 0.5"
    statistics = functions.statistics()
    assert statistics.requests == WORKERS
    blobs = tmp_path / "mount" / "run" / "blobs"
    assert list(blobs.iterdir()) == []  # fetched, and removed


def test_the_same_through_the_payload_is_refused_before_any_call() -> None:
    weights = WeightRef(
        model="resnet", version=0, digest="0" * 64, dtype="float32", size=PARAMETERS
    )
    nobody = InMemory(Clock())
    with LambdaBackend(
        WORKERS,
        nobody,
        workload=WorkloadRef(name="constant", settings={"size": PARAMETERS, "dtype": "float32"}),
        store=StoreRef(kind="inline"),
        messaging=Messaging(payload="bfloat16"),
    ) as backend:
        rule = r"its answer of 29\.95 MB .* exceeds the \d+ bytes .* use a store \(EFS or S3\)"
        with pytest.raises(WireError, match=rule):
            backend.dispatch(0, [task(worker, weights) for worker in range(WORKERS)])
        assert backend.outstanding == 0
    assert nobody.log == []
