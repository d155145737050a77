"""`Scheme`: the frozen parameters of a defence by rounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import Payload
from seqgc.schemes._defence import Defence
from seqgc.schemes._schedule import Schedule
from seqgc.stragglers import StragglerModel


class Scheme(Defence):
    """How redundancy is spread over workers and rounds; frozen, picklable, ``eval(repr(x)) == x``.

    A scheme of your own is a frozen dataclass with the field ``n``, registered under a name
    (`seqgc.schemes.register`); `seqgc.testing.check_scheme` says whether it keeps this contract.
    ``late`` says what becomes of answers to closed rounds: ``drop``, or ``take`` while of use.
    """

    late: str = "drop"

    @property
    @abstractmethod
    def tolerated(self) -> int:
        """Stragglers that the scheme's inner gradient code tolerates (``s``, or lam for M-SGC)."""

    @property
    @abstractmethod
    def promise(self) -> StragglerModel:
        """The straggler patterns under which no job is ever late."""

    @abstractmethod
    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        """Begin a run of ``num_jobs`` jobs, which takes ``num_jobs + delay`` rounds.

        ``conformity`` is what `Schedule.conforms` judges by, instead of the scheme's own promise.
        """

    def begin(
        self,
        num_jobs: int,
        *,
        conformity: StragglerModel | None = None,
        batches: Iterable[int] = (),
        payload: Payload | None = None,
    ) -> Schedule:
        """Return `start`'s schedule, without what batches of these sizes put no point into.

        ``payload``: see `Schedule.payload`.
        """
        schedule, sizes = self.start(num_jobs, conformity=conformity), set(batches)
        schedule.payload = payload
        if cuts := [self.cut(size) for size in sizes]:
            schedule.leave_out(np.max(cuts, axis=0) == 0)
        if len(sizes) == 1:
            (schedule.batch_size,) = sizes
        return schedule

    def jobs_in_flight(self, bundles: int) -> int:  # noqa: ARG002 (it does not depend on them)
        return self.delay + 1

    def jobs_read(self, bundles: int) -> int:
        # A late answer is awaited for ``delay`` rounds, and its task was of ``delay`` earlier jobs.
        return self.jobs_in_flight(bundles) + (self.delay if self.late == "take" else 0)

    def fitted(self, bundles: int) -> Scheme:  # noqa: ARG002 (it leaves nothing open)
        return self

    @property
    def load_lower_bound(self) -> float:
        """Lower bound on the largest load of any exact scheme with this promise and delay.

        It holds for schemes whose runs may be of any length. With a delay, a run of only a few jobs
        may need less (docs/mathematics.md, section 4).
        """
        return self.promise.load_lower_bound(self.n, delay=self.delay)


def by_rounds(defence: Defence, what: str) -> Scheme:
    """Return a defence that is a scheme; `ParameterError` if ``what`` needs one and it is none.

    Examples
    --------
    >>> from seqgc.schemes import Deal
    >>> by_rounds(Deal(n=2), "an audit")
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `scheme` must have rounds for an audit; got 'deal' (take \
gc-rep or another one that `seqgc scheme` explains)
    """
    if isinstance(defence, Scheme):
        return defence
    remedy = "take gc-rep or another one that `seqgc scheme` explains"
    raise ParameterError("scheme", f"must have rounds for {what}", defence.spec, remedy)
