"""A message to a function that stays, and back, beside an invocation on the same machine."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqgc.backends.lambda_ import LambdaBackend, ResidentBackend
from seqgc.local_lambda import LocalLambda
from seqgc.ports import Arrival, Task
from seqgc.testing import Scripted
from tests.backends.lambda_.local import inline, open_transport, scripted_workload, serve

ROUNDS = 40


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLambda]:
    with serve(tmp_path_factory.mktemp("mount")) as service:
        yield service


def seconds_there_and_back(
    service: LocalLambda, kind: type[ResidentBackend] | type[LambdaBackend], folder: Path
) -> float:
    work = scripted_workload(Scripted(folder=folder))
    with kind(1, open_transport("curl", service), workload=work, store=inline()) as backend:
        seconds = []
        for round in range(ROUNDS):
            begun = time.perf_counter()
            backend.dispatch(round, [Task(round=round, worker=0, attempt=0, items=())])
            assert isinstance(backend.receive(math.inf), Arrival)
            seconds.append(time.perf_counter() - begun)
    return min(seconds)  # what the machine does besides only adds to it


def test_it_takes_less_than_an_invocation_on_the_very_same_machine(
    service: LocalLambda, tmp_path: Path
) -> None:
    # That 40 ms are waited for an acknowledgement would show here, and nowhere else.
    stays = seconds_there_and_back(service, ResidentBackend, tmp_path)
    invoked = seconds_there_and_back(service, LambdaBackend, tmp_path)
    print(f"\n{1e3 * stays:.1f} ms to one that stays, {1e3 * invoked:.1f} ms an invocation")
    assert stays / invoked <= 0.8
