"""`Rehearsal`: what replays of all schemes run on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import numpy as np

from seqgc.errors import ParameterError, ScheduleError, require_int
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile, Pace, latency_pace, speed_pace
from seqgc.rounds import PolicyDefence, Setting, require_bundles
from seqgc.schemes import Deal, Defence, Schedule, Scheme, by_rounds
from seqgc.search._virtual_workers import USUAL_RTT_S, Reading
from seqgc.stragglers import AnyOf, Bursty, busy_seconds, clairvoyant_bound, never_idle_seconds

__all__ = ["Conformity", "ProfileReading", "Rehearsal"]

Conformity: TypeAlias = Literal["scheme", "bursty"]

ProfileReading: TypeAlias = Literal["latency", "speed"]
"""The meaning of recorded seconds: a request's latency next to its work, or a worker's speed."""

_MOST_JOBS = 10**7
_STAYING = frozenset({"local", "custom", "dask"})  # providers whose workers are processes
_MOST_ANSWERS = 2**26  # of all rounds: half a gigabyte of seconds
_ROUNDING = 1e-9  # relative error of run times, summed in another order than their bounds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rehearsal:
    """Recorded delays, and how a run on them is to be taken: the object that replays run on.

    Failures in the profile count as what they cost (`DelayProfile.awaited`). With ``repeat`` the
    profile's first round follows its last; None: in a search only (`seqgc.search.tune`), so that it
    sees every round, and not in a single replay. ``num_jobs`` are gradients of one model each; with
    ``jobs_per_round = k`` they run as ``num_jobs / k`` bundles, each with k times the load. By
    default there are as many as the profile holds. ``alpha`` are seconds per unit of load, instead
    of the profile's own. What conforms is the scheme's own promise or, with ``"bursty"`` and where
    that offers the bursty model among others, the bursty model alone. ``batch`` are the data points
    in a model's batch: workers are charged what they touch when it is cut to whole points, and not
    asked for what holds none. By default they are charged the nominal load. ``reading`` says how
    the delays are taken where work is dealt; ``models`` are what the jobs are
    of, in turns; None: as many as a scheme needs, and those of one bundle where work is dealt.
    ``recorded`` says whether the profile's seconds are latencies or speeds (`ProfileReading`).

    Raises
    ------
    ParameterError
        If an argument breaks its rule.
    ProfileError
        If nobody answered in some round.

    Examples
    --------
    >>> from seqgc.schemes import GC
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> rehearsal = Rehearsal(profile=profile, alpha=3.0)
    >>> rehearsal.times(Setting(scheme=GC(n=3, s=1))).shape, rehearsal.ideal_s(2)
    ((2, 3), 5.75)
    """

    profile: DelayProfile
    num_jobs: int | None = None
    alpha: float | None = None
    repeat: bool | None = None
    conformity: Conformity = "scheme"
    batch: int | None = None
    reading: Reading = field(default_factory=Reading)
    models: int | None = None
    recorded: ProfileReading = "latency"

    def __post_init__(self) -> None:
        object.__setattr__(self, "profile", self.profile.awaited())
        if self.alpha is not None:
            self.profile.slope(self.alpha)
        if self.num_jobs is not None:
            jobs = require_int("jobs", self.num_jobs, least=1, most=_MOST_JOBS)
            object.__setattr__(self, "num_jobs", jobs)
        for name, kinds in (("conformity", Conformity), ("recorded", ProfileReading)):
            if (value := getattr(self, name)) not in get_args(kinds):
                argument = "reading" if name == "recorded" else name
                raise ParameterError(
                    argument, f"must be one of {', '.join(get_args(kinds))}", value
                )
        if self.batch is not None:
            object.__setattr__(self, "batch", require_int("batch", self.batch, least=1, most=10**9))
        if self.models is not None:
            object.__setattr__(self, "models", require_int("models", self.models, least=1))

    @property
    def slope(self) -> float:
        """Seconds per unit of load: ``alpha``, or else the profile's own (`DelayProfile.slope`)."""
        return self.profile.slope(self.alpha)

    def pace(self, *, jobs_per_round: int = 1) -> Pace:
        """Return the pace of the workers; a unit of load is ``jobs_per_round`` batches."""
        if self.recorded == "speed":
            return speed_pace(self.profile, jobs_per_round=jobs_per_round)
        return latency_pace(self.profile, alpha=self.alpha, jobs_per_round=jobs_per_round)

    @property
    def rtt_s(self) -> float:
        """Seconds of a message to a running worker and back."""
        for rtt_s in (self.reading.rtt_s, self.profile.meta.rtt_s):
            if rtt_s is not None:
                return rtt_s
        return USUAL_RTT_S

    @property
    def most_rounds(self) -> int:
        """How many rounds a run may have at most: all answers are remembered."""
        return min(_MOST_JOBS, _MOST_ANSWERS // self.profile.num_workers)

    def jobs(self, scheme: Defence, *, jobs_per_round: int = 1) -> int:
        """Return how many gradients a run of the scheme computes."""
        if self.num_jobs is not None:
            return self.num_jobs
        bundles = self.profile.num_rounds - scheme.delay
        if bundles < 1:
            rule = f"must leave rounds for jobs: {scheme.spec} has a delay of {scheme.delay}"
            remedy = "say how many jobs, and repeat the profile"
            raise ParameterError("profile", rule, self.profile.num_rounds, remedy)
        return bundles * jobs_per_round

    def bundles(self, setting: Setting) -> int:
        """Return how many jobs of ``jobs_per_round`` gradients each that makes.

        They must divide into them, and must not be too many to remember all answers.
        """
        k = setting.jobs_per_round
        jobs, n = self.jobs(setting.scheme, jobs_per_round=k), setting.scheme.n
        if jobs % k:
            rule = f"must be >= 1 and divide the number of jobs, {jobs}"
            raise ParameterError("jobs_per_round", rule, k)
        if jobs // k > (most := _MOST_ANSWERS // n):
            rule = f"must be few enough for {most} rounds of a replay"
            raise ParameterError("jobs", rule, jobs, f"there are {n} workers")
        return jobs // k

    def num_rounds(self, setting: Setting) -> int:
        """Return how many rounds a run has.

        The profile must be long enough, with as many workers, and the gradients make `bundles`; so
        must the models, more than the scheme's delay, if it is said how many they are. Of workers
        that stay it is long enough in any case.
        """
        scheme, profile = setting.scheme, self.profile
        if self.models is not None:
            bundle = setting.jobs_per_round
            require_bundles(self.models, delay=scheme.delay, jobs_per_round=bundle)
        num_rounds = self.bundles(setting) + scheme.delay
        if profile.num_workers != scheme.n:
            rule = f"must have a column for each of the {scheme.n} workers"
            raise ParameterError("profile", rule, profile.num_workers)
        is_endless = self.repeat is True or self.stays(setting) or self.recorded == "speed"
        if num_rounds > profile.num_rounds and not is_endless:
            rule = f"plus the delay must not exceed the profile's {profile.num_rounds} rounds"
            raise ParameterError("jobs", rule, num_rounds, "take fewer jobs, or repeat the profile")
        return num_rounds

    def times(self, setting: Setting) -> FloatArray:
        """Return the seconds (rounds, n) that each worker takes: each is charged its own load.

        Raises like `num_rounds`, and like `DelayProfile.times_at`.
        """
        rounds = np.arange(self.num_rounds(setting)) % self.profile.num_rounds
        loads = setting.jobs_per_round * setting.scheme.loads_of(self.batch)
        return self.profile.times_at(loads, alpha=self.alpha)[rounds]

    def times_of(self, setting: Setting, schedule: Schedule) -> FloatArray:
        """Return the seconds (n,) that workers take in the open round, for what each of them has.

        Raises like `DelayProfile.times_at`.
        """
        loads = setting.jobs_per_round * schedule.loads()
        row = schedule.round % self.profile.num_rounds
        return self.profile.times_at(loads, alpha=self.alpha, round=row)

    def stays(self, setting: Setting) -> bool:
        """Whether workers stay from one round to the next: resident ones, that work is dealt to."""
        return self.reading.resident and isinstance(setting.scheme, Deal)

    @property
    def can_deal(self) -> bool:
        """Whether work can be dealt to the recorded workers: they stay for all rounds.

        Processes do, and functions if the reading says so (`Reading.resident`). A profile that does
        not say where it was recorded (`ProfileMeta.provider`) is taken for one of functions.
        """
        return self.reading.resident or self.profile.meta.provider in _STAYING

    def longest_delay(self, *, jobs_per_round: int) -> float:
        """Return the longest delay, rounds, for which the models suffice in bundles of that many.

        A model's next step needs its last gradient: a delay of T rounds needs T + 1 bundles. Below
        0 if the models do not make bundles.
        """
        if self.models is None:
            return math.inf
        bundles, rest = divmod(self.models, jobs_per_round)
        return -1 if rest else bundles - 1

    def in_flight(self, setting: Setting) -> int:
        """Return how many bundles are in flight at once where work is dealt.

        `ParameterError`: the bundle does not divide the models.
        """
        bundles, rest = divmod(self.models or setting.jobs_per_round, setting.jobs_per_round)
        if rest:
            rule = f"must divide the number of models, {self.models}"
            raise ParameterError("jobs_per_round", rule, setting.jobs_per_round)
        return bundles if self.reading.resident else 1

    def latencies(self, setting: Setting) -> FloatArray:
        """Return the seconds (rounds, n) that each worker takes without any data points, >= 0.

        Raises like `num_rounds`.
        """
        rounds = np.arange(self.num_rounds(setting)) % self.profile.num_rounds
        return np.maximum(self._at_no_load, 0.0)[rounds]

    @property
    def _at_no_load(self) -> FloatArray:
        # Alpha is what load costs on average: an answer that had the processor to itself may come
        # out below 0. Bounds hold all the same.
        alpha, base_load, times = self.slope, self.profile.meta.base_load, self.profile.times
        median = float(np.median(times))
        if not median > alpha * base_load:
            rule = f"must leave times positive at load 0: the median is {median:.6g} s, "
            rule += f"the base load {base_load:.6g}"
            raise ParameterError("alpha", rule, alpha, "lower alpha or the base load")
        at_no_load: FloatArray = times - alpha * base_load
        return at_no_load

    def schedule(self, setting: Setting) -> Schedule:
        """Begin the run of a setting."""
        scheme = by_rounds(setting.scheme, "a replay round by round")
        conformity = scheme.promise
        if self.conformity == "bursty" and isinstance(conformity, AnyOf):
            bursty = (model for model in conformity.models if isinstance(model, Bursty))
            conformity = next(bursty, conformity)
        batches = () if self.batch is None else (self.batch,)
        return scheme.begin(self.bundles(setting), conformity=conformity, batches=batches)

    def leaves_out(self, scheme: Scheme) -> bool:
        """Whether some mini-task of the scheme holds no point of the batch, and is never sent."""
        return self.batch is not None and _leaves_out(scheme, self.batch)

    def ideal_s(self, num_jobs: int, *, jobs_per_round: int = 1) -> float:
        """Return the seconds that perfect knowledge would take for so many gradients.

        That is `seqgc.stragglers.clairvoyant_bound`, summed over ``num_jobs / jobs_per_round``
        rounds from the profile's first, as often as they are needed. Schemes with a delay run
        longer, but may beat single rounds of the bound.

        Raises
        ------
        ParameterError
            If the median answer would take no time at load 0: alpha or the base load is too large.
        """
        return self._shared_evenly_s(self._at_no_load, num_jobs, jobs_per_round=jobs_per_round)

    def _shared_evenly_s(
        self, at_no_load: FloatArray, num_jobs: int, *, jobs_per_round: int
    ) -> float:
        each = clairvoyant_bound(at_no_load, alpha=self.slope, jobs_per_round=jobs_per_round)
        return float(each[np.arange(num_jobs // jobs_per_round) % len(each)].sum())

    def bound_s(self, setting: Setting) -> float:
        """Return a setting's own bound: `least_s`, or of workers that stay all work shared evenly.

        These pay for their start once, and the work alone bounds every further job.
        """
        jobs = self.jobs(setting.scheme, jobs_per_round=setting.jobs_per_round)
        if self.stays(setting) and self.recorded == "latency":
            return self.slope * jobs / setting.scheme.n
        return self.least_s(setting, jobs)

    def least_s(self, setting: Setting, num_jobs: int) -> float:
        """Return a bound for a setting where each task pays its latency, for so many gradients.

        That is `ideal_s`, or where nothing has rounds, for weights may lack what others have not
        handed in, the time of workers who are never idle. If delays are read as speeds, it is
        `seqgc.stragglers.busy_seconds` for every setting.
        """
        scheme, k = setting.scheme, setting.jobs_per_round
        if self.recorded == "speed":
            return busy_seconds(self.pace(jobs_per_round=k), num_jobs // k)
        if not isinstance(scheme, PolicyDefence) or scheme.staleness == 0:
            return self.ideal_s(num_jobs, jobs_per_round=k)
        return never_idle_seconds(
            self._at_no_load,
            num_jobs // k,
            part_s=k * self.slope * float(scheme.loads_of(self.batch).min()),
            jobs_per_task=scheme.jobs_per_task,
        )

    def require_possible(self, setting: Setting, seconds: float, *, num_jobs: int) -> None:
        """Refuse a run of ``num_jobs`` gradients that is faster than its scheme can be.

        The bound holds for exact schemes without a delay. A scheme that beats it closes rounds on
        too few answers, or touches more than its loads say. Other schemes are not checked: their
        gradients may be approximations, or late, and may take less than the bound.

        Raises
        ------
        ScheduleError
            If the scheme claims exact gradients without a delay, and ``seconds`` are below the
            bound: `ideal_s` without the refusal of an alpha that is too large, or `least_s` if
            delays are read as speeds.
        """
        scheme, k = setting.scheme, setting.jobs_per_round
        if not isinstance(scheme, Scheme) or not scheme.exact or scheme.delay:
            return
        if self.recorded == "speed":
            least_s = self.least_s(setting, num_jobs)
        else:
            at_no_load = self.profile.times - self.slope * self.profile.meta.base_load
            least_s = self._shared_evenly_s(at_no_load, num_jobs, jobs_per_round=k)
        if seconds < least_s * (1 - _ROUNDING):
            took = f"{scheme.spec} is broken: its run takes {seconds:.6g} s, and"
            rule = f"no exact scheme without a delay takes less than {least_s:.6g} s here"
            cause = "its rounds close on too few answers, or its tasks are larger than its loads"
            check = "seqgc.testing.check_scheme says more"
            raise ScheduleError(f"{took} {rule}: {cause} ({check})")


@lru_cache(maxsize=2**15)  # a search asks again for every closing rule
def _leaves_out(scheme: Scheme, batch: int) -> bool:
    scheme.loads_of(batch)  # asked for next, while the cut is at hand
    return scheme.begin(1, batches=(batch,)).leaves_out
