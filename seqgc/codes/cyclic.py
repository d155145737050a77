"""`CyclicCode`: consecutive chunks, any ``n - s`` workers suffice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from seqgc._types import BoolArray, FloatArray
from seqgc.codes._base import GradientCode, Layout
from seqgc.codes._cyclic_design import design

__all__ = ["CyclicCode"]


@final
@dataclass(frozen=True)
class CyclicCode(GradientCode):
    """Cyclic repetition (Tandon et al. 2017, section 5): any ``n - s`` of ``n`` workers suffice.

    Worker ``i`` holds chunks ``i, i+1, ..., i+s (mod n)``, in this order.

    If ``s + 1`` divides ``n``, all coefficients are 1: workers ``c, c+s+1, c+2(s+1), ...`` cover
    every chunk once, and ``s`` stragglers cannot be in all ``s + 1`` of these classes
    (Charalambides, Mahdavifar, Hero 2020). The decoding vector is 1 on the first class that
    answered as a whole: no equations, no rounding errors but those of a sum, and the fewest
    results to add.

    Otherwise the coefficients have unit norm and come from angles spread around the circle
    (`seqgc.codes._cyclic_design` says why), and decoding solves ``s`` equations. Some sets of
    stragglers are then much worse than others: where the answers' rounding errors would be
    amplified too much, `IllConditionedError` says so.

    Examples
    --------
    >>> import numpy as np
    >>> code = CyclicCode(5, 2)
    >>> code.support(4)
    array([4, 0, 1])
    >>> responded = np.array([True, False, True, False, True])
    >>> np.allclose(code.decoding_vector(responded) @ code.encoding_matrix, 1.0)
    True
    """

    def _check_parameters(self) -> None:
        """Every ``0 <= s < n`` will do."""

    def _make_layout(self) -> Layout:
        windows = (np.arange(self.n)[:, None] + np.arange(self.s + 1)) % self.n
        return Layout(
            supports=tuple(windows),
            chunk_fractions=np.full(self.n, 1.0 / self.n),
            load=(self.s + 1) / self.n,
        )

    def _coefficients(self, worker: int) -> FloatArray:
        if self._is_plain():
            return np.ones(self.s + 1)
        row: FloatArray = design(self.n, self.s).coefficients[worker]
        return row

    def _is_decodable(self, responded: BoolArray) -> bool:
        return int(np.count_nonzero(responded)) >= self.n - self.s

    def _is_plain(self) -> bool:
        return self.n % (self.s + 1) == 0

    def _solve(self, responded: BoolArray) -> FloatArray:
        return self._add(responded) if self._is_plain() else self._solve_equations(responded)

    def _add(self, responded: BoolArray) -> FloatArray:
        classes = responded.reshape(-1, self.s + 1)
        vector = np.zeros(self.n)
        vector[classes.all(axis=0).argmax() :: self.s + 1] = 1.0
        return vector

    def _solve_equations(self, responded: BoolArray) -> FloatArray:
        chosen = design(self.n, self.s)
        shortest, null_space = chosen.shortest, chosen.null_space
        missing = np.flatnonzero(~responded)
        # All solutions are shortest - z @ null_space. Those that vanish on the missing workers have
        # z @ null_space[:, missing] == shortest[missing], and the shortest z gives the shortest a.
        basis, triangle = np.linalg.qr(null_space[:, missing])
        try:
            z = basis @ np.linalg.solve(triangle.T, shortest[missing])
        except np.linalg.LinAlgError:
            raise self._ill_conditioned("the equations are singular", math.inf) from None
        vector: FloatArray = shortest - z @ null_space
        vector[missing] = 0.0
        return vector
