"""Rounds of 16 workers and 270,000 parameters on dask, as a multiple of plain dask actors.

Both compute the same vectors in the same number of processes and threads; they take turns.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster

from seqgc.backends.dask_ import DaskBackend
from seqgc.ports import Arrival, FloatArray
from seqgc.testing.scripted import next_events, task
from seqgc.worker import Compute
from tests.backends.dask import warm as warm

WORKERS, PARAMETERS = 16, 270_000
ROUNDS, TURNS = 10, 7


def gradient(round: int) -> FloatArray:
    return np.full(PARAMETERS, round, np.float32)


class Gradient:
    """A worker of plain dask: the class of an actor."""

    def compute(self, round: int) -> FloatArray:
        return gradient(round)


def compute_factory() -> Compute:
    return lambda parts: gradient(len(parts))


def seconds_of(play: Callable[[int], None]) -> tuple[float, float]:
    """Return the wall seconds of some rounds, and the CPU seconds of all processes."""
    cpu, begun = cpu_seconds(), time.perf_counter()
    for round in range(ROUNDS):
        play(round)
    return time.perf_counter() - begun, cpu_seconds() - cpu


def cpu_seconds() -> float:
    master = psutil.Process()
    times = [each.cpu_times() for each in (master, *master.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def started_actors(client: Client) -> list[Any]:
    places = list(client.nthreads())
    futures = [
        client.submit(Gradient, actor=True, pure=False, workers=[places[worker % len(places)]])
        for worker in range(WORKERS)
    ]
    return [future.result() for future in futures]


def ratios(actors: list[Any], backend: DaskBackend) -> tuple[float, float]:
    """Return the wall and CPU seconds of the backend as multiples of those of actors."""
    rounds = itertools.count()

    def by_actors(round: int) -> None:
        for answer in [actor.compute(round) for actor in actors]:
            assert answer.result().size == PARAMETERS

    def by_seqgc(_: int) -> None:
        round = next(rounds)
        backend.dispatch(round, [task(round, worker) for worker in range(WORKERS)])
        for event in next_events(backend, WORKERS):
            assert isinstance(event, Arrival), event
            assert event.results[0].size == PARAMETERS

    both = [(seconds_of(by_seqgc), seconds_of(by_actors)) for _ in range(1 + TURNS)][1:]
    (wall, cpu), (actors_wall, actors_cpu) = np.median(both, axis=0)
    print(
        f"\n{1e3 * wall / ROUNDS:.1f} ms a round ({1e3 * cpu / ROUNDS:.1f} ms CPU);",
        f"actors {1e3 * actors_wall / ROUNDS:.1f} ms ({1e3 * actors_cpu / ROUNDS:.1f} ms CPU)",
    )
    return (
        statistics.median(seqgc[0] / plain[0] for seqgc, plain in both),
        statistics.median(seqgc[1] / plain[1] for seqgc, plain in both),
    )


@contextmanager
def plain_client(*, direct: bool) -> Iterator[tuple[Client, list[Any]]]:
    processes = min(WORKERS, os.cpu_count() or 1)
    with (
        LocalCluster(n_workers=processes, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, direct_to_workers=direct) as client,
    ):
        yield client, started_actors(client)  # which belong to dask's latest client


@pytest.mark.parametrize("direct", [False, True])
def test_a_round_on_a_users_cluster_takes_as_long_as_one_of_actors(direct: bool) -> None:
    with (
        plain_client(direct=direct) as (client, actors),
        DaskBackend(WORKERS, compute_factory, client=client) as backend,
    ):
        wall, cpu = ratios(actors, backend)
    print(f"your client, direct {direct}: {wall:.2f} times the wall time, {cpu:.2f} the CPU time")
    assert wall <= 1.25
    assert cpu <= 1.25


def test_a_round_on_the_own_cluster_takes_as_long_as_one_of_actors() -> None:
    with (
        plain_client(direct=False) as (_, actors),
        DaskBackend(WORKERS, compute_factory) as backend,
    ):
        wall, cpu = ratios(actors, backend)
    print(f"own cluster, with TLS: {wall:.2f} times the wall time, {cpu:.2f} the CPU time")
    assert wall <= 1.25  # the connections of plain dask are not encrypted
    assert cpu <= 1.5
