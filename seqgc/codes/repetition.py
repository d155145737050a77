"""`FractionalRepetitionCode`: groups of workers that hold the same chunks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from seqgc.codes._base import GradientCode
from seqgc.codes._decoders import CoverDecoder, Decoder
from seqgc.codes._exact import Layout
from seqgc.errors import ParameterError
from seqgc.ports import FloatArray, IntArray

__all__ = ["FractionalRepetitionCode"]


@final
@dataclass(frozen=True)
class FractionalRepetitionCode(GradientCode):
    """Fractional repetition (Tandon et al. 2017, section 4): ``s + 1`` must divide ``n``.

    Workers ``j(s+1) ... j(s+1)+s`` are group ``j``; each of them returns the plain sum of the
    group's ``s + 1`` chunks, which have the same numbers. Decodable when every group has an answer.

    The decoding vector takes one answer of each group, that of its lowest worker: the members'
    answers are equal to the last bit, so averaging them would read ``s + 1`` times the data to
    gain nothing.

    Examples
    --------
    >>> import numpy as np
    >>> code = FractionalRepetitionCode(4, 1)
    >>> code.encoding_matrix
    array([[1., 1., 0., 0.],
           [1., 1., 0., 0.],
           [0., 0., 1., 1.],
           [0., 0., 1., 1.]])
    >>> code.decoding_vector(np.array([False, True, True, True]))
    array([0., 1., 1., 0.])
    """

    @cached_property
    def group_of(self) -> IntArray:
        """Group of every worker, (n,), read-only; groups are numbered ``0 ... n/(s+1) - 1``."""
        groups: IntArray = np.arange(self.n) // (self.s + 1)
        groups.setflags(write=False)
        return groups

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The workers of every group."""
        size = self.s + 1
        return tuple(tuple(range(low, low + size)) for low in range(0, self.n, size))

    def _check_parameters(self) -> None:
        if self.n % (self.s + 1):
            rule = f"must be such that s + 1 divides n (repetition code), n={self.n}"
            raise ParameterError("s", rule, self.s, "the binary code takes any n and s")

    def _make_layout(self) -> Layout:
        chunks = np.arange(self.n).reshape(-1, self.s + 1)
        return Layout(
            supports=tuple(chunks[group] for group in self.group_of),
            chunk_fractions=np.full(self.n, 1.0 / self.n),
            load=(self.s + 1) / self.n,
        )

    def _coefficients(self, worker: int) -> FloatArray:
        return np.ones(self.support(worker).size)

    def _make_decoder(self) -> Decoder:
        return CoverDecoder(self.n, (np.arange(self.n).reshape(-1, self.s + 1).T,))
