"""A generator of delay profiles: two states per worker, a tail of slow answers, rare stalls.

`fit` finds its parameters in a recording, by estimators that can be checked by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np

from seqgc.errors import ParameterError, ProfileError, require_int, require_number
from seqgc.ports import BoolArray, FloatArray
from seqgc.profiles._delay_profile import DelayProfile, ProfileMeta

__all__ = ["LAMBDA_CNN", "GilbertElliott", "fit"]

_TAIL = 0.01  # the probability of either outer quantile
_STALL_RATIO = 10.0  # an answer that took more than so many times the fastest is a stall


@dataclass(frozen=True, slots=True, kw_only=True)
class GilbertElliott:
    """Workers that are good or bad in each round; bad ones straggle (paper, Appendix C).

    In the good state a worker answers after ``base * (1 + e)``, where ``base`` is the round's own
    (lognormal, one for all workers) and ``e`` lognormal, drawn again where above ``mu``. In the bad
    state it answers after ``(1 + mu) * fastest * x``, where ``fastest`` is the round's fastest good
    worker and ``x`` is Pareto with index ``1 / tail``, or it stalls. So, wherever a worker is good,
    the bad ones are exactly those that the tolerance ``mu`` calls stragglers.

    ``p_bad`` and ``stay_bad`` are P(good → bad) and P(bad → bad) from one round to the next; a
    worker's first state is drawn from the stationary distribution. ``base_s`` is the median of the
    rounds' bases in seconds and ``base_spread`` the standard deviation of their logarithm;
    ``excess`` (below ``mu``) and ``excess_spread`` are those of ``e``, before the redraw. ``tail``
    is the mean logarithm of ``x``, below 1 so that the mean time is finite. A bad answer stalls
    with probability ``p_stall``, for a time (seconds) uniform in the range ``stall_s``. ``alpha``,
    seconds per unit of normalized load, is passed on to the profiles; times are those at load 0.

    Examples
    --------
    >>> profile = LAMBDA_CNN.profile(100, workers=16, rng=np.random.default_rng(7))
    >>> profile.times.shape, round(LAMBDA_CNN.straggler_rate, 2)
    ((100, 16), 0.05)
    """

    p_bad: float
    stay_bad: float
    base_s: float
    base_spread: float
    excess: float
    excess_spread: float
    tail: float
    p_stall: float = 0.0
    stall_s: tuple[float, float] = (20.0, 40.0)
    mu: float = 1.0
    alpha: float | None = None

    def __post_init__(self) -> None:
        for name in ("p_bad", "stay_bad", "p_stall"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ParameterError(name, "must lie in [0, 1]", value)
        for name in ("base_s", "excess", "mu"):
            require_number(name, getattr(self, name), above=0)
        for name in ("base_spread", "excess_spread"):
            require_number(name, getattr(self, name), least=0)
        if not 0 <= self.tail < 1:
            raise ParameterError("tail", "must satisfy 0 <= tail < 1", self.tail)
        if not self.excess < self.mu:
            raise ParameterError("excess", f"must be below mu={self.mu}", self.excess)
        low, high = self.stall_s
        if not 0 < low <= high < math.inf:
            raise ParameterError("stall_s", "must satisfy 0 < low <= high", self.stall_s)

    @property
    def straggler_rate(self) -> float:
        """Long-run fraction of bad states: ``p_bad / (p_bad + 1 - stay_bad)``."""
        return self.p_bad / (self.p_bad + (1 - self.stay_bad)) if self.p_bad else 0.0

    def profile(self, rounds: int, *, workers: int, rng: np.random.Generator) -> DelayProfile:
        """Generate a profile of ``rounds`` × ``workers`` seconds at load 0."""
        shape = require_int("rounds", rounds, least=1), require_int("workers", workers, least=1)
        p_now = np.full(workers, self.straggler_rate)
        states = []
        for draw in rng.random(shape):
            states.append(draw < p_now)
            p_now = np.where(states[-1], self.stay_bad, self.p_bad)
        bad = np.stack(states)
        base = self.base_s * np.exp(self.base_spread * rng.standard_normal((rounds, 1)))
        excess = self.excess * np.exp(self.excess_spread * rng.standard_normal(shape))
        while np.any(late := excess > self.mu):  # at most half of them: the median is below mu
            again = rng.standard_normal(int(late.sum()))
            excess[late] = self.excess * np.exp(self.excess_spread * again)
        good_s = base * (1 + excess)
        fastest = np.where(bad, np.inf, good_s).min(axis=1, keepdims=True)
        fastest = np.where(np.isfinite(fastest), fastest, base)  # nobody is good: nobody is fast
        # exp of an exponential variable with mean `tail` is Pareto with index 1 / tail.
        slow_s = (1 + self.mu) * fastest * np.exp(self.tail * rng.standard_exponential(shape))
        stall_s = rng.uniform(*self.stall_s, size=shape)
        bad_s = np.where(rng.random(shape) < self.p_stall, stall_s, slow_s)
        meta = ProfileMeta(alpha=self.alpha, source=f"generated by {self!r}")
        return DelayProfile.from_times(np.where(bad, bad_s, good_s), meta=meta)


# 256 AWS Lambda functions (2.5 GB), a CNN of 270,000 parameters, batch 2048: `fit` to 30 rounds
# recorded at one data point per worker. alpha and the stalls are those of the same functions at
# higher loads: alpha the slope of the mean time over five loads; 25 stalls among the 30,720
# answers at loads 0.25 to 1 (none at load 0), so 25 / 30,720 / 0.0504 of the bad ones.
LAMBDA_CNN: Final = GilbertElliott(
    p_bad=0.0478,
    stay_bad=0.0992,
    base_s=0.5497,
    base_spread=0.0291,
    excess=0.167,
    excess_spread=0.7326,
    tail=0.142,
    p_stall=0.016,
    stall_s=(26.3, 38.6),
    alpha=1.12,
)


def fit(profile: DelayProfile, *, mu: float = 1.0) -> GilbertElliott:
    """Fit a generator to a profile; stragglers are answers later than ``(1 + mu) * fastest``.

    Estimators, one for each parameter:

    - ``p_bad``, ``stay_bad``: the fraction of good and of bad answers that a bad one follows in
      the same worker's next round;
    - ``base_spread``: standard deviation of the logarithm of the rounds' fastest answers;
    - ``base_s``, ``excess``, ``excess_spread``: the shifted lognormal that has the 1, 50 and 99 %
      quantiles of ``time / fastest`` of the good answers (`_shifted_lognormal`), times the
      median of the rounds' fastest answers;
    - ``tail``: mean of ``log(time / ((1 + mu) * fastest))`` over the bad answers that are not
      stalls (the maximum-likelihood, or Hill, estimator of a Pareto index);
    - ``p_stall``, ``stall_s``: the fraction of bad answers that took more than 10 times the
      fastest, and their range (a Pareto answer that late is taken for a stall).

    Raises
    ------
    ParameterError
        If ``mu`` is not a positive number.
    ProfileError
        If there are fewer than two rounds or workers, an answer is missing, half of the good
        answers are their rounds' fastest, or the bad ones have a tail without a mean.

    Examples
    --------
    >>> profile = LAMBDA_CNN.profile(200, workers=64, rng=np.random.default_rng(1))
    >>> round(fit(profile).straggler_rate, 2)
    0.05
    """
    require_number("mu", mu, above=0)
    if min(profile.times.shape) < 2:
        needs = "needs 2 rounds and 2 workers"
        raise ProfileError(f"too small to fit: {needs}; got {profile.times.shape}")
    if not profile.answered.all():
        row, column = np.argwhere(~profile.answered)[0]
        rule = "a fit needs every answer, and this worker did not answer"
        raise ProfileError(f"row {row}, column {column} (round, worker; from 0): {rule}")
    fastest = profile.times.min(axis=1, keepdims=True)
    ratio = profile.times / fastest
    bad = ratio > 1 + mu
    stalled = bad & (ratio > _STALL_RATIO)
    shift, excess, excess_spread = _shifted_lognormal(ratio[~bad], mu=mu)
    before, after = bad[:-1], bad[1:]
    tail = _mean(np.log(ratio[bad & ~stalled] / (1 + mu)))
    if tail >= 1:
        raise ProfileError(
            f"no generator fits: with mu = {mu:g}, {bad.mean():.0%} of the answers are stragglers, "
            f"with a tail of {tail:.3f}, which must be < 1 (their mean would be infinite); most "
            "workers are far slower than the fastest: raise mu, or resample the recording"
        )
    model = GilbertElliott(
        p_bad=_mean(after[~before]),
        stay_bad=_mean(after[before]),
        base_s=shift * float(np.median(fastest)),
        base_spread=float(np.log(fastest).std()),
        excess=excess,
        excess_spread=excess_spread,
        tail=tail,
        mu=mu,
        alpha=profile.meta.alpha,
    )
    if not stalled.any():
        return model
    stall_s = profile.times[stalled]
    p_stall = len(stall_s) / int(bad.sum())
    return replace(model, p_stall=p_stall, stall_s=(float(stall_s.min()), float(stall_s.max())))


def _shifted_lognormal(ratio: FloatArray, *, mu: float) -> tuple[float, float, float]:
    """Return shift, excess and spread of ``shift * (1 + excess * exp(spread * z))``, z normal.

    With quantiles ``low, median, high`` at probabilities p, 1/2, 1-p, the shift is
    ``(low * high - median**2) / (low + high - 2 * median)``, because ``low``, ``median`` and
    ``high`` less the shift are in geometric progression. Where there is no such shift (answers
    that lean to the fast side), it is 1, the fastest answer, and ``low`` goes unused.
    """
    low, median, high = (float(q) for q in np.quantile(ratio, [_TAIL, 0.5, 1 - _TAIL]))
    if not 1 < median < high:
        raise ProfileError("nothing to fit: half of the good answers are their rounds' fastest")
    lean = low + high - 2 * median
    shift = (low * high - median**2) / lean if lean > 0 else 1.0
    if not (0 < shift < low and median / shift - 1 < mu):
        shift = 1.0
    spread = math.log((high - shift) / (median - shift)) / NormalDist().inv_cdf(1 - _TAIL)
    return shift, median / shift - 1, spread


def _mean(values: FloatArray | BoolArray) -> float:
    """Return the mean, 0 of nothing."""
    return float(values.mean()) if values.size else 0.0
