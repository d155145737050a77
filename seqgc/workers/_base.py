"""`WorkerSet`, the base of all kinds of workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from seqgc.backends import Messaging, TaskDelays
from seqgc.costs import Budget, StayBudget
from seqgc.errors import ParameterError, require_int
from seqgc.ports import Capability, Task
from seqgc.workers._forecast import Forecast
from seqgc.workers._settings import LoadDelays

if TYPE_CHECKING:
    from seqgc.training import Crew, TrainingPlan, Work


class WorkerSet(ABC):
    """``n`` workers, a context manager; a `seqgc.training.Workers`.

    Several runs may use them, one after the other; what they need between runs (a service, a fork
    server) is started when it is first needed, and ended with the block.
    """

    provider: str
    deployed: bool = True  # False: they are not there, and it can be said what they would cost

    def __init__(self, n: int, *, delays: LoadDelays | None = None) -> None:
        self.n: Final = require_int("workers", n, least=1)
        self._delays: Final = delays
        self._stack: Final = ExitStack()

    @property
    def can(self) -> frozenset[Capability]:
        """The optional capabilities of these workers. A run queries a custom backend directly."""
        return frozenset({"restart"})

    @abstractmethod
    def check(self, work: Work) -> None:
        """Refuse, with `ParameterError`, what they cannot do; starts and writes nothing."""

    @abstractmethod
    def open(self, work: Work) -> AbstractContextManager[Crew]:
        """Prepare for one piece of work; nothing of it is left at the end of the block."""

    @abstractmethod
    def forecast(self, plan: TrainingPlan) -> Forecast | None:
        """Return what functions are going to be sent and cost, or None; starts and asks nobody."""

    def budget(self, plan: TrainingPlan, max_usd: float) -> Budget | StayBudget:
        """Return an observer that stops a run before it costs more than ``max_usd`` US dollars.

        The user's own machines cost nothing.

        Raises
        ------
        ParameterError
            If the price of the plan is not known beforehand, or one round could exceed it.
        """
        if plan.adaptation is not None:
            rule = "must be left out with `probe` or `retune`: schemes not known yet have no price"
            raise ParameterError("max_usd", rule, max_usd)
        predicted = self.forecast(plan)
        return Budget(max_usd, model=None) if predicted is None else predicted.budget(max_usd)

    def _messaging(
        self, work: Work, *, run_id: str | None = None, delays: LoadDelays | None = None
    ) -> Messaging:
        """Return what the work's messages say beside its tasks.

        It names the run, and injects these workers' delays, unless others are given.
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
    """Return the delay of a worker's task of a round, whichever attempt it is."""
    occasion = work.occasion(task)
    return 0.0 if occasion is None else delays(occasion[0], task.worker, occasion[1])


def _injected_piece(delays: LoadDelays, loads: Sequence[float], task: Task) -> float:
    """Return the delay of pieces, which are tasks of their load, or of a worker's first greeting.

    The round of a piece is the number of its job.
    """
    if not task.items:
        return delays(0, task.worker, 0.0) if task.round == task.attempt == 0 else 0.0
    return sum(delays(task.round, task.worker, loads[item.slot]) for item in task.items)


def missing(backend: str, extra: str, error: ImportError) -> ParameterError:
    """Return the error of workers whose extra is not installed."""
    rule = f"needs what is not installed ({error})"
    return ParameterError("backend", rule, backend, f"pip install 'seqgc[{extra}]'")
