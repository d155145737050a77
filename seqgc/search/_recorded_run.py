"""The same loop, policy and closing rule on recorded times, with a virtual clock.

Source: docs/mathematics.md, section 7.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from seqgc import master
from seqgc.errors import IllConditionedError, ParameterError, ScheduleError
from seqgc.ports import (
    Arrival,
    Decoding,
    Dispatch,
    Finish,
    FloatArray,
    MiniTask,
    Seen,
    Task,
    Timetable,
)
from seqgc.rounds import PolicyDefence, RoundPolicy, Setting
from seqgc.schemes import Deal
from seqgc.search._dealt_run import deal
from seqgc.search._outcome import Recorder, Replay
from seqgc.search._paced_run import paced_run
from seqgc.search._rehearsal import Rehearsal
from seqgc.virtual import Compute, answer

__all__ = ["Accuracy", "ReplayBackend", "accuracy", "decode_some", "replay"]


class ReplayBackend:
    """Answers each task at its recorded time; nobody sleeps, nobody fails.

    ``times`` (rounds, n) are seconds from dispatch to answer, at the load to be replayed; or what
    returns those of a round, (n,), as it is dispatched. The clock starts again at 0 with every
    round, so that the times that reach the policy are the recorded ones to the last bit; what was
    not cancelled then comes after what is left of its time, beside the new task: a function is
    called anew, whatever the last call does. ``compute`` makes results, for runs that decode;
    without it answers are empty.

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
        self._pending: list[tuple[float, Task]] = []  # the next to arrive comes last
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
                raise ScheduleError("the policy waits for ever: nothing is left to arrive")
            self._now = until
            return None
        at, task = self._pending.pop()
        return answer(task, at=at, compute=self._compute)

    def close(self) -> None:
        self._pending = []


class _WholeRounds:
    """Reports the times of a whole round at once; for `RoundPolicy`, when nothing is computed."""

    def __init__(self, times: Callable[[int], FloatArray]) -> None:
        self._times = times
        self._timetable: Timetable | None = None

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        self._timetable = Timetable(round=round, at=0.0, times=self._times(round))
        return [0.0] * len(tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Nothing is under way any more."""

    def receive(self, until: float) -> Timetable | None:  # noqa: ARG002 (nobody waits)
        timetable, self._timetable = self._timetable, None
        return timetable

    def close(self) -> None:
        """Nothing is held."""


def replay(setting: Setting, rehearsal: Rehearsal) -> Replay:
    """Run a defence and a closing rule on recorded delays; nothing is computed.

    The decodings of a few jobs are checked, so that a scheme whose rounds close on too few answers
    does not look fast.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or the profile is too short or has other workers.
    ScheduleError
        If the scheme decodes with a result that has not arrived, or is faster than any such scheme
        can be (`Rehearsal.require_possible`).

    Examples
    --------
    >>> from seqgc.profiles import DelayProfile
    >>> from seqgc.schemes import GC
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> replayed = replay(Setting(scheme=GC(n=3, s=1)), Rehearsal(profile=profile, alpha=0.0))
    >>> replayed.runtime_s, replayed.job_finish_round.tolist()
    (3.5, [0, 1])
    """
    if isinstance(setting.scheme, Deal):
        return deal(setting, rehearsal).replay
    if isinstance(setting.scheme, PolicyDefence):
        return paced_run(setting, rehearsal)[0]
    if rehearsal.recorded == "speed":
        run = paced_run(setting, rehearsal, observe=decode_some)[0]
    else:
        recorder, loads = Recorder(), np.zeros(rehearsal.num_rounds(setting))

        def see(seen: Seen) -> None:
            recorder(seen)
            decode_some(seen)

        _drive(setting, rehearsal, see, loads=loads)
        run = dataclasses.replace(recorder.replay(), loads=loads)
    num_jobs = rehearsal.bundles(setting) * setting.jobs_per_round
    rehearsal.require_possible(setting, run.runtime_s, num_jobs=num_jobs)
    return run


def decode_some(seen: Seen) -> None:
    """Decode a few jobs, so that a scheme that uses results which have not arrived is refused."""
    if isinstance(seen, Finish) and seen.job & (seen.job - 1) == 0:  # 0, 1, 2, 4, 8, ...
        with suppress(IllConditionedError):  # a replay closes rounds by who has answered
            seen.decoding()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How good the gradients of a run are.

    ``error`` is the largest error bound of one of them (`seqgc.ports.Decoding`). ``information``,
    0 to 1, is their mean information, where an exact gradient has 1 (docs/mathematics.md, 7.1).
    """

    error: float
    information: float


def accuracy(setting: Setting, rehearsal: Rehearsal) -> Accuracy:
    """Replay a run, decode its gradients, and return how good they are."""
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
    """Return the information of one gradient: see `Accuracy`."""
    weights = np.zeros(len(fractions))  # of each chunk's gradient in the sum
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
    """Replay a run; note the mean load of each round that is not idle in ``loads`` (rounds,)."""
    usual, table = setting.scheme.loads_of(rehearsal.batch), rehearsal.times(setting)
    usual_load, schedule = float(usual.mean()), rehearsal.schedule(setting)

    def times(round: int) -> FloatArray:
        of_round = schedule.loads()
        is_usual = of_round is usual  # in every round of most schemes, and their times are at hand
        if loads is not None:
            loads[round] = usual_load if is_usual else of_round.mean()
        return table[round] if is_usual else rehearsal.times_of(setting, schedule)

    backend = ReplayBackend(times) if schedule.takes_late else _WholeRounds(times)
    master.run(RoundPolicy(schedule, setting.rule), backend, observe=see)
