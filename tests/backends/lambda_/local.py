"""Transports to the local Lambda service, and what its environments compute for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Protocol

import boto3
from botocore.credentials import Credentials

from seqgc.backends.lambda_ import (
    Boto3Transport,
    CurlTransport,
    HttpTransport,
    Limits,
    Target,
    Transport,
)
from seqgc.local_lambda import FaultPlan, KeyPair, LocalLambda
from seqgc.ports import Clock
from seqgc.testing import Scripted
from seqgc.wire import StoreRef, WorkloadRef

TRANSPORTS = ("curl", "boto3", "requests")
HANDLER = "lambda_handlers.gradient_worker.handler.handler"
_FACTORIES = ("tests.backends.scripted", "lambda_handlers.gradient_worker.numpy_factories")
ROOT = Path(__file__).parents[3]
REGION = "us-east-1"


def serve(
    mount: Path,
    *,
    concurrency: int = 64,
    timeout_s: float = 20.0,
    faults: FaultPlan | None = None,
    factories: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> AbstractContextManager[LocalLambda]:
    """A service whose environments know the tests' scripted computation."""
    return LocalLambda(
        HANDLER,
        concurrency=concurrency,
        timeout_s=timeout_s,
        mount=mount,
        faults=faults,
        environment={
            "PYTHONPATH": str(ROOT),
            "SEQGC_FACTORIES": ",".join([*_FACTORIES, *factories]),
            "POWERTOOLS_METRICS_DISABLED": "true",
            **(environment or {}),
        },
    )


class Service(Protocol):
    """Where transports reach functions."""

    @property
    def function_name(self) -> str: ...
    @property
    def endpoint_url(self) -> str: ...
    @property
    def function_url(self) -> str: ...
    @property
    def keys(self) -> KeyPair: ...


def open_transport(
    kind: str, service: Service, *, clock: Clock | None = None, limits: Limits | None = None
) -> Transport:
    if kind == "boto3":
        return Boto3Transport(
            service.function_name,
            region=REGION,
            endpoint_url=service.endpoint_url,
            session=_session(service.keys),
            limits=limits,
            clock=clock,
        )
    credentials = Credentials(*service.keys)
    if kind == "curl":
        target = Target.invoke_api(
            service.function_name, region=REGION, endpoint_url=service.endpoint_url
        )
        return CurlTransport(target, credentials=credentials, limits=limits, clock=clock)
    target = Target.function_url(service.function_url, region=REGION)
    return HttpTransport(target, credentials=credentials, limits=limits, clock=clock)


@cache
def _session(keys: KeyPair) -> boto3.Session:
    """Return one for all tests of a service: it reads the API's description from disk, once."""
    return boto3.Session(*keys)


def scripted_workload(computation: Scripted) -> WorkloadRef:
    return WorkloadRef(name="scripted", settings={"folder": str(computation.folder)})


def inline() -> StoreRef:
    return StoreRef(kind="inline")
