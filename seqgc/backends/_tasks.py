"""What every backend does with tasks before it sends them: check, delay, name their rounding."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from seqgc.errors import ParameterError, require_int
from seqgc.ports import Payload, Task, payload_format
from seqgc.wire import TaskMessage

__all__ = ["Delays", "MonotonicClock", "TaskMessages", "check_worker"]

Delays: TypeAlias = Callable[[int, int], float]
"""``delays(round, worker)``: the least response time of a first attempt, seconds."""


class MonotonicClock:
    """Seconds of `time.monotonic`."""

    def now(self) -> float:
        """Return the time, seconds."""
        return time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessages:
    """Makes the messages of one backend's tasks.

    Parameters
    ----------
    n
        Number of workers.
    run_id
        Seeds stochastic rounding, so that a repeated run of that name rounds alike.
    delays
        Injected delays; first attempts only: a repeated one stands for a fresh environment.
    payload, stochastic_rounding
        How results travel (see `seqgc.ports`).
    code
        Names the code that the run uses, at most 100 characters.

    Raises
    ------
    ParameterError
        If ``n`` is not positive, there is no such ``payload``, or none is given to round to.

    Examples
    --------
    >>> task = Task(round=3, worker=1, attempt=0, items=())
    >>> messages = TaskMessages(n=2, run_id="r", delays=lambda round, worker: 0.5)
    >>> messages.message(3, task).delay_s
    0.5
    """

    n: int
    run_id: str
    delays: Delays | None = None
    payload: Payload | None = None
    stochastic_rounding: bool = False
    code: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", require_int("n", self.n, least=1))
        if self.payload is not None:
            payload_format(self.payload)
        elif self.stochastic_rounding:
            rule = "must be given where `stochastic_rounding` is: nothing is rounded else"
            raise ParameterError("payload", rule, self.payload)

    def message(self, round: int, task: Task) -> TaskMessage:
        """Return the message of a task of this round.

        Raises
        ------
        ParameterError
            If the task is another round's, its worker does not exist, or its delay is no time.
        """
        check_worker(task.worker, self.n)
        if task.round != round:
            raise ParameterError("tasks", f"must all be of round {round}", task.round)
        return TaskMessage(
            task=task,
            delay_s=self._delay_s(task),
            payload=self.payload,
            rounding_seed=_seed(self.run_id) if self.stochastic_rounding else None,
            code=self.code,
        )

    def _delay_s(self, task: Task) -> float:
        if self.delays is None or task.attempt > 0:
            return 0.0
        delay_s = float(self.delays(task.round, task.worker))
        if not 0 <= delay_s < math.inf:
            where = f"round {task.round}, worker {task.worker}"
            raise ParameterError("delays", f"must be finite seconds >= 0 ({where})", delay_s)
        return delay_s


def check_worker(worker: int, n: int) -> None:
    """Refuse a worker that does not exist.

    Raises
    ------
    ParameterError
        If it does not.
    """
    if not 0 <= worker < n:
        raise ParameterError("worker", f"must satisfy 0 <= worker < {n}", worker)


def _seed(run_id: str) -> int:
    """Return the run's number, 0 to 2**48: the same in every process, unlike `hash`."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:6], "little")
