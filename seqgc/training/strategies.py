"""Strategies, which create the policy of a run, restore it from a checkpoint, and update it.

There are three kinds. A scheme runs in rounds, and the run may switch to other schemes; rounds in
the journal are closed again with the recorded answers (`SchemeStrategy`). A defence such as ``ssp``
has its own policy, whose state is in the checkpoint (`PolicyStrategy`). A controller changes the
workers' shares between rounds (`ControlledStrategy`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from seqgc import ports
from seqgc.control import Controlled, ControlledPolicy
from seqgc.errors import StoreError, one_line
from seqgc.ports import Event, RoundRecord
from seqgc.rounds import (
    Decision,
    Director,
    OnRecord,
    PolicyDefence,
    ResumablePolicy,
    RunPolicy,
    Segment,
    Setting,
    StalenessAware,
    SwitchingPolicy,
)
from seqgc.schemes import Scheme
from seqgc.training.adaptive import (
    AdaptiveDirector,
    DirectorState,
    SlowdownState,
    SlowdownWatch,
    Switch,
)
from seqgc.training.history import Recorder
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


class RecordedDirector:
    """A director that records each decision before the run acts on it.

    If the decision for a round is in the journal already, it is repeated. ``before_decision`` is
    called before a decision is made.
    """

    def __init__(
        self,
        director: AdaptiveDirector,
        recorder: Recorder,
        *,
        answers: list[Answer],
        before_decision: Callable[[], None],
    ) -> None:
        self._director, self._recorder, self._answers = director, recorder, answers
        self._before_decision = before_decision
        self._round = -1

    def on(self, event: Event) -> None:
        self._director.on(event)

    def close(self, record: RoundRecord, *, setting: Setting) -> None:
        self._round = record.round
        self._before_decision()
        self._director.close(record, setting=setting)

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:
        recorded = self._recorder.history.choices.get(self._round)
        if recorded is not None:
            self._director.repeat()
            self._answers.append(recorded)
            return Decision(setting=recorded.setting)
        if self._round < len(self._recorder.history.answers):
            return None  # the round is in the journal, without a decision
        decision = self._director.choose(setting=setting, jobs_left=jobs_left)
        if decision is not None and decision.setting not in {None, setting}:
            self._recorder.decide(self._round, _latest_choice(self._answers))
        return decision


def _latest_choice(answers: Sequence[Answer]) -> Choice:
    return next(answer for answer in reversed(answers) if isinstance(answer, Choice))


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyState:
    """The part of a checkpoint that belongs to the strategy."""

    director: DirectorState | None = None  # None if the run does not search for better settings
    slowdown: SlowdownState = field(default_factory=SlowdownState)
    policy: str = ""  # state of a defence's own policy, as JSON


class Strategy(ABC):
    """The policy of a run, its own observers, and its part of the checkpoints."""

    repeats: ClassVar[bool]
    """True if a resumed run closes the rounds after its checkpoint with the recorded answers."""
    changes_only_at_close: ClassVar[bool]
    """True if the stored part of the policy's state changes only when a round closes."""

    policy: RunPolicy
    observers: Sequence[ports.Observer] = ()
    answers: Sequence[Answer] = ()  # of the searches for a better setting

    def __init__(self, workload: ModelsWorkload) -> None:
        self._workload = workload

    @abstractmethod
    def restore(self, snapshot: RunSnapshot) -> str:
        """Restore a checkpoint; return a warning, or an empty text."""

    @abstractmethod
    def snapshot(self) -> StrategyState: ...

    def follow(self, seen: ports.Seen) -> None:
        """Update the policy before it receives the event ``seen``, which is in the journal.

        If the models need no more jobs, the run ends after the jobs that have begun.
        """
        if isinstance(seen, ports.Dispatched) and self._workload.num_jobs is not None:
            self.policy.end_after(self._workload.num_jobs - 1)


class SchemeStrategy(Strategy):
    """The strategy of a scheme. A resumed run repeats its rounds from the recorded answers.

    If the plan has an ``adaptation``, ``tuner`` searches for better settings; each switch is
    appended to ``switches``. ``before_decision`` is called before a decision is made, and
    ``notify`` sends a notice to the observers.
    """

    repeats = True
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
        self._slowdown = SlowdownWatch(
            setting.scheme.n, setting=lambda: self.policy.segments[-1].setting, notify=notify
        )
        if isinstance(setting.scheme, Scheme):  # the watch compares rounds
            self.observers = (self._slowdown,)
        self._adaptive: AdaptiveDirector | None = None
        self._director: Director | None = None
        if plan.adaptation is not None and tuner is not None:
            sizes = workload.batch_sizes
            self._adaptive = AdaptiveDirector(
                plan.adaptation,
                n=setting.scheme.n,
                max_delay=run.max_delay,
                tuner=tuner,
                note=self._add_answer,
                batch=sizes[0] if len(sizes) == 1 else None,
            )
            self._director = RecordedDirector(
                self._adaptive, recorder, answers=self._answers, before_decision=before_decision
            )
        self.policy = self._make_policy(first=0)

    def _make_policy(self, *, first: int) -> SwitchingPolicy:
        """Return a policy that repeats the recorded rounds from round ``first`` on."""
        recorded, run = self._recorder.history.answers, self._run
        return SwitchingPolicy(
            run.setting,
            num_jobs=run.num_jobs,
            director=self._director,
            payload=run.plan.payload,
            batches=self._workload.batch_sizes,
            again=OnRecord(
                answers={round: recorded[round] for round in range(first, len(recorded))},
                late=recorded.late,
                finished=recorded.finished,
            ),
            audit=run.plan.audit,
            bundles=run.bundles,
        )

    def restore(self, snapshot: RunSnapshot) -> str:
        history, rounds, state = self._recorder.history, snapshot.rounds, snapshot.state
        if state.policy:
            spec = self._run.setting.scheme.spec
            raise StoreError(f"the checkpoint is of another defence than {spec}: it has no rounds")
        choices = {r: choice for r, choice in sorted(history.choices.items()) if r < rounds}
        policy = self.policy = self._make_policy(first=rounds)
        policy.end_after(state.jobs - 1)
        settings = {round: choice.setting for round, choice in choices.items()}
        policy.repeat(islice(history.answers, rounds), settings=settings)
        self._answers += choices.values()
        for segment, choice in zip(policy.segments[1:], choices.values(), strict=False):
            self._adopt(segment, choice)
        self._slowdown.restore(state.slowdown)
        self._workload.restore(state.workload, snapshot.files)
        policy.go_on_with(self._workload.bundles_left)
        if self._adaptive is not None and state.director is not None:
            self._adaptive.restore(state.director)
        return ""

    def snapshot(self) -> StrategyState:
        return StrategyState(
            director=None if self._adaptive is None else self._adaptive.snapshot(),
            slowdown=self._slowdown.snapshot(),
        )

    def follow(self, seen: ports.Seen) -> None:
        """Pass the number of remaining bundles to the policy; switch the workload's scheme.

        The policy must have this number before its next decision. If the setting has changed, the
        workload's scheme is switched before the first tasks of the new setting are sent.
        """
        self.policy.go_on_with(self._workload.bundles_left)
        super().follow(seen)
        segments = self.policy.segments
        if isinstance(seen, ports.Dispatch) and len(segments) > 1 + len(self._switches):
            switch = self._adopt(segments[-1], _latest_choice(self._answers))
            self._notify("switch", switch.fields)

    def _add_answer(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._notify("search", answer.fields)

    def _adopt(self, segment: Segment, choice: Choice) -> Switch:
        switch = Switch(first_job=segment.first_job, first_round=segment.first_round, choice=choice)
        self._switches.append(switch)
        self._scheme_workload.switch(switch.after.scheme)
        return switch


class _ResumableStrategy(Strategy):
    """A strategy whose policy is restored from the checkpoint, not from the journal."""

    repeats = False
    policy: ResumablePolicy

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

    def _restore_policy(self, snapshot: RunSnapshot) -> None:
        try:
            self.policy.restore(json.loads(snapshot.state.policy))
        except (ValueError, KeyError, TypeError) as error:
            message = f"the checkpoint is of another defence than {self._spec}: {one_line(error)}"
            raise StoreError(message) from error

    def snapshot(self) -> StrategyState:
        return StrategyState(policy=json.dumps(self.policy.snapshot()))


class PolicyStrategy(_ResumableStrategy):
    """The strategy of a defence with its own policy, in which batches arrive in parts."""

    changes_only_at_close = False

    def __init__(
        self, workload: ModelsWorkload, defence: PolicyDefence, *, run: PlannedRun
    ) -> None:
        super().__init__(workload, defence, run=run)
        self._same_bits, self._most_again = run.repeats, defence.most_again
        if (updates := run.plan.updates) is not None and updates.aware:
            self.policy = StalenessAware(self.policy, n=defence.n)

    def restore(self, snapshot: RunSnapshot) -> str:
        self._restore_policy(snapshot)
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


class ControlledStrategy(_ResumableStrategy):
    """The strategy of a controller, which changes the workers' shares between rounds."""

    changes_only_at_close = True
    policy: ControlledPolicy

    def __init__(self, workload: TorchWorkload, defence: Controlled, *, run: PlannedRun) -> None:
        super().__init__(workload, defence, run=run)
        self._scheme_workload = workload
        self._adopted_segments = 0
        self._adopt()

    def restore(self, snapshot: RunSnapshot) -> str:
        self._restore_policy(snapshot)
        self._adopt()  # must come before the workload has unfinished jobs
        self._workload.restore(snapshot.state.workload, snapshot.files)
        return (
            f"the run continues from checkpoint {snapshot.rounds} with its shares; "
            "the speed of the workers is measured again"
        )

    def follow(self, seen: ports.Seen) -> None:
        """Cut batches by the shares of the round that begins."""
        if isinstance(seen, ports.Dispatch):
            self._adopt()
        super().follow(seen)

    def _adopt(self) -> None:
        if len(segments := self.policy.segments) > self._adopted_segments:
            self._adopted_segments = len(segments)
            self._scheme_workload.switch(segments[-1].setting.scheme)
