"""A scheme has the same rounds on virtual functions, whose clock runs on, as on recorded times."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from seqgc import master
from seqgc.ports import Backend, Close, RoundRecord, Seen
from seqgc.profiles import DelayProfile, latency_pace
from seqgc.rounds import ClosingRule, RoundPolicy, Setting, WaitOut
from seqgc.schemes import RASGC, Backup, Scheme, registered
from seqgc.search import Rehearsal, ReplayBackend
from seqgc.virtual import VirtualBackend
from tests.kit import SOAK
from tests.schemes.catalogue import all_schemes

TOLERANCE_S: Final = 1e-12
"""A round's times are differences of times of day: of a run of about 100 s, 2**-46 s apart."""


def some_schemes(n: int, seed: int) -> list[Scheme]:
    """One scheme of every registered name that has rounds, its parameters drawn."""
    rng = np.random.default_rng(seed)
    by_name: dict[str, list[Scheme]] = {}
    for scheme in (*all_schemes(n, 3), *(Backup(n=n, b=b) for b in range(n))):
        by_name.setdefault(scheme.spec.partition(":")[0], []).append(scheme)
    kinds = {name: entry.kind for name, entry in registered().items()}
    due = {name for name, kind in kinds.items() if issubclass(kind, Scheme)}
    assert {name for name in due if kinds[name].__module__.startswith("seqgc.")} == by_name.keys()
    late = [RASGC(n=n, s=n - 2, q=0.5, r=1, p=2), RASGC(n=n, s=1, q=1.0, r=1)]
    return [same[rng.integers(len(same))] for same in by_name.values()] + late


def records(setting: Setting, rehearsal: Rehearsal, *, virtual: bool) -> list[RoundRecord]:
    schedule = rehearsal.schedule(setting)
    backend: Backend = ReplayBackend(lambda _: rehearsal.times_of(setting, schedule))
    if virtual:
        pace = latency_pace(rehearsal.profile, alpha=rehearsal.alpha)
        backend = VirtualBackend(setting.scheme.n, pace, workers="function")
    seen: list[RoundRecord] = []

    def see(event: Seen) -> None:
        if isinstance(event, Close):
            seen.append(event.record)

    master.run(RoundPolicy(schedule, setting.rule), backend, observe=see)
    return seen


def decisions(record: RoundRecord) -> tuple[object, ...]:
    responded = tuple(record.responded.tolist())
    return record.round, responded, record.reason, record.waited_out, record.late


@pytest.mark.parametrize("wait_out", ["all", "conform", "feasible"])
@pytest.mark.parametrize("ties", [False, True])
def test_every_scheme_has_the_same_rounds(wait_out: WaitOut, *, ties: bool) -> None:
    late = missed = 0
    for seed in range(100 if SOAK else 3):
        rng = np.random.default_rng(seed)
        n, shape = 6, (6, 6)
        # Whole seconds are exact on both clocks, and so full of ties on both.
        times = rng.integers(1, 5, shape) if ties else 0.1 + rng.exponential(size=shape)
        profile = DelayProfile.from_times(times)
        rehearsal = Rehearsal(profile=profile, num_jobs=8, alpha=0.0 if ties else 0.7, repeat=True)
        for scheme in some_schemes(n, seed):
            rule = ClosingRule(mu=float(rng.choice([0.0, 0.5, 1.0])), wait_out=wait_out)
            setting = Setting(scheme=scheme, rule=rule)
            replayed = records(setting, rehearsal, virtual=False)
            virtual = records(setting, rehearsal, virtual=True)
            where = f"{scheme.spec}, seed {seed}, mu {rule.mu}"
            assert [*map(decisions, virtual)] == [*map(decisions, replayed)], where
            for name in ("kappa_s", "duration_s"):
                seconds = [[getattr(r, name) for r in run] for run in (virtual, replayed)]
                assert seconds[0] == pytest.approx(seconds[1], abs=TOLERANCE_S), where
            late += sum(len(record.late) for record in virtual)
            missed += sum(record.missed > 0 for record in virtual)
    assert missed > 0
    assert late > 0 or wait_out != "feasible", "there must be late answers that are taken"
