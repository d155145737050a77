"""`BinaryCode`: coefficients 0 and 1 for any ``n`` and ``s``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from seqgc.codes._gradient_code import GradientCode, Layout
from seqgc.codes._make import register_code
from seqgc.ports import IntArray


@register_code("binary", preference=3)
@final
@dataclass(frozen=True)
class BinaryCode(GradientCode):
    """Binary gradient code for any ``n`` and ``s``: repetition in groups of unequal sizes.

    There are ``G = floor(n/(s+1))`` chunks of equal size, and worker ``i`` returns the partial
    gradient of chunk ``i mod G``. The gradient can be decoded when there is an answer for every
    chunk. Every chunk is held by at least ``s + 1`` workers, so any ``n - s`` answers are enough.
    Decoding fails only if all holders of one chunk straggle. A chunk has at least ``floor(n/G)``
    holders: ``s + 1`` if ``s + 1`` divides ``n``, and sometimes more otherwise (all three workers
    for ``n=3, s=1``).
    (Charalambides, Mahdavifar and Hero 2020 use ``s + 1`` sub-collections of workers that each
    cover the batch; some of them have one worker more. The largest load is the same, ``1/G``, but
    an answer from a larger sub-collection is useless unless all workers of the sub-collection
    answer.)

    The decoding vector is 0/1. For each chunk it uses the worker with the lowest number that
    answered. If chunks have different numbers of holders, the last row of `covers` repeats part of
    the row before.

    Examples
    --------
    >>> import numpy as np
    >>> code = BinaryCode(5, 1)
    >>> code.encoding_matrix
    array([[1., 0.],
           [0., 1.],
           [1., 0.],
           [0., 1.],
           [1., 0.]])
    >>> code.decoding_vector(np.array([False, False, True, True, True]))
    array([0., 0., 1., 1., 0.])
    """

    def _largest_load(self) -> float:
        return 1 / self._chunks

    @property
    def _chunks(self) -> int:
        return self.n // (self.s + 1)

    def _make_layout(self) -> Layout:
        supports = tuple((np.arange(self.n) % self._chunks)[:, None])
        return Layout(supports=supports, sizes=np.ones(self._chunks, dtype=np.intp))

    def _make_covers(self) -> tuple[IntArray, ...]:
        rows = -(-self.n // self._chunks)
        workers = np.arange(rows * self._chunks)
        workers[self.n :] -= self._chunks
        return (workers.reshape(rows, -1),)
