from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Literal, TypeAlias, TypedDict, Unpack, get_args

import numpy as np

from seqgc.errors import ParameterError, ScheduleError, require_int, require_number
from seqgc.ports import FloatArray
from seqgc.profiles import (
    MOST_S,
    ByInvocation,
    ByRound,
    DelayProfile,
    Pace,
    latency_pace,
    speed_pace,
)
from seqgc.rounds import PolicyDefence, Setting, require_bundles
from seqgc.runs import ProfileSource, read_delays
from seqgc.schemes import Deal, Defence, Schedule, Scheme, by_rounds
from seqgc.stragglers import AnyOf, Bursty, busy_seconds, clairvoyant_bound, never_idle_seconds

__all__ = [
    "USUAL_RTT_S", "Conformity", "ProfileReading", "Reading", "Rehearsal", "ReplaySettings",
]  # fmt: skip

Conformity: TypeAlias = Literal["scheme", "bursty"]

ProfileReading: TypeAlias = Literal["latency", "speed"]
"""The meaning of recorded seconds: the latency of a request, or the speed of a worker.

See `seqgc.profiles.latency_pace` and `seqgc.profiles.speed_pace`.
"""

_MOST_JOBS = 10**7
_STAYING = frozenset({"local", "custom", "dask"})  # providers whose workers are processes
_MOST_ANSWERS = 2**26  # in all rounds together: half a gigabyte of seconds
_REST = 1e-3  # of the median time, which load does not cost in the second case of `alpha_cases`
_ROUNDING = 1e-9  # relative: run times and their bounds are summed in different orders


USUAL_RTT_S: Final = 0.02
"""The assumed round-trip time of a message to a running worker, in seconds, if not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The interpretation of recorded invocation times for schemes that deal work.

    A recorded time is the time that one invocation took to answer. It does not determine the times
    of a worker that gets one task after another. Let ``c`` be the recorded seconds at load 0
    (docs/mathematics.md, section 8):

    - *per round*: each round invokes every worker again. A fraction f of ``c[round, i]`` passes
      before worker i is ready, and the rest passes between the end of its work and its answer. One
      recording does not determine f: try f = 1 (``after = 0``) and f = 1/2.
    - *resident*: the workers stay between rounds. Worker i takes ``c[0, i]`` to start, once.
    - *per piece*: the workers stay, and ``c`` belongs to each task, as in a recording of processes,
      which were running when the task was sent. A piece of round k takes ``c[k, i]`` and its work.

    In both, a task reaches a running worker after half a round trip, begins when the worker's
    earlier tasks are done, takes ``alpha`` seconds per batch, and its answer takes the other half.

    ``rtt_s`` >= 0 is the round-trip time, in seconds, of a message to a running worker. If it is
    None, the profile's value is used, or `USUAL_RTT_S` if the profile has none. ``after``, from 0
    to 1, is the fraction of an invocation's time that passes after its work. If ``resident`` is
    True, workers stay between rounds, and their start is the only cost of an invocation. If
    ``per_piece`` is True too, there is no start, and each piece takes the time at load 0.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> Reading(after=0.5).label, Reading(resident=True).label
    ('per round, 50% after', 'resident')
    """

    rtt_s: float | None = None
    after: float = 0.0
    resident: bool = False
    per_piece: bool = False

    def __post_init__(self) -> None:
        if self.per_piece and not self.resident:
            rule = "must be False unless workers are resident"
            raise ParameterError("per_piece", rule, self.per_piece)
        if self.rtt_s is not None:
            require_number("rtt", self.rtt_s, least=0, most=MOST_S)
        if not 0 <= self.after <= 1:
            rule = "must satisfy 0 <= after <= 1 (share of an invocation's time after its work)"
            raise ParameterError("after", rule, self.after)

    @property
    def label(self) -> str:
        """A short description for messages."""
        if self.resident:
            return "resident, per piece" if self.per_piece else "resident"
        return f"per round, {self.after:.0%} after" if self.after else "per round"

    def split(self, times: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Split the times at load 0 into the parts before and after a worker's work.

        ``times`` (rounds, n) are in seconds. Both parts are (rounds, n), or (1, n) for resident
        workers, which start once.
        """
        if self.resident:
            return times[:1], np.zeros_like(times[:1])
        return (1 - self.after) * times, self.after * times


class ReplaySettings(TypedDict, total=False):
    """The settings of a `Rehearsal`, as arguments of a function that is given only a profile."""

    num_jobs: int | None
    alpha: float | None
    repeat: bool | None
    conformity: Conformity
    batch: int | None
    reading: Reading
    models: int | None
    recorded: ProfileReading


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rehearsal:
    """Recorded delays, and the settings of their replay.

    A failure in the profile counts as the time that it costs (`DelayProfile.awaited`). If
    ``repeat`` is True, the profile begins again after its last round. None means True in a search
    (`seqgc.search.tune`), so that every round is used, and False in a single replay. ``num_jobs``
    is the number of gradients, each of one model. With k jobs per round, they run as
    ``num_jobs / k`` bundles, each with k times the load. By default, the number follows from the
    length of the profile. ``alpha`` replaces the profile's own seconds per unit of load.

    ``conformity`` is ``"scheme"`` for the scheme's own straggler model. If it is ``"bursty"``, and
    the scheme's model is a choice that includes the bursty model, only the bursty model counts.
    ``batch`` is the number of data points in a model's batch. If ``batch`` is given, the times of
    workers are for whole points, and a mini-task without points is not sent; otherwise they are for
    nominal loads. ``reading`` is the interpretation of delays for schemes that deal work. The jobs
    belong to ``models`` models in turn. If ``models`` is None, it is the number that a scheme needs
    or, for schemes that deal work, one bundle. ``recorded`` is the interpretation of the profile's
    seconds as latencies or speeds (`ProfileReading`). ``whole_median_s`` is the median time of the
    whole recording, if the profile has only some of its rounds (`on_part`).

    Raises
    ------
    ParameterError
        If an argument breaks its rule.
    ProfileError
        If no worker answered in some round.

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
    whole_median_s: float | None = None

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

    @classmethod
    def of(cls, on: Rehearsal | ProfileSource, **settings: Unpack[ReplaySettings]) -> Rehearsal:
        """Return the rehearsal of recorded or generated delays, with these settings.

        `seqgc.runs.read_delays` describes what ``on`` may be. If ``on`` is a rehearsal, the
        settings replace its own. Raises like `seqgc.runs.read_delays` and `Rehearsal`.
        """
        if isinstance(on, Rehearsal):
            return replace(on, **settings) if settings else on
        return cls(profile=read_delays(on, alpha=settings.get("alpha")), **settings)

    def alpha_cases(self) -> tuple[Rehearsal, ...]:
        """Return this rehearsal; or, if nothing says what load costs, its two extreme cases.

        A recording at one load does not determine alpha. In the first case alpha is 0: a task takes
        as long at every load. In the second case alpha is (nearly) the median time divided by the
        base load: a task takes time in proportion to its load. The truth is between these cases. If
        the base load is unknown (0), it is 1/n in the second case, as if all workers had had equal
        parts of a job.
        """
        profile, n = self.profile, self.profile.num_workers
        if self.recorded == "speed" or self.alpha is not None or profile.meta.alpha is not None:
            return (self,)
        base_load = profile.meta.base_load or 1 / n
        alpha = (1 - _REST) * self._median_s / base_load
        based = replace(profile, meta=replace(profile.meta, base_load=base_load))
        return replace(self, alpha=0.0), replace(self, profile=based, alpha=alpha)

    def on_part(self, part: DelayProfile) -> Rehearsal:
        """Return the rehearsal of ``part``, some rounds of the profile.

        Whether ``alpha`` is too large is still judged by the median time of the whole profile,
        since the median of some rounds may be lower by chance.
        """
        return replace(self, profile=part, whole_median_s=self._median_s)

    @property
    def _median_s(self) -> float:
        if self.whole_median_s is not None:
            return self.whole_median_s
        return float(np.median(self.profile.times))

    @property
    def slope(self) -> float:
        """The seconds per unit of load: ``alpha``, or the slope of the profile."""
        return self.profile.slope(self.alpha)

    def pace(self, *, jobs_per_round: int = 1) -> Pace:
        """Return the workers' pace, for which a unit of load is ``jobs_per_round`` batches."""
        if self.recorded == "speed":
            return speed_pace(self.profile, jobs_per_round=jobs_per_round)
        return latency_pace(self.profile, alpha=self.alpha, jobs_per_round=jobs_per_round)

    def dealt_pace(self, setting: Setting, *, silent_s: FloatArray | None = None) -> Pace:
        """Return the pace of workers to which work is dealt, according to the reading.

        ``silent_s`` (rounds, n) are the seconds after which invocations stop
        (`seqgc.profiles.ByInvocation`). Raises like `num_rounds`.
        """
        if self.recorded == "speed":
            return self.pace(jobs_per_round=setting.jobs_per_round)
        if self.reading.per_piece:
            rates = np.array([[self.slope * setting.jobs_per_round]])
            return ByRound(
                latencies_s=np.maximum(self._at_no_load, 0.0), rates=rates, empty_s=self.rtt_s
            )
        before_s, after_s = self.reading.split(self.latencies(setting))
        rate = self.slope * setting.jobs_per_round
        silence = {} if silent_s is None else {"silent_s": silent_s[: len(before_s)]}
        return ByInvocation(before_s=before_s, after_s=after_s, rate=rate, **silence)

    @property
    def rtt_s(self) -> float:
        """The round-trip time of a message to a running worker, in seconds."""
        for rtt_s in (self.reading.rtt_s, self.profile.meta.rtt_s):
            if rtt_s is not None:
                return rtt_s
        return USUAL_RTT_S

    @property
    def most_rounds(self) -> int:
        """The largest number of rounds of a run, because all answers are stored in memory."""
        return min(_MOST_JOBS, _MOST_ANSWERS // self.profile.num_workers)

    def jobs(self, scheme: Defence, *, jobs_per_round: int = 1) -> int:
        """Return the number of gradients that a run of the scheme computes."""
        if self.num_jobs is not None:
            return self.num_jobs
        bundles = self.profile.num_rounds - scheme.delay
        if bundles < 1:
            rule = f"must have more than {scheme.delay} rounds, the delay of {scheme.spec}"
            remedy = "give the number of jobs, and repeat the profile"
            raise ParameterError("profile", rule, self.profile.num_rounds, remedy)
        return bundles * jobs_per_round

    def bundles(self, setting: Setting) -> int:
        """Return the number of bundles of ``jobs_per_round`` gradients in a run.

        Raises
        ------
        ParameterError
            If ``jobs_per_round`` does not divide the number of gradients, or if the answers of all
            rounds do not fit in memory.
        """
        k = setting.jobs_per_round
        jobs, n = self.jobs(setting.scheme, jobs_per_round=k), setting.scheme.n
        if jobs % k:
            rule = f"must be >= 1 and divide the number of jobs, {jobs}"
            raise ParameterError("jobs_per_round", rule, k)
        if jobs // k > (most := _MOST_ANSWERS // n):
            rule = f"must fit in {most} rounds, the most that a replay of {n} workers can hold"
            raise ParameterError("jobs", rule, jobs, "take fewer jobs or a part of the workers")
        return jobs // k

    def num_rounds(self, setting: Setting) -> int:
        """Return the number of rounds of a run.

        Raises
        ------
        ParameterError
            If the profile is too short or has another number of workers, if `bundles` raises it, or
            if ``models`` is given and the number of bundles of models is not above the scheme's
            delay. For workers that stay between rounds, a short profile suffices.
        """
        scheme, profile = setting.scheme, self.profile
        self.require_no_starts(setting)
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

    def require_no_starts(self, setting: Setting, *, stay: str = "") -> None:
        """Raise `ParameterError` if a latency would be added to each of many small tasks.

        This concerns policies whose tasks are pieces, such as ``flexrr``. With `Deal`, the latency
        of a worker that stays is added once. The message names all options that are missing.
        ``stay`` is the option with which workers would stay, if they do not.
        """
        scheme = setting.scheme
        if not isinstance(scheme, PolicyDefence) or not scheme.num_pieces:
            return
        missing = [stay] if stay else []
        if not self.profile.meta.base_load:
            missing.insert(0, "--base-load LOAD")
        if self.recorded == "latency":
            missing.insert(0, "--reading speed")
        if missing:
            rule = "must not cut parts into pieces, each of which would be an invocation or take a "
            rule += "recorded latency"
            remedy = f"for workers that stay, add {' '.join(missing)}; or take deal or a code"
            raise ParameterError("scheme", rule, scheme.spec, remedy)

    def times(self, setting: Setting) -> FloatArray:
        """Return the seconds (rounds, n) of each worker in each round, under its own load.

        Raises like `num_rounds` and `DelayProfile.times_at`.
        """
        rounds = np.arange(self.num_rounds(setting)) % self.profile.num_rounds
        loads = setting.jobs_per_round * setting.scheme.loads_of(self.batch)
        return self.profile.times_at(loads, alpha=self.alpha)[rounds]

    def times_of(self, setting: Setting, schedule: Schedule) -> FloatArray:
        """Return the seconds (n,) of the workers in the open round, under their current loads.

        Raises like `DelayProfile.times_at`.
        """
        loads = setting.jobs_per_round * schedule.loads()
        row = schedule.round % self.profile.num_rounds
        return self.profile.times_at(loads, alpha=self.alpha, round=row)

    def stays(self, setting: Setting) -> bool:
        """Return True if workers stay between rounds: they are resident, and work is dealt."""
        return self.reading.resident and isinstance(setting.scheme, Deal)

    @property
    def can_deal(self) -> bool:
        """True if work can be dealt to the recorded workers, because they stay for all rounds.

        Processes stay. Functions stay if `Reading.resident` is True. If the profile has no provider
        (`ProfileMeta.provider`), its workers count as functions.
        """
        return self.reading.resident or self.profile.meta.provider in _STAYING

    def longest_delay(self, *, jobs_per_round: int) -> float:
        """Return the longest delay, in rounds, that the number of models allows.

        A model's next step needs its last gradient. Therefore a delay of T rounds needs T + 1
        bundles of ``jobs_per_round`` models. If ``jobs_per_round`` does not divide the number of
        models, the result is negative.
        """
        if self.models is None:
            return math.inf
        bundles, rest = divmod(self.models, jobs_per_round)
        return -1 if rest else bundles - 1

    def in_flight(self, setting: Setting) -> int:
        """Return the number of bundles in flight at a time, for a scheme that deals work.

        Raises
        ------
        ParameterError
            If the bundle size does not divide the number of models.
        """
        bundles, rest = divmod(self.models or setting.jobs_per_round, setting.jobs_per_round)
        if rest:
            rule = f"must divide the number of models, {self.models}"
            raise ParameterError("jobs_per_round", rule, setting.jobs_per_round)
        return bundles if self.reading.resident else 1

    def latencies(self, setting: Setting) -> FloatArray:
        """Return the seconds (rounds, n) >= 0 of answers without any data points.

        Raises like `num_rounds`.
        """
        rounds = np.arange(self.num_rounds(setting)) % self.profile.num_rounds
        return np.maximum(self._at_no_load, 0.0)[rounds]

    @property
    def _at_no_load(self) -> FloatArray:
        # Alpha is an average: for a worker with a processor of its own, the result may be negative.
        # The bounds hold nevertheless.
        alpha, base_load, times = self.slope, self.profile.meta.base_load, self.profile.times
        median = self._median_s
        if not median > alpha * base_load:
            rule = "must leave the median time positive at load 0: "
            rule += f"the median is {median:.6g} s at the base load {base_load:.6g}"
            raise ParameterError("alpha", rule, alpha, "lower alpha or the base load")
        at_no_load: FloatArray = times - alpha * base_load
        return at_no_load

    def schedule(self, setting: Setting) -> Schedule:
        """Return the schedule of a new run of a setting."""
        scheme = by_rounds(setting.scheme, "a replay round by round")
        conformity = scheme.promise
        if self.conformity == "bursty" and isinstance(conformity, AnyOf):
            bursty = (model for model in conformity.models if isinstance(model, Bursty))
            conformity = next(bursty, conformity)
        batches = () if self.batch is None else (self.batch,)
        return scheme.begin(self.bundles(setting), conformity=conformity, batches=batches)

    def leaves_out(self, scheme: Scheme) -> bool:
        """Return True if some mini-task of the scheme has no data points, and is never sent."""
        return self.batch is not None and _leaves_out(scheme, self.batch)

    def ideal_s(self, num_jobs: int, *, jobs_per_round: int = 1) -> float:
        """Return the seconds of ``num_jobs`` gradients if all delays are known in advance.

        This is `seqgc.stragglers.clairvoyant_bound`, summed over ``num_jobs / jobs_per_round``
        rounds; the profile is repeated if necessary. A scheme with a delay has more rounds, but a
        single round may be shorter than its bound.

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
        """Return a lower bound on a setting's run time, in seconds.

        Usually this is `least_s`. If the workers stay between rounds, they start only once, and the
        bound is the time of all work, shared evenly.
        """
        jobs = self.jobs(setting.scheme, jobs_per_round=setting.jobs_per_round)
        if self.stays(setting) and self.recorded == "latency":
            return self.slope * jobs / setting.scheme.n
        return self.least_s(setting, jobs)

    def least_s(self, setting: Setting, num_jobs: int) -> float:
        """Return a lower bound on the seconds of ``num_jobs`` gradients, with a latency per task.

        For schemes in rounds this is `ideal_s`. For a policy without rounds, whose weights may lack
        results of other workers, it is the time of workers that are never idle. If delays are read
        as speeds, it is `seqgc.stragglers.busy_seconds` for every setting.
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
        """Check that a run of ``num_jobs`` gradients was not impossibly fast.

        A scheme that beats the bound closes rounds with too few answers, or its tasks are larger
        than its loads. The bound is `ideal_s`, or `least_s` if delays are read as speeds. It holds
        for exact schemes without a delay; other schemes are not checked.

        Raises
        ------
        ScheduleError
            If the scheme claims exact gradients without a delay, and ``seconds`` is below the
            bound.
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
            took = f"{scheme.spec} is broken: its run takes {seconds:.6g} s, but"
            rule = f"no exact scheme without a delay takes less than {least_s:.6g} s here."
            cause = "Its rounds close with too few answers, or its tasks are larger than its loads"
            raise ScheduleError(f"{took} {rule} {cause}; check it with seqgc.testing.check_scheme")


@lru_cache(maxsize=2**15)  # a search calls this once for every closing rule
def _leaves_out(scheme: Scheme, batch: int) -> bool:
    scheme.loads_of(batch)  # fills the cache of loads, for which the cut is needed anyway
    return scheme.begin(1, batches=(batch,)).leaves_out
