"""Every backend and every transport keeps what `seqgc.testing` asks of them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import boto3
import pytest

from seqgc.backends import ExecutorBackend, LocalBackend, lambda_
from seqgc.backends.dask_ import DaskBackend
from seqgc.backends.lambda_ import (
    LambdaBackend,
    MicrovmFleet,
    MicrovmLaunch,
    MicrovmTransport,
    ResidentBackend,
)
from seqgc.errors import ParameterError
from seqgc.local_lambda import KeyPair, LocalLambda
from seqgc.local_lambda.microvms import LocalMicrovms
from seqgc.ports import Backend
from seqgc.testing import BackendContract, Scripted, SerialBackendContract
from seqgc.testing.scripted import task
from tests.backends.dask import warm as warm
from tests.backends.lambda_.in_memory import open_backend
from tests.backends.lambda_.local import (
    REGION,
    ROOT,
    TRANSPORTS,
    inline,
    open_transport,
    scripted_workload,
)

Factory = Callable[..., Backend]


@pytest.fixture(scope="module")
def fleet() -> Iterator[MicrovmFleet]:
    variables = {"PYTHONPATH": str(ROOT), "SEQGC_FACTORIES": "tests.backends.scripted"}
    launch = MicrovmLaunch(image=LocalMicrovms.image)
    session = boto3.Session(*KeyPair.new(), region_name=REGION)
    with (
        LocalMicrovms(variables, imports=False) as service,
        MicrovmFleet(4, launch, session=session, endpoint_url=service.endpoint_url) as fleet,
    ):
        yield fleet


class TestLocalBackend(SerialBackendContract):
    backend = LocalBackend

    @pytest.fixture
    def factory(self) -> Factory:
        return self.backend


class TestDaskBackend(SerialBackendContract):
    backend = DaskBackend
    closes_at_once = False  # its workers are threads of this process

    @pytest.fixture
    def factory(self) -> Factory:
        return partial(self.backend, processes=0)


class TestLambdaBackend(BackendContract):
    """A worker is a number, each of its tasks an invocation of its own, which nobody can stop."""

    backend = LambdaBackend

    @pytest.fixture(params=sorted(TRANSPORTS))
    def factory(self, request: pytest.FixtureRequest, lambda_service: LocalLambda) -> Factory:
        def opened(n: int, computation: Scripted, **options: Any) -> Backend:
            transport = open_transport(request.param, lambda_service, clock=options["clock"])
            workload = scripted_workload(computation)
            return self.backend(n, transport, workload=workload, store=inline(), **options)

        return opened


class TestOnMicrovms(BackendContract):
    """Each task is a request to a MicroVM, which computes several at once."""

    @pytest.fixture
    def factory(self, fleet: MicrovmFleet) -> Factory:
        def opened(n: int, computation: Scripted, **options: Any) -> Backend:
            transport = MicrovmTransport(fleet, clock=options["clock"])
            workload = scripted_workload(computation)
            return LambdaBackend(n, transport, workload=workload, store=inline(), **options)

        return opened


class TestResidentBackend(BackendContract):
    """A worker is a function that stays; it hears of a cancelled task, but nobody knows when."""

    backend = ResidentBackend

    @pytest.fixture
    def factory(self, lambda_service: LocalLambda) -> Factory:
        def opened(n: int, computation: Scripted, **options: Any) -> Backend:
            transport = open_transport("curl", lambda_service, clock=options["clock"])
            workload = scripted_workload(computation)
            return self.backend(n, transport, workload=workload, store=inline(), **options)

        return opened


# ---- nothing goes untested ----------------------------------------------------------------------


def offered(module: Any, *methods: str) -> set[type]:
    """Return the classes that can be used which a module exports, and have these methods."""
    return {
        each
        for _, each in inspect.getmembers(module, inspect.isclass)
        if all(hasattr(each, method) for method in methods)
        and not inspect.isabstract(each)
        and not getattr(each, "_is_protocol", False)
    }


def test_every_backend_that_there_is_has_its_tests() -> None:
    modules = [importlib.import_module(f"seqgc.backends{m}") for m in ("", ".dask_", ".lambda_")]
    found = set().union(*(offered(module, "dispatch", "receive") for module in modules))
    suites = TestLocalBackend, TestDaskBackend, TestLambdaBackend, TestResidentBackend
    assert found == {ExecutorBackend, *(each.backend for each in suites)}  # see test_executors.py


def test_every_transport_that_there_is_has_its_tests(lambda_service: LocalLambda) -> None:
    tested = set()
    for kind in TRANSPORTS:
        transport = open_transport(kind, lambda_service)
        tested.add(type(transport))
        transport.close()
    assert offered(lambda_, "submit", "poll") == tested | {MicrovmTransport}


# ---- what is refused, in which words ------------------------------------------------------------


@pytest.mark.parametrize(
    ("round", "worker", "rule"),
    [
        (1, 2, "`worker` must satisfy 0 <= worker < 2; got 2"),
        (1, -1, "`worker` must satisfy 0 <= worker < 2; got -1"),
        (0, 0, "`tasks` must all be of round 0; got 1"),
        (1, 1, r"`delays` must be finite seconds >= 0 \(round 1, worker 1\); got nan"),
    ],
)
def test_a_task_that_cannot_be_sent_is_refused_in_one_line(
    round: int, worker: int, rule: str
) -> None:
    backend, _ = open_backend(2, delays=lambda *_: float("nan"))
    with pytest.raises(ParameterError, match=f"^{rule}$"):
        backend.dispatch(round, [task(1, worker)])
