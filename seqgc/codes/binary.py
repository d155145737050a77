"""`BinaryCode`: 0/1 coefficients for any ``n`` and ``s``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import final

import numpy as np

from seqgc.codes._exact import Layout
from seqgc.codes._gradient_code import GradientCode
from seqgc.codes._make import register_code
from seqgc.ports import IntArray

__all__ = ["BinaryCode"]


@register_code("binary", preference=3)
@final
@dataclass(frozen=True)
class BinaryCode(GradientCode):
    """Binary gradient code for any ``n`` and ``s`` (after Charalambides, Mahdavifar, Hero 2020).

    The workers are cut into ``s + 1`` sub-collections of consecutive workers, of ``floor(n/(s+1))``
    or one more (the rows of `covers`, the smaller ones first). Each covers every chunk exactly
    once, its workers with equal shares of the batch. The chunks are the common refinement of those
    cuts, hence of unequal size: ``m = floor(n/(s+1))`` of them, or ``2m`` if both sizes exist.

    Any ``n - s`` answers contain a whole sub-collection (pigeonhole). Workers at the same place of
    sub-collections of the same size hold the same chunks, so one stands for another: decodable
    when, for one of the two sizes, every place has an answer. (That is necessary as well: cuts of
    the two sizes never coincide inside the batch, so a combination of shares of both sizes is
    constant only if each size's part is.) The decoding vector is 0/1 and takes the lowest
    answering worker of each place, of the smaller size if it can: fewer results to add.

    Examples
    --------
    >>> import numpy as np
    >>> code = BinaryCode(5, 1)
    >>> code.encoding_matrix
    array([[1., 1., 0., 0.],
           [0., 0., 1., 1.],
           [1., 0., 0., 0.],
           [0., 1., 1., 0.],
           [0., 0., 0., 1.]])
    >>> code.chunk_fractions.round(3)
    array([0.333, 0.167, 0.167, 0.333])
    >>> code.decoding_vector(np.array([True, False, True, True, True]))
    array([0., 0., 1., 1., 1.])
    """

    def _largest_load(self) -> float:
        return 1 / (self.n // (self.s + 1))

    def _make_layout(self) -> Layout:
        # Cuts in units of 1/(size (size+1)) of the batch, so that they are integers.
        size = self.n // (self.s + 1)
        places = [cover.shape[1] for cover in self.covers]
        cuts = [np.arange(count + 1) * (size * (size + 1) // count) for count in places]
        edges = np.unique(np.concatenate(cuts))
        supports: list[IntArray] = []
        for cover, ends in zip(self.covers, cuts, strict=True):
            shares = itertools.pairwise(np.searchsorted(edges, ends))
            supports += [np.arange(*share) for share in shares] * len(cover)
        return Layout(supports=tuple(supports), sizes=np.diff(edges))

    def _make_covers(self) -> tuple[IntArray, ...]:
        size, more = divmod(self.n, self.s + 1)
        smaller, larger = np.split(np.arange(self.n), [size * (self.s + 1 - more)])
        return (smaller.reshape(-1, size), *([larger.reshape(-1, size + 1)] if more else []))
