"""When may a round close? `RoundGate` decides it; `RoundPolicy` drives a schedule with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from seqgc._types import BoolArray, Decoding
from seqgc.errors import ParameterError, ScheduleError, WorkerError
from seqgc.ports import (
    Action,
    Arrival,
    Cancel,
    Close,
    CloseReason,
    Dispatch,
    Dispatched,
    Drop,
    Event,
    Failure,
    Finish,
    RoundRecord,
    Tick,
)
from seqgc.schemes import Assignment

__all__ = ["RoundGate", "RoundPolicy", "WaitOut"]

WaitOut = Literal["all", "conform", "feasible"]


class _Judge(Protocol):
    """What the gate asks of a schedule."""

    def conforms(self, responded: BoolArray) -> bool: ...
    def feasible(self, responded: BoolArray) -> bool: ...


class _Schedule(_Judge, Protocol):
    """What the policy asks of a schedule."""

    def decodes_well(self, responded: BoolArray, dtype: npt.DTypeLike = ...) -> bool: ...

    @property
    def num_rounds(self) -> int: ...
    @property
    def round(self) -> int: ...
    def assignment(self) -> Assignment: ...
    def close_round(self, responded: BoolArray) -> tuple[int, ...]: ...
    def decoding(self, job: int, dtype: npt.DTypeLike = ...) -> Decoding: ...


class RoundGate:
    """Decides when one round closes (spec, section 6); sans-I/O: elapsed seconds in, decision out.

    The round stays open until ``(1+mu) * kappa``, kappa being the first answer's time, or until
    everybody answered. If the answers do not suffice then, it waits: for every worker (``all``),
    or for one more answer at a time until the pattern fits the scheme's model (``conform``) or no
    job in flight is lost (``feasible``). Whatever the rule, a round never closes on answers that
    would lose a job. Answers only ever register; `tick` decides, so that all answers of one
    instant count together.

    Parameters
    ----------
    schedule
        Judges patterns: ``conforms`` and ``feasible``.
    n : int
        Workers.
    mu : float
        Tolerance, >= 0.
    wait_out : {"all", "conform", "feasible"}
    timeout_s : float
        Hard limit: workers that have not answered by then have failed.
    round : int
        Number of the round, for the record and for errors.
    decodes_well
        Whether answers that suffice can be decoded to a useful precision; else the gate waits for
        one more, as long as there is one to wait for.

    Examples
    --------
    >>> from seqgc.schemes import GC
    >>> gate = RoundGate(GC(n=3, s=1).start(1), n=3, mu=0.5, wait_out="feasible")
    >>> gate.arrive(2, 1.0)
    >>> gate.wake_at
    1.5
    >>> gate.tick(1.5)  # one answer of three: not enough
    >>> gate.arrive(0, 1.7); gate.tick(1.7)
    >>> gate.record.reason, gate.record.duration_s
    ('wait-out', 1.7)
    """

    def __init__(
        self,
        schedule: _Judge,
        *,
        n: int,
        mu: float,
        wait_out: WaitOut,
        timeout_s: float = math.inf,
        round: int = 0,
        decodes_well: Callable[[BoolArray], bool] | None = None,
    ) -> None:
        check_closing_rule(mu=mu, wait_out=wait_out, timeout_s=timeout_s)
        self._schedule, self._mu, self._wait_out = schedule, mu, wait_out
        self._decodes_well = decodes_well
        self._timeout_s, self._round = timeout_s, round
        self._responded = np.zeros(n, dtype=np.bool_)
        self._failed = np.zeros(n, dtype=np.bool_)
        self._kappa_s: float | None = None
        self._latest_s = 0.0
        self._waited_out = False
        self.wake_at = timeout_s
        self.record: RoundRecord | None = None

    def arrive(self, worker: int, elapsed: float) -> None:
        """Register an answer at ``elapsed`` seconds.

        Raises
        ------
        ScheduleError
            If the round is closed, the worker has answered or failed, or time went back.
        """
        self._register(self._responded, worker, elapsed)
        if self._kappa_s is None:
            self._kappa_s = elapsed
        self._set_alarm(elapsed)

    def fail(self, worker: int, elapsed: float) -> None:
        """Register that a worker will not answer; raises like `arrive`."""
        self._register(self._failed, worker, elapsed)
        self._set_alarm(elapsed)

    def tick(self, elapsed: float) -> None:
        """Decide, everything that happened by ``elapsed`` seconds being registered.

        Raises
        ------
        WorkerError
            If nobody is left to wait for and the answers would lose a job.
        """
        self._require_open(elapsed)
        if elapsed < self.wake_at:
            return
        self._latest_s = elapsed
        timed_out = elapsed >= self._timeout_s
        if self._nobody_left() or timed_out:
            self._close_or_give_up(elapsed, timed_out)
        elif self._suffices():
            self._close(elapsed, "wait-out" if self._waited_out else "tolerance")
        else:
            self._waited_out = True
            self.wake_at = self._timeout_s

    def _register(self, mask: BoolArray, worker: int, elapsed: float) -> None:
        self._require_open(elapsed)
        if self._responded[worker] or self._failed[worker]:
            raise ScheduleError(
                f"worker {worker} is settled in round {self._round}: drop the event"
            )
        mask[worker] = True
        self._latest_s = elapsed

    def _require_open(self, elapsed: float) -> None:
        if self.record is not None:
            raise ScheduleError(f"round {self._round} is closed: drop the event")
        if elapsed < self._latest_s:
            raise ScheduleError(f"time went back from {self._latest_s} s to {elapsed} s")

    def _set_alarm(self, elapsed: float) -> None:
        if self._nobody_left():
            self.wake_at = elapsed
        elif self._kappa_s is not None and not (self._waited_out and self._wait_out == "all"):
            deadline = (1 + self._mu) * self._kappa_s
            self.wake_at = min(self._timeout_s, max(elapsed, deadline))

    def _nobody_left(self) -> bool:
        return bool((self._responded | self._failed).all())

    def _suffices(self) -> bool:
        if self._wait_out != "feasible" and not self._schedule.conforms(self._responded):
            return False
        if not self._schedule.feasible(self._responded):
            return False
        return self._decodes_well is None or self._decodes_well(self._responded)

    def _close_or_give_up(self, elapsed: float, timed_out: bool) -> None:
        if not self._schedule.feasible(self._responded):
            answered, n = np.count_nonzero(self._responded), len(self._responded)
            raise WorkerError(
                f"round {self._round} cannot end: {answered} of {n} workers answered within "
                f"{elapsed:.3g} s, {np.count_nonzero(self._failed)} failed",
                round=self._round,
            )
        if self._responded.all():
            self._close(elapsed, "everyone")
        else:
            self._close(elapsed, "timeout" if timed_out else "exhausted")

    def _close(self, elapsed: float, reason: CloseReason) -> None:
        responded = self._responded.copy()
        responded.flags.writeable = False
        kappa_s = elapsed if self._kappa_s is None else self._kappa_s
        self.record = RoundRecord(
            round=self._round,
            responded=responded,
            kappa_s=kappa_s,
            duration_s=elapsed,
            reason=reason,
            waited_out=self._waited_out or elapsed > (1 + self._mu) * kappa_s,
        )


class RoundPolicy:
    """A schedule and a gate, as a policy: what the loop drives for every round-based scheme.

    A failed task is sent again at once, at most ``max_attempts`` times in a round; then its
    worker is this round's straggler. Answers to closed rounds, and second ones, are dropped.

    Parameters
    ----------
    schedule
        The scheme's run, from ``Scheme.start``.
    n : int
        Workers.
    mu, wait_out, timeout_s
        The closing rule; see `RoundGate`.
    max_attempts : int
        Times a worker's task may be sent in one round, >= 1.
    dtype
        The results' precision, where gradients are decoded: answers that would be decoded too badly
        do not suffice. None: decisions only, as in replay.

    Examples
    --------
    >>> from seqgc.schemes import GC
    >>> policy = RoundPolicy(GC(n=3, s=1).start(1), n=3, mu=0.0, wait_out="feasible")
    >>> [type(action).__name__ for action in policy.start()]
    ['Dispatch']
    """

    def __init__(
        self,
        schedule: _Schedule,
        *,
        n: int,
        mu: float,
        wait_out: WaitOut,
        timeout_s: float = math.inf,
        max_attempts: int = 3,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        if max_attempts < 1:
            raise ParameterError("max_attempts", "must be >= 1", max_attempts)
        self._schedule, self._n, self._max_attempts = schedule, n, max_attempts
        decodes_well = None if dtype is None else partial(schedule.decodes_well, dtype=dtype)
        self._new_gate: Callable[[], RoundGate] = lambda: RoundGate(
            schedule,
            n=n,
            mu=mu,
            wait_out=wait_out,
            timeout_s=timeout_s,
            round=schedule.round,
            decodes_well=decodes_well,
        )
        self._gate = self._new_gate()
        self._assignment: Assignment = ()
        self._attempts = [0] * n
        self._settled: set[int] = set()
        self._first_failure: Failure | None = None
        self._origin = math.nan  # set when the round's tasks have left
        self._now = 0.0

    @property
    def done(self) -> bool:
        """Whether every round is closed."""
        return self._schedule.round >= self._schedule.num_rounds

    @property
    def wake_at(self) -> float:
        """When to send a `Tick` if nothing arrives before, in the backend's time."""
        return self._origin + self._gate.wake_at if any(self._assignment) else self._now

    def start(self) -> Sequence[Action]:
        """Open the first round."""
        return self._open_round()

    def on(self, event: Event) -> Sequence[Action]:
        """Take one event; return what is to be done about it, in order.

        Raises
        ------
        WorkerError
            If the round cannot end; names the first failure.
        """
        self._now = event.at
        match event:
            case Dispatched():
                return self._on_dispatched(event)
            case Arrival():
                return self._on_arrival(event)
            case Failure():
                return self._on_failure(event)
            case Tick():
                return self._on_tick(event)

    def _on_dispatched(self, event: Dispatched) -> Sequence[Action]:
        if event.attempt == 0:
            self._origin = event.at
        return ()

    def _on_arrival(self, event: Arrival) -> Sequence[Action]:
        if stale := self._stale(event):
            return stale
        self._settled.add(event.worker)
        self._gate.arrive(event.worker, self._elapsed(event.at))
        return ()

    def _on_failure(self, event: Failure) -> Sequence[Action]:
        if stale := self._stale(event):
            return stale
        if event.attempt != self._attempts[event.worker]:
            return (Drop(event=event, reason="an earlier attempt"),)
        self._first_failure = self._first_failure or event
        if event.attempt + 1 >= self._max_attempts:
            self._settled.add(event.worker)
            self._gate.fail(event.worker, self._elapsed(event.at))
            return ()
        self._attempts[event.worker] += 1
        again = {event.worker: self._assignment[event.worker]}
        return (Dispatch(round=event.round, attempt=event.attempt + 1, assignment=again),)

    def _on_tick(self, event: Tick) -> Sequence[Action]:
        if event.at < self.wake_at:
            return ()
        if not any(self._assignment):
            return self._close(self._idle())
        try:
            self._gate.tick(self._gate.wake_at)
        except WorkerError as error:
            raise self._with_cause(error) from None
        return () if self._gate.record is None else self._close(self._gate.record)

    def _elapsed(self, at: float) -> float:
        # An event is never later than the alarm it beat: rounding must not make it so.
        return min(at - self._origin, self._gate.wake_at)

    def _stale(self, event: Arrival | Failure) -> Sequence[Action]:
        if event.round != self._schedule.round:
            return (Drop(event=event, reason="its round is closed"),)
        if event.worker in self._settled:
            return (Drop(event=event, reason="the worker is settled"),)
        return ()

    def _with_cause(self, error: WorkerError) -> WorkerError:
        cause = self._first_failure
        if cause is None:
            text, worker = "nobody reported a failure: raise the round's time limit", None
        else:
            text, worker = f"first failure, worker {cause.worker}: {cause.reason}", cause.worker
        return WorkerError(f"{error}; {text}", round=error.round, worker=worker)

    def _open_round(self) -> list[Action]:
        self._attempts = [0] * self._n
        self._settled, self._first_failure = set(), None
        self._assignment = () if self.done else self._schedule.assignment()
        if not any(self._assignment):
            return []  # the next tick closes the round, if there is one
        self._gate, self._origin = self._new_gate(), math.nan
        assignment = dict(enumerate(self._assignment))
        return [Dispatch(round=self._schedule.round, attempt=0, assignment=assignment)]

    def _idle(self) -> RoundRecord:
        responded = np.ones(self._n, dtype=np.bool_)
        responded.flags.writeable = False
        return RoundRecord(
            round=self._schedule.round,
            responded=responded,
            kappa_s=0.0,
            duration_s=0.0,
            reason="idle",
            waited_out=False,
        )

    def _close(self, record: RoundRecord) -> list[Action]:
        finished = self._schedule.close_round(record.responded)
        actions: list[Action] = [Close(record=record)]
        if not record.responded.all():
            stragglers = tuple(int(i) for i in np.flatnonzero(~record.responded))
            actions.append(Cancel(round=record.round, workers=stragglers))
        actions += [
            Finish(job=job, decoding=partial(self._schedule.decoding, job)) for job in finished
        ]
        return actions + self._open_round()


def check_closing_rule(*, mu: float, wait_out: str, timeout_s: float = math.inf) -> None:
    """Refuse a closing rule out of range.

    Raises
    ------
    ParameterError
        Naming the argument, the rule and the value.
    """
    if not 0 <= mu < math.inf:
        raise ParameterError("mu", "must be a finite number >= 0", mu)
    if wait_out not in get_args(WaitOut):
        raise ParameterError("wait_out", f"must be one of {', '.join(get_args(WaitOut))}", wait_out)
    if not timeout_s > 0:
        raise ParameterError("timeout_s", "must be > 0 seconds", timeout_s)
