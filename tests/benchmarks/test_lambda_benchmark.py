"""The master's own cost on Lambda: 256 workers, 400 KB answers, a local service, each transport.

Over TLS, as AWS speaks it: a process of its own stands before the service. All that a master does
is in it, from signing to the last answer's numbers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from seqgc.backends.lambda_ import Invoking, LambdaBackend
from seqgc.local_lambda import KeyPair, LocalLambda
from seqgc.ports import Arrival
from seqgc.testing.scripted import next_event
from tests.backends.lambda_.constant import Constant
from tests.backends.lambda_.local import TRANSPORTS, inline, open_transport, serve
from tests.backends.lambda_.tls_front import tls_before

N, PARAMETERS, ROUNDS = 256, 100_000, 7
MOST_OF_BOTO3 = {"https": 0.3, "http": 0.5}


@dataclass(frozen=True)
class Reached:
    """A service, and the addresses under which transports reach it."""

    function_name: str
    endpoint_url: str
    function_url: str
    keys: KeyPair


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLambda]:
    with serve(tmp_path_factory.mktemp("mount"), concurrency=N + 64, timeout_s=60.0) as service:
        yield service


@pytest.fixture(params=["https", "http"])
def reached(
    request: pytest.FixtureRequest,
    service: LocalLambda,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Reached]:
    if request.param == "http":
        yield Reached(
            service.function_name, service.endpoint_url, service.function_url, service.keys
        )
        return
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "bundle.pem"))
    with tls_before([service.endpoint_url, service.function_url], tmp_path) as (api, url):
        yield Reached(service.function_name, api, f"{url}/", service.keys)


def seconds_of_rounds(reached: Reached, transport: str) -> list[float]:
    """Return the processor's seconds that the master's process spends on each round."""
    work = Constant(PARAMETERS)
    with LambdaBackend(
        N,
        open_transport(transport, reached),
        workload=work.ref,
        store=inline(),
        invoking=Invoking(warm_up_rounds=1),
    ) as backend:
        return [seconds_of_round(backend, work, round) for round in range(ROUNDS)][1:]


def seconds_of_round(backend: LambdaBackend, work: Constant, round: int) -> float:
    tasks = [work.task(round, worker) for worker in range(N)]
    begun = time.process_time()
    backend.dispatch(round, tasks)
    for _ in range(N):
        event = next_event(backend)
        assert isinstance(event, Arrival)
        assert event.results[0].nbytes == 4 * PARAMETERS
    return time.process_time() - begun


def test_libcurl_takes_a_fraction_of_what_threads_take(reached: Reached) -> None:
    medians = {kind: statistics.median(seconds_of_rounds(reached, kind)) for kind in TRANSPORTS}
    scheme = reached.endpoint_url.partition(":")[0]
    for kind, seconds in medians.items():
        print(f"\n{scheme}, {kind}: {1e3 * seconds:.0f} ms CPU of the master per round,", end=" ")
        print(f"{1e3 * seconds / N:.2f} ms per answer of 400 KB", end="")
    share = medians["curl"] / medians["boto3"]
    print(f"\n{scheme}, curl / boto3: {share:.2f}")
    assert share <= MOST_OF_BOTO3[scheme]
