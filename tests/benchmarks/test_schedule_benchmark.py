"""A long run continues at once: the start of a resumed run does not grow with its rounds.

Compared are two runs of 256 workers: one after 1000 rounds, and one after 100,000. Measured is the
processor's time from the files of a checkpoint and a journal to a policy that can continue, for
every kind of scheme. Each round has as many stragglers as the design allows, or every so many
rounds, where they may not come again at once.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from seqgc.rounds import ClosingRule, Setting, SwitchingPolicy
from seqgc.schemes import Scheme, parse_scheme
from seqgc.training.history import JournalState, history_since

N, MOST, MOST_S = 256, 3.0, 2.0
ROUNDS = (1000, 100_000)
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


def write_run(
    path: Path, scheme: Scheme, stragglers: int, every: int, *, rounds: int
) -> tuple[JournalState, str]:
    """Write the journal of a run; return what its checkpoint five rounds before the end holds."""
    rng, jobs = np.random.default_rng(0), rounds + 100
    schedule, at = scheme.begin(jobs), rounds - 5
    policy = SwitchingPolicy(Setting(scheme=scheme), num_jobs=jobs)
    state, journal = policy.snapshot() | {"rounds": at, "started": at}, JournalState()
    bodies: list[dict[str, object]] = [
        {"kind": "begin", "workers": N, "fingerprint": {}, "name": "run", "since": 0}
    ]
    for round in range(rounds):
        responded = np.ones(N, dtype=np.bool_)
        if round % every == 0:
            responded[rng.choice(N, stragglers, replace=False)] = False
        if round == at:
            state["schedule"] = schedule.snapshot()
        schedule.close_round(responded)
        absent = {} if scheme.same_bits else {"stragglers": np.flatnonzero(~responded).tolist()}
        bodies.append({"kind": "round", "round": round, **absent})
    with path.open("wb") as file:
        for number, body in enumerate(bodies):
            if number == 1 + at:
                journal = JournalState(lines=number, size_bytes=file.tell(), num_workers=N)
            text = json.dumps({"v": 2, "n": number, "master": 1, **body}, separators=(",", ":"))
            line = text[:-1].encode()
            file.write(b'%b,"crc":%d}\n' % (line, zlib.crc32(line)))
    return journal, json.dumps(state)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.benchmark(group="schedule")
def test_the_start_of_a_resumed_run_does_not_grow_with_its_rounds(
    spec: str, benchmark: Benchmark, tmp_path: Path
) -> None:
    scheme, taken_s = parse_scheme(spec, n=N), list[float]()
    for rounds in ROUNDS:
        path = tmp_path / f"{rounds}.jsonl"
        journal, state = write_run(path, scheme, *SPECS[spec], rounds=rounds)

        def resumed(path: Path = path, journal: JournalState = journal, state: str = state) -> int:
            at = json.loads(state)["rounds"]
            history = history_since(path, journal, rounds=at, by=1)
            assert history is not None
            policy = SwitchingPolicy(
                Setting(scheme=scheme, rule=ClosingRule()),
                num_jobs=at + 105,
                again=history.again(),
            )
            policy.restore(json.loads(state))
            return policy.rounds

        assert resumed() == rounds - 5  # codes are designed once
        began = time.process_time()
        for _ in range(20):
            resumed()
        taken_s.append((time.process_time() - began) / 20)
        print(f"\n{spec}: {1e3 * taken_s[-1]:.2f} ms after {rounds:,} rounds, {len(state)} bytes")
    benchmark.extra_info["seconds"] = taken_s[-1]
    benchmark.pedantic(resumed, rounds=1)
    assert taken_s[-1] <= MOST_S
    assert taken_s[-1] <= MOST * taken_s[0]
