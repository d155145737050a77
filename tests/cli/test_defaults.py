"""The scheme and the number of workers of a run that does not name them."""

from __future__ import annotations

import os

import pytest

from seqgc import workers
from seqgc.config import checked, make_workers

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("given", "scheme", "number"),
    [
        ({}, "deal", CORES),
        ({"backend": "local"}, "deal", CORES),
        ({"workers": 7}, "deal", 7),
        ({"grid": {"seed": 3}}, "deal", CORES),
        ({"audit": False}, "deal", CORES),
        ({"mu": 0.0}, "gc-rep:s=1", 16),
        ({"scheme": "uncoded"}, "uncoded", 16),
        ({"audit": True}, "gc-rep:s=1", 16),
        ({"mu": 0.5}, "gc-rep:s=1", 16),
        ({"delays": {"source": "lambda-cnn"}}, "gc-rep:s=1", 16),
        ({"probe": 3}, "uncoded", 16),
        ({"backend": "dask"}, "gc-rep:s=1", 16),
        ({"backend": "lambda-local"}, "gc-rep:s=1", 16),
        ({"backend": "lambda"}, "gc-rep:s=1", 16),
    ],
)
def test_local_runs_without_a_scheme_deal_to_a_worker_for_each_core(
    given: dict[str, object], scheme: str, number: int
) -> None:
    config = checked({"models": [{"name": "net"}], **given})
    assert (config.scheme, config.workers) == (scheme, number)


def test_a_recorded_run_keeps_its_scheme_and_workers() -> None:
    recorded = checked({"models": [{"name": "net"}], "delays": {"source": "lambda-cnn"}})
    again = checked(recorded.model_dump(exclude_none=True, mode="json"))
    assert (again.scheme, again.workers) == ("gc-rep:s=1", 16)


def test_local_workers_are_one_for_each_usable_core() -> None:
    assert workers.local().n == make_workers(checked({"models": [{"name": "net"}]})).n == CORES
