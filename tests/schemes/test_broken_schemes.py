"""A scheme whose gradients cannot be right is named by its check, and wherever it would be ranked.

The two schemes here look fast: the rounds of one close on half of the answers that it decodes with,
the other says that its tasks are ten times as small as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from seqgc import master
from seqgc.comparison import Trial, compare
from seqgc.errors import ScheduleError
from seqgc.ports import BoolArray, Decoding, FloatArray, MiniTask, Payload, Term
from seqgc.profiles import DelayProfile, ProfileMeta
from seqgc.rounds import ClosingRule, RoundPolicy, Setting
from seqgc.schemes import Assignment, Schedule, Scheme, Uncoded, parse_scheme, register
from seqgc.search import Rehearsal, ReplayBackend, SearchSpace, replay, tune
from seqgc.stragglers import PerRound, StragglerModel
from seqgc.testing import ChunkWorkload, check_scheme

pytestmark = pytest.mark.usefixtures("broken")

N = 8


@dataclass(frozen=True, kw_only=True)
class Hasty(Scheme):
    """Uncoded; a round closes on half of the answers, and its job is decoded with all."""

    n: int
    delay: ClassVar[int] = 0
    exact: ClassVar[bool] = True
    tolerated: ClassVar[int] = 0

    @property
    def promise(self) -> StragglerModel:
        return PerRound(s=0)

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads(1 / self.n)

    @property
    def chunk_fractions(self) -> FloatArray:
        return self._equal_loads(1 / self.n)

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return HastySchedule(self, num_jobs, conformity=conformity)


class HastySchedule(Schedule):
    def _assign(self) -> Assignment:
        def task(worker: int, job: int = self._round) -> tuple[MiniTask, ...]:
            chunk = np.array([worker])
            return (MiniTask(job=job, slot=0, chunks=chunk, coefficients=np.ones(1)),)

        return Assignment(np.ones(self.n, dtype=np.bool_), task)

    def _feasible(self, responded: BoolArray) -> bool:
        return bool(2 * responded.sum() >= self.n)

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        if not self._feasible(responded):
            raise self._late(self._round)
        return (self._round,)

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:  # noqa: ARG002
        terms = [Term(worker=i, round=job, slot=0, weight=1.0) for i in range(self.n)]
        return Decoding(job=job, terms=tuple(terms))


@dataclass(frozen=True, kw_only=True)
class Feather(Uncoded):
    """Uncoded, and right; but its loads are a tenth of what its tasks touch."""

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads(0.1 / self.n)

    def points_touched(self, sizes: object) -> None:  # type: ignore[override]
        """Leave the loads nominal."""


@pytest.fixture
def broken(plugins_are_forgotten: None) -> None:  # noqa: ARG001 (they are)
    register("hasty")(Hasty)
    register("feather")(Feather)


def recorded(slow_s: float) -> Rehearsal:
    """Return 10 rounds of 1 s, in each of which two of eight workers take longer."""
    times = np.ones((10, N))
    for round in range(10):
        times[round, [round % N, (round + 3) % N]] = slow_s
    return Rehearsal(profile=DelayProfile.from_times(times), alpha=40.0)


NAMES = pytest.mark.parametrize(
    ("spec", "slow_s", "fault"),
    [
        ("hasty", 10.0, r"hasty decodes job 0 with the result of worker \d, round 0"),
        ("feather", 1.0, r"feather is broken: its run takes 15 s, .* less than 60 s"),
    ],
)


def test_check_scheme_finds_results_that_never_arrived() -> None:
    with pytest.raises(AssertionError, match=r"job \d uses .*: Term\(worker=\d"):
        check_scheme(parse_scheme("hasty", n=6))  # type: ignore[arg-type]


def test_check_scheme_finds_loads_that_are_misstated() -> None:
    with pytest.raises(AssertionError, match="below load"):
        check_scheme(parse_scheme("feather", n=6))  # type: ignore[arg-type]


@NAMES
def test_a_replay_names_it(spec: str, slow_s: float, fault: str) -> None:
    with pytest.raises(ScheduleError, match=fault):
        replay(Setting(scheme=parse_scheme(spec, n=N)), recorded(slow_s))


@pytest.mark.parametrize(("spec", "fault"), [("hasty", "decodes job 0"), ("feather", "is broken")])
def test_it_is_named_on_speeds_too(spec: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = classmethod(lambda cls, n, _: [cls(n=n)])
    monkeypatch.setattr({"hasty": Hasty, "feather": Feather}[spec], "candidates", made)
    on = recorded(10.0)
    profile = replace(on.profile, meta=ProfileMeta(base_load=1 / N))
    on = replace(on, profile=profile, alpha=None, recorded="speed", repeat=True)
    with pytest.raises(ScheduleError, match=fault):
        replay(Setting(scheme=parse_scheme(spec, n=N)), on)
    with pytest.raises(ScheduleError, match=fault):
        tune(on, space=SearchSpace(families=(spec,), jobs_per_round=(1,)))


@NAMES
def test_a_comparison_names_it(spec: str, slow_s: float, fault: str) -> None:
    with pytest.raises(ScheduleError, match=fault):
        compare(recorded(slow_s), ["uncoded", spec], trial=Trial(lrs=(4.0,), seeds=1))


def test_a_search_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hasty, "candidates", classmethod(lambda cls, n, _: [cls(n=n)]))
    with pytest.raises(ScheduleError, match="hasty decodes job 0"):
        tune(recorded(10.0), space=SearchSpace(families=("uncoded", "hasty")))


def test_a_run_does_not_train_with_what_never_arrived() -> None:
    scheme = Hasty(n=N)
    workload = ChunkWorkload(scheme, seed=0)
    backend = ReplayBackend(recorded(10.0).profile.times, compute=workload.compute)
    policy = RoundPolicy(scheme.start(3), ClosingRule())
    with pytest.raises(ScheduleError, match="hasty decodes job 0 with the result of worker"):
        master.run(policy, backend, workload)
    assert not workload.errors
