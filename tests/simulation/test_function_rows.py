"""Single kinds of faults of functions, as often as it takes to be sure."""

from __future__ import annotations

import hashlib
import heapq
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgc.errors import ParameterError, StoreError
from seqgc.ports import Task, WeightedPoints, WeightRef, WorkItem
from seqgc.rounds import ClosingRule
from seqgc.stores import MemoryStore, RetiringStore
from seqgc.training import RecordingPlan, record_profile
from seqgc.wire import (
    InvokeMessage,
    StoreRef,
    TaskMessage,
    WorkloadRef,
    decode,
    encode,
    from_json,
    to_mapping,
)
from seqgc.worker import FunctionWorker, Registry
from tests.kit import SOAK
from tests.simulation.crew import SharedFiles, SimulatedFunctions
from tests.simulation.faults import READ_KINDS
from tests.simulation.functions import COLD_S, MOST_AGAIN, Account
from tests.simulation.ledger import Ledger
from tests.simulation.models import models
from tests.simulation.weather import RUN, Cheap, Weather
from tests.simulation.world import Clock

pytestmark = pytest.mark.timeout(0 if SOAK else 180)


@pytest.mark.parametrize("n", [4, 32])
def test_a_service_that_admits_few_is_not_stormed_and_nobody_fails(n: int, tmp_path: Path) -> None:
    """Of a round's n invocations a quarter is admitted at once, and 0.5 n in a second."""
    rounds = 1000 if SOAK else 6
    run = Cheap(
        weather=Weather(1, [], 0),
        mount=tmp_path,
        spec="uncoded",
        n=n,
        jobs=rounds,
        prepare=lambda account: account.ration(1e9, rate=n / 2, burst=n / 4),
    )
    times = np.array(run.run().again)
    assert run.failures == []
    assert len(run.records) == rounds
    assert len(times) > 0.5 * n * rounds
    most = (np.searchsorted(times, times + 1 - 1e-6) - np.arange(len(times))).max()
    assert most <= MOST_AGAIN * n, "in a second"
    assert np.unique(times, return_counts=True)[1].max() <= max(2, n / 4), "by jitter"


def test_a_fifth_of_all_calls_is_cut_off_or_refused_and_every_round_ends(tmp_path: Path) -> None:
    rounds = 10_000 if SOAK else 60
    weather = Weather(2, ["reset", "unavailable"], 0.2)
    run = Cheap(weather=weather, mount=tmp_path, spec="uncoded", n=4, jobs=rounds)
    run.run()
    assert len(run.records) == rounds
    assert all(record.responded.all() for record in run.records)
    assert len(run.failures) == weather.counts.total() > 0.15 * 4 * rounds
    told = Counter(re.match(r"HTTP 50\d|ConnectionResetError", f.reason)[0] for f in run.failures)  # type: ignore[index]
    assert set(told) == {f"HTTP 50{k}" for k in (0, 2, 3, 4)} | {"ConnectionResetError"}


def test_runs_are_not_harmed_by_cold_starts(tmp_path: Path) -> None:
    """Where two of six may be waited for in vain, three tasks in ten of each round come late."""
    rounds = 1000 if SOAK else 20
    weather = Weather(4, ["cold"], 0.3)
    rule = ClosingRule(mu=0.5, timeout_s=60.0)
    run = Cheap(weather=weather, mount=tmp_path, spec="gc:s=2", n=6, jobs=rounds, rule=rule)
    run.run()
    assert weather.counts["cold"] > 0.2 * 6 * rounds
    assert run.failures == []
    assert len(run.records) == rounds
    for record in run.records:
        assert record.duration_s < COLD_S + 12, "what was cold was late, and nothing was sent twice"


def test_functions_that_cannot_stay_have_no_address(tmp_path: Path) -> None:
    weather = Weather(5, [], 0)
    account = Account(weather, Ledger(weather), tmp_path)
    crew = SimulatedFunctions(2, account, kind="lambda", master=0)
    with pytest.raises(ParameterError, match=r"function\.resident` must be left out.*'simulated'"):
        _ = crew.address


def test_cold_starts_are_in_no_profile(tmp_path: Path) -> None:
    rounds = 1000 if SOAK else 20
    weather = Weather(5, [], 0, cold=0.3)
    account = Account(weather, Ledger(weather), tmp_path)
    crew = SimulatedFunctions(12, account, kind="lambda", master=0)
    plan = RecordingPlan(model=models(1)[0], loads=(1.0,), rounds=rounds, warmup=0)
    (profile,) = record_profile(plan, crew)
    assert weather.counts["cold"] > 0
    assert profile.times.max() < COLD_S + 1, "no task takes less than one"


# ---- an environment, its store, and what is deleted there ---------------------------------------


def test_an_environment_that_serves_several_runs_never_uses_what_another_left() -> None:
    """Names, versions and sizes are the same in all runs, weights and settings are not."""
    rng = np.random.default_rng(6)
    registry = Registry()

    @registry.register("scaled")
    def scaled(settings: Any, fetch_weights: Any) -> Any:
        return lambda parts: settings["factor"] * fetch_weights(parts[0].weights)

    worker = FunctionWorker(registry, lambda ref: stores[ref.location], cached_bytes=5 * 32)
    stores = {f"run-{k:012x}": MemoryStore() for k in range(4)}
    known = {
        (run, version): store.publish("m", version, rng.normal(size=4))
        for run, store in stores.items()
        for version in range(4)
    }
    warm = 0
    for number in range(10_000 if SOAK else 500):
        run = f"run-{int(rng.integers(4)) if rng.random() < 0.5 else 0:012x}"
        ref, factor = known[run, int(rng.integers(4))], float(rng.integers(1, 3))
        inline = ((ref, stores[run].fetch(ref)),) if rng.random() < 0.3 else ()
        part = WeightedPoints(model="m", weights=ref, points=np.arange(1), coefficients=np.ones(1))
        item = WorkItem(slot=0, parts=(part,))
        message = InvokeMessage(
            request=TaskMessage(task=Task(round=number, worker=0, attempt=0, items=(item,))),
            workload=WorkloadRef(name="scaled", settings={"factor": factor}),
            store=StoreRef(kind="directory", location=run),
            inline_limit_bytes=10**6,
            weights=inline,
        )
        report = worker.serve(to_mapping(encode(message, run_id=run)))
        answer: Any = decode(from_json(report.reply), run_id=run)
        np.testing.assert_array_equal(answer.results[0], factor * stores[run].fetch(ref))
        warm += report.warm
    assert 0.2 * number < warm < 0.9 * number


def test_what_is_read_badly_is_read_again_and_never_wrong(tmp_path: Path) -> None:
    reads = 100_000 if SOAK else 2000
    weather = Weather(7, READ_KINDS, 0.3)
    account = Account(weather, Ledger(weather), tmp_path)
    store = SharedFiles(account, tmp_path / RUN)
    vectors = [np.random.default_rng(k).normal(size=50) for k in range(8)]
    refs = [store.publish("m", version, vector) for version, vector in enumerate(vectors)]
    blobs = [vector.tobytes() for vector in vectors]
    for number, blob in enumerate(blobs):
        store.put(str(number), blob)
    failed = asked = 0
    while weather.reads < reads:
        which = asked % len(vectors)
        asked += 1
        try:
            if asked % 2:
                np.testing.assert_array_equal(store.fetch(refs[which]), vectors[which])
            else:
                digest = hashlib.sha256(blobs[which]).hexdigest()
                got = store.get(str(which), digest=digest, size_bytes=len(blobs[which]))
                assert got == blobs[which]
        except StoreError as error:
            failed += "cannot be used: " in str(error)
    assert 0.25 * reads < weather.counts.total() < 0.35 * reads
    assert 0.3**4 / 3 < failed / asked < 3 * 0.3**4, "four readings each, and not one more"


def test_weights_in_use_are_never_deleted() -> None:
    """Tasks of the last T + 1 rounds, and stragglers of a grace, read them; then they go."""
    delay, grace_s, rounds = 2, 20.0, 25_000 if SOAK else 500
    rng, clock = np.random.default_rng(8), Clock()
    store = RetiringStore(MemoryStore(), rounds=delay, grace_s=grace_s, now=clock.now)
    refs: list[WeightRef] = []
    due: list[tuple[float, int]] = []  # when somebody will read which version
    read = deleted = 0
    for round in range(rounds):
        while due and due[0][0] <= clock.at:
            _, version = heapq.heappop(due)
            assert store.fetch(refs[version])[0] == version
            read += 1
        deleted += store.advance(round)
        refs.append(store.publish("m", round, np.full(2, float(round))))
        in_flight = refs[-1 - delay :]
        for ref, seconds in zip(rng.choice(in_flight, 4), grace_s * rng.random(4), strict=True):
            heapq.heappush(due, (clock.at + seconds, ref.version))
        if round >= delay:
            store.discard(in_flight[0])
        clock.at += float(rng.choice([0.01, 1.0, 5.0]))
    assert read > 3.9 * rounds - 100
    clock.at += grace_s
    assert deleted + store.advance(rounds + delay) == rounds - delay, "all of them, in the end"
    with pytest.raises(StoreError):
        store.fetch(refs[0])
