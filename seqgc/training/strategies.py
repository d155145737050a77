"""The policy of a run: of a scheme, of a defence's own, or of a controller."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from seqgc import ports
from seqgc.control import Controlled
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
from seqgc.training.adaptive import AdaptiveDirector, DirectorState, Slowdown, SlowdownState, Switch
from seqgc.training.history import History, Recorder
from seqgc.training.tuner import Answer, Choice, Tuner
from seqgc.training.workload import ModelsWorkload, TorchWorkload

if TYPE_CHECKING:
    from seqgc.training.checkpointer import RunSnapshot
    from seqgc.training.plan import PlannedRun

__all__ = [
    "ControlledStrategy",
    "PolicyStrategy",
    "RecordedDirector",
    "SchemeStrategy",
    "Strategy",
    "StrategyState",
]


class RecordedDirector:
    """A director whose decisions are on record before they are acted on, and are made once."""

    def __init__(
        self,
        director: AdaptiveDirector,
        recorder: Recorder,
        *,
        answers: list[Answer],
        closing: Callable[[], None],
    ) -> None:
        self._director, self._recorder, self._answers = director, recorder, answers
        self._closing = closing
        self._round = -1

    def on(self, event: Event) -> None:
        self._director.on(event)

    def close(self, record: RoundRecord, *, setting: Setting) -> None:
        self._round = record.round
        self._closing()
        self._director.close(record, setting=setting)

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:
        known = self._recorder.history.choices.get(self._round)
        if known is not None:
            self._director.repeat()
            self._answers.append(known)
            return Decision(setting=known.setting)
        if self._round < len(self._recorder.history.answers):
            return None  # on record, and nothing was decided then
        decision = self._director.choose(setting=setting, jobs_left=jobs_left)
        if decision is not None and decision.setting not in {None, setting}:
            choice = next(a for a in reversed(self._answers) if isinstance(a, Choice))
            self._recorder.decide(self._round, choice)
        return decision


_Tell = Callable[[str, dict[str, object]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyState:
    """What a checkpoint knows of a course."""

    director: DirectorState | None = None  # in a run that looks for better settings
    slowdown: SlowdownState
    policy: str = ""  # of a defence's own: JSON


class Strategy(ABC):
    """The policy of a run, what watches it beside, and how it is gone on with."""

    repeats: ClassVar[bool]
    """Whether a resumed run closes the rounds after its checkpoint on the same answers again."""
    whole_between_rounds: ClassVar[bool]
    """Whether the policy's state changes only when a round closes, as far as it must be kept."""

    observers: Sequence[ports.Observer] = ()
    answers: Sequence[Answer] = ()  # of the searches for a better setting

    @property
    @abstractmethod
    def policy(self) -> RunPolicy: ...

    @abstractmethod
    def restore(self, snapshot: RunSnapshot, history: History) -> str:
        """Go back to a checkpoint; return what is worth a warning, if anything is."""

    @abstractmethod
    def snapshot(self) -> StrategyState:
        """Return what a checkpoint is to know."""

    @abstractmethod
    def follow(self, seen: ports.Seen) -> None:
        """Take note of what is seen, after all other observers."""


class SchemeStrategy(Strategy):
    """The course of a run by rounds, or of one that deals; it may come to other schemes.

    ``switches`` is appended to as it does, which a ``tuner`` finds if the plan says so;
    ``closing`` is called when a decision is about to be made; ``tell`` tells the observers.
    """

    repeats = True
    whole_between_rounds = True

    def __init__(
        self,
        workload: TorchWorkload,
        *,
        run: PlannedRun,
        switches: list[Switch],
        tuner: Tuner | None,
        recorder: Recorder,
        closing: Callable[[], None],
        tell: _Tell,
    ) -> None:
        self._workload, self._switches, self._tell = workload, switches, tell
        self._recorder, self._run = recorder, run
        plan, setting = run.plan, run.setting
        self.answers = self._answers = list[Answer]()
        self._slowdown = Slowdown(
            setting.scheme.n, setting=lambda: self.policy.segments[-1].setting, tell=tell
        )
        if isinstance(setting.scheme, Scheme):  # it compares rounds
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
                note=self._note,
                batch=sizes[0] if len(sizes) == 1 else None,
            )
            self._director = RecordedDirector(
                self._adaptive, recorder, answers=self._answers, closing=closing
            )
        self._policy = self._made(first=0)

    @property
    def policy(self) -> SwitchingPolicy:
        return self._policy

    def _made(self, *, first: int) -> SwitchingPolicy:
        """Return a policy of the run, which knows of the rounds on record from the first on."""
        on_record, run = self._recorder.history.answers, self._run
        return SwitchingPolicy(
            run.setting,
            num_jobs=run.num_jobs,
            director=self._director,
            payload=run.plan.payload,
            batches=self._workload.batch_sizes,
            again=OnRecord(
                answers={round: on_record[round] for round in range(first, len(on_record))},
                late=on_record.late,
                finished=on_record.finished,
            ),
            audit=run.plan.audit,
            bundles=run.bundles,
        )

    def restore(self, snapshot: RunSnapshot, history: History) -> str:
        if snapshot.state.policy:
            spec = self._run.setting.scheme.spec
            raise StoreError(f"the checkpoint is of another defence than {spec}: it has no rounds")
        made = {r: choice for r, choice in sorted(history.choices.items()) if r < snapshot.rounds}
        choices, settings = list(made.values()), {r: made[r].setting for r in made}
        policy = self._policy = self._made(first=snapshot.rounds)
        policy.end_after(snapshot.state.jobs - 1)
        policy.repeat(islice(history.answers, snapshot.rounds), settings=settings)
        self._answers += choices
        for segment, choice in zip(policy.segments[1:], choices, strict=False):
            self._adopt(segment, choice)
        self._slowdown.restore(snapshot.state.slowdown)
        self._workload.restore(snapshot.state.workload, snapshot.files)
        policy.go_on_with(self._workload.bundles_left)
        if self._adaptive is not None and snapshot.state.director is not None:
            self._adaptive.restore(snapshot.state.director)
        return ""

    def snapshot(self) -> StrategyState:
        return StrategyState(
            director=None if self._adaptive is None else self._adaptive.snapshot(),
            slowdown=self._slowdown.snapshot(),
        )

    def follow(self, seen: ports.Seen) -> None:
        """If the policy has switched, be ready for the tasks that are about to leave.

        Once they have left, and nobody is left for more jobs, the run is to end with these. Which
        models are left it must know before its next decision (`seqgc.training.jobs`).
        """
        segments = self.policy.segments
        self.policy.go_on_with(self._workload.bundles_left)
        if isinstance(seen, ports.Dispatched) and self._workload.num_jobs is not None:
            self.policy.end_after(self._workload.num_jobs - 1)
        if isinstance(seen, ports.Dispatch) and len(segments) > 1 + len(self._switches):
            choice = next(a for a in reversed(self._answers) if isinstance(a, Choice))
            self._tell("switch", self._adopt(segments[-1], choice).fields)

    def _note(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._tell("search", answer.fields)

    def _adopt(self, segment: Segment, choice: Choice) -> Switch:
        switch = Switch(first_job=segment.first_job, first_round=segment.first_round, choice=choice)
        self._switches.append(switch)
        self._workload.switch(switch.after.scheme)
        return switch


class PolicyStrategy(Strategy):
    """The course of a run whose defence brings its own policy."""

    repeats = False
    whole_between_rounds = False

    def __init__(
        self,
        workload: ModelsWorkload,
        defence: PolicyDefence,
        *,
        run: PlannedRun,
    ) -> None:
        self._workload, self._spec = workload, defence.spec
        self._same_bits, self._most_again = run.repeats, defence.most_again
        self._policy: ResumablePolicy = defence.policy(
            run.setting.rule,
            num_jobs=run.num_jobs,
            batches=workload.batch_sizes,
            payload=run.plan.payload,
        )
        if (updates := run.plan.updates) is not None and updates.aware:
            self._policy = StalenessAware(self._policy, n=defence.n)

    @property
    def policy(self) -> RunPolicy:
        return self._policy

    def restore(self, snapshot: RunSnapshot, history: History) -> str:  # noqa: ARG002
        _restore(self._policy, snapshot, spec=self._spec)
        self._workload.restore(snapshot.state.workload, snapshot.files)
        if self._same_bits:
            return ""
        often = "applied once"
        if self._most_again:
            often = f"applied at least once: those of a shard under way, up to {self._most_again} "
            often += "of them applied already, once more"
        what = f"parts that were under way are computed anew, on newer weights, and {often}"
        return f"the run goes on from checkpoint {snapshot.rounds}: {what}"

    def snapshot(self) -> StrategyState:
        return StrategyState(slowdown=SlowdownState(), policy=json.dumps(self._policy.snapshot()))

    def follow(self, seen: ports.Seen) -> None:
        """Once nobody is left for more jobs than have begun, have the run end with these."""
        if isinstance(seen, ports.Dispatched) and self._workload.num_jobs is not None:
            self._policy.end_after(self._workload.num_jobs - 1)


class ControlledStrategy(Strategy):
    """The course of a run whose shares a controller changes between rounds; gradients are whole."""

    repeats = False
    whole_between_rounds = True

    def __init__(
        self,
        workload: TorchWorkload,
        defence: Controlled,
        *,
        run: PlannedRun,
    ) -> None:
        self._workload, self._spec = workload, defence.spec
        self._policy = defence.policy(
            run.setting.rule,
            num_jobs=run.num_jobs,
            batches=workload.batch_sizes,
            payload=run.plan.payload,
        )
        self._adopted = 0  # segments
        self._adopt()

    @property
    def policy(self) -> RunPolicy:
        return self._policy

    def restore(self, snapshot: RunSnapshot, history: History) -> str:  # noqa: ARG002
        _restore(self._policy, snapshot, spec=self._spec)
        self._adopt()  # before there are jobs that have not finished
        self._workload.restore(snapshot.state.workload, snapshot.files)
        what = "with its shares; how fast workers are is measured anew"
        return f"the run goes on from checkpoint {snapshot.rounds} {what}"

    def snapshot(self) -> StrategyState:
        return StrategyState(slowdown=SlowdownState(), policy=json.dumps(self._policy.snapshot()))

    def follow(self, seen: ports.Seen) -> None:
        """Cut batches as the round's shares are; end with the jobs that are left to be done."""
        if isinstance(seen, ports.Dispatch):
            self._adopt()
        if isinstance(seen, ports.Dispatched) and self._workload.num_jobs is not None:
            self._policy.end_after(self._workload.num_jobs - 1)

    def _adopt(self) -> None:
        if len(segments := self._policy.segments) > self._adopted:
            self._adopted = len(segments)
            self._workload.switch(segments[-1].setting.scheme)


def _restore(policy: ResumablePolicy, snapshot: RunSnapshot, *, spec: str) -> None:
    """Have a policy go back to a checkpoint; `StoreError` if that is another defence's."""
    try:
        policy.restore(json.loads(snapshot.state.policy))
    except (ValueError, KeyError, TypeError) as error:
        message = f"the checkpoint is of another defence than {spec}: {one_line(error)}"
        raise StoreError(message) from error
