"""The loop and any policy on recorded delays, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from seqgc import master
from seqgc.ports import Dispatch, FloatArray, Policy, Seen
from seqgc.rounds import PolicyDefence, RoundPolicy, Setting
from seqgc.search._outcome import Recorder, Replay
from seqgc.search._rehearsal import Rehearsal
from seqgc.virtual import Conduct, VirtualBackend

__all__ = ["paced_run"]


def paced_run(
    setting: Setting, rehearsal: Rehearsal, *, observe: Callable[[Seen], None] | None = None
) -> tuple[Replay, float]:
    """Run a defence by rounds, or with a policy of its own, on recorded delays.

    Returns the replay, and the worker-seconds of all tasks to their end. Nothing is computed. The
    time of a task follows from the pace of its worker (`Rehearsal.pace`). If delays are read as
    latencies, it is the worker's time in the profile's row of the task's round, or of the worker's
    own clock, charged with the task's load (`seqgc.profiles.DelayProfile.times_at`). Each task is
    an invocation of its own, unless the reading says that workers stay.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or the profile is too short or has other workers.
    ScheduleError
        If the policy breaks the contract of policies (`seqgc.virtual.Conduct`).
    """
    rehearsal.num_rounds(setting)  # refuses what does not fit
    if rehearsal.recorded == "latency":
        rehearsal.times(setting)
    jobs = rehearsal.bundles(setting)
    backend = VirtualBackend(
        setting.scheme.n,
        rehearsal.pace(jobs_per_round=setting.jobs_per_round),
        workers="resident" if rehearsal.reading.resident else "function",
    )
    loads, recorder = _Loads(), Recorder()

    conduct = Conduct(setting.scheme.spec, n=setting.scheme.n, num_jobs=jobs)

    def see(seen: Seen) -> None:
        conduct(seen)
        loads(seen)
        recorder(seen)
        if observe is not None:
            observe(seen)

    with conduct.watching():
        master.run(_policy(setting, rehearsal, jobs), backend, observe=see)
        conduct.end()
    outcome = recorder.replay()
    outcome = replace(outcome, loads=loads.by_round(len(outcome.round_seconds)))
    return outcome, float(backend.busy_s.sum())


def _policy(setting: Setting, rehearsal: Rehearsal, jobs: int) -> Policy:
    if not isinstance(setting.scheme, PolicyDefence):
        return RoundPolicy(rehearsal.schedule(setting), setting.rule)
    batches = () if rehearsal.batch is None else (rehearsal.batch,)
    return setting.scheme.policy(setting.rule, num_jobs=jobs, batches=batches)


class _Loads:
    """Notes the mean load of each round, as its first tasks leave."""

    def __init__(self) -> None:
        self._by_round: dict[int, float] = {}

    def __call__(self, seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.loads is not None:
            self._by_round.setdefault(seen.round, float(seen.loads.mean()))

    def by_round(self, count: int) -> FloatArray:
        """Return those of so many rounds, (count,); NaN: nobody said."""
        return np.array([self._by_round.get(round, np.nan) for round in range(count)])
