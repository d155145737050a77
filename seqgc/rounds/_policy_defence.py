"""A defence that is no scheme: it brings the policy that runs it.

`RoundPolicy` runs every scheme, for all of them do the same: send everybody their tasks, close the
round, decode. Where workers go on by themselves, or a round's shares follow from how fast they
were, that is what the defence is. So it makes its own policy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, Protocol

from seqgc.ports import Capability, FloatArray, Payload, Policy
from seqgc.rounds._rule import ClosingRule, Setting
from seqgc.rounds._switching import SwitchingPolicy
from seqgc.schemes import Defence

__all__ = ["PolicyDefence", "ResumablePolicy", "RunPolicy", "needs_of", "num_rounds", "policy_of"]

_ANY: Final = 10**9  # jobs: more than any run has


class RunPolicy(Policy, Protocol):
    """A policy of a whole run, of which jobs may turn out to be fewer than planned."""

    @property
    def num_jobs(self) -> int:
        """How many jobs the whole run has, as far as is known."""

    @property
    def rounds(self) -> int:
        """How many rounds, or clocks of all workers, are closed."""

    def end_after(self, job: int) -> None:
        """Let ``job``, which has started and was the latest to do so, be the run's last."""


class ResumablePolicy(RunPolicy, Protocol):
    """A policy whose state a checkpoint can hold, between two events."""

    def snapshot(self) -> object:
        """Return its state: what JSON can say."""

    def restore(self, state: object) -> None:
        """Before the start, be as the policy of which this is a snapshot, read back from JSON.

        Then `start` sends again the tasks that had been sent and not been answered, whose answers
        are nobody's any more. `ValueError`, `KeyError` or `TypeError` if it is no such state.
        """


class PolicyDefence(Defence):
    """A defence with a policy of its own; a frozen dataclass, registered as a scheme is.

    Its jobs come in ``n`` equal parts, one a worker, unless it says otherwise.
    """

    delay: ClassVar[int] = 0

    @property
    def staleness(self) -> int | None:
        """How many of the jobs before a part's own its weights may lack; None: any number.

        Weights of a part of job ``t`` hold every part of the jobs up to ``t - staleness - 1``.
        """
        return None if self.kind == "stale" else 0

    @property
    def most_again(self) -> int:
        """How many parts that are in a task that fails may have applied again; 0: none ever.

        With more than 0 a policy says of each part whether it is one of these, and which jobs end
        with it (`seqgc.ports.Decoding`).
        """
        return 0

    @property
    def jobs_per_task(self) -> int:
        """Of how many jobs a task has parts, at most; so many jobs make a clock, or a round."""
        return 1

    @property
    def tolerates(self) -> str:
        """What slow and failing workers cost, in a few words."""
        return "its own policy shares out the work of who is slow or fails"

    @abstractmethod
    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,
    ) -> ResumablePolicy:
        """Return what runs ``num_jobs`` jobs. Of the ``rule`` time limit and attempts may count.

        ``batches`` are the sizes of the models' batches, and results travel in ``payload``.
        """

    def loads_of_batches(self, batches: Sequence[int]) -> FloatArray:
        """Return the loads (n,) for models of these batch sizes; nominal if they differ."""
        return self.loads_of(batches[0] if len(set(batches)) == 1 else None)

    def jobs_in_flight(self, bundles: int) -> int:  # noqa: ARG002 (it does not depend on them)
        return _ANY if self.staleness is None else self.staleness + 1

    def fitted(self, bundles: int, *, batch: int | None = None) -> PolicyDefence:  # noqa: ARG002
        return self

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads(1 / self.n)

    @property
    def chunk_fractions(self) -> FloatArray:
        return self._equal_loads(1 / self.n)

    @property
    def load_lower_bound(self) -> float:
        return 1 / self.n


def policy_of(
    setting: Setting,
    *,
    num_jobs: int,
    batches: Sequence[int] = (),
    payload: Payload | None = None,
) -> RunPolicy:
    """Return what runs ``num_jobs`` jobs under a setting, whatever its defence.

    Examples
    --------
    >>> from seqgc.schemes import Uncoded
    >>> type(policy_of(Setting(scheme=Uncoded(n=2)), num_jobs=3)).__name__
    'SwitchingPolicy'
    """
    if isinstance(setting.scheme, PolicyDefence):
        return setting.scheme.policy(
            setting.rule, num_jobs=num_jobs, batches=batches, payload=payload
        )
    return SwitchingPolicy(setting, num_jobs=num_jobs, batches=batches, payload=payload)


def needs_of(setting: Setting, batches: Sequence[int] = ()) -> frozenset[Capability]:
    """Return what workers must be able to do for a setting's policy: see `DemandingPolicy`.

    ``batches`` are the numbers of points in the batches that there are.

    Examples
    --------
    >>> from seqgc.schemes import Uncoded
    >>> needs_of(Setting(scheme=Uncoded(n=2)))
    frozenset()
    """
    if not isinstance(setting.scheme, PolicyDefence):  # rounds by themselves need nothing
        return frozenset()
    return getattr(policy_of(setting, num_jobs=1, batches=batches), "needs", frozenset())


def num_rounds(defence: Defence, num_jobs: int) -> int:
    """Return how many rounds, or clocks of all workers, so many jobs take.

    Examples
    --------
    >>> from seqgc.schemes import parse_scheme
    >>> num_rounds(parse_scheme("sr-sgc:B=1,W=2,lam=2", n=4), 6)
    7
    """
    if isinstance(defence, PolicyDefence):
        return -(-num_jobs // defence.jobs_per_task)
    return num_jobs + defence.delay
