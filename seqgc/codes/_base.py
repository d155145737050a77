"""`GradientCode`: what every gradient code can do, and the guard on every decoding."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from seqgc._types import BoolArray, FloatArray, IntArray
from seqgc.codes._checks import check_mask, check_rows, check_worker, integer
from seqgc.codes._linear import combine
from seqgc.errors import IllConditionedError, NotDecodableError, ParameterError

__all__ = ["DEFAULT_TOLERANCE", "GradientCode", "Layout"]

DEFAULT_TOLERANCE = 1e-4
"""Largest expected relative error of a decoded gradient that `GradientCode.decode` lets pass."""

# A decoding vector's own relative error in float64; far above rounding, far below any use of it.
_RESIDUAL_TOLERANCE = 1e-9

_KEPT_VECTORS = 1024

# Below this only wider results can help: the plain sum of all chunks has 1.
_HARMLESS_AMPLIFICATION = 4.0

# Rounding a normal deviate to the nearest float errs by 0.2 epsilon (root mean square, relative to
# the deviate's own): ulps are log-uniform within a binade, so sqrt(ln 4 / 36). Rounded up.
_ROUNDING = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Who holds what: ``supports[i]`` are worker ``i``'s chunks, in the order of its coefficients.

    ``chunk_fractions`` (k,) are the chunks' shares of the batch; ``load`` is the exact load.
    """

    supports: tuple[IntArray, ...]
    chunk_fractions: FloatArray
    load: float

    def __post_init__(self) -> None:
        for array in (*self.supports, self.chunk_fractions):
            array.setflags(write=False)


@dataclass(frozen=True)
class GradientCode(ABC):
    """An (n, s) gradient code: ``n`` workers, any ``s`` of which may be missing.

    Worker ``i`` returns ``l_i = sum_k encoding_matrix[i, k] * g_k``; from the workers that
    answered, the decoding vector ``a`` satisfies ``a @ encoding_matrix == 1``, so ``a @ l`` is the
    gradient ``sum_k g_k`` (Tandon et al. 2017, section 2; a row of their ``B`` is a worker's).
    Immutable, picklable, equal and hashable by content.

    Parameters
    ----------
    n, s : int
        Workers, and stragglers tolerated whoever they are; ``0 <= s < n``.

    Raises
    ------
    ParameterError
        If ``n`` or ``s`` is out of range for the family.

    Examples
    --------
    >>> from seqgc.codes import make_code
    >>> code = make_code("rep", 4, 1)
    >>> partials = np.arange(8.0).reshape(4, 2)  # of 4 chunks, 2 parameters
    >>> results = np.stack([code.encode(i, partials[code.support(i)]) for i in range(4)])
    >>> code.decode(results, np.array([True, False, False, True]))  # workers 1 and 2 are lost
    array([12., 16.])
    """

    n: int
    s: int

    def __post_init__(self) -> None:
        # Frozen: only construction may set a field.
        object.__setattr__(self, "n", integer("n", self.n))
        object.__setattr__(self, "s", integer("s", self.s))
        if self.n < 1:
            raise ParameterError("n", "must be at least 1", self.n)
        if not 0 <= self.s < self.n:
            raise ParameterError("s", f"must satisfy 0 <= s < n, n={self.n}", self.s)
        self._check_parameters()

    def __reduce__(self) -> tuple[type[GradientCode], tuple[int, int]]:
        return type(self), (self.n, self.s)

    @property
    def load(self) -> float:
        """Largest fraction of the batch that a worker touches."""
        return self._layout.load

    @property
    def chunk_fractions(self) -> FloatArray:
        """Each chunk's share of the batch, (k,) float64, read-only; sums to 1."""
        return self._layout.chunk_fractions

    @cached_property
    def encoding_matrix(self) -> FloatArray:
        """Row ``i`` holds worker ``i``'s coefficients on all chunks: (n, k) float64, read-only."""
        matrix = np.zeros((self.n, self.chunk_fractions.size))
        for worker, row in enumerate(matrix):
            row[self.support(worker)] = self.coefficients(worker)
        matrix.setflags(write=False)
        return matrix

    def support(self, worker: int) -> IntArray:
        """Return the chunks that ``worker`` holds, in the order of `coefficients` and `encode`."""
        return self._layout.supports[check_worker(worker, self.n)]

    def coefficients(self, worker: int) -> FloatArray:
        """Return ``worker``'s coefficients (|support|,) in the order of `support`, read-only."""
        return self._rows[check_worker(worker, self.n)]

    def encode(self, worker: int, partials: FloatArray) -> FloatArray:
        """Return ``worker``'s result.

        Parameters
        ----------
        worker : int
            ``0 <= worker < n``.
        partials : (|support|, p) floating
            The partial gradients of the worker's chunks, in the order of `support`.

        Returns
        -------
        (p,) array of the partials' dtype; sums are taken in float64.
        """
        values = self.coefficients(worker)
        check_rows("partials", partials, len(values), "(|support|, p)")
        return combine(values, partials)

    def can_decode(self, responded: BoolArray) -> bool:
        """Return whether these answers (n,) determine the gradient: combinatorial, no numerics."""
        return self._is_decodable(check_mask(responded, self.n))

    def decoding_vector(self, responded: BoolArray) -> FloatArray:
        """Return ``a`` with ``a @ encoding_matrix == 1``, zero where not ``responded``.

        Parameters
        ----------
        responded : (n,) bool

        Returns
        -------
        (n,) float64, read-only

        Raises
        ------
        NotDecodableError
            If not `can_decode`.
        IllConditionedError
            If ``a`` solves its equations too badly, or float64 results would be too inexact.
        """
        key = check_mask(responded, self.n).tobytes()
        if key in self._vectors:
            return self._vectors[key]
        if not self._is_decodable(responded):
            raise NotDecodableError(
                f"{self!r}: the {np.count_nonzero(responded)} workers that answered do not"
                " determine the gradient; wait for more answers"
            )
        vector = self._guarded(self._solve(responded))
        if len(self._vectors) >= _KEPT_VECTORS:
            self._vectors.clear()
        self._vectors[key] = vector
        return vector

    def _guarded(self, vector: FloatArray) -> FloatArray:
        # Its norm over that of the ones is the relative error that iid partial gradients suffer.
        residual = vector @ self.encoding_matrix - 1.0
        error = float(np.linalg.norm(residual)) / np.sqrt(residual.size)
        amplification = self.amplification(vector)
        if not error <= _RESIDUAL_TOLERANCE:
            raise self._ill_conditioned(
                f"the decoding vector's residual is {error:.1e}", amplification
            )
        self.check_amplification(vector, dtype=np.float64)
        vector.setflags(write=False)
        return vector

    def amplification(self, vector: FloatArray) -> float:
        """Return by how much decoding with ``vector`` (n,) amplifies rounding errors.

        ``sqrt(sum_i a_i^2 ||E_i||^2 / k)``, for rows of equal norm ``||a|| ||E||_F / sqrt(n k)``:
        if the partial gradients are iid, ``l_i`` has variance ``||E_i||^2`` and the gradient ``k``,
        so this is the gradient's relative error over the results' (root mean squares). The sum of
        all chunks, without a code, has 1.
        """
        variance = float(np.square(vector) @ self._row_squares)
        return math.sqrt(variance / self.chunk_fractions.size)

    def check_amplification(
        self, vector: FloatArray, *, dtype: npt.DTypeLike, tolerance: float = DEFAULT_TOLERANCE
    ) -> None:
        """Refuse to decode results of ``dtype`` with ``vector`` (n,) where that is too inexact.

        Raises
        ------
        IllConditionedError
            If the expected relative error, amplification times a quarter of ``dtype``'s epsilon,
            exceeds ``tolerance`` (amplifications up to 4 pass: no code would do much better).
        """
        if not tolerance > 0:
            raise ParameterError("tolerance", "must be positive", tolerance)
        amplification = self.amplification(vector)
        error = amplification * _ROUNDING * float(np.finfo(dtype).eps)
        if error > tolerance and amplification > _HARMLESS_AMPLIFICATION:
            raise self._ill_conditioned(
                f"{np.dtype(dtype)} results would give a relative error of {error:.1e}",
                amplification,
            )

    def decode(
        self,
        results: FloatArray,
        responded: BoolArray,
        *,
        tolerance: float = DEFAULT_TOLERANCE,
    ) -> FloatArray:
        """Return the gradient.

        Parameters
        ----------
        results : (n, p) floating
            Row ``i`` is what worker ``i`` returned; where not ``responded`` it may hold anything.
        responded : (n,) bool
        tolerance : float
            Largest expected relative error that is let pass (see `check_amplification`).

        Returns
        -------
        (p,) array of the results' dtype; sums are taken in float64.

        Raises
        ------
        NotDecodableError
            If not `can_decode`.
        IllConditionedError
            If the survivors' rounding errors would be amplified beyond ``tolerance``.
        """
        check_rows("results", results, self.n, "(n, p)")
        vector = self.decoding_vector(responded)
        self.check_amplification(vector, dtype=results.dtype, tolerance=tolerance)
        return combine(vector, results)

    # ---- what a family supplies ------------------------------------------------------------------

    @abstractmethod
    def _check_parameters(self) -> None:
        """Raise `ParameterError` where the family asks for more than ``0 <= s < n``."""

    @abstractmethod
    def _make_layout(self) -> Layout:
        """Return who holds what; cheap."""

    @abstractmethod
    def _coefficients(self, worker: int) -> FloatArray:
        """Return a valid worker's coefficients, in the order of its support."""

    @abstractmethod
    def _is_decodable(self, responded: BoolArray) -> bool:
        """Say whether a valid mask (n,) suffices."""

    @abstractmethod
    def _solve(self, responded: BoolArray) -> FloatArray:
        """Return the decoding vector (n,) of a decodable mask; the caller guards it."""

    # ---- made once -------------------------------------------------------------------------------

    @cached_property
    def _layout(self) -> Layout:
        return self._make_layout()

    @cached_property
    def _rows(self) -> tuple[FloatArray, ...]:
        rows = tuple(self._coefficients(worker) for worker in range(self.n))
        for row in rows:
            row.setflags(write=False)
        return rows

    @cached_property
    def _vectors(self) -> dict[bytes, FloatArray]:
        return {}  # the latest survivor sets: rounds, and the groups of one job, repeat them

    @cached_property
    def _row_squares(self) -> FloatArray:
        squares: FloatArray = np.square(self.encoding_matrix).sum(axis=1)
        return squares

    def _ill_conditioned(self, what: str, amplification: float) -> IllConditionedError:
        return IllConditionedError(
            f"{self!r}: {what} (amplification {amplification:.1e}); wait for one more answer,"
            " send wider results, or use a repetition or binary code",
            amplification=amplification,
        )
