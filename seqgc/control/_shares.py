"""The optimal division of a batch among workers of known speeds, in whole data points.

If worker i computes ``v_i`` points per second and has ``B_i`` of the batch's B points, the round
takes ``max_i B_i / v_i`` seconds. Shares in proportion to the speeds would be optimal, but they are
not whole numbers; if each of them is rounded, the sum may differ from B, and the result may not be
optimal. Therefore the two problems of AntDT are solved as integer programs:

- *Eq. 3* (`balance`): minimise ``max_i B_i / v_i``. Let z* be the minimum. Points are given out one
  at a time, each to the worker ``argmin_i (B_i + 1) / v_i``, which would finish it first. This is
  optimal: a worker exceeds z* only if every worker already has all the points that it can compute
  within z* seconds, and these are at least B points. To save time, all points that the workers can
  compute within some z < z* are given out at once. Bisection finds z.
- *Eq. 4* (`balance_in_blocks`): a share consists of ``C_i`` blocks of ``B_i`` points each, where a
  block must fit into the worker's memory. Minimise ``max_i C_i B_i / v_i``. Not every share can be
  made of blocks: for example, with blocks of at most 6 points there is no share of 7 points. So the
  set of all sums that can be made is computed, worker by worker, with one bit for each sum. The
  smallest z for which B is in this set is found by bisection.
"""

from __future__ import annotations

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray, IntArray

__all__ = ["MOST_BLOCKS", "balance", "balance_in_blocks"]

MOST_BLOCKS = 5
"""The largest number of blocks in a worker's share, in Eq. 4."""

_HALVINGS = 100  # steps of the bisection in `balance`
_ALIKE = 1e-12  # two times with a smaller relative difference are equal up to rounding


def balance(
    speeds: FloatArray,
    total: int,
    *,
    least: int | IntArray = 0,
    most: int | IntArray | None = None,
) -> IntArray:
    """Return shares (n,) of ``total`` points that minimise ``max(shares / speeds)``: Eq. 3.

    ``speeds`` (n,) > 0 are in points per second. Each share has at least ``least`` and at most
    ``most`` points; each of the two is one number for all workers or an array (n,). If several
    workers would finish a point at the same time, the first of them gets it.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or no such shares sum to ``total``.

    Examples
    --------
    >>> balance(np.array([300.0, 100.0, 100.0]), 12).tolist()
    [8, 2, 2]
    >>> balance(np.array([300.0, 100.0, 1e-9]), 13, least=1).tolist()
    [9, 3, 1]
    """
    v, low, high = _checked(speeds, total, least, most)
    if high.sum() < total:
        remedy = "increase it, or use a smaller batch"
        rule = f"must let {len(v)} workers have {total} points in all"
        raise ParameterError("most", rule, most, remedy)
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
    """Return each worker's points per block (n,) and number of blocks (n,): Eq. 4.

    They minimise the time of the slowest worker. ``speeds`` (n,) > 0 are in points per second. Each
    worker computes 1 to `MOST_BLOCKS` blocks, one after the other. Its blocks are equally large,
    and each has at least ``least`` >= 1 and at most ``most`` points. The points of all blocks sum
    to ``total``. If a share can be made of blocks in several ways, the fewest blocks are used.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or no such blocks sum to ``total``.

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
        rule = f"must let 1 to {MOST_BLOCKS} blocks of each worker add up to {total} points"
        raise ParameterError("most", rule, most, "increase it, or use a smaller batch")
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
    """Check the arguments of `balance`; return the speeds and both limits as arrays (n,)."""
    require_int("total", total, least=1)
    v = np.asarray(speeds, dtype=np.float64)
    if v.ndim != 1 or not v.size or not (np.isfinite(v) & (v > 0)).all():
        raise ParameterError("speeds", "must be numbers > 0, one for each worker", speeds)
    low = np.broadcast_to(np.asarray(least, dtype=np.intp), v.shape)
    high = np.broadcast_to(np.asarray(total if most is None else most, dtype=np.intp), v.shape)
    high = np.minimum(high, total)
    if (low < 0).any() or (low > high).any() or low.sum() > total:
        rule = f"must be >= 0, at most `most`, and sum to at most {total} points"
        raise ParameterError("least", rule, least)
    return v, low, high


def _fitting(
    speeds: FloatArray, total: int, low: IntArray, high: IntArray, *, within_s: float
) -> IntArray | None:
    """Return shares (n,) that sum to ``total`` and take at most ``within_s`` seconds each.

    Each share can be made of blocks. Return None if there are no such shares.
    """
    room = np.minimum(within_s * (1 + _ALIKE) * speeds, float(total)).astype(np.intp)
    full = (1 << (total + 1)) - 1
    sums = [1]  # sums[i] has bit k if the shares of the first i workers can sum to k points
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
    """Return the shares of at most ``limit`` points that can be made of blocks, sorted."""
    tops = {c: min(high, limit // c) for c in range(1, MOST_BLOCKS + 1)}
    return sorted({c * block for c, top in tops.items() for block in range(low, top + 1)})


def _sums(bits: int, low: int, high: int, limit: int) -> int:
    """Return all sums of an element of ``bits`` and the share of one more worker.

    Sets of sums are integers in which bit k stands for a sum of k points. The share has at most
    ``limit`` points, in blocks of ``low`` to ``high`` points.
    """
    made = 0
    for blocks in range(1, MOST_BLOCKS + 1):
        count = min(high, limit // blocks) - low + 1  # blocks may have low, low + 1, ... points
        if count < 1:
            continue
        run, length = bits << blocks * low, 1
        while length < count:
            step = min(length, count - length)
            run |= run << blocks * step
            length += step
        made |= run
    return made
