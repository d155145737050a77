"""`AmendedPolicy`: a policy that is another one, but for what it adds to its actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from seqgc.ports import Action, Capability, Event
from seqgc.rounds._policy_defence import ResumablePolicy

__all__ = ["AmendedPolicy"]


class AmendedPolicy(ABC):
    """A `ResumablePolicy` whose state is all the ``policy``'s; what it adds is begun anew."""

    def __init__(self, policy: ResumablePolicy) -> None:
        self._policy = policy

    @property
    def wake_at(self) -> float:
        """When to send a `Tick` if nothing arrives before, in the backend's time."""
        return self._policy.wake_at

    @property
    def done(self) -> bool:
        """Whether all is done."""
        return self._policy.done

    @property
    def num_jobs(self) -> int:
        """How many jobs the whole run has, as far as is known."""
        return self._policy.num_jobs

    @property
    def rounds(self) -> int:
        """How many rounds, or clocks of all workers, are closed."""
        return self._policy.rounds

    @property
    def needs(self) -> frozenset[Capability]:
        """What the backend must be able to do: see `seqgc.ports.DemandingPolicy`."""
        return getattr(self._policy, "needs", frozenset())

    def end_after(self, job: int) -> None:
        """Let ``job``, which has started and was the latest to do so, be the run's last."""
        self._policy.end_after(job)

    def snapshot(self) -> object:
        """Return its state: what JSON can say."""
        return self._policy.snapshot()

    def restore(self, state: object) -> None:
        """Before the start, be as the policy of which this is a snapshot."""
        self._policy.restore(state)

    @abstractmethod
    def start(self) -> Sequence[Action]:
        """Return the actions that begin the run."""

    @abstractmethod
    def on(self, event: Event) -> Sequence[Action]:
        """Take one event; return what is to be done, in order."""
