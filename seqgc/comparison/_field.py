from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from seqgc._grid import MOST_MODELS
from seqgc.comparison._training import (
    PacedWorkers,
    TimedRun,
    jobs_of,
    time_first_clocks,
    time_run,
)
from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile
from seqgc.rounds import Setting, require_bundles
from seqgc.schemes import Deal
from seqgc.search import ProfileReading, Rehearsal, deal
from seqgc.stragglers import busy_seconds
from seqgc.virtual import WorkerKind

__all__ = ["Field"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """The conditions under which all defences run: profile, interpretation and workers."""

    rehearsal: Rehearsal
    kind: WorkerKind
    models: int
    clocks: int

    @classmethod
    def of(
        cls,
        rehearsal: Rehearsal,
        *,
        models: int,
        clocks: int | None,
        reading: ProfileReading | None,
        kind: WorkerKind,
    ) -> Field:
        models = require_int("models", models, least=1, most=MOST_MODELS)
        profile, resident = rehearsal.profile, kind == "resident"
        stay = replace(rehearsal.reading, resident=resident)
        rounds, most = profile.num_rounds, rehearsal.most_rounds
        if clocks is not None:
            rounds = require_int("clocks", clocks, least=1, most=most)
        return cls(
            rehearsal=replace(
                rehearsal,
                repeat=True,
                models=models,
                reading=stay,
                recorded=rehearsal.recorded if reading is None else reading,
            ),
            kind=kind,
            models=models,
            clocks=rounds,
        )

    @property
    def n(self) -> int:
        """The number of workers."""
        return self.rehearsal.profile.num_workers

    def on(self, profile: DelayProfile, *, clocks: int | None) -> Field:
        """Return the field for some rounds, and for ``clocks`` or one clock per round."""
        rehearsal = self.rehearsal.on_part(profile)
        return replace(self, rehearsal=rehearsal, clocks=clocks or profile.num_rounds)

    def workers(self, jobs_per_round: int) -> PacedWorkers:
        """Return the workers, for which a load of 1 is ``jobs_per_round`` batches."""
        return PacedWorkers(pace=self.rehearsal.pace(jobs_per_round=jobs_per_round), kind=self.kind)

    def bound_s(self, settings: Iterable[Setting]) -> float:
        """Return a lower bound on the seconds per clock of data, if all delays were known.

        This is the smallest bound of all settings. The bound of a setting assumes the shortest
        possible rounds. For settings without rounds, and for resident workers, it assumes workers
        that are never idle.
        """
        return min(map(self._bound_s, settings))

    def _bound_s(self, setting: Setting) -> float:
        bundle, jobs = setting.jobs_per_round, jobs_of(setting, clocks=self.clocks)
        clocks = jobs * bundle
        least_s = self.rehearsal.least_s(setting, clocks)
        if self.kind == "resident":  # smaller, unless a latency is negative
            least_s = min(least_s, busy_seconds(self.workers(bundle).pace, jobs))
        return least_s / clocks

    def check(self, setting: Setting) -> None:
        """Raise `ParameterError` if the setting cannot run with these workers and models."""
        scheme = setting.scheme
        if scheme.n != self.n:
            rule = f"must be for the {self.n} workers of the profile"
            raise ParameterError("defence", rule, f"{scheme.spec} for {scheme.n}")
        stay = "--worker-kind resident" if self.kind == "function" else ""
        self.rehearsal.require_no_starts(setting, stay=stay)
        require_bundles(self.models, delay=scheme.delay, jobs_per_round=setting.jobs_per_round)

    def time(self, setting: Setting, *, clocks: int) -> TimedRun:
        """Time a run of ``clocks`` clocks of data, without training.

        Raises `ScheduleError` if the scheme is broken (`Rehearsal.require_possible`).
        """
        return self.times(setting, clocks=[clocks])[clocks]

    def times(self, setting: Setting, *, clocks: Collection[int]) -> dict[int, TimedRun]:
        """Time runs of these numbers of clocks of data, see `time`."""
        scheme, workers = setting.scheme, self.workers(setting.jobs_per_round)
        if isinstance(scheme, Deal):
            return {each: self._dealt(setting, clocks=each) for each in clocks}
        if scheme.kind == "exact" and scheme.delay == 0:
            timed = time_first_clocks(setting, workers, clocks=clocks)
        else:
            timed = {each: time_run(setting, workers, clocks=each) for each in clocks}
        for each in timed.values():
            self.rehearsal.require_possible(setting, each.runtime_s, num_jobs=len(each.closed_s))
        return timed

    def _dealt(self, setting: Setting, *, clocks: int) -> TimedRun:
        bundle = setting.jobs_per_round
        jobs = jobs_of(setting, clocks=clocks)
        reading = self.rehearsal.reading
        if self.rehearsal.recorded == "latency":
            # Even if workers stay, each task has a latency, as for all other defences.
            reading = replace(reading, resident=False)
        run = deal(setting, replace(self.rehearsal, num_jobs=jobs * bundle, reading=reading))
        closed_s: FloatArray = run.replay.jobs()["finished_s"]
        return TimedRun(
            closed_s=closed_s.repeat(bundle).tolist(),
            busy_s=run.billed_worker_s,
            tasks=setting.scheme.n * jobs,
            load=run.computed_load,
            received=setting.scheme.n,  # a worker reads the weights of a job once
            sent=run.pieces * run.computed_load,
        )
