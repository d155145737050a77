"""`Pace`: how long a piece of work takes, learned from the answers that came."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

_KEPT: Final = 64  # latest samples
_FEW: Final = 4  # too few samples to say anything
_EVERY: Final = 8  # samples from one estimate to the next
_USUAL: Final = 0.9  # the share of answers whose way back takes no longer than usual


class Pace:
    """Seconds per batch of work, and what an answer takes beside the work.

    A sample is a share of a batch and the seconds that its answer took. The slope is the median of
    the slopes between two samples (Theil 1950, Sen 1968), so that up to 29 % of them may be of slow
    workers; where all shares are alike, the median of seconds per share. `usual_s` is exceeded by
    one answer in ten.

    Examples
    --------
    >>> pace = Pace()
    >>> for share in (0.1, 0.2, 0.3, 0.4) * 2:
    ...     pace.learn(share, 0.5 + 10 * share)
    >>> round(pace.per_batch_s, 6), round(pace.usual_s, 6)
    (10.0, 0.5)
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._new = 0
        self.known = False
        self.per_batch_s = 0.0
        self.usual_s = 0.0

    def learn(self, share: float, seconds: float) -> None:
        """Take a sample; ``share`` > 0."""
        self._samples.append((share, seconds))
        self._new += 1
        if len(self._samples) >= _FEW and (not self.known or self._new >= _EVERY):
            self._estimate()

    def _estimate(self) -> None:
        self.known, self._new = True, 0
        shares, seconds = np.array(self._samples).T
        first, second = np.triu_indices(len(shares), 1)
        runs = shares[second] - shares[first]
        apart = np.abs(runs) > 0.1 * shares.mean()
        if np.count_nonzero(apart) >= len(shares):
            rises = (seconds[second] - seconds[first])[apart]
            self.per_batch_s = max(0.0, float(np.median(rises / runs[apart])))
        else:
            self.per_batch_s = max(0.0, float(np.median(seconds / shares)))
        beside = seconds - self.per_batch_s * shares
        self.usual_s = max(0.0, float(np.quantile(beside, _USUAL)))
