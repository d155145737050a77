"""A generator of delay profiles: two states per worker, a tail of slow answers, rare stalls.

`fit` estimates its parameters from a recording, by estimators that can be checked by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np

from seqgc.errors import ParameterError, ProfileError, require_int, require_number
from seqgc.ports import BoolArray, FloatArray
from seqgc.profiles._delay_profile import DelayProfile, ProfileMeta

__all__ = ["LAMBDA_CNN", "GilbertElliott", "fit"]

_TAIL = 0.01  # the probability of either outer quantile
_STALL_RATIO = 10.0  # an answer that took more than 10 times the fastest is a stall
_GROUP = 64  # number of consecutive workers that stall in the same rounds, as in the recordings
_SLOW_SHARE = 0.75  # a worker that straggles in this share of both halves' rounds is always slow
_RATE_ERROR = 0.1  # the largest accepted relative error of the chain's rate of stragglers


@dataclass(frozen=True, slots=True, kw_only=True)
class GilbertElliott:
    """Workers that are in a good or a bad state in each round; bad workers straggle.

    In the good state a worker answers after ``base * (1 + e)`` seconds. ``base`` is lognormal, with
    one value for all workers of a round. ``e`` is lognormal, and is drawn again if it is above
    ``mu``. In the bad state a worker answers after ``(1 + mu) * fastest * x`` seconds, where
    ``fastest`` is the time of the round's fastest good worker and ``x`` is Pareto with index
    ``1 / tail``. If any worker is good, the bad workers are exactly the stragglers by the tolerance
    ``mu``. In both states, some answers *stall*. Stalls occur together: in few rounds, and among
    consecutive workers. Source of the two states: *Sequential Gradient Coding For Straggler
    Mitigation*, ICLR 2023, Appendix C.

    ``p_bad`` and ``stay_bad`` are P(good → bad) and P(bad → bad) from one round to the next; a
    worker's first state is drawn from the stationary distribution. ``base_s`` is the median of the
    rounds' bases in seconds and ``base_spread`` the standard deviation of their logarithm.
    ``excess`` (below ``mu``) is the median of ``e`` before it is drawn again, and ``excess_spread``
    the standard deviation of its logarithm. ``tail`` is the mean logarithm of ``x``, below 1 so
    that the mean time is finite. ``alpha``, seconds per unit of normalized load, is copied to the
    profiles. All times are at load 0.

    In each round each group of 64 consecutive workers (0 to 63 and so on) has stalls with
    probability ``stalled_groups``. In a group with stalls, each worker stalls with probability
    ``stalled_workers``, for a time (seconds) uniform in the range ``stall_s``.

    ``factors`` are for workers that are slow in every round: each answer of worker ``i`` that is
    not a stall takes ``factors[i]`` times as long. If there are no factors, all workers are alike.
    Otherwise the number of workers of a profile must be a multiple of the number of factors.

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
    stalled_groups: float = 1.0
    stalled_workers: float = 0.0
    stall_s: tuple[float, float] = (20.0, 40.0)
    mu: float = 1.0
    alpha: float | None = None
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("p_bad", "stay_bad", "stalled_groups", "stalled_workers"):
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
        for factor in self.factors:
            require_number("factors", factor, above=0)

    @property
    def straggler_rate(self) -> float:
        """The long-run fraction of answers that are bad or stall, if no worker has a factor.

        The long-run fraction of bad states alone is ``p_bad / (p_bad + 1 - stay_bad)``.
        """
        stalls = self.stalled_groups * self.stalled_workers
        return stalls + (1 - stalls) * self._bad_rate

    @property
    def _bad_rate(self) -> float:
        return self.p_bad / (self.p_bad + (1 - self.stay_bad)) if self.p_bad else 0.0

    def profile(self, rounds: int, *, workers: int, rng: np.random.Generator) -> DelayProfile:
        """Generate a profile of ``rounds`` × ``workers`` seconds at load 0."""
        shape = require_int("rounds", rounds, least=1), require_int("workers", workers, least=1)
        factors = self.factors or (1.0,)
        if workers % len(factors):
            rule = f"must be a multiple of {len(factors)}, the number of `factors`"
            raise ParameterError("workers", rule, workers)
        p_now = np.full(workers, self._bad_rate)
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
        fastest = np.where(np.isfinite(fastest), fastest, base)  # rounds without a good worker
        # exp of an exponential variable with mean `tail` is Pareto with index 1 / tail.
        slow_s = (1 + self.mu) * fastest * np.exp(self.tail * rng.standard_exponential(shape))
        times = np.tile(factors, workers // len(factors)) * np.where(bad, slow_s, good_s)
        stall_s = rng.uniform(*self.stall_s, size=shape)
        stalled = rng.random(shape) < self.stalled_workers
        if self.stalled_groups < 1:
            groups = rng.random((rounds, -(-workers // _GROUP))) < self.stalled_groups
            stalled &= np.repeat(groups, _GROUP, axis=1)[:, :workers]
        meta = ProfileMeta(alpha=self.alpha, source=f"generated by {self!r}")
        return DelayProfile.from_times(np.where(stalled, stall_s, times), meta=meta)


# 256 AWS Lambda functions (2.5 GB), a CNN of 270,000 parameters, batch 2048, recorded for 30 rounds
# at each of five loads: `seqgc profile fit FILE FILE FILE FILE FILE --loads 0,0.25,0.5,0.75,1`.
# The first file, with one data point per worker, gives all parameters except alpha and the stalls.
# alpha is the slope of the mean time over the loads. There are 25 stalls in 6 of the 150 rounds. In
# each of these rounds all stalls are in one group of 64 workers. Therefore a group has stalls in
# 1 % of the rounds, and 256 workers in 4 %.
LAMBDA_CNN: Final = GilbertElliott(
    p_bad=0.0478,
    stay_bad=0.0992,
    base_s=0.5497,
    base_spread=0.0291,
    excess=0.167,
    excess_spread=0.7326,
    tail=0.142,
    stalled_groups=0.0101,
    stalled_workers=0.064,
    stall_s=(26.3, 38.5),
    alpha=1.12,
)


def fit(
    profile: DelayProfile, *, mu: float = 1.0, others: Sequence[DelayProfile] = ()
) -> GilbertElliott:
    """Fit a generator to a profile; stragglers are answers later than ``(1 + mu) * fastest``.

    ``others`` are recordings of the same workers at other loads. They are used only to find how
    often workers stall, because stalls are rare and do not depend on the load.

    Estimators, one for each parameter:

    - ``factors``: a worker that straggles in three quarters of the rounds, both in the first half
      and in the second, is always slow. Its factor is the median, over rounds, of its time divided
      by the median time of the other workers. All further estimates use the times divided by the
      factors;
    - ``stalled_groups``, ``stalled_workers``, ``stall_s``: an answer that took more than 10 times
      the fastest is a stall. The two probabilities give as many groups with stalls, and as many
      stalls, as were recorded; ``stall_s`` is the range of the stalls' times;
    - ``p_bad``, ``stay_bad``: the fraction of good and of bad answers after which the same worker's
      next answer is bad. In the long run a worker turns bad as often as it turns good.
      If the two counts of a short recording differ by more than a tenth, so that the rate of
      stragglers would be wrong, both counts are replaced with their mean;
    - ``base_spread``: standard deviation of the logarithm of the rounds' fastest answers;
    - ``base_s``, ``excess``, ``excess_spread``: the shifted lognormal that has the 1, 50 and 99 %
      quantiles of ``time / fastest`` of the good answers (`_shifted_lognormal`), times the
      median of the rounds' fastest answers;
    - ``tail``: mean of ``log(time / ((1 + mu) * fastest))`` over the bad answers (the
      maximum-likelihood, or Hill, estimator of a Pareto index).

    Raises
    ------
    ParameterError
        If ``mu`` is not a positive number, or ``others`` have another number of workers.
    ProfileError
        If there are fewer than two rounds or workers, if an answer is missing, if half of the good
        answers are the fastest of their rounds, or if the tail of bad answers has no finite mean.

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
    if (unanswered := ~(profile.answered | profile.censored)).any():
        row, column = np.argwhere(unanswered)[0]
        rule = "a fit needs every answer, and this worker did not answer"
        raise ProfileError(f"row {row}, column {column} (round, worker; from 0): {rule}")
    profile = profile.awaited()  # estimates of the times of cancelled tasks
    counts = [other.num_workers for other in others]
    if any(count != profile.num_workers for count in counts):
        rule = f"must be recordings of the same {profile.num_workers} workers"
        raise ParameterError("others", rule, counts)
    factors = _factors(profile.times, mu=mu)
    times = profile.times / factors
    fastest = times.min(axis=1, keepdims=True)
    ratio = times / fastest
    stalled = ratio > _STALL_RATIO
    good, bad = ratio <= 1 + mu, (ratio > 1 + mu) & ~stalled
    shift, excess, excess_spread = _shifted_lognormal(ratio[good], mu=mu)
    tail = float(np.log(ratio[bad] / (1 + mu)).mean()) if bad.any() else 0.0
    if tail >= 1:
        raise ProfileError(
            f"no generator fits: with mu = {mu:g}, {1 - good.mean():.0%} of the answers are "
            f"stragglers, with a tail of {tail:.3f}, which must be < 1 (their mean would be "
            "infinite); most workers are far slower than the fastest: raise mu, or resample the "
            "recording"
        )
    p_bad, stay_bad = _transitions(good, bad)
    model = GilbertElliott(
        p_bad=p_bad,
        stay_bad=stay_bad,
        base_s=shift * float(np.median(fastest)),
        base_spread=float(np.log(fastest).std()),
        excess=excess,
        excess_spread=excess_spread,
        tail=tail,
        mu=mu,
        alpha=profile.meta.alpha,
        factors=tuple(factors.tolist()) if (factors != 1).any() else (),
    )
    return _with_stalls(model, [profile, *others], factors=factors)


def _factors(times: FloatArray, *, mu: float) -> FloatArray:
    """Return the factors (n,) of the workers: 1 for each worker that is not always slow."""
    bad = times > (1 + mu) * times.min(axis=1, keepdims=True)
    slow = np.all([half.mean(axis=0) >= _SLOW_SHARE for half in np.array_split(bad, 2)], axis=0)
    factors = np.ones(times.shape[1])
    if slow.any() and not slow.all():
        usual = np.median(times[:, ~slow], axis=1, keepdims=True)
        factors[slow] = np.maximum(1.0, np.median(times[:, slow] / usual, axis=0))
    return factors


def _transitions(good: BoolArray, bad: BoolArray) -> tuple[float, float]:
    """Return P(good → bad) and P(bad → bad); answers that are neither good nor bad are ignored."""
    known = (good | bad)[:-1] & (good | bad)[1:]
    num_good, num_bad = int((good[:-1] & known).sum()), int((bad[:-1] & known).sum())
    turned_bad = float((good[:-1] & bad[1:]).sum())
    turned_good = float((bad[:-1] & good[1:]).sum())
    if not num_good or not num_bad:
        return turned_bad / max(num_good, 1), 0.0
    # In a chain's long run, bad : good answers = P(good -> bad) : P(bad -> good).
    if abs(turned_bad - turned_good) > _RATE_ERROR * turned_good:
        turned_bad = turned_good = min((turned_bad + turned_good) / 2, num_good, num_bad)
    return turned_bad / num_good, (num_bad - turned_good) / num_bad


def _with_stalls(
    model: GilbertElliott, profiles: Sequence[DelayProfile], *, factors: FloatArray
) -> GilbertElliott:
    """Return the model with parameters of stalls that are estimated from the recordings.

    A group of g workers has stalls in a round with probability ``p``, and then each of its workers
    stalls with probability ``q``. The share of rounds in which at least one worker stalls is
    therefore ``p * (1 - (1 - q)**g)``. In these rounds, ``g * q / (1 - (1 - q)**g)`` workers stall
    on average, which determines q.
    """
    starts = np.arange(0, len(factors), _GROUP)
    sizes = np.diff([*starts, len(factors)])
    seconds, groups = [], []
    for profile in profiles:
        times = np.where(profile.answered, profile.times / factors, np.inf)
        late = times > _STALL_RATIO * times.min(axis=1, keepdims=True)
        stalled = late & profile.answered
        seconds.append(profile.times[stalled])
        groups.append(np.add.reduceat(stalled, starts, axis=1, dtype=np.intp) > 0)
    stall_s, with_stalls = np.concatenate(seconds), np.concatenate(groups)
    if not stall_s.size:
        return model
    low, share = 0.0, 1.0
    while share - low > 1e-12:
        middle = (low + share) / 2
        recorded = sizes * middle / (1 - (1 - middle) ** sizes)
        if (with_stalls * recorded).sum() < stall_s.size:
            low = middle
        else:
            share = middle
    often = with_stalls.sum() / (len(with_stalls) * (1 - (1 - share) ** sizes).sum())
    if often >= 1:  # the stalls are spread like independent stalls
        often, share = 1.0, stall_s.size / (len(with_stalls) * len(factors))
    return replace(
        model,
        stalled_groups=float(often),
        stalled_workers=share,
        stall_s=(float(stall_s.min()), float(stall_s.max())),
    )


def _shifted_lognormal(ratio: FloatArray, *, mu: float) -> tuple[float, float, float]:
    """Fit ``shift * (1 + excess * exp(spread * z))``, z normal; return shift, excess and spread.

    Let ``low, median, high`` be the quantiles at probabilities p, 1/2, 1-p. After subtraction of
    the shift, they are in geometric progression. Therefore the shift is
    ``(low * high - median**2) / (low + high - 2 * median)``. If this is undefined (answers skewed
    to the fast side), the shift is 1, the fastest answer, and ``low`` is not used.
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
