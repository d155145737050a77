"""How decoding vectors are found: by looking for whole covers, or by solving ``s`` equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from seqgc.ports import BoolArray, FloatArray, IntArray

__all__ = ["CoverDecoder", "Decoder", "NullSpaceDecoder", "Solved"]

# Longer chains of updates would cost more than one new solution, and gather rounding errors.
_MOST_UPDATES = 8

# A vector with a larger residual is neither taken from an update, nor what one starts from: after
# a nearly singular set, only solving anew gives what its neighbours deserve.
_CLEAN_RESIDUAL = 1e-12


class Decoder(Protocol):
    """Decides which answers suffice, and turns them into a decoding vector."""

    @property
    def covers(self) -> tuple[IntArray, ...]: ...
    def suffices(self, responded: BoolArray) -> bool: ...
    def solve(self, responded: BoolArray) -> Solved | None:
        """Return ``a``; None if answers do not suffice; LinAlgError: the equations are singular."""


class Solved(NamedTuple):
    """A decoding ``vector`` (n,), and a bound on the norm of its ``residual`` ``a @ E - 1``."""

    vector: FloatArray
    residual: float


class CoverDecoder:
    """For codes whose gradient is a plain sum of some of the results.

    Parameters
    ----------
    n : int
        Workers.
    covers
        Each an array (candidates, places) of workers. The workers of one place (column) return
        equal results, and the places of a cover partition the batch: one answer of every place of
        any one cover adds up to the gradient. The earlier cover and the higher row come first.

    Examples
    --------
    >>> decoder = CoverDecoder(4, (np.array([[0, 2], [1, 3]]),))
    >>> decoder.solve(np.array([False, True, True, True]))
    Solved(vector=array([0., 1., 1., 0.]), residual=0.0)
    """

    def __init__(self, n: int, covers: tuple[IntArray, ...]) -> None:
        for cover in covers:
            cover.setflags(write=False)
        self.covers = covers
        self._n = n
        # Covers of one shape are looked at together: an all-ones cyclic code has s + 1 of them.
        shapes = dict.fromkeys(cover.shape for cover in covers)
        self._stacks = [np.stack([c for c in covers if c.shape == shape]) for shape in shapes]

    def suffices(self, responded: BoolArray) -> bool:
        return any(_whole(responded[stack]).any() for stack in self._stacks)

    def solve(self, responded: BoolArray) -> Solved | None:
        for stack in self._stacks:
            answered = responded[stack]  # (covers, candidates, places)
            whole = _whole(answered)
            first = whole.argmax()
            if whole[first]:
                rows = answered[first].argmax(axis=0)
                vector = np.zeros(self._n)
                vector[stack[first][rows, np.arange(rows.size)]] = 1.0
                return Solved(vector, 0.0)
        return None


def _whole(answered: BoolArray) -> BoolArray:
    """Return whether (covers, candidates, places) has an answer in every place: (covers,)."""
    whole: BoolArray = np.logical_and.reduce(np.logical_or.reduce(answered, axis=1), axis=1)
    return whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Solution:
    """The shortest ``z`` (s,) with ``z @ null_space[:, missing] == shortest[missing]``.

    ``dual`` (s, m) is the basis of the span of these m columns that is dual to them.
    """

    missing: IntArray
    z: FloatArray
    dual: FloatArray

    def without(self, position: int) -> _Solution:
        """Return the solution once ``missing[position]`` has answered, in ``s m`` operations.

        The dual vector ``p`` of the column that goes is the one direction of the span orthogonal to
        all columns that stay: taking it out of ``z`` leaves the shortest ``z`` of their equations,
        and taking it out of the other dual vectors leaves their dual basis.
        """
        p = self.dual[:, position]
        p = p / math.sqrt(p @ p)
        dual = np.delete(self.dual, position, axis=1)
        return _Solution(
            missing=np.delete(self.missing, position),
            z=self.z - p * (p @ self.z),
            dual=dual - np.outer(p, p @ dual),
        )


class Equations(Protocol):
    """All decoding vectors ``shortest - z @ null_space`` of a code, with no worker missing.

    ``shortest`` (n,) is the shortest of them; ``null_space`` (s, n) an orthonormal basis of the
    encoding matrix's left null space, to which it is orthogonal.
    """

    @property
    def shortest(self) -> FloatArray: ...
    @property
    def null_space(self) -> FloatArray: ...


class NullSpaceDecoder:
    """For codes any ``n - s`` of whose results decode, by equations of size ``s``.

    All solutions of ``a @ E == 1`` are ``shortest - z @ null_space``. Those that vanish on the
    missing workers have ``z @ null_space[:, missing] == shortest[missing]``; the shortest such
    ``z`` gives the shortest ``a``, which uses all survivors. One more answer takes one equation
    away: the solution is updated, not found anew.

    Parameters
    ----------
    s : int
        Workers that may be missing.
    equations
        Makes the equations when a vector is first asked for: which answers suffice is known
        without them.
    matrix
        Makes the encoding matrix E (n, k), by which vectors are judged.
    """

    covers: tuple[IntArray, ...] = ()

    def __init__(
        self, s: int, equations: Callable[[], Equations], matrix: Callable[[], FloatArray]
    ) -> None:
        self._s, self._equations, self._matrix = s, equations, matrix
        self._missing: IntArray | None = None  # of the latest solution
        self._latest: _Solution | None = None  # made when an update first asks for it

    def suffices(self, responded: BoolArray) -> bool:
        return int(np.count_nonzero(~responded)) <= self._s

    @cached_property
    def _shortest(self) -> FloatArray:
        return self._equations().shortest

    @cached_property
    def _null_space(self) -> FloatArray:
        return self._equations().null_space

    def solve(self, responded: BoolArray) -> Solved | None:
        missing = np.flatnonzero(~responded)
        if missing.size > self._s:
            return None
        z = self._updated(missing)
        solved = None if z is None else self._judged(z, missing)
        if solved is None or not solved.residual <= _CLEAN_RESIDUAL:
            self._latest = None
            solved = self._judged(self._solved(missing), missing)
        self._missing = missing if solved.residual <= _CLEAN_RESIDUAL else None
        return solved

    def _judged(self, z: FloatArray, missing: IntArray) -> Solved:
        vector: FloatArray = self._shortest - z @ self._null_space
        unsolved = vector[missing]
        vector[missing] = 0.0
        # a @ E - 1 is what `shortest` leaves, less z times null_space @ E, which is 0 but for
        # rounding, less the missing workers' own part: bounded without a product of size n.
        of_shortest, of_null_space, of_rows = self._flaws
        residual = of_shortest + math.sqrt(z @ z) * of_null_space
        return Solved(vector, residual + math.sqrt(unsolved @ unsolved) * of_rows)

    @cached_property
    def _flaws(self) -> tuple[float, float, float]:
        """Return norms: of ``shortest @ E - 1``, of ``null_space @ E``, and of E."""
        matrix = self._matrix()
        return (
            float(np.linalg.norm(self._shortest @ matrix - 1.0)),
            float(np.linalg.norm(self._null_space @ matrix)),
            float(np.linalg.norm(matrix)),
        )

    def _solved(self, missing: IntArray) -> FloatArray:
        columns, right = self._null_space[:, missing], self._shortest[missing]
        if missing.size == len(columns):
            return np.linalg.solve(columns.T, right)
        basis, triangle = np.linalg.qr(columns)
        return basis @ np.linalg.solve(triangle.T, right)

    def _updated(self, missing: IntArray) -> FloatArray | None:
        """Return ``z`` from the latest solution, if since then workers have but answered."""
        before = self._missing
        if before is None or not 0 < before.size - missing.size <= _MOST_UPDATES:
            return None
        answered = np.setdiff1d(before, missing, assume_unique=True)
        if answered.size != before.size - missing.size:
            return None
        try:
            solution = self._latest or self._with_dual(before)
        except np.linalg.LinAlgError:
            return None
        for worker in answered:
            solution = solution.without(int(np.searchsorted(solution.missing, worker)))
        self._latest = solution
        return solution.z

    def _with_dual(self, missing: IntArray) -> _Solution:
        columns = self._null_space[:, missing]
        if missing.size == len(columns):
            dual = np.linalg.inv(columns).T
        else:
            basis, triangle = np.linalg.qr(columns)
            dual = basis @ np.linalg.inv(triangle).T
        return _Solution(missing=missing, z=dual @ self._shortest[missing], dual=dual)
