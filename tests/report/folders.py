"""Folders of runs that nobody trained: the library's own writers, on generated delays."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from seqgc import master, ports
from seqgc.profiles.gilbert_elliott import LAMBDA_CNN
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import parse_scheme
from seqgc.search import ReplayBackend
from seqgc.training import JobMetrics, RunDirectory
from tests.training.inside import EventLog, MetricsLog

__all__ = ["write_run"]

CONFIG = """\
scheme = "{scheme}"
workers = {n}
mu = 1.0
backend = "local"
[[models]]
name = {model}
module = "mlp"
optimizer = "adam"
lr = 0.003
batch_size = 256
"""


def write_run(
    path: Path,
    *,
    scheme: str = "m-sgc:B=1,W=2,lam=2",
    n: int = 8,
    jobs: int = 20,
    models: tuple[str, ...] = ("small", "large"),
    seed: int = 0,
    outcome: str | None = "finished",
) -> Path:
    """Write a run's folder and return it; ``outcome`` None: it goes on.

    The clock is wound by hand (a mock): a run of hours is to be written in a moment.
    """
    spec = parse_scheme(scheme, n=n)
    rounds = jobs + spec.delay
    delays = LAMBDA_CNN.profile(rounds, workers=n, rng=np.random.default_rng(seed)).times
    now = SimpleNamespace(s=0.0, before=0.0)
    run = RunDirectory(path, config=CONFIG.format(scheme=scheme, n=n, model=json.dumps(models[0])))
    with patch("seqgc.runs.folder.time", SimpleNamespace(monotonic=lambda: now.s)):
        log, new = EventLog(path / "events.jsonl"), list[JobMetrics]()
        losses = MetricsLog(path / "metrics.csv", metrics=lambda: take(new), warn=print)

        def see(seen: ports.Seen) -> None:
            if isinstance(seen, ports.Arrival):
                now.s = now.before + seen.at
            if isinstance(seen, ports.Close):
                now.s = now.before = now.before + seen.record.duration_s
            if isinstance(seen, ports.Finish):
                step, place = divmod(seen.job, len(models))
                loss = 2.3 * 0.97**step + 0.1 * place
                new.append(JobMetrics(job=seen.job, model=models[place], step=step, loss=loss))
            log(seen)
            losses(seen)

        heading = {"scheme": scheme, "workers": n, "jobs": jobs, "rounds": rounds}
        see(ports.Notice(kind="run", fields=heading | {"models": list(models), "pieces": 0}))
        policy = RoundPolicy(spec.start(jobs), ClosingRule(mu=1.0))
        master.run(policy, ReplayBackend(delays), observe=see)
        if outcome is not None:
            see(ports.Notice(kind="end", fields={"outcome": outcome}))
        log.close()
        losses.close()
    return run.path


def take(entries: list[JobMetrics]) -> list[JobMetrics]:
    taken, entries[:] = list(entries), []
    return taken
