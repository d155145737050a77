"""Where a comparison's defences run: the profile, how it is read, and who works."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from seqgc._grid import MOST_MODELS
from seqgc.comparison._run import Course, Workers, course_of, jobs_of
from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile
from seqgc.rounds import Setting, require_models
from seqgc.schemes import Deal
from seqgc.search import ProfileReading, Rehearsal, deal
from seqgc.stragglers import busy_seconds
from seqgc.virtual import WorkerKind

__all__ = ["Field"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """Where all of them run: the profile, how it is read, and who works."""

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
        field = cls(
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
        field.workers(1).backend()  # refuses what cannot be, before anything is run
        return field

    @property
    def n(self) -> int:
        """How many workers there are."""
        return self.rehearsal.profile.num_workers

    def on(self, profile: DelayProfile, *, clocks: int | None) -> Field:
        """Return the same workers on another profile, for ``clocks``, or one for each round."""
        rehearsal = replace(self.rehearsal, profile=profile)
        return replace(self, rehearsal=rehearsal, clocks=clocks or profile.num_rounds)

    def workers(self, jobs_per_round: int) -> Workers:
        """Return the workers, whose load of 1 is that many batches."""
        return Workers(pace=self.rehearsal.pace(jobs_per_round=jobs_per_round), kind=self.kind)

    def bound_s(self, settings: Iterable[Setting]) -> float:
        """Return the seconds per clock of data that perfect knowledge would take.

        That is the least of these settings' bounds: of rounds each as short as can be, or of
        workers who are never idle, where nothing has rounds, or workers stay.
        """
        return min(map(self._bound_s, settings))

    def _bound_s(self, setting: Setting) -> float:
        bundle, jobs = setting.jobs_per_round, jobs_of(setting, clocks=self.clocks)
        clocks = jobs * bundle
        least_s = self.rehearsal.least_s(setting, clocks)
        if self.kind == "resident":  # by work alone, unless a latency is below 0
            least_s = min(least_s, busy_seconds(self.workers(bundle).pace, jobs))
        return least_s / clocks

    def check(self, setting: Setting) -> None:
        """Refuse what cannot run here."""
        scheme = setting.scheme
        if scheme.n != self.n:
            rule = f"must be for {self.n} workers, as many as the profile has"
            raise ParameterError("defence", rule, f"{scheme.spec} for {scheme.n}")
        names = [f"model-{index}" for index in range(self.models)]
        require_models(names, delay=scheme.delay, jobs_per_round=setting.jobs_per_round)

    def course(self, setting: Setting, *, clocks: int) -> Course:
        """Time a run of so many clocks of data; nothing is trained.

        `ScheduleError`: the scheme is broken (`Rehearsal.require_possible`).
        """
        bundle = setting.jobs_per_round
        jobs = jobs_of(setting, clocks=clocks)
        if not isinstance(setting.scheme, Deal):
            course = course_of(setting, self.workers(bundle), clocks=clocks)
            self.rehearsal.require_possible(setting, course.runtime_s, num_jobs=jobs * bundle)
            return course
        reading = self.rehearsal.reading
        if self.rehearsal.recorded == "latency":
            # Each task pays its latency, as with all other defences, even where workers stay.
            reading = replace(reading, resident=False)
        run = deal(setting, replace(self.rehearsal, num_jobs=jobs * bundle, reading=reading))
        closed_s: FloatArray = run.replay.jobs()["finished_s"]
        return Course(
            closed_s=closed_s.repeat(bundle).tolist(),
            busy_s=run.billed_worker_s,
            tasks=setting.scheme.n * jobs,
            load=run.computed_load,
        )
