"""`Ledger`: a workload that knows what the parts of jobs should be, and which are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from seqgc.ports import Decoding, Dispatch, FloatArray, MiniTask, WeightedPoints, WeightRef
from seqgc.rounds import PolicyDefence
from seqgc.schemes import Defence

__all__ = ["Ledger"]

_SIZE: Final = 3  # parameters
_TOLERANCE: Final = 1e-9  # relative, of gradients and loads


class Ledger:
    """A `seqgc.ports.Workload` of one data point a chunk, for a defence whose jobs come in parts.

    ``begun`` is the latest job that has begun, -1 before; ``whole`` are the jobs whose gradients
    are complete. `AssertionError`: a task is made of weights that lack more than the defence's
    `staleness`, or touches more than it is charged, or a job's parts do not add up to its gradient.
    """

    def __init__(self, defence: PolicyDefence) -> None:
        self._defence = defence
        self._scheme_of: Callable[[int], Defence] = lambda _: defence
        self._sums: dict[int, FloatArray] = {}
        self._parts: dict[int, int] = {}  # applied, by job
        self.begun, self.whole = -1, set[int]()

    def cut_by(self, scheme_of: Callable[[int], Defence]) -> None:
        """Have each job's batch be cut as a defence of its own says."""
        self._scheme_of = scheme_of

    def look_at(self, action: Dispatch) -> None:
        """Compare what tasks touch with what they are charged."""
        loads = action.loads
        assert loads is not None, f"round {action.round}: tasks must say their loads"
        for worker, mini_tasks in action.assignment.items():
            touched = 0.0
            for task in mini_tasks:
                fractions = self._scheme_of(task.job).chunk_fractions
                known = ((task.chunks >= 0) & (task.chunks < len(fractions))).all()
                assert known, f"job {task.job}: chunks {task.chunks} of {len(fractions)}"
                touched += float(fractions[task.chunks].sum())
            line = f"round {action.round}: worker {worker} touches {touched:.6g} of a batch"
            assert touched <= loads[worker] * (1 + _TOLERANCE), f"{line}, above its load"

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (the protocol's)
        """Have all that has come be there before tasks are made."""
        return True

    def begin(self, job: int) -> None:
        """Note it."""
        self.begun = max(job, self.begun)

    def result_form(self, job: int) -> None:
        """Leave it to the first result."""

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Make a chunk's point its number; look whether the weights are new enough."""
        job, lacks = mini_task.job, self._defence.staleness
        if lacks is not None:
            missing = sorted(set(range(max(0, job - lacks))) - self.whole)
            assert not missing, f"a task of job {job} lacks job {missing[:1]}, staleness is {lacks}"
        ref = WeightRef(model="m", version=job, digest="0" * 64, dtype="float64", size=_SIZE)
        points, coefficients = mini_task.chunks, mini_task.coefficients
        return (WeightedPoints(model="m", weights=ref, points=points, coefficients=coefficients),)

    def compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        """Return a mini-task's result (3,)."""
        (part,) = parts
        rows = [_gradient(part.weights.version, chunk) for chunk in part.points.tolist()]
        total: FloatArray = part.coefficients @ np.array(rows)
        return total

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Add a part to the others; look at the sum when all are there."""
        job, of = decoding.job, 1 if decoding.part is None else decoding.part.of
        if decoding.share:  # else it has been added before
            self._sums[job] = self._sums.get(job, np.zeros(_SIZE)) + gradient
            self._parts[job] = self._parts.get(job, 0) + 1
        whole = (job,) if self._parts[job] == of else ()
        for ended in whole if decoding.ends is None else decoding.ends:
            self._end(ended)

    def _end(self, job: int) -> None:
        self.whole.add(job)
        chunks = range(len(self._scheme_of(job).chunk_fractions))
        direct = np.sum([_gradient(job, chunk) for chunk in chunks], axis=0)
        off = float(np.linalg.norm(self._sums[job] - direct))
        if self._defence.kind != "approximate":
            line = f"the parts of job {job} add up to a gradient that is off by {off:.3g}"
            assert off <= _TOLERANCE * max(1.0, float(np.linalg.norm(direct))), line


def _gradient(job: int, chunk: int) -> FloatArray:
    """Return a chunk's gradient (3,): random, of its own."""
    return np.random.default_rng([job, chunk]).normal(size=_SIZE)
