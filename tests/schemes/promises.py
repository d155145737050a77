"""What each scheme promises to survive (docs/mathematics.md, section 4), of many windows at once.

Written from the definitions, not with the library's models: each is to judge the other.
"""

from __future__ import annotations

import numpy as np

from seqgc.ports import BoolArray, IntArray
from seqgc.schemes import GC, MSGC, RASGC, SRSGC, Balanced, Scheme, Uncoded


def latest(scheme: Scheme, patterns: BoolArray) -> BoolArray:
    """The last rounds of patterns (m, rounds, n), with which the next one shares a window."""
    match scheme:
        case SRSGC(W=W):
            others = W - 1
        case MSGC(B=B, W=W):
            others = W - 2 + B
        case _:
            others = 0
    return patterns[:, max(0, patterns.shape[1] - others) :]


def is_promised(scheme: Scheme, windows: BoolArray) -> BoolArray:
    """Whether a window of stragglers (m, rounds, n) is to be survived: (m,)."""
    match scheme:
        case Uncoded() | Balanced():
            return per_round(windows, 0)
        case GC(family="rep", s=s):
            return every_group(windows, s + 1)
        case GC(s=s) | RASGC(s=s):
            return per_round(windows, s)
        case SRSGC(B=B, W=W, lam=lam, s=s):
            fits = bursty(windows, B, W, lam) | per_round(windows, s)
            return fits | every_group(windows, s + 1) if scheme.family == "rep" else fits
        case MSGC(B=B, W=W, lam=lam):
            return bursty(windows, B, W, lam) | arbitrary(windows, B, lam)
    raise NotImplementedError(repr(scheme))


def per_round(windows: BoolArray, s: int) -> BoolArray:
    return windows.sum(axis=2).max(axis=1) <= s


def every_group(windows: BoolArray, size: int) -> BoolArray:
    count = windows.shape[2] // size
    lost = [windows[:, :, group::count].all(axis=2) for group in range(count)]
    return ~np.logical_or.reduce(lost).any(axis=1)


def bursty(windows: BoolArray, B: int, W: int, lam: int) -> BoolArray:
    rounds = windows.shape[1]
    starts = range(max(1, rounds - W + 1))
    few = [distinct(windows[:, t : t + W]) <= lam for t in starts]
    gaps = range(B, min(W, rounds))
    too_long = [(windows[:, :-d] & windows[:, d:]).any(axis=(1, 2)) for d in gaps]
    return np.logical_and.reduce(few) & ~np.logical_or.reduce(too_long)


def arbitrary(windows: BoolArray, most: int, lam: int) -> BoolArray:
    return (distinct(windows) <= lam) & (windows.sum(axis=1).max(axis=1) <= most)


def distinct(windows: BoolArray) -> IntArray:
    return windows.any(axis=1).sum(axis=1)
