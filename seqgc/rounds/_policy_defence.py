"""`PolicyDefence`: a defence that is not a scheme, and that creates its own policy.

All schemes have the same policy, `RoundPolicy`: send every worker its tasks, close the round,
decode. Other defences need policies of their own: for example, their workers proceed independently,
or the shares of a round depend on the workers' speeds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, Protocol, runtime_checkable

from seqgc.errors import ParameterError
from seqgc.ports import Capability, FloatArray, Payload, Policy
from seqgc.rounds._rule import ClosingRule, Setting
from seqgc.rounds._switching import SwitchingPolicy
from seqgc.schemes import Deal, Defence

__all__ = [
    "PolicyDefence",
    "RunPolicy",
    "SkippingPolicy",
    "needs_of",
    "num_rounds",
    "policy_of",
    "require_skipping",
]

_ANY: Final = 10**9  # jobs: more than any run has


class RunPolicy(Policy, Protocol):
    """A policy of a whole run. A checkpoint can store its state between any two events.

    The run can be ended before all planned jobs have started (`end_after`).
    """

    @property
    def num_jobs(self) -> int:
        """The number of jobs of the whole run, which `end_after` may reduce."""

    @property
    def rounds(self) -> int:
        """The number of closed rounds, or of clocks that all workers have completed."""

    def end_after(self, job: int) -> None:
        """End the run after ``job``, which must be the latest job that has started."""

    def snapshot(self) -> object:
        """Return the state, as JSON data."""

    def restore(self, state: object) -> None:
        """Continue from a `snapshot` that was read back from JSON. Call this before `start`.

        `start` then sends again all tasks that had no answer at the time of the snapshot.

        Raises
        ------
        TypeError, KeyError, ValueError
            If ``state`` is not a snapshot of such a policy.
        """


@runtime_checkable
class SkippingPolicy(RunPolicy, Protocol):
    """A policy that can begin in the middle of a run.

    A run can continue with another number of workers only if its policy can do this.
    """

    def skip_to(self, job: int, *, round: int) -> None:
        """Begin with ``job``, as if all earlier jobs had ended; only before the start.

        ``job`` is a job of the run, and the first job of its clock. ``round`` rounds have closed.
        A policy whose rounds are clocks may ignore this number, because it follows from ``job``.
        """


def require_skipping(policy: RunPolicy) -> SkippingPolicy:
    """Return the policy; raise `ParameterError` if it cannot begin in the middle of a run."""
    if not isinstance(policy, SkippingPolicy):
        rule = f"must stay as it is, because {type(policy).__name__} has no method skip_to"
        remedy = "resume the run with the number of workers that it has"
        raise ParameterError("workers", rule, "another number", remedy)
    return policy


class PolicyDefence(Defence):
    """Base class of defences that create their own policies.

    A subclass is a frozen dataclass, and is registered in the same way as a scheme. By default each
    job has ``n`` equal parts, one for each worker. A subclass with other parts overrides
    `worker_loads`, `chunk_fractions` and `load_lower_bound`.
    """

    delay: ClassVar[int] = 0

    @property
    def staleness(self) -> int | None:
        """The number of earlier jobs that may be missing in the weights of a part.

        The weights for a part of job ``t`` contain all parts of the jobs up to
        ``t - staleness - 1``. None means that any number of jobs may be missing.
        """
        return None if self.kind == "stale" else 0

    @property
    def in_order(self) -> bool:
        return self.staleness == 0

    @property
    def most_again(self) -> int:
        """The largest number of parts that may be applied a second time after a task has failed.

        If it is above 0, the policy must mark each part that is applied a second time, and list the
        jobs that end with each part (`seqgc.ports.Part`, `seqgc.ports.Decoding`).
        """
        return 0

    @property
    def jobs_per_task(self) -> int:
        """The largest number of jobs in one task.

        Each clock, or round, has this number of jobs; the last one of a run may have fewer.
        """
        return 1

    @property
    def tolerates(self) -> str:
        """A description of what happens if workers are slow or fail, in a few words."""
        return "its own policy decides what happens if workers are slow or fail"

    @abstractmethod
    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,
    ) -> RunPolicy:
        """Return the policy of a run of ``num_jobs`` jobs.

        Of the ``rule``, the policy may use the time limit and the number of attempts. ``batches``
        are the batch sizes of the models in data points, and ``payload`` is the number format of
        the results.
        """

    def loads_of_batches(self, batches: Sequence[int]) -> FloatArray:
        """Return the loads (n,) for models with these batch sizes.

        If the sizes differ, the result is the nominal loads (`worker_loads`).
        """
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
    """Return the policy of a run of ``num_jobs`` jobs under a setting, for any defence.

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
    """Return the capabilities that workers must have for a setting's policy.

    `seqgc.ports.Capability` lists all capabilities. ``batches`` are the batch sizes of the models,
    in data points.

    Examples
    --------
    >>> from seqgc.schemes import Uncoded
    >>> needs_of(Setting(scheme=Uncoded(n=2)))
    frozenset()
    """
    if not isinstance(setting.scheme, PolicyDefence):  # rounds need no capability
        return frozenset({"stay"} if isinstance(setting.scheme, Deal) else ())
    return getattr(policy_of(setting, num_jobs=1, batches=batches), "needs", frozenset())


def num_rounds(defence: Defence, num_jobs: int) -> int:
    """Return the number of rounds, or of clocks, that a run of ``num_jobs`` jobs has.

    Examples
    --------
    >>> from seqgc.schemes import parse_scheme
    >>> num_rounds(parse_scheme("sr-sgc:B=1,W=2,lam=2", n=4), 6)
    7
    """
    if isinstance(defence, PolicyDefence):
        return -(-num_jobs // defence.jobs_per_task)
    return num_jobs + defence.delay
