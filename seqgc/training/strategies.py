"""Strategies, which create the policy of a run, restore it from a checkpoint, and update it.

There are three kinds. A scheme runs in rounds, and the run may switch to other schemes
(`SchemeStrategy`). A defence such as ``ssp`` has its own policy (`PolicyStrategy`). A controller
changes the workers' shares between rounds (`ControlledStrategy`).

The state of each policy is in the checkpoint. This is not enough for codes whose bits depend on
which workers answered. For such a code, the journal names the answers of each round, and a resumed
run closes the rounds since the checkpoint with the same answers.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from seqgc import ports
from seqgc.control import Controlled
from seqgc.errors import StoreError, one_line
from seqgc.rounds import PolicyDefence, RunPolicy, Segment, StalenessAware, SwitchingPolicy
from seqgc.schemes import Scheme
from seqgc.training.adaptive import (
    AdaptiveDirector,
    DirectorState,
    SlowdownState,
    SlowdownWatch,
    Switch,
)
from seqgc.training.history import Recorder, limited
from seqgc.training.tuner import Answer, Choice, Tuner
from seqgc.training.workload import ModelsWorkload, TorchWorkload

if TYPE_CHECKING:
    from seqgc.training.checkpointer import RunSnapshot
    from seqgc.training.plan import PlannedRun

__all__ = [
    "ControlledStrategy",
    "PolicyStrategy",
    "SchemeStrategy",
    "Strategy",
    "StrategyState",
]


_Notify = Callable[[str, dict[str, object]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyState:
    """The part of a checkpoint that belongs to the strategy."""

    director: DirectorState | None = None  # None if the run does not search for better settings
    slowdown: SlowdownState = field(default_factory=SlowdownState)
    policy: str  # state of the policy, as JSON
    choices: Sequence[Choice] = ()  # all choices to switch to another setting, in order
    switches: Sequence[Switch] = ()


class Strategy(ABC):
    """The policy of a run, the observers that the policy needs, and its part of the checkpoints."""

    changes_only_at_close: ClassVar[bool]
    """True if the part of the policy's state that is stored changes only when a round closes."""

    policy: RunPolicy
    observers: Sequence[ports.Observer] = ()
    answers: Sequence[Answer] = ()  # the results of the searches for a better setting

    def __init__(self, workload: ModelsWorkload) -> None:
        self._workload = workload

    @abstractmethod
    def restore(self, snapshot: RunSnapshot) -> str:
        """Restore a checkpoint; return a warning, or an empty text."""

    def snapshot(self) -> StrategyState:
        return StrategyState(policy=json.dumps(self.policy.snapshot()))

    def repeats(self, round: int) -> bool:  # noqa: ARG002 (for overriding)
        """Return True if a resumed run must close ``round`` with the same answers as before."""
        return False

    def _restore_policy(self, snapshot: RunSnapshot, *, spec: str) -> None:
        try:
            self.policy.restore(json.loads(snapshot.state.policy))
        except (ValueError, KeyError, TypeError) as error:
            message = f"the checkpoint is of another defence than {spec}: {one_line(error)}"
            raise StoreError(message) from error

    def follow(self, seen: ports.Seen) -> None:
        """Update the policy before it receives ``seen``, which the journal already has.

        If the models need no more jobs, the policy is told to end after the last job.
        """
        if isinstance(seen, ports.Dispatched) and self._workload.num_jobs is not None:
            self.policy.end_after(self._workload.num_jobs - 1)


class SchemeStrategy(Strategy):
    """The strategy of a scheme.

    If the plan has an ``adaptation``, ``tuner`` searches for better settings. Each switch is
    appended to ``switches``. ``before_decision`` is called before a decision is made, and
    ``notify`` sends a notice to the observers.
    """

    changes_only_at_close = True
    policy: SwitchingPolicy

    def __init__(
        self,
        workload: TorchWorkload,
        *,
        run: PlannedRun,
        switches: list[Switch],
        tuner: Tuner | None,
        recorder: Recorder,
        before_decision: Callable[[], None],
        notify: _Notify,
    ) -> None:
        super().__init__(workload)
        self._scheme_workload, self._switches, self._notify = workload, switches, notify
        self._recorder, self._run = recorder, run
        plan, setting = run.plan, run.setting
        self.answers = self._answers = list[Answer]()
        self._choices = list[Choice]()
        self._slowdown = SlowdownWatch(
            setting.scheme.n, setting=lambda: self.policy.segments[-1].setting, notify=notify
        )
        if isinstance(setting.scheme, Scheme):  # the watch compares rounds
            self.observers = (self._slowdown,)
        self._adaptive: AdaptiveDirector | None = None
        if plan.adaptation is not None and tuner is not None:
            sizes = workload.batch_sizes
            self._adaptive = AdaptiveDirector(
                plan.adaptation,
                n=setting.scheme.n,
                max_delay=run.max_delay,
                tuner=tuner,
                begin=before_decision,
                note=self._add_answer,
                batch=sizes[0] if len(sizes) == 1 else None,
            )
        self.policy = SwitchingPolicy(
            setting,
            num_jobs=run.num_jobs,
            director=self._adaptive,
            payload=plan.payload,
            batches=workload.batch_sizes,
            again=recorder.history.again(),
            audit=plan.audit,
            bundles=run.bundles,
        )
        self._segment = self.policy.segments[-1]

    def restore(self, snapshot: RunSnapshot) -> str:
        state, setting = snapshot.state, self._run.setting
        self._restore_policy(snapshot, spec=setting.scheme.spec)
        self._choices += [
            limited(each.choice(setting.scheme.n), setting.rule) for each in state.choices
        ]
        self._answers += self._choices
        for (job, round), choice in zip(state.switches, self._choices, strict=False):
            self._switches.append(Switch(first_job=job, first_round=round, choice=choice))
        self._segment = self.policy.segments[-1]
        if (scheme := self._segment.setting.scheme) != setting.scheme:
            self._scheme_workload.switch(scheme)
        self._slowdown.restore(state.slowdown)
        self._workload.restore(state.workload, snapshot.files)
        self.policy.go_on_with(self._workload.bundles_left)
        if self._adaptive is not None and state.director is not None:
            self._adaptive.restore(state.director)
        return ""

    def snapshot(self) -> StrategyState:
        return replace(
            super().snapshot(),
            director=None if self._adaptive is None else self._adaptive.snapshot(),
            slowdown=self._slowdown.snapshot(),
            choices=self._choices,
            switches=self._switches,
        )

    def repeats(self, round: int) -> bool:
        segment = next(each for each in reversed(self.policy.segments) if each.first_round <= round)
        scheme = segment.setting.scheme
        # Numbers that are rounded at random depend on the worker.
        is_fixed = scheme.same_bits and not self._run.plan.stochastic_rounding
        return isinstance(scheme, Scheme) and not is_fixed

    def follow(self, seen: ports.Seen) -> None:
        """Tell the policy how many bundles remain; tell the workload if the scheme has changed.

        The policy must know the number of bundles before its next decision. The workload must have
        the new scheme before the first tasks of the new setting are sent.
        """
        self.policy.go_on_with(self._workload.bundles_left)
        super().follow(seen)
        if isinstance(seen, ports.Close):
            self._choose_again(seen.record.round)
        segment = self.policy.segments[-1]
        if isinstance(seen, ports.Dispatch) and segment is not self._segment:
            self._segment = segment
            self._adopt(segment, self._choices[-1])

    def _choose_again(self, round: int) -> None:
        """If the policy has repeated a switch after this round, record the earlier choice again."""
        choice = self._recorder.history.choices.get(round)
        if choice is not None and self._adaptive is not None:
            self._choices.append(choice)
            self._answers.append(choice)
            self._adaptive.skip_search()

    def _add_answer(self, answer: Answer, round: int) -> None:
        self._answers.append(answer)
        self._notify("search", answer.fields)
        if isinstance(answer, Choice) and answer.setting != answer.current:
            self._recorder.decide(round, answer)
            self._choices.append(answer)

    def _adopt(self, segment: Segment, choice: Choice) -> None:
        switch = Switch(first_job=segment.first_job, first_round=segment.first_round, choice=choice)
        self._switches.append(switch)
        self._scheme_workload.switch(switch.after.scheme)
        self._notify("switch", switch.fields)


class PolicyStrategy(Strategy):
    """The strategy of a defence with its own policy, in which gradients arrive in parts."""

    changes_only_at_close = False

    def __init__(
        self, workload: ModelsWorkload, defence: PolicyDefence, *, run: PlannedRun
    ) -> None:
        super().__init__(workload)
        self._spec = defence.spec
        self.policy = defence.policy(
            run.setting.rule,
            num_jobs=run.num_jobs,
            batches=workload.batch_sizes,
            payload=run.plan.payload,
        )
        self._same_bits, self._most_again = run.repeats, defence.most_again
        if (updates := run.plan.updates) is not None and updates.aware:
            self.policy = StalenessAware(self.policy, n=defence.n)

    def restore(self, snapshot: RunSnapshot) -> str:
        self._restore_policy(snapshot, spec=self._spec)
        self._workload.restore(snapshot.state.workload, snapshot.files)
        if self._same_bits:
            return ""
        applied = "applied once"
        if self._most_again:
            applied = (
                "applied at least once: up to "
                f"{self._most_again} parts of an unfinished shard may be applied a second time"
            )
        return (
            f"the run continues from checkpoint {snapshot.rounds}: parts that had not arrived are "
            f"computed again, on newer weights, and {applied}"
        )


class ControlledStrategy(Strategy):
    """The strategy of a controller, which changes the workers' shares between rounds."""

    changes_only_at_close = True
    policy: SwitchingPolicy

    def __init__(self, workload: TorchWorkload, defence: Controlled, *, run: PlannedRun) -> None:
        super().__init__(workload)
        self._spec, self._scheme_workload = defence.spec, workload
        self.policy = defence.policy(
            run.setting.rule,
            num_jobs=run.num_jobs,
            batches=workload.batch_sizes,
            payload=run.plan.payload,
        )
        self._segment: Segment | None = None  # the segment that the workload has adopted
        self._adopt()

    def restore(self, snapshot: RunSnapshot) -> str:
        self._restore_policy(snapshot, spec=self._spec)
        self._adopt()  # must come before the workload has unfinished jobs
        self._workload.restore(snapshot.state.workload, snapshot.files)
        return (
            f"the run continues from checkpoint {snapshot.rounds} with its shares; "
            "the speed of the workers is measured again"
        )

    def follow(self, seen: ports.Seen) -> None:
        """Tell the workload the workers' shares in the round that begins."""
        if isinstance(seen, ports.Dispatch):
            self._adopt()
        super().follow(seen)

    def _adopt(self) -> None:
        if (segment := self.policy.segments[-1]) is not self._segment:
            self._segment = segment
            self._scheme_workload.switch(segment.setting.scheme)
