from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from seqgc.errors import ParameterError, ProfileError
from seqgc.ports import BoolArray, FloatArray, IntArray
from seqgc.profiles._delay_profile import DelayProfile

__all__ = ["LoadModel", "fit_alpha", "fit_load_model"]

_MOST_PAIRS = 2**18  # pairs of rounds, of all workers together
_FEWEST_ROUNDS = 5
_RESAMPLES = 200
_STUDENT_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadModel:
    """Mean seconds as a linear function of the normalized load: ``intercept_s + alpha * load``.

    ``alpha`` is in seconds per unit of normalized load; it can be negative if the noise is larger
    than the effect. ``stderr`` is the standard error of ``alpha``, None for two recordings.
    ``r_squared`` is the fraction of the variance of the means that the line explains. ``loads`` and
    ``mean_s`` (recordings,) are the fitted points. ``worker_alpha`` (n,) is each worker's own
    slope, or None. Arrays are read-only.
    """

    alpha: float
    intercept_s: float
    r_squared: float
    stderr: float | None
    loads: FloatArray
    mean_s: FloatArray
    worker_alpha: FloatArray | None = None

    @property
    def alpha_interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of alpha (Student's t); None with two recordings."""
        if self.stderr is None:
            return None
        free, z = len(self.loads) - 2, NormalDist().inv_cdf(0.975)
        # Beyond the table: Fisher's expansion about the normal quantile z to second order
        # (Abramowitz and Stegun 26.7.5). It is 0.1 % too low at 11, and better for larger values.
        t = z + (z**3 + z) / 4 / free + (5 * z**5 + 16 * z**3 + 3 * z) / 96 / free**2
        half = (_STUDENT_975[free - 1] if free <= len(_STUDENT_975) else t) * self.stderr
        return self.alpha - half, self.alpha + half


def fit_load_model(profiles: Sequence[DelayProfile], *, per_worker: bool = False) -> LoadModel:
    """Fit the load model (docs/mathematics.md, section 7) to recordings at several base loads.

    The fit is by ordinary least squares of the recordings' mean times on their loads; every
    recording has the same weight. Means are over answers; the times of failures do not depend on
    the load. If ``per_worker`` is True, a line is also fitted for each worker.

    Raises
    ------
    ParameterError
        If there are not two different loads, or the numbers of workers differ.
    ProfileError
        If a recording holds no answer or, for ``per_worker``, no answer of some worker.

    Examples
    --------
    >>> from seqgc.profiles import ProfileMeta
    >>> recordings = [
    ...     DelayProfile.from_times([[1 + load, 2 + 3 * load]], meta=ProfileMeta(base_load=load))
    ...     for load in (0.0, 0.5, 1.0)
    ... ]
    >>> model = fit_load_model(recordings, per_worker=True)
    >>> model.alpha, model.intercept_s, model.r_squared, model.worker_alpha.tolist()
    (2.0, 1.5, 1.0, [1.0, 3.0])
    """
    loads = np.array([profile.meta.base_load for profile in profiles])
    if len(np.unique(loads)) < 2:
        rule = "must be recorded at two different base loads or more"
        raise ParameterError("profiles", rule, loads.tolist(), "set the base load of each file")
    counts = [profile.num_workers for profile in profiles]
    if len(set(counts)) > 1:
        raise ParameterError("profiles", "must be of the same number of workers", counts)
    mean_s = np.array([_mean_s(profile) for profile in profiles])
    alpha = float(_slopes(loads, mean_s))
    intercept_s = float(mean_s.mean() - alpha * loads.mean())
    unexplained = float(np.sum((mean_s - intercept_s - alpha * loads) ** 2))
    total = float(np.sum((mean_s - mean_s.mean()) ** 2))
    free, spread = len(loads) - 2, np.sum((loads - loads.mean()) ** 2)
    worker_mean_s = [_worker_mean_s(profile) for profile in profiles] if per_worker else None
    worker_alpha = None if worker_mean_s is None else _slopes(loads, np.stack(worker_mean_s))
    for array in (loads, mean_s, worker_alpha):
        if array is not None:
            array.flags.writeable = False
    return LoadModel(
        alpha=alpha,
        intercept_s=intercept_s,
        r_squared=1 - unexplained / total if total > 0 else 1.0,
        stderr=float(np.sqrt(unexplained / free / spread)) if free else None,
        loads=loads,
        mean_s=mean_s,
        worker_alpha=worker_alpha,
    )


def fit_alpha(times: FloatArray, *, loads: FloatArray, answered: BoolArray) -> float | None:
    """Fit the seconds per unit of load to rounds in which the loads of workers changed.

    ``times``, ``loads`` and ``answered`` are (rounds, n). A worker is compared only with itself in
    another round, because a slow worker may have less load. The result is the weighted
    median of the slopes ``(t_k - t_l) / (load_k - load_l)`` over all pairs of rounds k and l in
    which the same worker answered under different loads; the weight is ``|load_k - load_l|``. A few
    stragglers hardly change it (Theil 1950; Sen 1968; with weights: Jaeckel 1972).

    The result is None if no worker's load changed, or if the slope cannot be told from noise: the
    95 % interval, from a bootstrap over rounds, contains 0 or is wider than twice the slope.

    Examples
    --------
    >>> loads = np.tile([[0.25], [0.5], [1.0]], (4, 3))
    >>> times = np.array([0.5, 0.7, 0.9]) + 2.0 * loads
    >>> times[5, 1] += 30.0  # a straggler
    >>> fit_alpha(times, loads=loads, answered=np.ones((12, 3), dtype=np.bool_))
    2.0
    >>> fit_alpha(times, loads=np.full((12, 3), 0.5), answered=times > 0)
    """
    most = max(_FEWEST_ROUNDS, int((2 * _MOST_PAIRS / times.shape[1]) ** 0.5))
    rows: IntArray = np.flatnonzero(answered.any(axis=1))
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.intp))]
    first, second = np.triu_indices(len(rows), k=1)
    wider = loads[rows[second]] - loads[rows[first]]  # (pairs, n)
    usable = (wider != 0) & answered[rows[first]] & answered[rows[second]]
    pairs, workers = np.nonzero(usable)
    if len(rows) < _FEWEST_ROUNDS or not len(pairs):
        return None
    k, l = first[pairs], second[pairs]  # noqa: E741 (rounds)
    load = wider[pairs, workers]
    slopes = (times[rows[l], workers] - times[rows[k], workers]) / load
    order = np.argsort(slopes)
    slopes, weights, k, l = slopes[order], np.abs(load)[order], k[order], l[order]  # noqa: E741
    rng, count = np.random.default_rng(0), len(rows)
    drawn = [
        _weighted_median(slopes, weights * often[k] * often[l])
        for often in rng.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    ]
    alpha = _weighted_median(slopes, weights)
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return alpha if low > 0 and high - low <= 2 * alpha else None


def _weighted_median(ascending: FloatArray, weights: FloatArray) -> float:
    """Return the weighted median, or NaN if all weights are 0."""
    sums = np.cumsum(weights)
    if not sums[-1] > 0:
        return float("nan")
    return float(ascending[np.searchsorted(sums, sums[-1] / 2)])


def _slopes(loads: FloatArray, mean_s: FloatArray) -> FloatArray:
    """Return the least-squares slopes of the columns of ``mean_s`` (recordings, ...) on loads."""
    offset = loads - loads.mean()
    covariance = np.tensordot(offset, mean_s - mean_s.mean(axis=0), axes=1)
    return np.asarray(covariance / np.sum(offset**2))


def _mean_s(profile: DelayProfile) -> float:
    if not profile.answered.any():
        where = f"the recording at base load {profile.meta.base_load}"
        raise ProfileError(f"no worker answered in any round of {where}")
    return float(profile.times[profile.answered].mean())


def _worker_mean_s(profile: DelayProfile) -> FloatArray:
    counts = profile.answered.sum(axis=0)
    if not counts.all():
        where = f"at base load {profile.meta.base_load}"
        raise ProfileError(f"column {int(counts.argmin())} has no answer in the recording {where}")
    means: FloatArray = np.where(profile.answered, profile.times, 0.0).sum(axis=0) / counts
    return means
