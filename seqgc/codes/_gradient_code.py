"""`GradientCode`: a code, decoded exactly or to within an error bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from seqgc.codes._arrays import Span, check_rows, combine, read_only
from seqgc.codes._decoders import Decoder, SpanDecoder
from seqgc.codes._exact import ExactCode
from seqgc.errors import IllConditionedError, NotDecodableError, ParameterError
from seqgc.ports import BoolArray, FloatArray, Payload, payload_format

# Least squares leaves out directions whose singular value is less than this part of the largest:
# they amplify rounding errors by its inverse, and add little.
_LEAST_SINGULAR = 1e-6

# What two ways to compute one error bound may differ by, relatively.
_ERROR_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Approximation:
    """A decoding ``vector`` (n,), read-only, and the ``error`` bound of what it leaves out.

    `GradientCode.approximation` says what the error is relative to; 0: the gradient itself.
    """

    vector: FloatArray
    error: float


class ApproximateGradient(NamedTuple):
    """A ``gradient`` (p,) and the ``error`` bound of what it leaves out: see `Approximation`."""

    gradient: FloatArray
    error: float


@dataclass(frozen=True)
class GradientCode(ExactCode):
    """An (n, s) gradient code: ``n`` workers, any ``s`` of which may be missing, ``0 <= s < n``.

    Worker ``i`` returns ``l_i = sum_k encoding_matrix[i, k] * g_k``; from the workers that
    answered, the decoding vector ``a`` satisfies ``a @ encoding_matrix == 1``, so ``a @ l`` is the
    gradient ``sum_k g_k`` (Tandon et al. 2017, section 2; a row of their ``B`` is a worker's).
    Immutable, picklable, equal and hashable by content. `ParameterError`: the family has no code
    for these ``n`` and ``s``.

    A family of codes is a frozen dataclass that derives from this (`register_code` has an example).
    It must say who holds what, ``_make_layout``; it may say with which coefficients,
    ``_coefficients``, what ``n`` and ``s`` it takes, ``_check_parameters``, which results add up,
    ``_make_covers``, or how to decode, ``_make_decoder``. A family of approximate codes declares a
    ``worst_error`` above 0. `seqgc.testing.check_code` checks all of it.

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
        """The largest error bound of any ``n - s`` answers (see `approximation`), below 1.

        0: they determine the gradient. A family of approximate codes overrides this.
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
        """Return the gradient: `decode_within` an error bound of 0."""
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
        """Return the gradient (p,), or an approximation within ``allow_error``, and its error.

        Row ``i`` of ``results`` (n, p) is what worker ``i`` returned; where not ``responded`` (n,)
        it may hold anything. The gradient has their dtype, in which sums are taken (those of
        float16 in float32). Answers that do not suffice are decoded by least squares if its error
        bound (see `approximation`) is at most ``allow_error``, ``0 <= allow_error < 1``.
        ``payload`` is the format in which results travelled, if not the array's dtype;
        ``tolerance`` the largest predicted relative error from rounding that is let pass (see
        `check_error`).

        `NotDecodableError`: not `can_decode`, and no approximation as good as ``allow_error``;
        `IllConditionedError`: the survivors' rounding errors would be amplified beyond
        ``tolerance``; `ParameterError`: finite results add up to more than their dtype holds.
        """
        check_rows("results", results, self.n, "(n, p)")
        formats: dict[int, Payload] = {2: "float16", 4: "float32"}
        precision = formats.get(results.dtype.itemsize, "float64")
        # Rounded to the payload format on their way, and to the array's here.
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
        """Return what `decode_within` decodes with; raises what that raises.

        Answers that determine the gradient, but only with amplified rounding errors, are used like
        answers that do not: by least squares without the directions that amplify.
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
        """Return the least-squares decoding vector of any answers, and its error bound.

        Minimises ``sum_k f_k (a @ E - 1)_k^2`` over ``a`` that vanish where not ``responded``, with
        ``f_k`` the chunks' shares of the batch (for equal chunks: Charles, Papailiopoulos,
        Ellenberg 2017, "Approximate gradient coding via sparse random graphs", section 2). Its
        square root is the error bound: writing ``g_k = f_k h_k``, Cauchy-Schwarz gives
        ``||sum_k (a @ E - 1)_k g_k|| <= error * sqrt(sum_k f_k ||h_k||^2)``, the error times the
        root mean square of the chunks' own mean gradients. Nobody answered: the error is 1.

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
        """Return the least error bound of these answers; cheap as they come in one by one.

        That of `approximation`, but for nearly dependent rows.
        """
        return 0.0 if self.can_decode(responded) else self._span.distance(responded)

    def is_within(
        self, responded: BoolArray, allow_error: float, payload: Payload | None = None
    ) -> bool:
        """Return whether these answers (n,) give the gradient to within an error bound.

        With a ``payload``, the format in which results travel, this is whether `usable_vector` has
        a vector for them: they may be decoded, but amplify rounding errors too much.
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
        if self.worst_error and not self.covers:  # n - s answers need not span the ones
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
        chosen, at = np.unique(rows, axis=0, return_index=True)  # of equal results one is enough
        solved = np.linalg.lstsq(chosen.T, scale, rcond=_LEAST_SINGULAR)[0]
        vector = np.zeros(self.n)
        vector[np.flatnonzero(responded)[at]] = solved
        residual = (vector @ self.encoding_matrix - 1.0) * scale
        return Approximation(vector=read_only(vector), error=float(np.linalg.norm(residual)))
