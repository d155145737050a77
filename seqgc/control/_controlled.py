"""`Controlled`: a defence by shares that a controller changes between rounds.

Every round is one of a `Balanced` scheme: uncoded, exact, with delay 0, so that another one may
follow at no cost. What shares the next round has is decided by a `seqgc.rounds.Director`, which
sees every event and every closed round, and has no clock and no workers. So a controller that runs
live is, decision for decision, the one that runs in virtual time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import Action, BoolArray, Dispatch, Event, Payload
from seqgc.rounds import (
    ClosingRule,
    Director,
    PolicyDefence,
    Segment,
    Setting,
    SwitchingPolicy,
)
from seqgc.schemes import Balanced, Defence, parse_scheme

__all__ = ["Controlled", "ControlledPolicy"]

PARTS: Final = 100
"""Of a batch, for each worker, where nobody says how many points it has."""


class Controlled(PolicyDefence):
    """A defence whose rounds are those of `Balanced` schemes; a frozen dataclass, exact.

    Examples
    --------
    >>> from seqgc.control import LBBSP
    >>> policy = LBBSP(n=2).policy(ClosingRule(), num_jobs=3, batches=[32])
    >>> policy.scheme_of(0)
    Balanced(n=2, shares='16x2', blocks='')
    """

    exact: ClassVar[bool] = True

    @abstractmethod
    def first(self, parts: int) -> Balanced:
        """Return what the first round has, of a batch of so many parts."""

    @abstractmethod
    def director(self, parts: int) -> Director:
        """Return the controller of one run, whose batches have so many parts."""

    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,
    ) -> ControlledPolicy:
        parts = max(batches, default=PARTS * self.n)
        setting = Setting(scheme=self.first(parts), rule=rule)
        return ControlledPolicy(
            setting, self.director(parts), num_jobs=num_jobs, batches=batches, payload=payload
        )

    def _keep_bounds(self, **fields: int) -> None:
        """Have these fields be integers >= 0."""
        self._keep_integers("n", *fields)
        for name, value in fields.items():
            require_int(name, value, least=0)


class ControlledPolicy:
    """A `SwitchingPolicy` and its director; a `seqgc.rounds.ResumablePolicy`.

    A run that goes on from a `snapshot` has the shares that it had then, and a director that begins
    anew: the workers are others than before.
    """

    def __init__(
        self,
        setting: Setting,
        director: Director,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,
    ) -> None:
        self._policy = SwitchingPolicy(
            setting, num_jobs=num_jobs, director=director, batches=batches, payload=payload
        )

    @property
    def done(self) -> bool:
        """Whether every job is done."""
        return self._policy.done

    @property
    def wake_at(self) -> float:
        """When to send a `Tick` if nothing arrives before, in the backend's time."""
        return self._policy.wake_at

    @property
    def num_jobs(self) -> int:
        """How many jobs the whole run has."""
        return self._policy.num_jobs

    @property
    def rounds(self) -> int:
        """How many rounds are closed."""
        return self._policy.rounds

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What ran so far: each choice of shares, and from which job and round on."""
        return self._policy.segments

    def scheme_of(self, job: int) -> Defence:
        """Return the scheme of a job that has started, by which its batch is cut."""
        return self._policy.scheme_of(job)

    def start(self) -> Sequence[Dispatch]:
        """Open the first round that is not closed."""
        return self._policy.start()

    def on(self, event: Event) -> Sequence[Action]:
        """Take one event; return what is to be done, in order; raises like `RoundPolicy.on`."""
        return self._policy.on(event)

    def end_after(self, job: int) -> None:
        """Let ``job``, which has started and was the latest to do so, be the run's last."""
        self._policy.end_after(job)

    def snapshot(self) -> dict[str, object]:
        """Return what a checkpoint is to hold."""
        scheme = self._policy.segments[-1].setting.scheme
        return {"rounds": self.rounds, "jobs": self.num_jobs, "scheme": scheme.spec}

    def restore(self, state: object) -> None:
        """Before the start, be as the policy of which this is a snapshot."""
        if not isinstance(state, Mapping):
            raise TypeError("the state of a controlled run must be a mapping")
        rounds, jobs, spec = (state[name] for name in ("rounds", "jobs", "scheme"))
        first = self._policy.segments[0].setting
        scheme = parse_scheme(spec, n=first.scheme.n)
        if not isinstance(scheme, Balanced):
            raise ParameterError("scheme", "must be balanced", spec)
        self._policy.end_after(jobs - 1)
        everybody: BoolArray = np.ones(scheme.n, dtype=np.bool_)
        latest = {rounds - 1: Setting(scheme=scheme, rule=first.rule)} if rounds < jobs else {}
        self._policy.repeat([everybody] * rounds, settings=latest)
