"""Fitting the generator to a recorded profile, by estimators that can be checked by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from seqgc.errors import ProfileError, require_number
from seqgc.ports import BoolArray, FloatArray
from seqgc.profiles._delay_profile import DelayProfile
from seqgc.profiles.gilbert_elliott import GilbertElliott

__all__ = ["fit"]

_TAIL = 0.01  # the probability of either outer quantile
_STALL_RATIO = 10.0  # an answer that took more than so many times the fastest is a stall


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
    >>> from seqgc.profiles import LAMBDA_CNN
    >>> profile = LAMBDA_CNN.profile(200, workers=64, rng=np.random.default_rng(1))
    >>> round(fit(profile).straggler_rate, 2)
    0.05
    """
    require_number("mu", mu, above=0)
    _check_sufficient(profile)
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


def _check_sufficient(profile: DelayProfile) -> None:
    if min(profile.times.shape) < 2:
        needs = "needs 2 rounds and 2 workers"
        raise ProfileError(f"too small to fit: {needs}; got {profile.times.shape}")
    if not profile.answered.all():
        row, column = np.argwhere(~profile.answered)[0]
        rule = "a fit needs every answer, and this worker did not answer"
        raise ProfileError(f"row {row}, column {column} (round, worker; from 0): {rule}")


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
