"""Workers that answer what nobody asked: none of it reaches a gradient, on any backend.

What functions say is in `tests/simulation/test_function_rows.py`, what reaches a policy that no
backend protects in `tests/policies/test_strangers.py`.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest

from seqgc.backends import LocalBackend, dask_
from seqgc.backends.dask_ import DaskBackend
from seqgc.master import run
from seqgc.ports import Arrival, Failure, FloatArray, Seen, WeightedPoints
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import Scheme, parse_scheme
from seqgc.wire import FailureMessage, ResultMessage, Subject, encode
from seqgc.worker import Compute
from tests.backends.dask import warm as warm
from tests.backends.scripted import connection
from tests.kit import SOAK
from tests.sums import Chunks, Sums

pytestmark = pytest.mark.timeout(0 if SOAK else 180)
N = 4
RULE = ClosingRule(mu=0.0, timeout_s=60.0)
Address = tuple[int, int, int]  # round, worker, attempt


def frame(address: Address, *, run_id: str = "run", sealed: bool = True) -> bytes:
    """Return an answer to a task, whose result is nobody's."""
    round, worker, attempt = address
    subject = Subject(round=round, worker=worker, attempt=attempt)
    message = ResultMessage(subject=subject, results={0: np.full(3, 1e3)})
    return encode(message, run_id=run_id, sealed=sealed)


def foreign(address: Address, chance: random.Random) -> tuple[Address, str]:
    """Return another address than a task's, or the same in another run, and the run."""
    round, worker, attempt = address
    others = [
        ((round, worker, attempt + chance.randint(5, 9)), "run"),
        ((max(0, round - chance.randint(1, 5)), worker, attempt + 5), "run"),
        ((round + 10**6 + chance.randint(0, 9), worker, attempt), "run"),
        ((round, (worker + chance.randint(1, N - 1)) % N, attempt), "run"),
        (address, "another-run"),
    ]
    return others[chance.randrange(len(others))]


@dataclass(frozen=True)
class Gossips:
    """A compute factory for processes: says what nobody has asked, before and after it answers.

    What names another worker or run is said seldom: it costs the process its life.
    """

    chunks: Chunks
    workers: dict[tuple[int, ...], int]  # by chunks

    def __call__(self) -> Compute:
        compute, chance = self.chunks(), random.Random(os.getpid())
        answered: list[Address] = []

        def gossip(parts: tuple[WeightedPoints, ...]) -> FloatArray:
            job, worker = parts[0].weights.version, self.workers[tuple(parts[0].points.tolist())]
            while chance.random() < 0.5:
                address, run_id = foreign((job, worker, 0), chance)
                if (address[1], run_id) != (worker, "run") and chance.random() > 0.002:
                    address, run_id = chance.choice([*answered, (job, worker, 7)]), "run"
                data = frame(address, run_id=run_id, sealed=False)
                os.write(connection(), len(data).to_bytes(8, "little") + data)
            answered[:] = [*answered[-9:], (job, worker, 0)]
            return compute(parts)

        return gossip


def by_chunks(scheme: Scheme) -> dict[tuple[int, ...], int]:
    tasks = enumerate(scheme.start(1).assignment())
    return {tuple(own[0].chunks.tolist()): worker for worker, own in tasks}


@pytest.mark.parametrize("spec", ["gc:s=1", "uncoded"][: 2 if SOAK else 1])
def test_gossip_of_processes_never_reaches_a_gradient(spec: str) -> None:
    scheme, seen = parse_scheme(spec, n=N), Counter[str]()
    rounds = 50_000 if SOAK else 100

    def observe(each: Seen) -> None:
        seen[type(each).__name__] += 1
        if isinstance(each, Arrival):
            assert each.round < rounds, "it was never sent"
            assert each.attempt < 5
        if isinstance(each, Failure):
            assert "foreign" in each.reason or "belongs to run" in each.reason

    workload = Sums(scheme)
    with LocalBackend(N, Gossips(workload.factory, by_chunks(scheme))) as backend:
        policy = RoundPolicy(scheme.start(rounds), RULE)
        run(policy, backend, workload, observe=observe)
    print(dict(seen))
    assert workload.finished == rounds
    assert not SOAK or seen["Failure"] > rounds / 10_000, "what is said is heard"


def test_answers_that_dask_has_mixed_up_are_failures_of_their_workers() -> None:
    """What makes a dask worker's answer is replaced: none answers what it was not asked."""
    scheme, chance, reasons = parse_scheme("gc:s=1", n=N), random.Random(5), Counter[str]()
    rounds, wrong = 25_000 if SOAK else 20, 0

    def mixed_up(message: ResultMessage | FailureMessage, *, run_id: str) -> list[bytes]:
        nonlocal wrong
        address = message.subject.address
        if address[2] > 2 or chance.random() > 0.3:
            return [encode(message, run_id=run_id)]
        wrong += 1
        address, run_id = foreign(address, chance)
        return [frame(address, run_id=run_id)]

    def observe(each: Seen) -> None:
        if isinstance(each, Failure):
            assert re.match("WireError: (answer has|frame belongs to run)", each.reason)
            reasons[type(each).__name__] += 1

    workload = Sums(scheme)
    with (
        mock.patch.object(dask_, "encode_pieces", mixed_up),
        DaskBackend(N, workload.factory, processes=0) as backend,
    ):
        run(RoundPolicy(scheme.start(rounds), RULE), backend, workload, observe=observe)
    print(dict(reasons), f"{wrong} wrong")
    assert workload.finished == rounds
    assert reasons.total() > 0.3 * wrong > 0.1 * rounds
