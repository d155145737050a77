"""`Fault` and `RandomFaults`: the failures of tasks in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.ports import Task

__all__ = ["Fault", "Faults", "RandomFaults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The failure of a task after a ``share`` of its time, from 0 to 1.

    If the worker ``dies``, all its unfinished tasks fail, and a new worker replaces it. A failure
    that is ``final`` says that the worker will answer no later task (`seqgc.ports.Failure.final`).
    The `Faults` must then return a fault for each of these tasks.

    Raises
    ------
    ParameterError
        If ``share`` is not from 0 to 1.
    """

    share: float = 1.0
    dies: bool = False
    final: bool = False

    def __post_init__(self) -> None:
        require_number("share", self.share, least=0)
        if self.share > 1:
            raise ParameterError("share", "must be at most 1 (of a task's time)", self.share)

    @property
    def reason(self) -> str:
        """The reason that the failure states, one line."""
        if self.final:
            return "the virtual worker answers no more"
        return "the virtual worker died" if self.dies else "the virtual task failed"


Faults: TypeAlias = Callable[[Task], Fault | None]
"""A function that returns the fault of a task, when the task is sent; None if it succeeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFaults:
    """Random faults: a task fails with probability ``fail``, its worker dies with ``die``.

    The sum of both is at most 1. The fault of a task depends only on ``seed`` and its address.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> faults = RandomFaults(seed=1, fail=0.25, die=0.25)
    >>> tasks = [Task(round=k, worker=0, attempt=0, items=()) for k in range(7)]
    >>> [fault.dies if (fault := faults(task)) else None for task in tasks]
    [None, False, False, True, False, False, True]
    """

    seed: int
    fail: float = 0.0
    die: float = 0.0

    def __post_init__(self) -> None:
        require_int("seed", self.seed, least=0)
        require_number("fail", self.fail, least=0)
        require_number("die", self.die, least=0)
        if self.fail + self.die > 1:
            raise ParameterError("fail, die", "must sum to at most 1", (self.fail, self.die))

    def __call__(self, task: Task) -> Fault | None:
        rng = np.random.default_rng([self.seed, task.round, task.worker, task.attempt])
        lot, share = rng.random(2).tolist()
        if lot >= self.fail + self.die:
            return None
        return Fault(share=share, dies=lot < self.die)
