"""The batched kernel against the general replay, in one run: per candidate, and as n grows."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Protocol

import numpy as np
import pytest

from seqgc.profiles import DelayProfile, ProfileMeta
from seqgc.rounds import ClosingRule, Setting, WaitOut
from seqgc.schemes import MSGC, Scheme
from seqgc.search import Rehearsal, SearchSpace, Tuning, replay, tune
from seqgc.search.kernel import BatchReplay, batch_replay

N, ROUNDS, MAX_DELAY = 256, 30, 10
SAMPLE = 12  # candidates replayed in general


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    def pedantic(self, target: Callable[[], BatchReplay], *, rounds: int) -> BatchReplay: ...


class SearchBenchmark(Protocol):
    """The same, of a whole search."""

    def pedantic(self, target: Callable[[], Tuning], *, rounds: int) -> Tuning: ...


def profile_of(n: int, rounds: int) -> DelayProfile:
    """Mild delays with a heavy tail: about one worker in twenty straggles."""
    rng = np.random.default_rng(0)
    tail = (rng.random((rounds, n)) < 0.05) * rng.pareto(2.0, (rounds, n))
    times = 0.6 + 0.1 * rng.random((rounds, n)) + tail
    return DelayProfile.from_times(times, meta=ProfileMeta(alpha=1.12))


def every_m_sgc(n: int, lams: list[int]) -> list[Scheme]:
    windows = range(2, MAX_DELAY + 2)
    return [
        MSGC(n=n, B=burst, W=window, lam=lam)
        for window in windows
        for burst in range(1, min(window, MAX_DELAY + 3 - window))
        for lam in lams
    ]


def search(schemes: list[Scheme], profile: DelayProfile, mu: float, rule: WaitOut) -> BatchReplay:
    num_jobs = profile.num_rounds - MAX_DELAY
    return batch_replay(
        schemes,
        Rehearsal(profile=profile, num_jobs=num_jobs),
        rule=ClosingRule(mu=mu, wait_out=rule),
    )


def seconds_of(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.parametrize(("mu", "wait_out"), [(1.0, "all"), (0.0, "conform"), (0.0, "feasible")])
@pytest.mark.benchmark(group=f"every M-SGC of n={N}, delay <= {MAX_DELAY}, {ROUNDS} rounds")
def test_the_full_m_sgc_search(benchmark: Benchmark, mu: float, wait_out: WaitOut) -> None:
    schemes, profile = every_m_sgc(N, list(range(N + 1))), profile_of(N, ROUNDS)
    batch = benchmark.pedantic(lambda: search(schemes, profile, mu, wait_out), rounds=1)
    each = seconds_of(lambda: search(schemes, profile, mu, wait_out)) / len(schemes)
    num_jobs, replayed = ROUNDS - MAX_DELAY, []
    sample = np.random.default_rng(1).choice(len(schemes), SAMPLE, replace=False)
    for row in sample:
        rounds = batch.num_rounds[row]
        start = time.process_time()
        run = replay(
            Setting(scheme=schemes[row], rule=ClosingRule(mu=mu, wait_out=wait_out)),
            Rehearsal(profile=profile, num_jobs=num_jobs),
        )
        replayed.append(time.process_time() - start)
        assert run.round_seconds.tolist() == batch.round_seconds[row, :rounds].tolist()
    ratio = np.mean(replayed) / each
    print(
        f"\n{wait_out}, mu={mu}: {len(schemes)} candidates, {1e3 * each:.4f} ms each; "
        f"general replay {1e3 * np.mean(replayed):.1f} ms each: {ratio:,.0f} times"
    )


@pytest.mark.parametrize("wait_out", ["conform", "feasible"])
@pytest.mark.parametrize(("n", "rounds"), [(1000, 30), (10_000, 30), (10_000, 100)])
@pytest.mark.benchmark(group="coarse M-SGC search of many workers")
def test_many_workers(benchmark: Benchmark, n: int, rounds: int, wait_out: WaitOut) -> None:
    schemes = every_m_sgc(n, np.linspace(0, n, 9).astype(int).tolist())
    profile = profile_of(n, rounds)
    tracemalloc.start()
    batch = benchmark.pedantic(lambda: search(schemes, profile, 0.0, wait_out), rounds=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    each = seconds_of(lambda: search(schemes, profile, 0.0, wait_out)) / len(schemes)
    print(
        f"\n{wait_out}: {n} workers, {rounds} rounds, {len(schemes)} candidates, "
        f"{1e9 * each / n / batch.num_rounds.mean():.2f} ns per worker and round, "
        f"peak {peak / 2**20:.0f} MiB"
    )
    assert peak < 2**30


@pytest.mark.benchmark(group="coarse search over every scheme, many workers")
def test_a_coarse_search_of_ten_thousand_workers(benchmark: SearchBenchmark) -> None:
    profile, space = profile_of(10_000, 100), SearchSpace(coarse=True)
    tracemalloc.start()
    found = benchmark.pedantic(lambda: tune(Rehearsal(profile=profile), space=space), rounds=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(
        f"\n10,000 workers, 100 rounds: {found.evaluated} candidates replayed, "
        f"{found.pruned} pruned, best {found.best.setting.label}, peak {peak / 2**20:.0f} MiB"
    )
    assert peak < 2**30
