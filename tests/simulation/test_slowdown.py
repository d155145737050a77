"""A slowdown of all workers alike is said within 10 rounds, and never where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seqgc import master
from seqgc.ports import FloatArray
from seqgc.profiles import (
    LAMBDA_CNN,
    DisruptedMachine,
    GilbertElliott,
    PersistentStragglers,
    PowerLaw,
    ProfileGenerator,
    SlowWorkers,
)
from seqgc.rounds import ClosingRule, Decision, Setting, SwitchingPolicy
from seqgc.schemes import parse_scheme
from seqgc.search import ReplayBackend
from seqgc.training.adaptive import SlowdownWatch
from tests.conftest import RECORDED
from tests.kit import SOAK

pytestmark = pytest.mark.timeout(0 if SOAK else 180)
SIZES = [4, 5, 6, 8, 12, 16, 32, 64, 128, 256] if SOAK else [4, 5, 6, 8, 12]
KINDS = 7
FOUND = {5: [992], 6: [755]}  # workers that are fast in some rounds, and slow in others
Told = list[tuple[str, dict[str, object]]]


def told(
    setting: Setting, times: FloatArray, *, jobs: int, then: dict[int, Setting] | None = None
) -> Told:
    """Return what is told in a run on these times (rounds, n), of so many jobs."""
    notices: Told = []
    policy = SwitchingPolicy(setting, num_jobs=jobs, director=Planned(then or {}))
    slowdown = SlowdownWatch(
        times.shape[1],
        setting=lambda: policy.segments[-1].setting,
        notify=lambda kind, fields: notices.append((kind, fields)),
    )
    master.run(policy, ReplayBackend(times), observe=slowdown)
    return notices


class Planned:
    """A director that switches when so many jobs are left."""

    def __init__(self, then: dict[int, Setting]) -> None:
        self._then = then

    def on(self, event: object) -> None:
        pass

    def close(self, record: object, *, setting: Setting) -> None:
        pass

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:  # noqa: ARG002
        return Decision(setting=self._then[jobs_left]) if jobs_left in self._then else None


def generator(kind: int, n: int, rng: np.random.Generator) -> ProfileGenerator:
    """Return workers of a kind: heavy tails, bursts, stalls, slow machines, lasting stragglers."""
    heavy = PowerLaw(least_s=1.0, index=rng.uniform(1.05, 5))
    bursty = GilbertElliott(
        p_bad=rng.uniform(0.02, 0.3),
        stay_bad=rng.uniform(0.1, 0.8),
        base_s=1.0,
        base_spread=rng.uniform(0, 0.4),
        excess=0.2,
        excess_spread=0.7,
        mu=rng.uniform(0.5, 9),
        tail=rng.uniform(0.1, 0.9),
        stalled_workers=rng.uniform(0, 0.1),
        stall_s=(26.0, 39.0),
    )
    some, most = max(1, n // 3), max(1, int(n * rng.uniform(0.1, 0.85)))
    lasting = PersistentStragglers(
        base=heavy, count=most, life=int(rng.integers(1, 40)), factor=rng.uniform(2, 50)
    )
    start = int(rng.integers(10, 40))
    # More than a third are not on it, or a slowdown of all right after it looks like its going on.
    size = min(most, (2 * n - 1) // 3)
    machine = DisruptedMachine(base=heavy, first=0, size=size, start=start, stop=60, factor=30.0)
    slow = SlowWorkers(base=bursty, workers=tuple(range(some)), factor=20.0)
    return [LAMBDA_CNN, heavy, bursty, lasting, machine, slow][kind]


def generated(seed: int) -> tuple[Setting, FloatArray]:
    """Return the setting and the workers' times (rounds, n) of a seed: nobody is slowed down."""
    rng = np.random.default_rng(seed)
    n, kind = int(rng.choice(SIZES)), seed % KINDS
    rounds = int(rng.integers(60, 120)) if n < 64 else 60
    recordings = sorted(RECORDED.glob("*.csv"))
    if kind == KINDS - 1 and recordings:
        recorded = np.loadtxt(recordings[rng.integers(len(recordings))], delimiter=",")
        who = rng.choice(recorded.shape[1], n, replace=False)
        times = np.resize(recorded, (rounds, recorded.shape[1]))[:, who]
    else:
        times = generator(kind % (KINDS - 1), n, rng).profile(rounds, workers=n, rng=rng).times
    if rng.random() < 0.3:  # cold starts
        times = np.concatenate([11 * times[:1], times[1:]])
    lam = max(1, n // 4)
    specs = ["uncoded", "gc:s=1", f"gc:s={n // 3}", f"gc:s={n - 1}", f"sr-sgc:B=1,W=2,lam={lam}"]
    specs += [f"m-sgc:B=1,W=2,lam={lam}", f"m-sgc:B=2,W=8,lam={lam}"]
    wait_out, mu = rng.choice(["all", "conform", "feasible"]), rng.choice([0.0, 0.2, 1.0, 3.0])
    rule = ClosingRule(mu=float(mu), wait_out=str(wait_out))  # type: ignore[arg-type]
    return Setting(scheme=parse_scheme(str(rng.choice(specs)), n=n), rule=rule), times


@pytest.mark.parametrize("kind", range(KINDS))
def test_generated_runs_are_slow_when_they_are_slowed_down(kind: int) -> None:
    for seed in [*range(kind, 1000 if SOAK else 2 * KINDS, KINDS), *FOUND.get(kind, ())]:
        setting, times = generated(seed)
        jobs = len(times) - setting.scheme.delay
        about = f"seed {seed}: {setting.label}, n={setting.scheme.n}"
        assert told(setting, times, jobs=jobs) == [], about
        begin = int(np.random.default_rng(seed).integers(20, len(times) - 22))
        slowed = times.copy()
        slowed[begin : begin + 50] *= 20
        (first, fields), *later = told(setting, slowed, jobs=jobs)
        assert first == "slowdown", about
        assert begin <= int(str(fields["round"])) < begin + 10, about
        assert [k for k, _ in later] in ([], ["recovered"]), about


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_a_change_of_load_is_no_slowdown_and_hides_none(part: float) -> None:
    """``part`` of a time is in proportion to the load; loads change 12-fold, and back."""
    light, heavy = (
        Setting(scheme=parse_scheme(spec, n=12), rule=ClosingRule(mu=1.0))
        for spec in ("uncoded", "gc:s=11")
    )
    times = 1 + 0.2 * np.random.default_rng(3).random((120, 12))
    times[30:60] *= 1 - part + part * 12
    jobs, then = 120, {90: heavy, 60: light}
    assert told(light, times, jobs=jobs, then=then) == []
    times[85:] *= 20  # the memory of the heavy rounds has faded
    ((_, fields),) = told(light, times, jobs=jobs, then=then)
    assert fields["round"] == 92
    assert fields["times"] == pytest.approx(20, rel=0.1)


def test_a_slowdown_of_the_fastest_alone_is_none() -> None:
    times = 1 + 0.2 * np.random.default_rng(4).random((80, 9))
    times[:40, :2] /= 10  # two workers lose what they had over the others
    setting = Setting(scheme=parse_scheme("gc:s=2", n=9))
    assert told(setting, times, jobs=80) == []


def test_one_event_one_line_and_one_at_its_end() -> None:
    times = 1 + 0.2 * np.random.default_rng(5).random((140, 4))
    times[40:90] *= 20
    times[60] /= 20  # a good round in between changes nothing
    setting = Setting(scheme=parse_scheme("gc:s=1", n=4), rule=ClosingRule(mu=0.5))
    (begin, what), (end, over) = told(setting, times, jobs=140)
    assert (begin, what["round"], what["since"]) == ("slowdown", 47, 40)
    assert what["times"] == pytest.approx(20, rel=0.1)
    assert (end, over) == ("recovered", {"round": 97, "since": 40})


def test_recordings_are_there_or_the_generated_runs_have_none(recorded_profiles: Path) -> None:
    assert len(list(recorded_profiles.glob("*.csv"))) >= 10
