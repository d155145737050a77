"""One pass of the loop over all jobs, with everything about it on record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field

from seqgc import master, ports
from seqgc.errors import BudgetError, ScheduleError
from seqgc.rounds import RoundPolicy, Setting, SwitchingPolicy
from seqgc.training._plan import TrainingPlan
from seqgc.training._tuner import Answer, Choice, Tuner
from seqgc.training.adaptive import AdaptiveDirector, Switch
from seqgc.training.checkpoints import save_checkpoint
from seqgc.training.rundir import EventLog, MetricsLog, RunDirectory
from seqgc.training.workload import TorchWorkload

__all__ = ["RunCounts", "Session"]


@dataclass(slots=True, kw_only=True)
class RunCounts:
    """What the rounds of a run came to; an observer of the run."""

    round_seconds: list[float] = field(default_factory=list)
    waited_out: int = 0  # rounds that stayed open beyond (1+mu)*kappa
    stragglers: int = 0  # (round, worker) pairs without a used answer
    answers: int = 0
    failures: int = 0
    dropped: int = 0
    approximate: int = 0  # jobs decoded approximately
    largest_error: float = 0.0  # of those (see `Decoding`)

    def __call__(self, seen: ports.Seen) -> None:
        match seen:
            case ports.Close(record=record):
                self.round_seconds.append(record.duration_s)
                self.waited_out += record.waited_out
                self.stragglers += int((~record.responded).sum())
            case ports.Arrival():
                self.answers += 1
            case ports.Failure():
                self.failures += 1
            case ports.Drop():
                self.dropped += 1
            case ports.Finish(decoding=decoding):
                error = decoding().error
                self.approximate += error > 0
                self.largest_error = max(self.largest_error, error)


class Session:
    """One pass of the loop, with everything about it on record.

    ``setting`` is what the loop begins with; ``switches`` is appended to as it takes others, which
    a ``tuner`` finds if the plan says so.
    """

    def __init__(
        self,
        workload: TorchWorkload,
        *,
        plan: TrainingPlan,
        setting: Setting,
        switches: list[Switch],
        tuner: Tuner | None,
        observers: Sequence[ports.Observer],
    ) -> None:
        self.num_jobs, self.switches = plan.num_jobs(setting), switches
        self.counts = RunCounts()
        self.answers: list[Answer] = []
        self._workload, self._setting, self._payload = workload, setting, plan.payload
        self._observers: tuple[ports.Observer, ...] = (*observers, self._follow, self.counts)
        self._policy: RoundPolicy | SwitchingPolicy
        sizes = workload.batch_sizes
        if plan.adaptation is None or tuner is None:
            schedule = setting.scheme.begin(self.num_jobs, batches=sizes)
            self._policy = RoundPolicy(schedule, setting.rule, payload=plan.payload)
            return
        director = AdaptiveDirector(
            plan.adaptation,
            n=setting.scheme.n,
            max_delay=plan.max_delay(setting),
            tuner=tuner,
            note=self._note,
            batch=sizes[0] if len(sizes) == 1 else None,
        )
        self._policy = SwitchingPolicy(
            setting,
            num_jobs=self.num_jobs,
            director=director,
            payload=plan.payload,
            batches=sizes,
        )

    def run(self, backend: ports.Backend, directory: RunDirectory) -> float:
        """Drive the loop to its end, whatever it is; return its seconds."""
        outcome, path = "interrupted", directory.path
        with ExitStack() as logs:
            events = logs.enter_context(closing(EventLog(path / "events.jsonl")))
            metrics = MetricsLog(path / "metrics.csv", metrics=lambda: self._workload.metrics)
            self._observers += (events, logs.enter_context(closing(metrics)))
            self._tell("run", self._header())
            began = time.perf_counter()
            try:
                master.run(self._policy, backend, self._workload, observe=self._show)
                self._workload.flush()
                outcome = "finished"
            except BudgetError as error:
                outcome = f"stopped: {error}"
                with suppress(ScheduleError):  # jobs in flight are lost, and what waits for them
                    self._workload.flush()
                raise
            except Exception as error:
                outcome = f"failed: {error}"
                raise
            finally:
                seconds = time.perf_counter() - began
                for name in self._workload.names:
                    file = directory.checkpoints / f"{name}.safetensors"
                    save_checkpoint(file, self._workload.module(name))
                self._tell("end", {"outcome": outcome})
        return seconds

    def _show(self, seen: ports.Seen) -> None:
        for observer in self._observers:
            observer(seen)

    def _tell(self, kind: str, fields: dict[str, object]) -> None:
        self._show(ports.Notice(kind=kind, fields=fields))

    def _header(self) -> dict[str, object]:
        setting = self._setting
        return {
            "scheme": setting.scheme.spec,
            "workers": setting.scheme.n,
            "jobs": self.num_jobs,
            "mu": setting.rule.mu,
            "wait_out": setting.rule.wait_out,
            "payload": self._payload,
            "models": list(self._workload.names),
        }

    def _note(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._tell("search", answer.fields)

    def _follow(self, seen: ports.Seen) -> None:
        """If the policy has switched, be ready for the tasks that are about to leave."""
        if not (isinstance(seen, ports.Dispatch) and isinstance(self._policy, SwitchingPolicy)):
            return
        segments = self._policy.segments
        if len(segments) == len(self.switches) + 1:
            return
        choice = next(a for a in reversed(self.answers) if isinstance(a, Choice))
        first_job, first_round = segments[-1].first_job, segments[-1].first_round
        switch = Switch(first_job=first_job, first_round=first_round, choice=choice)
        self.switches.append(switch)
        self._workload.switch(switch.after.scheme)
        self._tell("switch", switch.fields)
