"""Replay of one setting: the loop and the policy of a live run, on recorded delays.

Source: docs/mathematics.md, sections 7 and 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Unpack

import numpy as np

from seqgc import master
from seqgc._tabular import Summarised, number
from seqgc.errors import IllConditionedError, ParameterError, ScheduleError
from seqgc.ports import (
    Arrival,
    BoolArray,
    Close,
    CloseReason,
    Decoding,
    Dispatch,
    Finish,
    FloatArray,
    IntArray,
    MiniTask,
    Policy,
    RoundRecord,
    Seen,
    Table,
    Task,
    Timetable,
)
from seqgc.profiles import ByInvocation
from seqgc.rounds import DealingPolicy, PolicyDefence, RoundPolicy, Setting
from seqgc.runs import ProfileSource
from seqgc.schemes import Deal, Defence
from seqgc.search._rehearsal import Rehearsal, ReplaySettings
from seqgc.virtual import Compute, Conduct, VirtualBackend, answer

__all__ = [
    "Accuracy",
    "DealtRun",
    "Replay",
    "ReplayBackend",
    "ReplayRecorder",
    "accuracy",
    "deal",
    "decode_some",
    "paced_run",
    "replay",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Replay(Summarised):
    """The outcome of a run on recorded times.

    For each round: ``round_seconds`` (rounds,), its duration; ``kappa_s`` (rounds,), the time of
    its first answer; ``responded`` (rounds, n), True for the workers whose answers were used;
    ``waited_out`` (rounds,), True if it waited beyond its deadline for necessary answers;
    ``reasons``, the reason why it closed; and ``loads`` (rounds,), the mean load of a worker, as a
    fraction of a batch. ``job_finish_round`` (jobs,) is the round in which each job finished. If
    the scheme deals work, each job counts as a round, which begins when the job before ends, and
    ``loads`` is None. ``setting`` is the setting that was replayed, if it is known.
    """

    round_seconds: FloatArray
    kappa_s: FloatArray
    responded: BoolArray
    waited_out: BoolArray
    reasons: tuple[CloseReason, ...]
    job_finish_round: IntArray
    loads: FloatArray | None = None
    setting: Setting | None = None

    def summary(self) -> dict[str, object]:
        return {
            **({} if self.setting is None else {"setting": self.setting.label}),
            "jobs": len(self.job_finish_round),
            "rounds": len(self.round_seconds),
            "run time": f"{number(self.runtime_s)} s",
            "stragglers": int(np.count_nonzero(~self.responded)),
            "waited out": int(np.count_nonzero(self.waited_out)),
        }

    @property
    def runtime_s(self) -> float:
        """The total seconds of all rounds."""
        return float(np.sum(self.round_seconds))

    def rounds(self) -> Table:
        """Return a row for each round, with the columns of `seqgc.runs.RecordedRun.rounds`.

        The column ``master`` is missing, because a replay is never resumed.
        """
        closed_s, count = np.cumsum(self.round_seconds), len(self.round_seconds)
        return {
            "round": np.arange(count),
            "began_s": closed_s - self.round_seconds,
            "closed_s": closed_s,
            "kappa_s": self.kappa_s,
            "duration_s": self.round_seconds,
            "reason": np.array(self.reasons, dtype=np.object_),
            "waited_out": self.waited_out,
            "stragglers": (~self.responded).sum(axis=1),
            "load": np.full(count, np.nan) if self.loads is None else self.loads,
        }

    def answers(self) -> Table:
        """Return a row for each answer that was used: its ``round`` and ``worker``."""
        rounds, workers = np.nonzero(self.responded)
        return {"round": rounds, "worker": workers}

    def jobs(self) -> Table:
        """Return a row for each job: ``job`` and ``finished_s``, the end of its last round."""
        finished_s = np.cumsum(self.round_seconds)[self.job_finish_round]
        return {"job": np.arange(len(finished_s)), "finished_s": finished_s}


@dataclass(slots=True)
class ReplayRecorder:
    """An observer that records the closed rounds of a run for a `Replay`."""

    _records: list[RoundRecord] = field(default_factory=list)
    _finish_rounds: dict[int, int] = field(default_factory=dict)  # by job

    def __call__(self, seen: Seen) -> None:
        if isinstance(seen, Close):
            self._records.append(seen.record)
            self._finish_rounds |= dict.fromkeys(seen.jobs, seen.record.round)

    def replay(self) -> Replay:
        """Return the outcome of the run, in which all jobs must have finished."""
        records, rounds = self._records, self._finish_rounds
        return Replay(
            round_seconds=np.array([record.duration_s for record in records]),
            kappa_s=np.array([record.kappa_s for record in records]),
            responded=np.stack([record.responded for record in records]),
            waited_out=np.array([record.waited_out for record in records]),
            reasons=tuple(record.reason for record in records),
            job_finish_round=np.array([rounds[job] for job in range(len(rounds))], dtype=np.intp),
        )


def paced_run(
    setting: Setting, rehearsal: Rehearsal, *, observe: Callable[[Seen], None] | None = None
) -> tuple[Replay, float]:
    """Run a scheme that works in rounds, or that has its own policy, in virtual time.

    Return the replay, and the worker-seconds of all tasks to their end. No gradient is computed.
    The time of a task follows from the pace of its worker (`Rehearsal.pace`). If delays are read as
    latencies, a task of round k takes the time in row k of the profile, at the task's load
    (`seqgc.profiles.DelayProfile.times_at`). Each task is a separate invocation, unless workers are
    resident according to the reading, or tasks are pieces.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or the profile is too short or has other workers.
    ScheduleError
        If the policy breaks the contract of policies (`seqgc.virtual.Conduct`).
    """
    rehearsal.num_rounds(setting)  # raises if the setting does not fit
    if rehearsal.recorded == "latency":
        rehearsal.times(setting)
    jobs = rehearsal.bundles(setting)
    stays = rehearsal.reading.resident or setting.scheme.num_pieces > 0
    backend = VirtualBackend(
        setting.scheme.n,
        rehearsal.pace(jobs_per_round=setting.jobs_per_round),
        workers="resident" if stays else "function",
    )
    mean_loads, recorder = dict[int, float](), ReplayRecorder()
    conduct = Conduct(setting.scheme.spec, n=setting.scheme.n, num_jobs=jobs)

    def see(seen: Seen) -> None:
        conduct(seen)
        recorder(seen)
        if isinstance(seen, Dispatch) and seen.loads is not None and seen.round not in mean_loads:
            mean_loads[seen.round] = float(seen.loads.mean())
        if observe is not None:
            observe(seen)

    with conduct.watching():
        master.run(_policy(setting, rehearsal, jobs), backend, observe=see)
        conduct.end()
    outcome = recorder.replay()
    rounds = range(len(outcome.round_seconds))
    loads = np.array([mean_loads.get(round, np.nan) for round in rounds])
    return replace(outcome, loads=loads), float(backend.busy_s.sum())


def _policy(setting: Setting, rehearsal: Rehearsal, jobs: int) -> Policy:
    if not isinstance(setting.scheme, PolicyDefence):
        return RoundPolicy(rehearsal.schedule(setting), setting.rule)
    batches = () if rehearsal.batch is None else (rehearsal.batch,)
    return setting.scheme.policy(setting.rule, num_jobs=jobs, batches=batches)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DealtRun:
    """The outcome of a run that deals its work, on recorded times.

    ``computed_load`` is the number of batches that workers began to compute, divided by the number
    of batches of the jobs: 1 plus the fraction of copies. ``billed_worker_s`` are the
    worker-seconds of all invocations, including idle time. ``pieces`` is the number of pieces of a
    job.
    """

    replay: Replay
    computed_load: float
    billed_worker_s: float
    pieces: int


def deal(setting: Setting, rehearsal: Rehearsal, *, silent_s: FloatArray | None = None) -> DealtRun:
    """Run a `Deal` on recorded delays, which `Rehearsal.reading` interprets.

    ``silent_s`` (rounds, n) are the seconds after its invocation at which a worker stops without a
    message to the master. It has no effect if delays are read as speeds, because no worker is
    invoked then.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or the profile is too short or has other workers.
    """
    jobs, in_flight = rehearsal.bundles(setting), rehearsal.in_flight(setting)
    if not isinstance(setting.scheme, Deal):
        raise ParameterError("scheme", "must be one that deals its work", setting.scheme.spec)
    scheme = setting.scheme.fitted(in_flight, batch=rehearsal.batch)
    empty, load_of = None, None
    if rehearsal.batch is not None:
        sizes = scheme.cut(rehearsal.batch)
        empty = sizes == 0
        if rehearsal.recorded == "latency":
            load_of = partial(_load_of, shares=(sizes / rehearsal.batch).tolist())
    pace = rehearsal.dealt_pace(setting, silent_s=silent_s)
    message_s = 0.0 if rehearsal.reading.per_piece else rehearsal.rtt_s / 2  # or in the latency
    workers = VirtualBackend(scheme.n, pace, message_s=message_s, load_of=load_of)
    policy = DealingPolicy(
        scheme,
        setting.rule,
        num_jobs=jobs,
        in_flight=in_flight,
        greet="once" if rehearsal.reading.resident else "rounds",
        empty=empty,
    )
    recorder = ReplayRecorder()
    master.run(policy, workers, observe=recorder)
    is_invoked = isinstance(pace, ByInvocation)
    return DealtRun(
        replay=recorder.replay(),
        computed_load=float(workers.done.sum()) / jobs,
        billed_worker_s=workers.billed_s if is_invoked else scheme.n * workers.now,
        pieces=scheme.num_pieces,
    )


def _load_of(task: Task, *, shares: Sequence[float]) -> float:
    return sum(shares[item.slot] for item in task.items)


class ReplayBackend:
    """A backend that answers each task at its recorded time, without sleeping or failures.

    ``times`` (rounds, n) are the seconds from dispatch to answer at the load of the replay.
    Alternatively, ``times`` is a function that returns the seconds (n,) of a round when the round
    is dispatched. The clock starts at 0 in every round, so that the policy receives the recorded
    times to the last bit. If a task of an earlier round was not cancelled, its answer arrives after
    the rest of its time, in parallel with the worker's new task: a function can be invoked again
    while an earlier call runs. ``compute`` computes the results of runs that decode; if it is None,
    answers are empty.

    Examples
    --------
    >>> import numpy as np
    >>> from seqgc.ports import Close
    >>> from seqgc.rounds import ClosingRule
    >>> from seqgc.schemes import GC
    >>> times = np.array([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> policy = RoundPolicy(GC(n=3, s=1).start(2), ClosingRule())
    >>> seen = []
    >>> master.run(policy, ReplayBackend(times), observe=seen.append)
    >>> [event.record.duration_s for event in seen if isinstance(event, Close)]
    [2.0, 1.5]
    """

    def __init__(
        self, times: FloatArray | Callable[[int], FloatArray], *, compute: Compute | None = None
    ) -> None:
        if not callable(times) and times.ndim != 2:
            raise ParameterError("times", "must be a matrix (rounds, workers)", times.shape)
        self._times, self._compute = times, compute
        self._pending: list[tuple[float, Task]] = []  # the next arrival is last
        self._now = 0.0

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        seconds = self._of_round(round).tolist()
        before = [(at - self._now, task) for at, task in self._pending]
        self._pending = [*before, *((seconds[task.worker], task) for task in tasks)]
        self._pending.sort(key=lambda due: (due[0], due[1].worker), reverse=True)
        self._now = 0.0
        return [0.0] * len(tasks)

    def _of_round(self, round: int) -> FloatArray:
        if callable(self._times):
            return self._times(round)
        if round >= len(self._times):
            raise ParameterError("times", f"must cover round {round}", self._times.shape)
        of_round: FloatArray = self._times[round]
        return of_round

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        over = {(round, worker) for worker in workers}
        self._pending = [(at, t) for at, t in self._pending if (t.round, t.worker) not in over]

    def receive(self, until: float) -> Arrival | None:
        if not self._pending or self._pending[-1][0] > until:
            if math.isinf(until):
                raise ScheduleError("the policy waits for ever: no answer is in flight")
            self._now = until
            return None
        at, task = self._pending.pop()
        return answer(task, at=at, compute=self._compute)

    def close(self) -> None:
        self._pending = []


class _WholeRounds:
    """A backend for a `RoundPolicy` that reports all times of a round in one event.

    It has no results.
    """

    def __init__(self, times: Callable[[int], FloatArray]) -> None:
        self._times = times
        self._timetable: Timetable | None = None

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        self._timetable = Timetable(round=round, at=0.0, times=self._times(round))
        return [0.0] * len(tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Do nothing, because no task is in flight."""

    def receive(self, until: float) -> Timetable | None:  # noqa: ARG002
        timetable, self._timetable = self._timetable, None
        return timetable

    def close(self) -> None:
        """There is nothing to release."""


def replay(
    setting: Setting | Defence | str,
    on: Rehearsal | ProfileSource,
    **settings: Unpack[ReplaySettings],
) -> Replay:
    """Run a setting on recorded delays, without computing gradients.

    ``setting`` may also be a scheme, another defence, or the spec of one. ``on`` is a profile, the
    path of one, or the name of a generator (`seqgc.runs.read_delays`). It may also be a
    `Rehearsal`, whose fields are the ``settings`` of the replay.

    The decodings of a few jobs are checked, so that a faulty scheme whose rounds close with too few
    answers does not appear to be fast.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or the profile is too short or has another number of
        workers.
    ScheduleError
        If the scheme decodes with a result that has not arrived, or if the run is impossibly fast
        (`Rehearsal.require_possible`).

    Examples
    --------
    >>> from seqgc.profiles import DelayProfile
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> replayed = replay("gc:s=1", profile, alpha=0.0)
    >>> replayed
    <Replay: setting gc:s=1, mu=0, feasible; jobs 2; rounds 2; run time 3.5 s; stragglers 2;
    waited out 2>
    >>> replayed.runtime_s, replayed.job_finish_round.tolist()
    (3.5, [0, 1])
    """
    rehearsal = Rehearsal.of(on, **settings)
    setting = Setting.of(setting, n=rehearsal.profile.num_workers)
    return replace(_replayed(setting, rehearsal), setting=setting)


def _replayed(setting: Setting, rehearsal: Rehearsal) -> Replay:
    if isinstance(setting.scheme, Deal):
        return deal(setting, rehearsal).replay
    if isinstance(setting.scheme, PolicyDefence):
        return paced_run(setting, rehearsal)[0]
    if rehearsal.recorded == "speed":
        run = paced_run(setting, rehearsal, observe=decode_some)[0]
    else:
        recorder, loads = ReplayRecorder(), np.zeros(rehearsal.num_rounds(setting))

        def see(seen: Seen) -> None:
            recorder(seen)
            decode_some(seen)

        _drive(setting, rehearsal, see, loads=loads)
        run = replace(recorder.replay(), loads=loads)
    num_jobs = rehearsal.bundles(setting) * setting.jobs_per_round
    rehearsal.require_possible(setting, run.runtime_s, num_jobs=num_jobs)
    return run


def decode_some(seen: Seen) -> None:
    """Decode a finished job if its number is 0 or a power of 2.

    Raises
    ------
    ScheduleError
        If the scheme uses a result that has not arrived.
    """
    if isinstance(seen, Finish) and seen.job & (seen.job - 1) == 0:  # 0, 1, 2, 4, 8, ...
        with suppress(IllConditionedError):  # a live run would have waited longer
            seen.decoding()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The accuracy of the gradients of a run.

    ``error`` is the largest error bound of a gradient (`seqgc.ports.Decoding`). ``information`` is
    the mean information of a gradient, from 0 to 1; an exact gradient has 1 (docs/mathematics.md,
    7.1).
    """

    error: float
    information: float


def accuracy(setting: Setting, rehearsal: Rehearsal) -> Accuracy:
    """Replay a run, decode its gradients, and return their accuracy."""
    fractions = setting.scheme.chunk_fractions
    assignments: dict[int, Mapping[int, tuple[MiniTask, ...]]] = {}  # by round
    errors, information = list[float](), list[float]()

    def see(seen: Seen) -> None:
        if isinstance(seen, Dispatch):
            assignments[seen.round] = seen.assignment
        elif isinstance(seen, Finish):
            decoding = seen.decoding()
            errors.append(decoding.error)
            information.append(_information(decoding, assignments, fractions))

    if rehearsal.recorded == "speed":
        paced_run(setting, rehearsal, observe=see)
    else:
        _drive(setting, rehearsal, see)
    return Accuracy(error=max(errors), information=float(np.mean(information)))


def _information(
    decoding: Decoding,
    assignments: Mapping[int, Mapping[int, tuple[MiniTask, ...]]],
    fractions: FloatArray,
) -> float:
    """Return the information of one gradient: ``(sum_c f_c w_c)^2 / sum_c f_c w_c^2``.

    ``f_c`` are the fractions of the batch in each chunk, and ``w_c`` the weights of the chunks in
    the sum. Source: docs/mathematics.md, 7.1.
    """
    weights = np.zeros(len(fractions))  # the weight of each chunk's gradient in the sum
    for term in decoding.terms:
        tasks = assignments[term.round][term.worker]
        task = next(task for task in tasks if task.slot == term.slot)
        weights[task.chunks] += term.weight * task.coefficients
    squares = float(fractions @ weights**2)
    return float(fractions @ weights) ** 2 / squares if squares else 0.0


def _drive(
    setting: Setting,
    rehearsal: Rehearsal,
    see: Callable[[Seen], None],
    *,
    loads: FloatArray | None = None,
) -> None:
    """Replay a run; write the mean load of each round with tasks into ``loads`` (rounds,)."""
    usual, table = setting.scheme.loads_of(rehearsal.batch), rehearsal.times(setting)
    usual_load, schedule = float(usual.mean()), rehearsal.schedule(setting)

    def times(round: int) -> FloatArray:
        of_round = schedule.loads()
        is_usual = of_round is usual  # true in every round of most schemes
        if loads is not None:
            loads[round] = usual_load if is_usual else of_round.mean()
        return table[round] if is_usual else rehearsal.times_of(setting, schedule)

    backend = ReplayBackend(times) if schedule.takes_late else _WholeRounds(times)
    master.run(RoundPolicy(schedule, setting.rule), backend, observe=see)
