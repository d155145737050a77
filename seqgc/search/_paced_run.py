"""The loop and a defence's own policy on recorded times, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from seqgc import master
from seqgc.errors import ParameterError
from seqgc.ports import Dispatch, FloatArray, Seen
from seqgc.profiles import latency_pace
from seqgc.rounds import PolicyDefence, Setting
from seqgc.search._outcome import Recorder, Replay
from seqgc.search._rehearsal import Rehearsal
from seqgc.virtual import Conduct, VirtualBackend

__all__ = ["paced_replay"]


def paced_replay(setting: Setting, rehearsal: Rehearsal) -> Replay:
    """Run a defence that brings its own policy on recorded delays; nothing is computed.

    A task takes as long as the worker took in the profile's row of the task's round, or of the
    worker's own clock, charged with the task's load (`seqgc.profiles.DelayProfile.times_at`). Each
    is an invocation of its own, but where the reading has workers stay.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or the profile is too short or has other workers.
    ScheduleError
        If the policy breaks the contract of policies (`seqgc.virtual.Conduct`).
    """
    if not isinstance(setting.scheme, PolicyDefence):
        rule = "must be a defence with a policy of its own"
        raise ParameterError("scheme", rule, setting.scheme.spec)
    rehearsal.times(setting)  # refuses what does not fit
    jobs = rehearsal.bundles(setting)
    pace = latency_pace(
        rehearsal.profile, alpha=rehearsal.slope, jobs_per_round=setting.jobs_per_round
    )
    backend = VirtualBackend(
        setting.scheme.n,
        pace,
        workers="resident" if rehearsal.reading.resident else "function",
    )
    loads, recorder = _Loads(), Recorder()

    conduct = Conduct(setting.scheme.spec, n=setting.scheme.n, num_jobs=jobs)

    def see(seen: Seen) -> None:
        conduct(seen)
        loads(seen)
        recorder(seen)

    with conduct.watching():
        batches = () if rehearsal.batch is None else (rehearsal.batch,)
        policy = setting.scheme.policy(setting.rule, num_jobs=jobs, batches=batches)
        master.run(policy, backend, observe=see)
        conduct.end()
    outcome = recorder.replay()
    return replace(outcome, loads=loads.by_round(len(outcome.round_seconds)))


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
