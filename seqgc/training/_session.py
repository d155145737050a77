"""One pass of the loop over all jobs, with everything about it on record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from seqgc import master
from seqgc.cost import Budget
from seqgc.errors import BudgetError, ScheduleError
from seqgc.ports import (
    Action,
    Arrival,
    Backend,
    Close,
    Dispatch,
    Drop,
    Event,
    Failure,
    Finish,
    Payload,
    RoundRecord,
)
from seqgc.rounds import ClosingRule, RoundPolicy, Setting, SwitchingPolicy
from seqgc.schemes import Scheme
from seqgc.training._tuner import Answer, Choice, Tuner
from seqgc.training.adaptive import Adaptation, AdaptiveDirector, Switch, answer_fields
from seqgc.training.checkpoints import save_checkpoint
from seqgc.training.rundir import EventLog, MetricsLog, RunDirectory
from seqgc.training.workload import TorchWorkload

__all__ = ["RunCounts", "Session"]


@dataclass(slots=True, kw_only=True)
class RunCounts:
    """What the rounds of a run came to; an observer of the loop."""

    round_seconds: list[float] = field(default_factory=list)
    waited_out: int = 0  # rounds that stayed open beyond (1+mu)*kappa
    stragglers: int = 0  # (round, worker) pairs without a used answer
    answers: int = 0
    failures: int = 0
    dropped: int = 0
    approximate: int = 0  # jobs decoded approximately
    largest_error: float = 0.0  # of those (see `Decoding`)

    def __call__(self, seen: Event | Action) -> None:
        match seen:
            case Close(record=record):
                self._close(record)
            case Arrival():
                self.answers += 1
            case Failure():
                self.failures += 1
            case Drop():
                self.dropped += 1
            case Finish(decoding=decoding):
                self._finish(decoding().error)
            case _:
                pass

    def _close(self, record: RoundRecord) -> None:
        self.round_seconds.append(record.duration_s)
        self.waited_out += record.waited_out
        self.stragglers += int((~record.responded).sum())

    def _finish(self, error: float) -> None:
        self.approximate += error > 0
        self.largest_error = max(self.largest_error, error)


class Session:
    """One pass of the loop, with everything about it on record."""

    def __init__(
        self,
        workload: TorchWorkload,
        *,
        scheme: Scheme,
        num_jobs: int,
        rule: ClosingRule,
        payload: Payload,
        directory: RunDirectory,
        names: Sequence[str],
    ) -> None:
        self.num_jobs = num_jobs
        self.counts = RunCounts()
        self.switches: list[Switch] = []
        self.answers: list[Answer] = []
        self._workload, self._directory, self._names = workload, directory, names
        self._scheme, self._rule, self._payload = scheme, rule, payload
        self._on_switch: Callable[[Switch], None] | None = None
        self._policy: RoundPolicy | SwitchingPolicy = RoundPolicy(
            scheme.start(num_jobs), rule, payload=payload
        )
        self._events = EventLog(
            directory.path / "events.jsonl",
            header={
                "scheme": scheme.spec,
                "workers": scheme.n,
                "jobs": num_jobs,
                "mu": rule.mu,
                "wait_out": rule.wait_out,
                "payload": payload,
                "models": list(names),
            },
        )

    def adapt(
        self,
        adaptation: Adaptation,
        *,
        tuner: Tuner,
        max_delay: int,
        jobs_per_round: int,
        on_switch: Callable[[Switch], None] | None,
    ) -> None:
        """Look for a better setting during the run, and switch to it."""
        self._on_switch = on_switch
        director = AdaptiveDirector(
            adaptation,
            n=self._scheme.n,
            max_delay=max_delay,
            tuner=tuner,
            note=self._note,
        )
        self._policy = SwitchingPolicy(
            Setting(scheme=self._scheme, rule=self._rule, jobs_per_round=jobs_per_round),
            num_jobs=self.num_jobs,
            director=director,
            payload=self._payload,
        )

    def run(
        self, workers: Backend, observe: master.Observer | None, *, budget: Budget | None = None
    ) -> float:
        """Drive the loop to its end, whatever it is; return its seconds."""
        outcome = "interrupted"
        with MetricsLog(self._directory.path / "metrics.csv") as metrics:

            def see(seen: Event | Action) -> None:
                if budget is not None:
                    budget(seen)  # first: what it refuses has not happened
                if isinstance(seen, Dispatch):
                    self._follow()
                self._events(seen)
                self.counts(seen)
                if observe is not None:
                    observe(seen)
                if isinstance(seen, Close):
                    metrics.update(self._workload.metrics)

            began = time.perf_counter()
            try:
                master.run(self._policy, workers, self._workload, observe=see)
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
                metrics.update(self._workload.metrics)
                self._events.write("end", outcome=outcome)
                self._events.close()
                self._save_checkpoints()
        return seconds

    def _note(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._events.write("search", **answer_fields(answer))

    def _follow(self) -> None:
        """If the policy has switched, be ready for the tasks that are about to leave."""
        if not isinstance(self._policy, SwitchingPolicy):
            return
        segments = self._policy.segments
        if len(segments) == len(self.switches) + 1:
            return
        choice = next(a for a in reversed(self.answers) if isinstance(a, Choice))
        first_job, first_round = segments[-1].first_job, segments[-1].first_round
        switch = Switch(first_job=first_job, first_round=first_round, choice=choice)
        self.switches.append(switch)
        self._workload.switch(switch.after.scheme)
        self._events.write("switch", **switch.fields)
        if self._on_switch is not None:
            self._on_switch(switch)

    def _save_checkpoints(self) -> None:
        for name in self._names:
            path = self._directory.checkpoints / f"{name}.safetensors"
            save_checkpoint(path, self._workload.module(name))
