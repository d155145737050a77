"""Array aliases, and the records that every room shares: mini-tasks, decodings, tasks."""

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
"""Columns by name, all of one length: what ``pandas.DataFrame`` takes. Texts are objects."""

LateAnswer: TypeAlias = tuple[int, int]
"""An answer that came after its round had closed: the round, and the worker."""


FlawKind: TypeAlias = Literal["diverged", "raised", "crashed", "hung"]
"""The fault of a model's part of a result.

Its values cannot be used (``diverged``); or computing it ``raised`` an error, ended the processes
of workers (``crashed``), or kept workers busy beyond the time limit (``hung``).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """The reason why a model's part of a result cannot be used; ``why`` is one line."""

    kind: FlawKind
    why: str


class FlawedResult(Exception):
    """Raised by a compute function if parts of its result cannot be used; they are zeros."""

    def __init__(self, result: FloatArray, flaws: Mapping[str, Flaw]) -> None:
        self.result, self.flaws = result, flaws
        super().__init__("; ".join(f"{model}: {flaw.why}" for model, flaw in flaws.items()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniTask:
    """One result that a worker owes: ``sum_k coefficients[k] * g_{chunks[k]}(job)``.

    ``slot`` is the mini-task's position in the worker's task of the round (``j`` in
    docs/mathematics.md, section 3.3); ``chunks`` and ``coefficients`` are read-only arrays of one
    length.

    If results enter gradients only as terms of a plain sum, ``cover`` is the number of this sum
    within the job, and ``place`` the number of the term. A decoding that uses a result of a cover
    uses one result for each of its places, all with weight 1, and the results for one place are
    equal: the first result for each place can be added as it arrives. If ``cover`` is None, the
    weights are known only when the job is decoded.
    """

    job: int
    slot: int
    chunks: IntArray
    coefficients: FloatArray
    cover: int | None = None
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A received mini-task result, and its weight in a job's gradient."""

    worker: int
    round: int
    slot: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One worker's share of a job: ``index`` of the ``of`` parts that add up to its gradient.

    If ``again``, the part has been decoded before and moves the weights once more.
    """

    index: int
    of: int
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """A job's gradient as a weighted sum of received mini-task results.

    ``error`` bounds what an approximate decoding leaves out (see `GradientCode.approximation`).
    ``lost`` are the chunks of the job that no term contains; training draws these data again for a
    later job.

    If ``part`` is given, this is one part of the gradient: its terms, all of one weight, are the
    cover whose number is the part's index. Each part is decoded once, and the job ends with its
    last part. The exception is a policy that may repeat parts: with each part it gives the jobs
    that ``ends`` with it, perhaps none, and any part may come again until then.
    """

    job: int
    terms: tuple[Term, ...]
    error: float = 0.0
    part: Part | None = None
    lost: tuple[int, ...] = ()
    ends: tuple[int, ...] | None = None

    @property
    def share(self) -> float:
        """The share of the job's data that this decoding adds: all, a part, or nothing."""
        if self.part is None:
            return 1.0
        return 0.0 if self.part.again else 1 / self.part.of


class ResultForm(NamedTuple):
    """The form of a job's results and of its gradient: vectors (``size``,) of ``dtype``.

    The numbers in the slices ``marks`` are not negative, and of their sum only the sign is used:
    0 or above. They are combined with the absolute values of the decoding weights, so that they
    never cancel.
    """

    dtype: np.dtype[np.floating]
    size: int
    marks: tuple[slice, ...] = ()


# ---- what a worker is asked to do ---------------------------------------------------------------


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
    """``sum_p coefficients[p] * grad loss(points[p])`` of one model at one version of its weights.

    ``points`` (m,) are indices into the model's dataset; ``coefficients`` (m,) already contain the
    division by the batch size. ``pieces`` are the lengths of the pieces of the part's result: the
    gradient, the loss, then the other numbers that training needs. If results travel in 16 bits,
    each piece is rounded at its own scale. If ``pieces`` is empty, the result is a gradient alone.
    ``span`` is where the model's parameters are in ``weights``: the first position, and the
    position after the last. If it is None, they are all of the vector.
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
    """A mini-task resolved to data points; its result joins the vectors of the parts in order."""

    slot: int
    parts: tuple[WeightedPoints, ...]  # one per model of the job's bundle


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """The work of one worker in one round; without ``items`` it is to answer at once.

    ``load`` is the worker's share of a job's batch in the round (`Dispatch.loads`), 0 if it is not
    known. It stays with the master.
    """

    round: int
    worker: int
    attempt: int
    items: tuple[WorkItem, ...]
    load: float = 0.0
