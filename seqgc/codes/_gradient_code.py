"""`GradientCode`: a code, its exact and its approximate decoding, and the check of their errors.

Theory of operation
-------------------
A batch is cut into ``k`` chunks, and the gradient is the sum of their partial gradients ``g_k``.
Worker ``i`` holds the chunks of its *support* and returns one vector, ``l_i = sum_k E[i, k] g_k``.
Row ``i`` of the *encoding matrix* ``E`` (n, k) contains its coefficients, and zeros elsewhere. If
the vector of ones is a combination of the rows of the workers that answered, ``a @ E == 1``, then
``sum_i a_i l_i`` is the gradient for any partial gradients (Tandon et al. 2017, section 2; their
``B`` is ``E`` here). For an (n, s) code, such an ``a`` exists whichever ``s`` workers are missing.
Therefore every chunk is held by at least ``s + 1`` workers, and the largest load of a worker is at
least ``(s + 1)/n`` (their theorem 1).

A code answers three questions. Each answer is computed when it is first needed, and then cached:

1. Do the answers received suffice (`ExactCode.can_decode`)? The question is asked each time an
   answer arrives, and is decided by counting.
2. Which worker holds which chunks (`Layout`)? The question is asked when tasks are created, and
   takes integers only.
3. Which coefficients does a worker use, and which ``a`` decodes? The question is asked once for
   each job, but never in a replay. It takes floating point, and the design of a cyclic code may
   take a second.

A vector that solves its equations can still be useless: results arrive rounded, and ``a``
multiplies their errors. The amplification ``||a|| ||E||`` shows this; the residual ``a @ E - 1``
does not. Both are checked, and an error is raised instead of returning a useless gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np

from seqgc.codes._arrays import Span, check_mask, check_rows, check_tolerance, combine, read_only
from seqgc.codes._decoders import CoverDecoder, Decoder, SpanDecoder
from seqgc.errors import IllConditionedError, NotDecodableError, ParameterError, require_int
from seqgc.ports import BoolArray, FloatArray, IntArray, Payload, payload_format

# Largest relative error of a decoding vector in float64: far above rounding errors, and far below
# the accuracy that any user needs.
_RESIDUAL_TOLERANCE = 1e-9

_CACHED_VECTORS = 1024

# Least squares omits directions whose singular value is below this fraction of the largest: they
# amplify rounding errors by its inverse, and add little.
_LEAST_SINGULAR = 1e-6

# Largest relative difference between two ways to compute the same error bound.
_ERROR_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """The chunks of each worker, and their sizes.

    ``supports`` are n arrays of distinct integers ``0 <= chunk < k``: the chunks of each worker, in
    the order of its coefficients. ``sizes`` (k,) are the sizes of the chunks in any unit; integers
    keep loads exact.
    """

    supports: tuple[IntArray, ...]
    sizes: FloatArray | IntArray

    def __post_init__(self) -> None:
        for array in (*self.supports, self.sizes):
            read_only(array)


@dataclass(frozen=True)
class ExactCode(ABC):
    """The part of a `GradientCode` that decodes exactly."""

    n: int
    s: int

    def __post_init__(self) -> None:
        n, s = check_tolerance(self.n, self.s)
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "s", s)
        self._check_parameters()

    def __getstate__(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # no cached values

    @property
    def load(self) -> float:
        """The largest fraction of the batch that any worker processes."""
        return self._largest_load()

    def _largest_load(self) -> float:
        """Return `load`; a family can override this to avoid creating its layout."""
        return float(self.worker_loads.max())

    @cached_property
    def worker_loads(self) -> FloatArray:
        """Fraction of the batch that each worker processes: (n,) float64, read-only."""
        supports, sizes = self._layout.supports, self._layout.sizes
        workers = np.repeat(np.arange(self.n), [len(chunks) for chunks in supports])
        held = np.bincount(workers, weights=sizes[np.concatenate(supports)], minlength=self.n)
        return read_only(held / sizes.sum())

    @cached_property
    def chunk_fractions(self) -> FloatArray:
        """Each chunk's share of the batch, (k,) float64, read-only; sums to 1."""
        return read_only(self._layout.sizes / self._layout.sizes.sum())

    @cached_property
    def encoding_matrix(self) -> FloatArray:
        """The coefficients of all workers (rows) for all chunks: (n, k) float64, read-only."""
        matrix = np.zeros((self.n, self.chunk_fractions.size))
        for worker, row in enumerate(matrix):
            row[self.support(worker)] = self.coefficients(worker)
        return read_only(matrix)

    def support(self, worker: int) -> IntArray:
        """Return the chunks that ``worker`` holds, in the order of `coefficients` and `encode`."""
        return self._layout.supports[require_int("worker", worker, least=0, most=self.n - 1)]

    def coefficients(self, worker: int) -> FloatArray:
        """Return a worker's coefficients (|support|,) in the order of `support`; read-only."""
        return self._rows[require_int("worker", worker, least=0, most=self.n - 1)]

    def encode(self, worker: int, partials: FloatArray) -> FloatArray:
        """Return the result (p,) of ``worker``, ``0 <= worker < n``.

        ``partials`` (|support|, p) are the partial gradients of its chunks, in the order of
        `support`. Sums are taken in their dtype, or in float32 for float16.
        """
        values = self.coefficients(worker)
        check_rows("partials", partials, len(values), "(|support|, p)")
        return combine(values, partials)

    @cached_property
    def covers(self) -> tuple[IntArray, ...]:
        """The code's covers: arrays (candidates, places) of workers.

        The workers of one place (column) return equal results. The sum of one result from each
        place of a cover is the gradient. Therefore the gradient can be decoded when some cover has
        an answer in every place. A code that decodes by solving equations has no covers.
        """
        return tuple(read_only(cover) for cover in self._make_covers())

    def place_of(self, worker: int) -> tuple[int, int] | None:
        """Return the cover and the place that contain ``worker``; None if no cover contains it."""
        return self._places.get(require_int("worker", worker, least=0, most=self.n - 1))

    def can_decode(self, responded: BoolArray) -> bool:
        """Return whether these answers (n,) determine the gradient."""
        return self._decoder.suffices(check_mask(responded, self.n))

    def decoding_vector(self, responded: BoolArray) -> FloatArray:
        """Return the decoding vector ``a`` (n,), read-only, for the workers that responded.

        It satisfies ``a @ encoding_matrix == 1``, and is 0 where ``responded`` (n,) is False.

        Raises
        ------
        NotDecodableError
            If the answers do not determine the gradient (see `can_decode`).
        IllConditionedError
            If ``a`` solves its equations too inexactly, or amplifies the rounding errors of float64
            results too much.
        """
        key = check_mask(responded, self.n).tobytes()
        if key in self._vectors:
            return self._vectors[key]
        try:
            solved = self._decoder.solve(responded)
        except np.linalg.LinAlgError:
            raise self._ill_conditioned("the equations are singular", math.inf) from None
        if solved is None:
            raise self._not_decodable(responded)
        vector, residual = solved
        # Divided by the norm of the ones, this is the relative error for iid partial gradients.
        error = residual / math.sqrt(self.chunk_fractions.size)
        if not error <= _RESIDUAL_TOLERANCE:
            what = f"the decoding vector's residual is {error:.1e}"
            raise self._ill_conditioned(what, self.amplification(vector))
        self.check_error(vector, "float64")
        if len(self._vectors) >= _CACHED_VECTORS:
            self._vectors.clear()
        self._vectors[key] = read_only(vector)
        return vector

    def amplification(self, vector: FloatArray) -> float:
        """Return the factor by which decoding with ``vector`` (n,) amplifies rounding errors.

        It is ``sqrt(sum_i a_i^2 ||E_i||^2 / k)``, which is ``||a|| ||E||_F / sqrt(n k)`` for rows
        of equal norm. If the partial gradients are iid, ``l_i`` has variance ``||E_i||^2`` and the
        gradient has variance ``k``. The factor is therefore the relative error of the gradient
        divided by the relative error of the results (root mean squares). It is 1 for the plain sum
        of all chunks.
        """
        variance = float(np.square(vector) @ self._row_squares)
        return math.sqrt(variance / self.chunk_fractions.size)

    def predicted_error(self, vector: FloatArray, payload: Payload) -> float:
        """Return the expected relative error of a gradient decoded with ``vector`` (n,).

        This is `amplification` times the relative error of rounding a result to the payload format
        (`PayloadFormat.rounding`). Partial gradients are modelled as iid normal deviates. If
        partial gradients cancel and the gradient is much smaller, the relative error is larger, as
        it would also be without a code.
        """
        return self.amplification(vector) * payload_format(payload).rounding

    def check_error(
        self, vector: FloatArray, payload: Payload, *, tolerance: float | None = None
    ) -> None:
        """Raise `IllConditionedError` if `predicted_error` exceeds ``tolerance``.

        If ``tolerance`` is None, it is 1e-2 for 16-bit formats, 1e-4 for float32 and float64.
        """
        bound = payload_format(payload).tolerance if tolerance is None else tolerance
        if not bound > 0:
            raise ParameterError("tolerance", "must be positive", tolerance)
        error = self.predicted_error(vector, payload)
        if not error <= bound:
            what = f"{payload} results would give a relative error of {error:.1e}, over {bound:.0e}"
            raise self._ill_conditioned(what, self.amplification(vector))

    # ---- methods of a family: a layout, and overrides of the general methods ---------------------

    @abstractmethod
    def _make_layout(self) -> Layout:
        """Return the chunks of each worker; must be cheap."""

    def _check_parameters(self) -> None:  # noqa: B027 (most families take any)
        """Raise `ParameterError` if the family does not support ``n`` and ``s``."""

    def _coefficients(self, worker: int) -> FloatArray:
        """Return a worker's coefficients, in the order of its support; ones by default."""
        return np.ones(self.support(worker).size)

    def _make_covers(self) -> tuple[IntArray, ...]:
        """Return the `covers`, the preferred cover first; the default is no cover.

        A code without covers decodes by equations. If there are covers, the sum of one answer from
        each place must be the gradient; an incomplete cover must not determine the gradient; and
        any ``n - s`` workers must contain a complete cover.
        """
        return ()

    def _make_decoder(self) -> Decoder:
        if self.covers:
            return CoverDecoder(self.n, self.covers)
        return SpanDecoder(self.s, lambda: self.encoding_matrix)

    # ---- cached values ---------------------------------------------------------------------------

    @cached_property
    def _layout(self) -> Layout:
        return self._make_layout()

    @cached_property
    def _rows(self) -> tuple[FloatArray, ...]:
        return tuple(read_only(self._coefficients(worker)) for worker in range(self.n))

    @cached_property
    def _vectors(self) -> dict[bytes, FloatArray]:
        return {}  # by mask of survivors, because rounds and groups of a job have equal masks

    @cached_property
    def _decoder(self) -> Decoder:
        return self._make_decoder()

    @cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        return {
            int(worker): (number, place)
            for number, cover in enumerate(self.covers)
            for place, candidates in enumerate(cover.T)
            for worker in candidates
        }

    @cached_property
    def _row_squares(self) -> FloatArray:
        squares: FloatArray = np.square(self.encoding_matrix).sum(axis=1)
        return squares

    def _not_decodable(self, responded: BoolArray, within: str = "") -> NotDecodableError:
        return NotDecodableError(
            f"{self!r}: the {np.count_nonzero(responded)} workers that answered do not determine"
            f" the gradient{within}; wait for more answers"
        )

    def _ill_conditioned(self, what: str, amplification: float) -> IllConditionedError:
        return IllConditionedError(
            f"{self!r}: {what} (amplification {amplification:.1e}); wait for one more answer,"
            " send wider results, or use a repetition or binary code",
            amplification=amplification,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Approximation:
    """A decoding ``vector`` (n,), read-only, and a bound on its ``error``, 0 for an exact vector.

    `GradientCode.approximation` defines the error.
    """

    vector: FloatArray
    error: float


class ApproximateGradient(NamedTuple):
    """A decoded ``gradient`` (p,) and a bound on its ``error`` (see `Approximation`)."""

    gradient: FloatArray
    error: float


@dataclass(frozen=True)
class GradientCode(ExactCode):
    """An (n, s) gradient code: any ``s`` of the ``n`` workers may be missing, ``0 <= s < n``.

    Worker ``i`` returns ``l_i = sum_k encoding_matrix[i, k] * g_k``. The decoding vector ``a`` of
    the workers that answered satisfies ``a @ encoding_matrix == 1``, so that ``a @ l`` is the
    gradient ``sum_k g_k`` (Tandon et al. 2017, section 2; a row of their ``B`` belongs to a
    worker). A code is immutable, picklable, and equal and hashable by content. Creating it raises
    `ParameterError` if the family has no code for these ``n`` and ``s``.

    A family of codes is a frozen dataclass that derives from this class (`register_code` has an
    example). It must define ``_make_layout``, which returns the chunks of each worker. It may
    define ``_coefficients``; ``_check_parameters``, to restrict ``n`` and ``s``; ``_make_covers``,
    if the gradient is a plain sum of results; or ``_make_decoder``, to decode in its own way. A
    family of approximate codes defines a ``worst_error`` above 0. `seqgc.testing.check_code` tests
    a family.

    Examples
    --------
    >>> from seqgc.codes import make_code
    >>> code = make_code("rep", 4, 1)
    >>> partials = np.arange(8.0).reshape(4, 2)  # of 4 chunks, 2 parameters
    >>> results = np.stack([code.encode(i, partials[code.support(i)]) for i in range(4)])
    >>> code.decode(results, np.array([True, False, False, True]))  # workers 1 and 2 are lost
    array([12., 16.])
    """

    @property
    def worst_error(self) -> float:
        """The largest error bound of any set of ``n - s`` answers; less than 1.

        `approximation` defines the error bound. It is 0 for an exact code. A family of approximate
        codes overrides this property.
        """
        return 0.0

    def decode(
        self,
        results: FloatArray,
        responded: BoolArray,
        *,
        payload: Payload | None = None,
        tolerance: float | None = None,
    ) -> FloatArray:
        """Return the exact gradient; see `decode_within`."""
        return self.decode_within(
            results, responded, allow_error=0.0, payload=payload, tolerance=tolerance
        ).gradient

    def decode_within(
        self,
        results: FloatArray,
        responded: BoolArray,
        *,
        allow_error: float,
        payload: Payload | None = None,
        tolerance: float | None = None,
    ) -> ApproximateGradient:
        """Return the gradient (p,), or an approximation of it, and the bound on its error.

        Row ``i`` of ``results`` (n, p) is the result of worker ``i``; if the worker has not
        ``responded`` (n,), the row may hold anything. The gradient has the dtype of the results.
        Sums are also taken in this dtype, except that float16 is summed in float32. If the answers
        do not suffice, but the error bound (see `approximation`) is at most ``allow_error``,
        ``0 <= allow_error < 1``, they are decoded by least squares. If results travelled in another
        format than the array's dtype, ``payload`` is this format. ``tolerance`` is the largest
        acceptable relative error from rounding (see `check_error`).

        Raises
        ------
        NotDecodableError
            If the answers do not determine the gradient to within ``allow_error``.
        IllConditionedError
            If rounding errors would be amplified beyond ``tolerance``.
        ParameterError
            If the sum of finite results overflows their dtype.
        """
        check_rows("results", results, self.n, "(n, p)")
        formats: dict[int, Payload] = {2: "float16", 4: "float32"}
        precision = formats.get(results.dtype.itemsize, "float64")
        # Results were rounded twice: to the payload format, and here to the array's dtype.
        coarsest = max(payload or "float64", precision, key=lambda p: payload_format(p).rounding)
        used = self.usable_vector(responded, coarsest, tolerance=tolerance, allow_error=allow_error)
        return ApproximateGradient(combine(used.vector, results), used.error)

    def usable_vector(
        self,
        responded: BoolArray,
        payload: Payload,
        *,
        tolerance: float | None = None,
        allow_error: float = 0.0,
    ) -> Approximation:
        """Return the vector that `decode_within` uses, and raise the same exceptions.

        If the answers determine the gradient, but exact decoding would amplify rounding errors too
        much, the vector is a least-squares solution without the directions that amplify errors.
        """
        if not 0 <= allow_error < 1:
            raise ParameterError("allow_error", "must satisfy 0 <= allow_error < 1", allow_error)
        if allow_error == 0.0 or self.can_decode(responded):
            try:
                vector = self.decoding_vector(responded)
                self.check_error(vector, payload, tolerance=tolerance)
                return Approximation(vector=vector, error=0.0)
            except IllConditionedError:
                if allow_error == 0.0:
                    raise
        best = self._least_squares(responded)
        if not best.error <= allow_error * (1 + _ERROR_SLACK):
            within = f" to within {allow_error:g} (error bound {best.error:.2g})"
            raise self._not_decodable(responded, within)
        self.check_error(best.vector, payload, tolerance=tolerance)
        return best

    def approximation(self, responded: BoolArray) -> Approximation:
        """Return the least-squares decoding vector of any set of answers, and its error bound.

        The vector minimises ``sum_k f_k (a @ E - 1)_k^2`` over all ``a`` that are 0 for workers
        that have not ``responded``; ``f_k`` is the share of chunk ``k`` in the batch (for equal
        chunks: Charles, Papailiopoulos, Ellenberg 2017, "Approximate gradient coding via sparse
        random graphs", section 2). The error bound is the square root of the minimum. If
        ``g_k = f_k h_k``, where ``h_k`` is the mean gradient of chunk ``k``, Cauchy-Schwarz gives
        ``||sum_k (a @ E - 1)_k g_k|| <= error * sqrt(sum_k f_k ||h_k||^2)``: the error of the
        gradient is at most the bound times the root mean square of the ``h_k``. Without any answer
        the bound is 1.

        Examples
        --------
        >>> from seqgc.codes import make_code
        >>> make_code("rep", 4, 1).approximation(np.array([False, True, False, True]))
        Approximation(vector=array([0., 1., 0., 0.]), error=0.7071067811865476)
        """
        try:
            return Approximation(vector=self.decoding_vector(responded), error=0.0)
        except (NotDecodableError, IllConditionedError):
            return self._least_squares(responded)

    def approximation_error(self, responded: BoolArray) -> float:
        """Return the smallest error bound with which these answers (n,) can be decoded.

        Unless rows are nearly dependent, this is the bound of `approximation`. It is cheap to
        compute again when one more answer has arrived.
        """
        return 0.0 if self.can_decode(responded) else self._span.distance(responded)

    def is_within(
        self, responded: BoolArray, allow_error: float, payload: Payload | None = None
    ) -> bool:
        """Return whether these answers (n,) determine the gradient to within ``allow_error``.

        If ``payload``, the format of the results, is given, decoding must also not amplify rounding
        errors too much (see `usable_vector`).
        """
        is_exact = self.can_decode(responded)
        if not is_exact and (not allow_error or not self._is_near(responded, allow_error)):
            return False
        if payload is None or (is_exact and self.covers):  # plain sums amplify nothing
            return True
        try:
            self.usable_vector(responded, payload, allow_error=allow_error)
        except (IllConditionedError, NotDecodableError):
            return False
        return True

    def _make_decoder(self) -> Decoder:
        if self.worst_error and not self.covers:  # n - s answers may not determine the gradient
            return SpanDecoder(0, lambda: self.encoding_matrix)
        return super()._make_decoder()

    def _is_near(self, responded: BoolArray, allow_error: float) -> bool:
        return self.approximation_error(responded) <= allow_error * (1 + _ERROR_SLACK)

    @cached_property
    def _span(self) -> Span:
        scale = np.sqrt(self.chunk_fractions)
        return Span(self.encoding_matrix * scale, scale)

    def _least_squares(self, responded: BoolArray) -> Approximation:
        scale = np.sqrt(self.chunk_fractions)
        rows = self.encoding_matrix[responded] * scale
        distinct, at = np.unique(rows, axis=0, return_index=True)
        weights = np.linalg.lstsq(distinct.T, scale, rcond=_LEAST_SINGULAR)[0]
        vector = np.zeros(self.n)
        vector[np.flatnonzero(responded)[at]] = weights
        residual = (vector @ self.encoding_matrix - 1.0) * scale
        return Approximation(vector=read_only(vector), error=float(np.linalg.norm(residual)))
