"""How a batch is best divided over workers of known speeds: exact, in whole data points.

With ``v_i`` points a second, and ``B_i`` points of B, the round ends after ``max_i B_i / v_i``
seconds. Real shares would be in proportion to the speeds; rounded one by one they neither sum to B
nor are the best. Both problems of AntDT are solved here as integer programs:

- *Eq. 3* (`balance`): minimise ``max_i B_i / v_i``. Let z* be the minimum. Points are given out one
  at a time, each to whom it costs least, ``argmin_i (B_i + 1) / v_i``: as long as that is at most
  z*, nothing is lost, and if it were more, everybody would have all that fits into z*, which is B
  at least. The first points need not be counted out: what fits into a z below z* is right.
- *Eq. 4* (`balance_in_blocks`): a share is ``C_i`` blocks of ``B_i`` points each, as many as fit a
  worker's memory, and ``max_i C_i B_i / v_i`` is minimised. Since ``C_i B_i`` leaves gaps (7 blocks
  of one or two points are 7 to 14, but 13 points are no multiple of 7 or less), which sums can be
  made is a question of its own. It is answered by a bit for each sum, worker by worker; the least z
  for which B is among them is found by bisection.
"""

from __future__ import annotations

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray, IntArray

__all__ = ["MOST_BLOCKS", "balance", "balance_in_blocks"]

MOST_BLOCKS = 5
"""Of a worker's share, in Eq. 4."""

_HALVINGS = 100
_ALIKE = 1e-12  # relative difference of two times that are one, but for rounding


def balance(
    speeds: FloatArray,
    total: int,
    *,
    least: int | IntArray = 0,
    most: int | IntArray | None = None,
) -> IntArray:
    """Return shares (n,) of ``total`` points that minimise ``max(shares / speeds)``: Eq. 3.

    ``speeds`` (n,) are points a second, > 0; no share is below ``least`` or above ``most`` points,
    of all workers or each (n,). Of equals the first gets a point that is left over.
    `ParameterError`: an argument breaks its rule, or no such shares sum to ``total``.

    Examples
    --------
    >>> balance(np.array([300.0, 100.0, 100.0]), 12).tolist()
    [8, 2, 2]
    >>> balance(np.array([300.0, 100.0, 1e-9]), 13, least=1).tolist()
    [9, 3, 1]
    """
    v, low, high = _checked(speeds, total, least, most)
    if high.sum() < total:
        remedy = "let workers have more, or make the batch smaller"
        raise ParameterError("most", f"must leave room for {total} points", most, remedy)
    below, above = 0.0, float((high / v).max())
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        if np.clip(middle * v, low, high).sum() > total:
            above = middle
        else:
            below = middle
    shares: IntArray = np.clip(np.floor(below * v), low, high).astype(np.intp)
    for _ in range(total - int(shares.sum())):
        cost = np.where(shares < high, (shares + 1) / v, np.inf)
        shares[cost.argmin()] += 1
    return shares


def balance_in_blocks(
    speeds: FloatArray,
    total: int,
    *,
    least: int | IntArray = 1,
    most: int | IntArray,
) -> tuple[IntArray, IntArray]:
    """Return points in a block, and blocks, (n,) each, that minimise the slowest's time: Eq. 4.

    A worker of ``speeds`` (n,), points a second, > 0, computes 1 to `MOST_BLOCKS` blocks of
    ``least`` >= 1 to ``most`` points each, one after the other; blocks times points sum to
    ``total``. Of several ways to make a share the one of fewest blocks is taken. `ParameterError`:
    an argument breaks its rule, or nothing sums to ``total``.

    Examples
    --------
    >>> fast_and_slow = np.array([300.0, 100.0])  # points a second, memory for 128
    >>> [each.tolist() for each in balance_in_blocks(fast_and_slow, 192, most=128)]
    [[72, 48], [2, 1]]
    """
    v, low, high = _checked(speeds, total, least, most)
    if low.min() < 1:
        raise ParameterError("least", "must be >= 1 point in a block", least)
    best = _fitting(v, total, low, high, within_s=np.inf)
    if best is None:
        rule = f"must let 1 to {MOST_BLOCKS} blocks a worker add up to {total} points"
        raise ParameterError("most", rule, most, "let blocks be larger, or the batch smaller")
    below, above = total / float(v.sum()), _seconds(best, v)
    while below < above * (1 - 4 * _ALIKE):
        middle = (below + above) / 2
        found = _fitting(v, total, low, high, within_s=middle)
        if found is None:
            below = middle
        else:
            best, above = found, _seconds(found, v)
    blocks = np.array(
        [
            next(c for c in range(1, MOST_BLOCKS + 1) if share % c == 0 and a <= share // c <= b)
            for share, a, b in zip(best.tolist(), low.tolist(), high.tolist(), strict=True)
        ]
    )
    return best // blocks, blocks


def _seconds(shares: IntArray, speeds: FloatArray) -> float:
    return float((shares / speeds).max())


def _checked(
    speeds: FloatArray, total: int, least: int | IntArray, most: int | IntArray | None
) -> tuple[FloatArray, IntArray, IntArray]:
    """Return speeds, least and most points, (n,) each."""
    require_int("total", total, least=1)
    v = np.asarray(speeds, dtype=np.float64)
    if v.ndim != 1 or not v.size or not (np.isfinite(v) & (v > 0)).all():
        raise ParameterError("speeds", "must be numbers > 0, one for each worker", speeds)
    low = np.broadcast_to(np.asarray(least, dtype=np.intp), v.shape)
    high = np.broadcast_to(np.asarray(total if most is None else most, dtype=np.intp), v.shape)
    high = np.minimum(high, total)
    if (low < 0).any() or (low > high).any() or low.sum() > total:
        rule = f"must be >= 0, at most `most`, and at most {total} points in all"
        raise ParameterError("least", rule, least)
    return v, low, high


def _fitting(
    speeds: FloatArray, total: int, low: IntArray, high: IntArray, *, within_s: float
) -> IntArray | None:
    """Return shares (n,) in blocks that sum to ``total`` and take no longer, if there are any."""
    room = np.minimum(within_s * (1 + _ALIKE) * speeds, float(total)).astype(np.intp)
    full = (1 << (total + 1)) - 1
    sums = [1]  # bit k: k points can be made of the first workers' shares
    for a, b, limit in zip(low.tolist(), high.tolist(), room.tolist(), strict=True):
        sums.append(_sums(sums[-1], a, b, limit) & full)
    if not sums[-1] >> total & 1:
        return None
    shares, rest = np.zeros(len(speeds), dtype=np.intp), total
    left_to_go = np.cumsum(speeds)
    for i in reversed(range(len(speeds))):
        due = rest * speeds[i] / left_to_go[i]
        choices = _choices(int(low[i]), int(high[i]), int(room[i]))
        possible = [c for c in choices if c <= rest and sums[i] >> (rest - c) & 1]
        shares[i] = min(possible, key=lambda share: abs(share - due))
        rest -= int(shares[i])
    return shares


def _choices(low: int, high: int, limit: int) -> list[int]:
    """Return which shares a worker may have, of at most ``limit`` points."""
    tops = {c: min(high, limit // c) for c in range(1, MOST_BLOCKS + 1)}
    return sorted({c * block for c, top in tops.items() for block in range(low, top + 1)})


def _sums(bits: int, low: int, high: int, limit: int) -> int:
    """Return which sums can be made of those in ``bits`` and one share more."""
    made = 0
    for blocks in range(1, MOST_BLOCKS + 1):
        count = min(high, limit // blocks) - low + 1  # shares of low, low + 1, … points a block
        if count < 1:
            continue
        run, length = bits << blocks * low, 1
        while length < count:
            step = min(length, count - length)
            run |= run << blocks * step
            length += step
        made |= run
    return made
