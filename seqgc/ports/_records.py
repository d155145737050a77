"""Array aliases, and the records that every room shares: mini-tasks, decodings, tasks."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Why a model's part of a result is of no use; ``why`` is one line."""

    kind: FlawKind
    why: str


class FlawedResult(Exception):
    """What computes a result raises it where parts are of no use: zeros stand in their places."""

    def __init__(self, result: FloatArray, flaws: Mapping[str, Flaw]) -> None:
        self.result, self.flaws = result, flaws
        super().__init__("; ".join(f"{model}: {flaw.why}" for model, flaw in flaws.items()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniTask:
    """One result that a worker owes: ``sum_k coefficients[k] * g_{chunks[k]}(job)``.

    ``slot`` is the mini-task's position in the worker's task of the round (``j`` in
    docs/mathematics.md, section 3.3); ``chunks`` and ``coefficients`` are read-only arrays of one
    length.

    Where results only ever enter a gradient as parts of a plain sum, ``cover`` numbers that sum
    within the job and ``place`` the summand: a decoding that uses one result of a cover uses one of
    each of its places, all with weight 1, and results of one place are equal. Whoever gathers
    results can add the first of each place as it arrives. None: weights are known at the end only.
    """

    job: int
    slot: int
    chunks: IntArray
    coefficients: FloatArray
    cover: int | None = None
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One received mini-task result and its weight in a job's gradient."""

    worker: int
    round: int
    slot: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One worker's share of a job: ``index`` of the ``of`` parts that add up to its gradient.

    ``again``: it has been decoded before, and moves the weights once more (`Decoding.ends`).
    """

    index: int
    of: int
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """A job's gradient as a weighted sum of received mini-task results.

    ``error`` bounds what an approximate decoding leaves out (see `GradientCode.approximation`);
    ``lost`` are the job's chunks that no term holds, nor ever will: data that it was made without,
    and that training draws once more for a later job.
    Or only a ``part`` of it, by itself: the terms, of one weight, are then the part's whole cover,
    which has the part's index for its number, and each part of a job is decoded once.

    Unless a policy may have parts done again that are in already: then it says with each part which
    jobs' last it is, ``ends``, perhaps none. Until then any part of these may come (once more).
    None: a job ends with the last of its parts.
    """

    job: int
    terms: tuple[Term, ...]
    error: float = 0.0
    part: Part | None = None
    lost: tuple[int, ...] = ()
    ends: tuple[int, ...] | None = None

    @property
    def share(self) -> float:
        """How much of a job's data is in with it that was not before: all, a part, or nothing."""
        if self.part is None:
            return 1.0
        return 0.0 if self.part.again else 1 / self.part.of


class ResultForm(NamedTuple):
    """The form of a job's results, and so of its gradient: vectors (``size``,) of ``dtype``.

    The numbers in the slices ``marks`` are never negative, and all that matters of their sum is
    whether it is above 0. They are combined with the absolute values of a decoding's weights, so
    that they never cancel.
    """

    dtype: np.dtype[np.floating]
    size: int
    marks: tuple[slice, ...] = ()


# ---- what a worker is asked to do ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRef:
    """Where one immutable version of a model's weights is, and the digest it must have."""

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
    gradient, the loss, then whatever else training needs. Where results travel in 16 bits, each
    piece is rounded at a scale of its own. If ``pieces`` is empty, the result is a gradient alone.
    """

    model: str
    weights: WeightRef
    points: IntArray
    coefficients: FloatArray
    pieces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkItem:
    """One mini-task, resolved to data points: one result vector, the parts' in order."""

    slot: int
    parts: tuple[WeightedPoints, ...]  # one per model of the job's bundle


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """Everything one worker does in one round (``items`` may be empty: answer at once).

    ``load`` is the share of a job's batch that the worker has in the round (`Dispatch.loads`), 0 if
    nobody said. It stays with the master.
    """

    round: int
    worker: int
    attempt: int
    items: tuple[WorkItem, ...]
    load: float = 0.0
