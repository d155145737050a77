"""Where a comparison's defences run: the profile, how it is read, and who works."""

from __future__ import annotations

from dataclasses import dataclass, replace

from seqgc.comparison._rows import ProfileReading
from seqgc.comparison._run import Course, Workers, course_of
from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray
from seqgc.profiles import latency_pace, speed_pace
from seqgc.rounds import Setting, require_models
from seqgc.schemes import Deal
from seqgc.search import Rehearsal, deal
from seqgc.stragglers import busy_seconds
from seqgc.virtual import WorkerKind

__all__ = ["Field"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """Where all of them run: the profile, how it is read, and who works."""

    rehearsal: Rehearsal
    reading: ProfileReading
    workers: Workers
    models: int
    clocks: int

    @classmethod
    def of(
        cls,
        rehearsal: Rehearsal,
        *,
        models: int,
        clocks: int | None,
        reading: ProfileReading,
        kind: WorkerKind,
    ) -> Field:
        require_int("models", models, least=1)
        profile, resident = rehearsal.profile, kind == "resident"
        stay = replace(rehearsal.reading, resident=resident)
        if reading not in ("latency", "speed"):
            raise ParameterError("reading", "must be latency or speed", reading)
        pace = (
            latency_pace(profile, alpha=rehearsal.alpha)
            if reading == "latency"
            else speed_pace(profile)
        )
        rounds = profile.num_rounds if clocks is None else require_int("clocks", clocks, least=1)
        return cls(
            rehearsal=replace(rehearsal, repeat=True, models=models, reading=stay),
            reading=reading,
            workers=Workers(pace=pace, kind=kind),
            models=models,
            clocks=rounds,
        )

    @property
    def bound_s(self) -> float:
        """Seconds per clock of data that perfect knowledge would take."""
        if self.reading == "speed" or self.workers.kind == "resident":
            return busy_seconds(self.workers.pace, self.clocks) / self.clocks
        return self.rehearsal.ideal_s(self.clocks) / self.clocks

    def check(self, setting: Setting) -> None:
        """Refuse what cannot run here."""
        scheme = setting.scheme
        if isinstance(scheme, Deal) and self.reading == "speed":
            rule = "cannot be `deal` where delays are read as speeds"
            raise ParameterError("defence", rule, scheme.spec, "take --reading latency")
        if setting.jobs_per_round > 1:
            rule = "must be 1: what is compared has rounds for each model"
            raise ParameterError("jobs_per_round", rule, setting.jobs_per_round, "take seqgc.tune")
        names = [f"model-{index}" for index in range(self.models)]
        require_models(names, delay=scheme.delay, jobs_per_round=1)

    def course(self, setting: Setting, *, clocks: int) -> Course:
        """Run so many clocks of data, for the seconds alone."""
        if not isinstance(setting.scheme, Deal):
            return course_of(setting, self.workers, clocks=clocks)
        run = deal(setting, replace(self.rehearsal, num_jobs=clocks))
        closed_s: FloatArray = run.replay.jobs()["finished_s"]
        once = self.workers.kind == "resident"
        return Course(
            closed_s=closed_s.tolist(),
            busy_s=run.billed_worker_s,
            tasks=setting.scheme.n * (1 if once else clocks),
            load=run.computed_load,
        )
