"""What a worker does with a task, wherever it runs: mini-tasks in, coded results out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np

from seqgc.errors import WorkerError
from seqgc.ports import FloatArray, Task, WeightedPoints

__all__ = ["Compute", "ComputeFactory", "run_task"]

_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


class Compute(Protocol):
    """Computes gradients: one result vector per mini-task, its parts' gradients concatenated.

    Each part contributes ``sum_p coefficients[p] * grad loss(points[p])``, of shape (size,), its
    model's number of parameters; the result is float32 or float64.
    """

    def __call__(self, parts: tuple[WeightedPoints, ...], /) -> FloatArray: ...


# Called once in each worker. It crosses processes, so it is a module-level function, a
# functools.partial of one, or a dataclass instance with __call__: something pickle takes.
ComputeFactory: TypeAlias = Callable[[], Compute]


def run_task(
    task: Task, compute: Compute, *, cancelled: Callable[[], bool] = lambda: False
) -> dict[int, FloatArray] | None:
    """Return the task's results by slot, or None if it was cancelled on the way.

    ``cancelled`` is asked before each mini-task: a gradient that nobody wants is not computed, and
    one that was begun is finished.

    Raises
    ------
    WorkerError
        If ``compute`` returns anything but a vector of float32 or float64.

    Examples
    --------
    >>> from seqgc.ports import WeightRef, WorkItem
    >>> ref = WeightRef(model="m", version=0, digest="0" * 64, dtype="float64", size=1)
    >>> part = WeightedPoints(
    ...     model="m", weights=ref, points=np.array([4, 5]), coefficients=np.array([0.5, 2.0])
    ... )
    >>> task = Task(round=0, worker=0, attempt=0, items=(WorkItem(slot=1, parts=(part,)),))
    >>> def compute(parts):  # every loss is w * p: its gradient is p
    ...     return np.array([part.coefficients @ part.points for part in parts])
    >>> run_task(task, compute)
    {1: array([12.])}
    """
    results: dict[int, FloatArray] = {}
    for item in task.items:
        if cancelled():
            return None
        result = np.asarray(compute(item.parts))
        if result.ndim != 1 or result.dtype not in _DTYPES:
            raise WorkerError(
                f"`compute` must return a vector of float32 or float64; got {result.dtype} of "
                f"shape {result.shape} for slot {item.slot}",
                round=task.round,
                worker=task.worker,
            )
        results[item.slot] = result
    return results
