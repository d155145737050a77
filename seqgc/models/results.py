"""The layout of a model's result: a gradient, and a few more numbers that training needs.

Each number of a result is a sum over data points, so that a code can combine results without
knowing their meaning. For a model of P parameters in K tensors a result contains, in this order:

====================  =====================================================================
gradient (P)          ``sum_p c[p] * grad v[p]``, where ``v[p]`` is the loss of point p
loss (1)              ``sum_p c[p] * v[p]``
weight (3)            ``sum_p c[p] * w[p]``, where ``w[p]`` is the weight of point p in the mean
points (3)            ``sum_p c[p]``; equal to the weight if every ``w[p]`` is 1
tensors (K)           1 if the tensor received a gradient, else 0
====================  =====================================================================

The coefficients ``c`` contain the division by the batch size, so gradient and loss are means over
the batch. If a loss has weights, its mean is ``sum v / sum w``, as in torch's cross-entropy.
Training therefore divides gradient and loss by ``weight / points``. If all weights are 1, this
quotient is exactly 1, because both numbers have the same bits in every sum.

Weight and points are stored as three numbers each. The first two have 8 significant bits, which a
16-bit payload represents exactly, so that the quotient is as exact as in 32 bits.

The last K numbers are marks, not sums. They are never negative, and the master adds them with
weights that are not negative either (`seqgc.ports.ResultForm`). A mark is above 0 if any chunk of
the job gave its tensor a gradient. For all other tensors PyTorch leaves ``p.grad = None``, and an
optimizer skips them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from seqgc.ports import BoolArray, FloatArray

__all__ = ["LossSums", "ModelResult", "ResultLayout"]

_Numbers: TypeAlias = float | FloatArray

_DIGITS: Final = 3
_SPLITTER: Final = 2.0 ** (53 - 8) + 1  # bfloat16, the shortest payload format, has 8 bits


class ResultLayout:
    """The positions of the numbers in a result of a model whose tensors have the given ``sizes``.

    Examples
    --------
    >>> layout = ResultLayout([6, 2])
    >>> layout.pieces, layout.size
    ((8, 1, 6, 2), 17)
    >>> result = np.zeros(layout.size, dtype=np.float32)
    >>> result[:8] = 1.0
    >>> layout.write(result, loss=3.0, weight=0.5, points=1.0, received=[True, False])
    >>> read = layout.read(result)
    >>> read.gradient[0], read.sums.mean, read.received.tolist()
    (np.float32(2.0), 6.0, [True, True])
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        parameters = sum(sizes)
        self.parameters: Final = parameters
        self.pieces: Final = (parameters, 1, 2 * _DIGITS, len(sizes))
        """The lengths of the gradient, the loss, weight and points, and the marks."""
        self.size: Final = sum(self.pieces)
        self.marks: Final = slice(self.size - len(sizes), self.size)
        """The positions of the marks."""
        self._starts: Final = np.cumsum([0, *sizes[:-1]])

    def write(
        self,
        result: FloatArray,
        *,
        loss: _Numbers,
        weight: _Numbers,
        points: _Numbers,
        received: Sequence[bool],
    ) -> None:
        """Write the numbers that follow the gradient into ``result`` (..., size).

        If the rows of ``result`` are several models, ``loss``, ``weight`` and ``points`` are arrays
        with a number for each model; ``received`` is the same for all models.
        """
        of_points = _split(points)
        of_weight = of_points if weight is points else _split(weight)
        numbers = np.array([loss, *of_weight, *of_points])
        result[..., self.parameters : self.marks.start] = numbers.T
        result[..., self.marks] = 1 if all(received) else received

    def read(self, result: FloatArray) -> ModelResult:
        """Return the content of a decoded ``result`` (size,); the gradient may be a view of it."""
        first = self.parameters
        numbers = result[first : self.marks.start].astype(np.float64)
        loss, weight, points = numbers[0], numbers[1 : 1 + _DIGITS], numbers[1 + _DIGITS :]
        sums = LossSums(loss=float(loss), weight=math.fsum(weight), points=math.fsum(points))
        gradient = result[:first]
        if sums.divisor not in (0.0, 1.0):  # 0 means that no point counts; the gradient is then 0
            gradient = gradient / gradient.dtype.type(sums.divisor)
        # A 16 bit payload may round a mark to 0 next to a weight that is 2**40 times larger.
        has_numbers = np.logical_or.reduceat(result[:first] != 0, self._starts)
        received = (result[self.marks] > 0) | has_numbers
        return ModelResult(gradient=gradient, sums=sums, received=received)


class LossSums(NamedTuple):
    """The sums over data points from which the mean loss is computed."""

    loss: float
    weight: float
    points: float

    @property
    def divisor(self) -> float:
        """The divisor that turns a mean over points into a mean over their weights."""
        return self.weight / self.points if self.points else 1.0

    @property
    def mean(self) -> float:
        """The mean loss; NaN if no point has a weight, as in torch."""
        return self.loss / self.divisor if self.divisor else math.nan

    def times(self, factor: float) -> LossSums:
        """Return all sums multiplied by ``factor``."""
        return LossSums(*(each * factor for each in self))

    @staticmethod
    def total(parts: Sequence[LossSums]) -> LossSums:
        """Return the sums over the points of all ``parts``, added in their order."""
        return LossSums(*map(sum, zip(*parts, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelResult:
    """A decoded result of one model.

    ``gradient`` (P,) is the gradient of the mean loss. ``received`` (K,) is True for the tensors
    that have a gradient.
    """

    gradient: FloatArray
    sums: LossSums
    received: BoolArray

    @property
    def is_finite(self) -> bool:
        """True if the gradient and all sums are finite; the mean loss may still be NaN."""
        return bool(np.isfinite(self.gradient).all()) and all(map(math.isfinite, self.sums))


def _split(value: _Numbers) -> tuple[_Numbers, _Numbers, _Numbers]:
    """Split ``value`` into three numbers, of which the first two have 8 significant bits.

    Multiplication by a power of two plus 1, and subtraction, round off the lower bits of a float
    (Dekker 1971, section 5).
    """
    shifted = value * _SPLITTER
    first = shifted - (shifted - value)
    shifted = (value - first) * _SPLITTER
    second = shifted - (shifted - (value - first))
    return first, second, value - first - second
