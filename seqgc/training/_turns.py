"""Which models a job trains: bundles take turns, and what is done gives its turns to the others.

Theory of operation
-------------------
Bundles stand in a queue. A job is the next step of the first of them, which goes to the end. So as
long as all of them are trained, job ``t`` is a step of bundle ``t mod B``. A bundle leaves the
queue once it has begun all its steps, or all its models are parked. A bundle's next step may begin
when its last one is decoded: at the latest T rounds after it began, T being the scheme's delay.
With fewer than T + 1 bundles left the first of the queue may have to wait: the turn is then *idle*,
a job for which nothing is computed. Between two turns of a bundle each other one has one at most,
so that no step begins at a later job than if nobody had left: a run has never more jobs than were
planned.

A turn is decided when its job begins, by what has been handed over until then: the same again when
a run is resumed, whose rounds close on the same answers.

Where work is dealt, B jobs are under way, and no more than bundles with a model left once some have
been *stopped*: all their models are parked. What has been handed over when a job begins is then a
matter of time, and is not on record. So the turn is decided by the results of those jobs alone that
are sure to be decoded (`JobPlan.horizon`), all of them: one that was stopped by a later result
stays in the queue until then, and whose last job is a later one has to wait, also if it has been
decoded. Few turns are idle: those of the next 2 B jobs, by when fewer jobs are sure to be under
way. (Until what has stopped a bundle is handed over, and the policy told, no job can begin that
comes 2 B or more after the job whose result that was: at one event B jobs close at most.)

With fewer bundles than T + 1 from the start (``stale``), weights are late by design, and it is the
job that says how late: bundles keep their turns, idle or not.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

__all__ = ["Turn", "Turns", "TurnsState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a job is: a step of a bundle, from 0; None if the turn is idle."""

    bundle: int
    step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsState:
    """For checkpoints: what `Turns` know, by bundle or by job."""

    queue: list[int]
    begun: list[int]
    latest: list[int]
    left: list[int]
    kept: dict[int, Turn]
    num_jobs: int | None
    stopped: dict[int, int] = field(default_factory=dict)


class Turns:
    """The turns of so many bundles, each of so many ``steps`` (None: without end).

    Where bundles keep their turns, these are ``fixed``.

    Examples
    --------
    >>> turns = Turns(3, steps=2)
    >>> [turns.take(job, may_follow=lambda last: True).bundle for job in range(4)]
    [0, 1, 2, 0]
    >>> turns.leave(1)
    >>> turns.take(4, may_follow=lambda last: True), turns.num_jobs
    (Turn(bundle=2, step=1), 5)
    """

    def __init__(self, bundles: int, *, steps: int | None, fixed: bool = False) -> None:
        self._steps, self._fixed = steps, fixed
        self._queue = list(range(bundles))
        self._begun, self._latest = [0] * bundles, [-1] * bundles  # steps; the last one's job
        self._left: set[int] = set()
        self._stopped: dict[int, int] = {}  # where work is dealt: bundles, by the results of a job
        self._kept: dict[int, Turn] = {}
        self.num_jobs: int | None = None
        """How many jobs there are, once there are no more."""

    def __getitem__(self, job: int) -> Turn:
        return self._kept[job]

    def __contains__(self, job: int) -> bool:
        return job in self._kept

    @property
    def awaited(self) -> int:
        """The last job of whoever is next; -1 if nobody's matters."""
        return -1 if self._fixed or not self._queue else self._latest[self._queue[0]]

    def leave(self, bundle: int) -> None:
        """Let a bundle take no more steps; harmless if it has left."""
        self._left.add(bundle)
        if not self._fixed and bundle in self._queue:
            self._queue.remove(bundle)

    def latest(self, bundle: int) -> int:
        """Return a bundle's last job that has begun; -1 if none has."""
        return self._latest[bundle]

    def stop(self, bundle: int, *, by: int) -> None:
        """Let a bundle leave once the results of a job count; harmless if it has been stopped."""
        self._stopped.setdefault(bundle, by)

    def stopped(self, last: int) -> list[int]:
        """Return the bundles that the results of the jobs up to the ``last`` have stopped."""
        return [bundle for bundle, by in self._stopped.items() if by <= last]

    def take(self, job: int, *, may_follow: Callable[[int], bool]) -> Turn:
        """Decide what ``job`` is, the next one.

        ``may_follow`` says of a bundle's last job whether another may begin after it. Whichever
        bundle has an idle turn, nothing becomes of it.
        """
        turn = Turn(bundle=self._queue[0] if self._queue else 0, step=None)
        last = self._latest[turn.bundle]
        if self._queue and (self._fixed or last < 0 or may_follow(last)):
            turn = self._step(self._queue.pop(0), job)
        self._kept[job] = turn
        if len(self._left) == len(self._begun) and self.num_jobs is None:
            self.num_jobs = job + 1
        return turn

    def _step(self, bundle: int, job: int) -> Turn:
        step = None if bundle in self._left else self._begun[bundle]
        self._queue.append(bundle)
        if step is not None:
            self._begun[bundle], self._latest[bundle] = step + 1, job
            if step + 1 == self._steps:
                self.leave(bundle)
        return Turn(bundle=bundle, step=step)

    def forget(self, needed: Container[int]) -> None:
        """Forget all jobs but those that are still ``needed``."""
        self._kept = {job: turn for job, turn in self._kept.items() if job in needed}

    def snapshot(self) -> TurnsState:
        """Return all that is known."""
        return TurnsState(
            queue=list(self._queue),
            begun=list(self._begun),
            latest=list(self._latest),
            left=sorted(self._left),
            kept=dict(self._kept),
            num_jobs=self.num_jobs,
            stopped=dict(self._stopped),
        )

    def restore(self, state: TurnsState) -> None:
        """Know what was known then; `ValueError` if these are other bundles' turns.

        There may be fewer steps than there were.
        """
        if len(state.begun) != len(self._begun):
            raise ValueError(f"turns of {len(state.begun)} bundles, not {len(self._begun)}")
        self._queue, self._left = list(state.queue), set(state.left)
        self._begun, self._latest = list(state.begun), list(state.latest)
        self._kept, self.num_jobs = dict(state.kept), state.num_jobs
        self._stopped = dict(state.stopped)
        for bundle, begun in enumerate(self._begun):
            if begun == self._steps:
                self.leave(bundle)
