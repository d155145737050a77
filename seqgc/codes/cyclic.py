"""`CyclicCode`: consecutive chunks, any ``n - s`` workers suffice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from seqgc.codes._cyclic_design import design
from seqgc.codes._decoders import CoverDecoder, Decoder, NullSpaceDecoder
from seqgc.codes._exact import Layout
from seqgc.codes._gradient_code import GradientCode
from seqgc.codes._make import register_code
from seqgc.codes._survivors import contiguous_sets
from seqgc.ports import FloatArray, IntArray

__all__ = ["CyclicCode"]


@register_code("cyclic", preference=2)
@final
@dataclass(frozen=True)
class CyclicCode(GradientCode):
    """Cyclic repetition (Tandon et al. 2017, section 5): any ``n - s`` of ``n`` workers suffice.

    Worker ``i`` holds chunks ``i, i+1, ..., i+s (mod n)``, in this order.

    If ``s + 1`` divides ``n``, all coefficients are 1: workers ``c, c+s+1, c+2(s+1), ...`` cover
    every chunk once, and ``s`` stragglers cannot be in all ``s + 1`` of these classes
    (Charalambides, Mahdavifar, Hero 2020). The decoding vector is 1 on the first class that
    answered as a whole: no equations, no rounding errors but those of a sum, and the fewest
    results to add. Fewer than ``n - s`` answers decode as well if they contain a whole class, and
    only then: ``a @ E`` is constant only if ``a_i`` depends on ``i mod (s + 1)`` alone.

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

    def _largest_load(self) -> float:
        return (self.s + 1) / self.n

    def _make_layout(self) -> Layout:
        windows = contiguous_sets(self.n, self.s + 1)
        return Layout(supports=tuple(windows), sizes=np.ones(self.n, dtype=np.intp))

    def _coefficients(self, worker: int) -> FloatArray:
        plain = self._is_plain()
        return np.ones(self.s + 1) if plain else design(self.n, self.s).coefficients[worker]

    def _make_covers(self) -> tuple[IntArray, ...]:
        if not self._is_plain():
            return ()
        return tuple(np.arange(self.n).reshape(-1, self.s + 1).T[:, None, :])  # by residue

    def _make_decoder(self) -> Decoder:
        if self._is_plain():
            return CoverDecoder(self.n, self.covers)
        return NullSpaceDecoder(
            self.s, lambda: design(self.n, self.s).solutions, lambda: self.encoding_matrix
        )

    def _is_plain(self) -> bool:
        return self.n % (self.s + 1) == 0
