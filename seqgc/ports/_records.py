"""Type aliases of arrays, and the records that all packages share: mini-tasks, decodings, tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.floating]
IntArray: TypeAlias = npt.NDArray[np.intp]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Table: TypeAlias = dict[str, npt.NDArray[Any]]
"""Columns of equal length, by name, as ``pandas.DataFrame`` accepts them.

A column of text has the dtype object.
"""

LateAnswer: TypeAlias = tuple[int, int]
"""An answer that arrived after its round had closed: the numbers of the round and the worker."""


FlawKind: TypeAlias = Literal["diverged", "raised", "crashed", "hung"]
"""The fault of one model's part of a result.

``diverged``: the values cannot be used. ``raised``: the computation raised an error. ``crashed``:
it ended worker processes. ``hung``: it kept workers busy beyond the time limit.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """The reason why one model's part of a result cannot be used. ``why`` is one line."""

    kind: FlawKind
    why: str


class FlawedResult(Exception):
    """The exception of a compute function whose result has parts that cannot be used.

    ``result`` has zeros for these parts, and ``flaws`` describes them by model.
    """

    def __init__(self, result: FloatArray, flaws: Mapping[str, Flaw]) -> None:
        self.result, self.flaws = result, flaws
        super().__init__("; ".join(f"{model}: {flaw.why}" for model, flaw in flaws.items()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniTask:
    """One result that a worker has to compute: ``sum_k coefficients[k] * g_{chunks[k]}(job)``.

    ``g_c(job)`` is the gradient of chunk ``c`` of the job's batch. ``slot`` is the position of the
    mini-task in the worker's task of the round (``j`` in docs/mathematics.md, section 3.3).
    ``chunks`` and ``coefficients`` are read-only arrays of the same length.

    In some codes, a gradient is a plain sum of results. Such a sum is a cover, and each of its
    terms is a place. ``cover`` is then the number of the sum within the job, and ``place`` is the
    number of the term. The decoding adds one result for each place, with weight 1. All results for
    the same place are equal, so the first one can be added when it arrives. If ``cover`` is None,
    the weights are determined when the job is decoded.
    """

    job: int
    slot: int
    chunks: IntArray
    coefficients: FloatArray
    cover: int | None = None
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A reference to the result of a mini-task, and the result's weight in a job's gradient."""

    worker: int
    round: int
    slot: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of the ``of`` parts whose sum is the gradient of a job; ``index`` is its number.

    If ``again``, the part has been decoded before, and is applied to the weights a second time.
    """

    index: int
    of: int
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """The gradient of a job as a weighted sum of results of mini-tasks.

    ``error`` is an upper bound on the error of an approximate decoding (see
    `GradientCode.approximation`). ``lost`` lists the chunks of the job that no term contains;
    training draws these data again for a later job.

    If ``part`` is given, the sum is only one part of the gradient. Its terms have equal weights and
    form the cover whose number is the part's index (see `MiniTask`). Usually each part is decoded
    once, and the job ends with its last part. If a policy may repeat parts, ``ends`` lists the jobs
    that end with this part, and any part of another job may come again.
    """

    job: int
    terms: tuple[Term, ...]
    error: float = 0.0
    part: Part | None = None
    lost: tuple[int, ...] = ()
    ends: tuple[int, ...] | None = None

    @property
    def share(self) -> float:
        """The fraction of the job's data that this decoding adds: 1, a part's share, or 0."""
        if self.part is None:
            return 1.0
        return 0.0 if self.part.again else 1 / self.part.of


class ResultForm(NamedTuple):
    """The shape (``size``,) and ``dtype`` of a job's results and of its gradient.

    The slices ``marks`` select numbers that are never negative. Only whether their weighted sum is
    positive matters, so they are summed with the absolute values of the decoding weights. In this
    way they cannot cancel.
    """

    dtype: np.dtype[np.floating]
    size: int
    marks: tuple[slice, ...] = ()


class TaskPhases(NamedTuple):
    """The seconds that a worker spent on a task, by its own clock.

    ``waited_s``: the task waited for an earlier task of the same worker. ``started_s``: the worker
    prepared itself, for example by building a model at a cold start. ``fetched_s``: it fetched
    weights. ``computed_s``: it computed, without the other phases. The clocks of master and worker
    are not compared: what is left of the time that the master measured was spent on the way, there
    and back, or in an injected delay.
    """

    waited_s: float = 0.0
    started_s: float = 0.0
    fetched_s: float = 0.0
    computed_s: float = 0.0


# ---- the tasks of workers -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRef:
    """A reference to one immutable version of a model's weights, with its digest."""

    model: str
    version: int
    digest: str  # SHA-256 of the raw bytes, hexadecimal
    dtype: str
    size: int  # number of parameters


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightedPoints:
    """A weighted sum of gradients of one model: ``sum_p coefficients[p] * grad loss(points[p])``.

    ``points`` (m,) are indices into the model's dataset. ``coefficients`` (m,) already contain the
    division by the batch size. The result consists of pieces: the gradient, the loss, and other
    numbers for the training. ``pieces`` lists their lengths. If results are sent in 16 bits, each
    piece is rounded at its own scale. If ``pieces`` is empty, the result is only a gradient.

    ``weights`` refers to a vector that contains the model's parameters. ``span`` is the position of
    the first parameter and the position after the last one. If it is None, the whole vector belongs
    to the model.
    """

    model: str
    weights: WeightRef
    points: IntArray
    coefficients: FloatArray
    pieces: tuple[int, ...] = ()
    span: tuple[int, int] | None = None

    def parameters(self, fetch: Callable[[WeightRef], FloatArray]) -> FloatArray:
        """Return the model's parameters (P,), a view of the vector that ``fetch`` returns."""
        vector = fetch(self.weights)
        return vector if self.span is None else vector[slice(*self.span)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkItem:
    """A mini-task as data points. Its result is the concatenation of the results of its parts."""

    slot: int
    parts: tuple[WeightedPoints, ...]  # one for each model of the job


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """The work of one worker in one round. If ``items`` is empty, the worker answers at once.

    ``load`` is the worker's share of a job's batch in the round (`Dispatch.loads`), or 0 if it is
    unknown. The load is not sent to the worker.

    If ``item_loads`` has the load of each item, the worker answers each item as soon as it is done
    (`Dispatch.item_loads`).
    """

    round: int
    worker: int
    attempt: int
    items: tuple[WorkItem, ...]
    load: float = 0.0
    item_loads: tuple[float, ...] = ()
