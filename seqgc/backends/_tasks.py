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

__all__ = [
    "Delays",
    "Messaging",
    "MonotonicClock",
    "TaskMessages",
    "check_worker",
]

Delays: TypeAlias = Callable[[int, int], float]
"""``delays(round, worker)``: the least response time of a first attempt, seconds."""


class MonotonicClock:
    """Seconds of `time.monotonic`."""

    def now(self) -> float:
        """Return the time, seconds."""
        return time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Messaging:
    """What a run's messages say beside their tasks, and how its results travel.

    Parameters
    ----------
    run_id
        Written into every frame; frames of another run are refused. Functions keep what they make
        for a run by it: no two runs on the same functions may share one.
    rounding_name
        Seeds stochastic rounding, with round, worker, attempt and slot, so that a repeated run of
        that name rounds the same results alike; ``run_id`` unless given.
    code
        Names the code that the run uses, at most 100 characters; written into every frame.
    delays
        ``delays(round, worker)``, seconds: the answer leaves the worker no earlier than this after
        the task was received (the response time as a whole, not an addition to computing). First
        attempts only: a repeated attempt stands for a fresh environment. None: no delays.
    payload
        The format in which results travel (see `seqgc.ports`); workers round, events hold what
        comes out of it. None: the results' own dtype.
    stochastic_rounding
        Round to ``payload`` stochastically.

    Raises
    ------
    ParameterError
        If there is no such ``payload``, or none is given to round to stochastically.

    Examples
    --------
    >>> Messaging(payload="bfloat16", stochastic_rounding=True).seed is None
    False
    """

    run_id: str = "run"
    rounding_name: str | None = None
    code: str = ""
    delays: Delays | None = None
    payload: Payload | None = None
    stochastic_rounding: bool = False

    @property
    def seed(self) -> int | None:
        """Of stochastic rounding, 0 to 2**48; None if nothing is rounded so."""
        if not self.stochastic_rounding:
            return None
        name = self.run_id if self.rounding_name is None else self.rounding_name
        # Not `hash`, which differs from process to process.
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little")

    def __post_init__(self) -> None:
        if self.payload is not None:
            payload_format(self.payload)
        elif self.stochastic_rounding:
            rule = "must be given where `stochastic_rounding` is: nothing is rounded else"
            raise ParameterError("payload", rule, self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessages:
    """Makes the messages of one backend's tasks to its ``n`` workers.

    Raises
    ------
    ParameterError
        If ``n`` is not positive.

    Examples
    --------
    >>> task = Task(round=3, worker=1, attempt=0, items=())
    >>> messages = TaskMessages(n=2, messaging=Messaging(delays=lambda round, worker: 0.5))
    >>> messages.message(3, task).delay_s
    0.5
    """

    n: int
    messaging: Messaging

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", require_int("n", self.n, least=1))

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
            payload=self.messaging.payload,
            rounding_seed=self.messaging.seed,
            code=self.messaging.code,
        )

    def _delay_s(self, task: Task) -> float:
        if self.messaging.delays is None or task.attempt > 0:
            return 0.0
        delay_s = float(self.messaging.delays(task.round, task.worker))
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
