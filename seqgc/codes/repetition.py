"""`FractionalRepetitionCode`: all workers of a group hold the same chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from seqgc.codes._gradient_code import GradientCode, Layout
from seqgc.codes._make import register_code
from seqgc.errors import ParameterError
from seqgc.ports import IntArray


@register_code("rep", preference=1)
@final
@dataclass(frozen=True)
class FractionalRepetitionCode(GradientCode):
    """Fractional repetition (Tandon et al. 2017, section 4): ``s + 1`` must divide ``n``.

    Worker ``i`` is in group ``i mod n/(s+1)``, so that workers with consecutive numbers are in
    different groups. Such workers often share a machine or the thread that sends to them, and are
    late together. Each worker of group ``j`` returns the plain sum of the ``s + 1`` chunks
    ``j(s+1) ... j(s+1)+s``. The gradient can be decoded when every group has an answer.

    The decoding vector uses one answer from each group, from the worker with the lowest number. The
    answers of a group are equal to the last bit. To average them would read more data without any
    gain.

    Examples
    --------
    >>> import numpy as np
    >>> code = FractionalRepetitionCode(4, 1)
    >>> code.encoding_matrix
    array([[1., 1., 0., 0.],
           [0., 0., 1., 1.],
           [1., 1., 0., 0.],
           [0., 0., 1., 1.]])
    >>> code.decoding_vector(np.array([False, True, True, True]))
    array([0., 1., 1., 0.])
    """

    def _check_parameters(self) -> None:
        if self.n % (self.s + 1):
            rule = f"must be such that s + 1 divides n (repetition code), n={self.n}"
            raise ParameterError("s", rule, self.s, "the binary code takes any n and s")

    def _largest_load(self) -> float:
        return (self.s + 1) / self.n

    def _make_layout(self) -> Layout:
        chunks = np.arange(self.n).reshape(-1, self.s + 1)
        supports = tuple(np.tile(chunks, (self.s + 1, 1)))
        return Layout(supports=supports, sizes=np.ones(self.n, dtype=np.intp))

    def _make_covers(self) -> tuple[IntArray, ...]:
        return (np.arange(self.n).reshape(self.s + 1, -1),)
