"""A live run, replayed from its own trace, closes every round at the same instant, likewise."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from seqgc import workers
from seqgc.master import run as drive
from seqgc.ports import Close, RoundRecord, Seen
from seqgc.profiles import LAMBDA_CNN
from seqgc.rounds import ClosingRule, RoundPolicy, Setting, WaitOut
from seqgc.runs import RecordedRun, read_run
from seqgc.schemes import parse_scheme
from seqgc.search import ReplayBackend
from seqgc.training import TrainingPlan, train
from tests.training.reference import make_model

N, JOBS = 5, 12


@pytest.mark.parametrize(
    ("spec", "wait_out", "mu"),
    [
        ("gc:s=1", "all", 0.5),
        ("m-sgc:B=1,W=2,lam=2", "feasible", 0.3),
        ("m-sgc:B=2,W=3,lam=3", "conform", 0.0),
    ],
)
def test_a_live_run_replayed_from_its_trace_makes_the_same_decisions(
    spec: str, wait_out: WaitOut, mu: float, tmp_path: Path
) -> None:
    scheme = parse_scheme(spec, n=N)
    num_rounds = JOBS + scheme.delay
    rng = np.random.default_rng(5)
    seconds = np.minimum(LAMBDA_CNN.profile(num_rounds, workers=N, rng=rng).times * 0.03, 0.4)
    seconds[[2, 7], [1, 3]] = 2.0  # later than anybody else, however slow this machine is
    models = [
        make_model(f"m{i}", seed=i, optimizer=partial(torch.optim.SGD, lr=0.1)) for i in range(4)
    ]
    live: list[RoundRecord] = []

    def watch(seen: Seen) -> None:
        if isinstance(seen, Close):
            live.append(seen.record)

    setting = Setting(scheme=scheme, rule=ClosingRule(mu=mu, wait_out=wait_out))
    plan = TrainingPlan(models=models, scheme=setting, steps=JOBS // 4)
    with workers.local(N, delays=lambda row, worker, _: float(seconds[row, worker])) as w:
        train(plan, w, run=tmp_path / "run", observers=[watch])

    # Who was cancelled has no time in the trace: later than the closing is all that is known.
    times = np.full((num_rounds, N), np.inf)
    recorded = read_run(tmp_path / "run")
    answers = recorded.answers()
    came = (answers["outcome"] == "used") | (answers["outcome"] == "dropped")
    times[answers["round"][came], answers["worker"][came]] = answers["elapsed_s"][came]
    tells_of(recorded, live)

    again: list[RoundRecord] = []

    def watch_again(seen: Seen) -> None:
        if isinstance(seen, Close):
            again.append(seen.record)

    policy = RoundPolicy(scheme.start(JOBS), ClosingRule(mu=mu, wait_out=wait_out))
    drive(policy, ReplayBackend(times), observe=watch_again)
    assert len(live) == len(again) == num_rounds
    for one, other in zip(live, again, strict=True):
        assert (one.duration_s, one.kappa_s, one.reason, one.waited_out) == (
            other.duration_s,
            other.kappa_s,
            other.reason,
            other.waited_out,
        )
        assert (one.responded == other.responded).all()
    assert any(not record.responded.all() for record in live), "no straggler: nothing was shown"


def tells_of(recorded: RecordedRun, live: list[RoundRecord]) -> None:
    """A recorded run's tables say what its observers were shown."""
    rounds, answers, models = recorded.rounds(), recorded.answers(), recorded.models()
    assert rounds["round"].tolist() == [record.round for record in live]
    for name in ("duration_s", "kappa_s", "reason", "waited_out"):
        assert rounds[name].tolist() == [getattr(record, name) for record in live], name
    assert rounds["stragglers"].tolist() == [int((~record.responded).sum()) for record in live]
    responded = np.zeros((len(live), N), dtype=np.bool_)
    in_time = (answers["outcome"] == "used") & ~answers["late"]
    responded[answers["round"][in_time], answers["worker"][in_time]] = True
    working = rounds["reason"] != "idle"
    assert (responded == [record.responded for record in live])[working].all()
    jobs = recorded.jobs()
    assert jobs["job"].tolist() == list(range(JOBS))
    assert (np.diff(jobs["finished_s"]) >= 0).all()
    assert models["at_s"].tolist() == jobs["finished_s"][models["job"]].tolist()
    assert models["model"].tolist() == [f"m{i}" for i in range(4) for _ in range(JOBS // 4)]
    assert models["step"].tolist() == [*range(JOBS // 4)] * 4
    assert (recorded.gaps, recorded.outcome) == ((), "finished")
    assert not np.isnan(rounds["load"][working]).any()
