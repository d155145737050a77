"""`AmendedPolicy`: base class of policies that change the actions of another policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from seqgc.ports import Action, Capability, Event
from seqgc.rounds._policy_defence import RunPolicy, require_skipping

__all__ = ["AmendedPolicy"]


class AmendedPolicy(ABC):
    """A `RunPolicy` that wraps another ``policy``, and may change its actions.

    A subclass implements `start` and `on`. The snapshot is the snapshot of ``policy``. State that
    the subclass adds is not stored, and is lost when a run is resumed.
    """

    def __init__(self, policy: RunPolicy) -> None:
        self._policy = policy

    @property
    def wake_at(self) -> float:
        """The time at which to send a `Tick` if no event arrives before, in seconds."""
        return self._policy.wake_at

    @property
    def done(self) -> bool:
        """True if every job is complete."""
        return self._policy.done

    @property
    def num_jobs(self) -> int:
        """The number of jobs of the whole run, which `end_after` may reduce."""
        return self._policy.num_jobs

    @property
    def rounds(self) -> int:
        """The number of closed rounds, or of clocks that all workers have completed."""
        return self._policy.rounds

    @property
    def needs(self) -> frozenset[Capability]:
        """The capabilities that the backend must have (`seqgc.ports.DemandingPolicy`)."""
        return getattr(self._policy, "needs", frozenset())

    def end_after(self, job: int) -> None:
        """End the run after ``job``, which must be the latest job that has started."""
        self._policy.end_after(job)

    def snapshot(self) -> object:
        """Return the state, as JSON data."""
        return self._policy.snapshot()

    def restore(self, state: object) -> None:
        """Continue from a `snapshot`. Call this method before `start`."""
        self._policy.restore(state)

    def skip_to(self, job: int, *, round: int) -> None:
        """Begin with ``job``, as if all earlier jobs had ended; only before the start.

        Raises `ParameterError` if the wrapped policy cannot do this.
        """
        require_skipping(self._policy).skip_to(job, round=round)

    @abstractmethod
    def start(self) -> Sequence[Action]:
        """Return the actions that begin the run."""

    @abstractmethod
    def on(self, event: Event) -> Sequence[Action]:
        """Handle an event; return the actions that follow from it, in order."""
