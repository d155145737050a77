"""`Controlled`: a defence in which a controller changes the workers' shares between rounds.

Every round runs a `Balanced` scheme. Such a scheme is uncoded, exact and has delay 0, so that a
round with other shares can follow at no cost. A `seqgc.rounds.Director` chooses the shares of the
next round. It sees every event and every closed round, but has no clock and no access to workers.
Therefore a controller decides the same after the same events, in a live run or in virtual time.
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
"""The number of parts per worker into which a batch is cut if its number of points is unknown."""


class Controlled(PolicyDefence):
    """A defence whose rounds run `Balanced` schemes; base class of frozen dataclasses.

    All gradients are exact. A subclass defines `first` and `director`.

    Examples
    --------
    >>> from seqgc.control import LBBSP
    >>> policy = LBBSP(n=2).policy(ClosingRule(), num_jobs=3, batches=[32])
    >>> policy.scheme_of(0)
    Balanced(n=2, shares='16x2', blocks='')
    """

    exact: ClassVar[bool] = True

    @property
    def tolerates(self) -> str:
        return "each round waits for all workers; slow workers get smaller shares"

    @abstractmethod
    def first(self, parts: int) -> Balanced:
        """Return the scheme of the first round.

        The shares sum to ``parts``, the number of points of the largest batch.
        """

    @abstractmethod
    def director(self, parts: int) -> Director:
        """Return a new controller of one run, whose shares sum to ``parts``."""

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
        """Check that these fields are integers >= 0, and convert them to `int`."""
        self._keep_integers("n", *fields)
        for name, value in fields.items():
            require_int(name, value, least=0)


class ControlledPolicy:
    """A `SwitchingPolicy` whose ``director`` chooses the shares; a `seqgc.rounds.ResumablePolicy`.

    A run that is resumed from a `snapshot` continues with the shares of that time. Its director
    starts without measurements, because a resumed run has other workers.
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
        return self._policy.done

    @property
    def wake_at(self) -> float:
        return self._policy.wake_at

    @property
    def num_jobs(self) -> int:
        return self._policy.num_jobs

    @property
    def rounds(self) -> int:
        """The number of closed rounds."""
        return self._policy.rounds

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The choices of shares so far, each with its first job and round."""
        return self._policy.segments

    def scheme_of(self, job: int) -> Defence:
        """Return the scheme of a job that has started; it determines how the batch is cut."""
        return self._policy.scheme_of(job)

    def start(self) -> Sequence[Dispatch]:
        return self._policy.start()

    def on(self, event: Event) -> Sequence[Action]:
        return self._policy.on(event)

    def end_after(self, job: int) -> None:
        self._policy.end_after(job)

    def snapshot(self) -> dict[str, object]:
        scheme = self._policy.segments[-1].setting.scheme
        return {"rounds": self.rounds, "jobs": self.num_jobs, "scheme": scheme.spec}

    def restore(self, state: object) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of a controlled run must be a mapping; got {state!r}")
        rounds, jobs, spec = (state[name] for name in ("rounds", "jobs", "scheme"))
        first = self._policy.segments[0].setting
        scheme = parse_scheme(spec, n=first.scheme.n)
        if not isinstance(scheme, Balanced):
            rule = "in the state of a controlled run must be a `balanced` scheme"
            raise ParameterError("scheme", rule, spec)
        self._policy.end_after(jobs - 1)
        everybody: BoolArray = np.ones(scheme.n, dtype=np.bool_)
        latest = {rounds - 1: Setting(scheme=scheme, rule=first.rule)} if rounds < jobs else {}
        self._policy.repeat([everybody] * rounds, settings=latest)
