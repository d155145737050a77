"""An approximate gradient code, as a plug-in: ``--plugin examples.thin``, ``gc-thin:s=2``.

Each worker holds its own chunk, without redundancy. A round closes without up to ``s`` answers, and
the gradient is computed from the chunks that arrived.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seqgc.codes import GradientCode, Layout, register_code


@register_code("thin")
@dataclass(frozen=True)
class ThinCode(GradientCode):
    """A code where worker i holds chunk i only; without ``s`` workers, s/n of the data is missing.

    Examples
    --------
    >>> code = ThinCode(8, 2)
    >>> code.load, code.worst_error
    (0.125, 0.5)
    """

    @property
    def worst_error(self) -> float:
        return math.sqrt(self.s / self.n)

    def _make_layout(self) -> Layout:
        return Layout(supports=tuple(np.arange(self.n)[:, None]), sizes=np.ones(self.n))
