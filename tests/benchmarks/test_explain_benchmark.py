"""What `explain` says another scheme would have taken, beside a live run of that scheme.

Each of ten uncoded runs on local processes with injected delays is explained. The counterfactuals
are then trained live under the same delays. The first rounds, in which processes start, are left
out: they take as long as the machine is busy. docs/explain.md has the figures.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from seqgc import ClosingRule, TrainingPlan, read_run, registered_model, train, workers
from seqgc.explanation import Observed, explain_observed
from seqgc.profiles import LAMBDA_CNN
from seqgc.workers import InjectedDelays, WorkerSet

N, ROUNDS, REPEATS, SCALE = 4, 16, 10, 0.25
GENERATOR = replace(LAMBDA_CNN, p_bad=0.15, stay_bad=0.4, stalled_workers=0.0)
TRIED = "uncoded", "code", "deal", "hedge"


def trained(scheme: str, crew: WorkerSet, run: Path, *, mu: float = 0.0) -> Path:
    model = registered_model("net", module="mlp", optimizer=partial(torch.optim.SGD, lr=0.1))
    rule = ClosingRule(timeout_s=60.0) if mu == 0 else ClosingRule(mu=mu, timeout_s=60.0)
    plan = TrainingPlan(models=[model], scheme=scheme, steps=ROUNDS, rule=rule)
    return train(plan, crew, run=run).run


def warm(run: Path, alpha: float) -> Observed:
    """Return the facts about a run without its first round, in which workers start."""
    observed = Observed.of_run(read_run(run), alpha=alpha)
    profile = observed.profile.select_rounds(1, stop=observed.profile.num_rounds)
    return replace(observed, profile=profile, round_s=observed.round_s[1:], phases={})


def took_s(observed: Observed) -> float:
    return float(observed.round_s.sum()) + observed.master_s


@pytest.mark.timeout(1800)
def test_counterfactuals_are_what_live_runs_take(tmp_path: Path) -> None:
    ratios: dict[str, list[float]] = defaultdict(list)
    agreements = []
    for seed in range(REPEATS):
        rng = np.random.default_rng(seed)
        delays = GENERATOR.profile(ROUNDS, workers=N, rng=rng).scaled(SCALE)
        alpha = delays.slope()
        with workers.local(N, delays=InjectedDelays(delays)) as crew:
            run = trained("uncoded", crew, tmp_path / f"{seed}-run")
            found = explain_observed(warm(run, alpha), alpha=alpha)
            agreements.append(found.agreement or 0.0)
            predicted = {each.what: each for each in found.counterfactuals}
            for what in TRIED[1:]:
                each = predicted[what]
                run = trained(each.scheme, crew, tmp_path / f"{seed}-{what}", mu=each.mu)
                live = warm(run, alpha)
                ratios[f"{what} after uncoded"].append(each.seconds / took_s(live))
                if what == "code":  # and back, from the coded run to the uncoded one
                    back = explain_observed(live, alpha=alpha)
                    (plain,) = (e for e in back.counterfactuals if e.what == "uncoded")
                    ratios["uncoded after code"].append(plain.seconds / found.seconds)
    for what, each_ratio in sorted(ratios.items()):
        low, middle, high = np.quantile(each_ratio, [0.0, 0.5, 1.0])
        print(f"\n{what}: predicted / live {middle:.3f} ({low:.3f} … {high:.3f})", end="")
    print(f"\nreplay / run {np.median(agreements):.3f}")
    for what in ("code after uncoded", "deal after uncoded", "hedge after uncoded"):
        assert abs(np.median(ratios[what]) - 1) <= 0.1, what
