"""The master's own cost on Lambda: 256 workers, 400 KB answers, a local service, each transport."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pytest

from seqgc.backends.lambda_ import LambdaBackend
from seqgc.local_lambda import LocalLambda
from seqgc.ports import Arrival
from tests.backends.lambda_.constant import Constant
from tests.backends.lambda_.local import TRANSPORTS, inline, open_transport, serve
from tests.backends.scripted import next_event

N, PARAMETERS, ROUNDS = 256, 100_000, 5


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLambda]:
    with serve(tmp_path_factory.mktemp("mount"), concurrency=N + 64, timeout_s=60.0) as service:
        yield service


def seconds_of_rounds(service: LocalLambda, transport: str) -> list[float]:
    """Return the processor's seconds that the master's process spends on each round."""
    work = Constant(PARAMETERS)
    with LambdaBackend(
        N,
        open_transport(transport, service),
        workload=work.ref,
        store=inline(),
        warm_up_rounds=1,
    ) as backend:
        return [seconds_of_round(backend, work, round) for round in range(ROUNDS)]


def seconds_of_round(backend: LambdaBackend, work: Constant, round: int) -> float:
    tasks = [work.task(round, worker) for worker in range(N)]
    begun = time.process_time()
    backend.dispatch(round, tasks)
    for _ in range(N):
        event = next_event(backend)
        assert isinstance(event, Arrival)
        assert event.results[0].nbytes == 4 * PARAMETERS
    return time.process_time() - begun


def test_without_threads_a_round_costs_half_at_most(service: LocalLambda) -> None:
    medians = {kind: statistics.median(seconds_of_rounds(service, kind)) for kind in TRANSPORTS}
    for kind, seconds in medians.items():
        print(f"\n{kind}: {1e3 * seconds:.0f} ms CPU of the master per round,", end=" ")
        print(f"{1e3 * seconds / N:.2f} ms per answer of 400 KB", end="")
    print(f"\ncurl / boto3: {medians['curl'] / medians['boto3']:.2f}")
    assert medians["curl"] <= 0.5 * medians["boto3"]
