"""`BinaryCode`: 0/1 coefficients for any ``n`` and ``s``."""

from __future__ import annotations

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
    """Binary gradient code for any ``n`` and ``s``: repetition whose groups need not be equal.

    There are ``G = floor(n/(s+1))`` chunks of equal size, and worker ``i`` returns the partial
    gradient of chunk ``i mod G``. So every chunk has ``s + 1`` holders or more, and any ``n - s``
    answers are enough; decodable when every chunk has an answer. The fewest stragglers that lose a
    gradient are the ``floor(n/G)`` holders of one chunk: ``s + 1`` where ``s + 1`` divides ``n``,
    and elsewhere sometimes more, all three of ``n=3, s=1``. (Charalambides, Mahdavifar and
    Hero 2020 take ``s + 1`` sub-collections that each cover the batch, some with a worker more. The
    load of the busiest is the same, ``1/G``, but a worker of the larger sub-collections is of no
    use unless its whole sub-collection answers.)

    The decoding vector is 0/1 and takes the lowest answering worker of each chunk. Where chunks
    have unequal numbers of holders, the last row of `covers` repeats some of the row before.

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
