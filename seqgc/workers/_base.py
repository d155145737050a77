"""`WorkerSet`, the base class of all kinds of workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from seqgc.backends import Messaging, TaskDelays
from seqgc.costs import Budget
from seqgc.errors import ParameterError, require_int
from seqgc.ports import Capability, Task
from seqgc.workers._forecast import Forecast
from seqgc.workers._settings import LoadDelays

if TYPE_CHECKING:
    from seqgc.training import Crew, TrainingPlan, Work


class WorkerSet(ABC):
    """A set of ``n`` workers, as a context manager. It is a `seqgc.training.Workers`.

    Several runs may use the workers, one after the other. A service or fork server that the runs
    share is started when it is first needed, and ended at the end of the ``with`` block.
    """

    provider: str
    deployed: bool = True  # False: only forecasts are possible

    def __init__(self, n: int, *, delays: LoadDelays | None = None) -> None:
        self.n: Final = require_int("workers", n, least=1)
        self._delays: Final = delays
        self._stack: Final = ExitStack()

    @property
    def can(self) -> frozenset[Capability]:
        """The optional capabilities of these workers. Custom backends declare their own."""
        return frozenset({"restart", "stay", "stop"})

    @abstractmethod
    def check(self, work: Work) -> None:
        """Raise `ParameterError` if these workers cannot do the work. Nothing is started."""

    @abstractmethod
    def open(self, work: Work) -> AbstractContextManager[Crew]:
        """Prepare the workers for one run or recording; clean up at the end of the block."""

    @abstractmethod
    def forecast(self, plan: TrainingPlan) -> Forecast | None:
        """Return the expected messages and use of cloud functions; None for other workers.

        Nothing is started, and no service is contacted.
        """

    def budget(self, plan: TrainingPlan, max_usd: float) -> Budget:
        """Return an observer that stops a run before it can cost more than ``max_usd`` US dollars.

        The user's own machines cost nothing.

        Raises
        ------
        ParameterError
            If the plan has no price because its schemes are chosen during the run, or if its first
            round could cost more than ``max_usd``.
        """
        if plan.adaptation is not None:
            rule = "must be left out with `probe` or `retune`: the cost of later schemes is unknown"
            raise ParameterError("max_usd", rule, max_usd)
        predicted = self.forecast(plan)
        return Budget(max_usd) if predicted is None else predicted.budget(max_usd)

    def _messaging(
        self, work: Work, *, run_id: str | None = None, delays: LoadDelays | None = None
    ) -> Messaging:
        """Return the settings of the messages of this work: its run id, payload and delays.

        By default the run id is that of ``work``, and the delays are the delays of this set.
        """
        delays = delays or self._delays
        return Messaging(
            run_id=run_id or work.run_id,
            rounding_name=work.name,
            code=work.code,
            task_delays=_task_delays(delays, work),
            payload=work.payload,
            stochastic_rounding=work.stochastic_rounding,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _task_delays(delays: LoadDelays | None, work: Work) -> TaskDelays | None:
    if delays is None:
        return None
    if work.piece_loads:
        return partial(_injected_piece, delays, work.piece_loads)
    return partial(_injected, delays, work)


def _injected(delays: LoadDelays, work: Work, task: Task) -> float:
    """Return the delay of a task, in seconds. All attempts of a task have the same delay."""
    occasion = work.occasion(task)
    return 0.0 if occasion is None else delays(occasion[0], task.worker, occasion[1])


def _injected_piece(delays: LoadDelays, loads: Sequence[float], task: Task) -> float:
    """Return the delay, in seconds, of a task of pieces (`deal`).

    A piece has the delay of its load in the round ``task.round``, which is the number of its job.
    An empty task has the delay of load 0 if it is the worker's first task; otherwise it has none.
    """
    if not task.items:
        return delays(0, task.worker, 0.0) if task.round == task.attempt == 0 else 0.0
    return sum(delays(task.round, task.worker, loads[item.slot]) for item in task.items)


def missing(backend: str, extra: str, error: ImportError) -> ParameterError:
    """Return the error for a backend that needs an extra of seqgc that is not installed."""
    rule = f"needs a package that is not installed ({error})"
    return ParameterError("backend", rule, backend, f"pip install 'seqgc[{extra}]'")
