"""Array aliases, and the two records that every room shares: mini-tasks and decodings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["BoolArray", "Decoding", "FloatArray", "IntArray", "MiniTask", "Term"]

FloatArray: TypeAlias = npt.NDArray[np.floating]
IntArray: TypeAlias = npt.NDArray[np.intp]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniTask:
    """One result that a worker owes: ``sum_k coefficients[k] * g_{chunks[k]}(job)``.

    ``slot`` is the mini-task's place in the worker's task of the round (spec, section 3.3: ``j``);
    ``chunks`` and ``coefficients`` are read-only arrays of one length.
    """

    job: int
    slot: int
    chunks: IntArray
    coefficients: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One received mini-task result and its weight in a job's gradient."""

    worker: int
    round: int
    slot: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """A job's gradient as a weighted sum of received mini-task results."""

    job: int
    terms: tuple[Term, ...]
