"""One replay: the whole round at once beside one event after the other, in one run.

Both ask the same gate, schedule and models; they differ in who asks. Targets for M-SGC (1, 2, 27),
256 workers, 30 recorded rounds: 4 / 6 / 11 ms under all / conform / feasible.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from seqgc import master
from seqgc.profiles import DelayProfile, ProfileMeta
from seqgc.rounds import ClosingRule, RoundPolicy, Setting, WaitOut
from seqgc.schemes import parse_scheme
from seqgc.search import Rehearsal, Replay, ReplayBackend, replay

N, ALPHA, RUNS = 256, 2.2, 25
RECORDING = "cnn-canada-batch2048-load0.000-30rounds-d.csv"
TARGET = "m-sgc:B=1,W=2,lam=27"
SPECS = [TARGET, "gc:s=14", "gc-rep:s=7", "sr-sgc:B=2,W=3,lam=23"]
RULES: list[tuple[WaitOut, float]] = [("all", 1.0), ("conform", 0.0), ("feasible", 0.0)]
FIRST_RUN = """
import sys, time
import numpy as np
from seqgc.profiles import DelayProfile
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import parse_scheme
from seqgc.search import Rehearsal, replay
times = np.loadtxt(sys.argv[1], delimiter=",")
began = time.process_time()
rule = ClosingRule(mu=float(sys.argv[4]), wait_out=sys.argv[3])
setting = Setting(scheme=parse_scheme(sys.argv[2], n=256), rule=rule)
replay(setting, Rehearsal(profile=DelayProfile.from_times(times), alpha=2.2))
print(time.process_time() - began)
"""


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    extra_info: dict[str, float]

    def pedantic(self, target: Callable[[], Replay], *, rounds: int) -> Replay: ...


def least_ms(work: Callable[[], object], runs: int) -> float:
    """Milliseconds of the processor, the best of some runs: others keep it busy."""
    taken = []
    for _ in range(runs):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return 1e3 * min(taken)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("wait_out", "mu"), RULES)
@pytest.mark.benchmark(group=f"one replay, n={N}, 30 recorded rounds")
def test_one_replay(
    benchmark: Benchmark, recorded_profiles: Path, spec: str, wait_out: WaitOut, mu: float
) -> None:
    recording = recorded_profiles / RECORDING
    profile = DelayProfile.from_times(
        np.loadtxt(recording, delimiter=","), meta=ProfileMeta(alpha=ALPHA)
    )
    rule = ClosingRule(mu=mu, wait_out=wait_out)
    setting = Setting(scheme=parse_scheme(spec, n=N), rule=rule)
    rehearsal = Rehearsal(profile=profile)

    def event_by_event() -> None:
        policy = RoundPolicy(rehearsal.schedule(setting), rule)
        master.run(policy, ReplayBackend(rehearsal.times(setting)))

    benchmark.pedantic(lambda: replay(setting, rehearsal), rounds=RUNS)
    whole_ms = least_ms(lambda: replay(setting, rehearsal), RUNS)
    events_ms = least_ms(event_by_event, 3)
    command = [sys.executable, "-c", FIRST_RUN, str(recording), spec, wait_out, str(mu)]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    first_ms = 1e3 * float(first.stdout)
    ratio = events_ms / whole_ms
    benchmark.extra_info |= {"whole_ms": whole_ms, "first_ms": first_ms, "ratio": ratio}
    print(
        f"\n{spec}, {wait_out}, mu={mu:g}: {whole_ms:.1f} ms, the first time {first_ms:.1f} ms; "
        f"event by event {events_ms:.0f} ms, {ratio:.0f} times as long"
    )
    assert ratio > 4, "a replay asks as often as a live run"
    assert first_ms < 30 * whole_ms, "a replay designs coefficients that nobody uses"
