"""A long run's schedule is rebuilt from its journal: 10^5 rounds of 256 workers within 10 s.

A schedule has no format of its own: which workers closed each round says all of it. Measured is the
processor's time from the journal's bytes to a policy that can go on, for every kind of scheme. Each
round has as many stragglers as the design allows, or every so many rounds, where they may not come
again at once.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from seqgc.rounds import ClosingRule, OnRecord, Setting, SwitchingPolicy
from seqgc.schemes import Scheme, parse_scheme
from seqgc.training.history import read_history

N, ROUNDS, MOST_S = 256, 100_000, 10.0
SPECS = {  # how many stragglers there are, in the first of so many rounds
    "uncoded": (0, 1),
    "gc:s=14": (14, 1),
    "gc-rep:s=7": (7, 1),
    "sr-sgc:B=2,W=3,lam=23": (23, 4),
    "m-sgc:B=1,W=2,lam=27": (27, 4),
    "ra-sgc:s=1,q=0.5,r=2": (1, 4),
    "backup:b=7": (7, 1),
}


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    extra_info: dict[str, float]

    def pedantic(self, target: Callable[[], int], *, rounds: int) -> int: ...


def write_journal(path: Path, scheme: Scheme, stragglers: int, every: int) -> int:
    """Write what a run of so many rounds would have, without a sync a line; return its jobs."""
    rng, schedule = np.random.default_rng(0), scheme.begin(jobs := ROUNDS - scheme.delay)
    bodies: list[dict[str, object]] = [{"kind": "begin", "workers": N, "fingerprint": {}}]
    for round in range(ROUNDS):
        responded = np.ones(N, dtype=np.bool_)
        if round % every == 0:
            responded[rng.choice(N, stragglers, replace=False)] = False
        finished = schedule.close_round(responded)
        absent = np.flatnonzero(~responded).tolist()
        bodies.append({"kind": "round", "round": round, "stragglers": absent, "jobs": finished})
    with path.open("wb") as file:
        for number, body in enumerate(bodies):
            text = json.dumps({"v": 1, "n": number, "master": 1, **body}, separators=(",", ":"))
            line = text[:-1].encode()
            file.write(b'%b,"crc":%d}\n' % (line, zlib.crc32(line)))
    return jobs


@pytest.mark.timeout(900)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.benchmark(group="schedule")
def test_a_long_schedule_is_rebuilt_in_seconds(
    spec: str, benchmark: Benchmark, tmp_path: Path
) -> None:
    scheme = parse_scheme(spec, n=N)
    path = tmp_path / "journal.jsonl"
    jobs = write_journal(path, scheme, *SPECS[spec])

    def rebuilt() -> int:
        answers = read_history(path).answers
        policy = SwitchingPolicy(
            Setting(scheme=scheme, rule=ClosingRule()),
            num_jobs=jobs + 100,
            payload="float32",
            again=OnRecord(late=answers.late, finished=answers.finished),
        )
        policy.repeat(islice(answers, ROUNDS))
        return policy.rounds

    began = time.process_time()
    assert benchmark.pedantic(rebuilt, rounds=1) == ROUNDS
    taken_s = time.process_time() - began
    benchmark.extra_info["seconds"] = taken_s
    print(f"\n{spec}: {taken_s:.2f} s for {ROUNDS:,} rounds, {path.stat().st_size:,} bytes")
    assert taken_s <= MOST_S
