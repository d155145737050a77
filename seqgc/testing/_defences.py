"""`check_defence`: whether a defence's own policy keeps its contract, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from seqgc import master
from seqgc.control import ControlledPolicy
from seqgc.errors import ScheduleError, WireError, WorkerError
from seqgc.ports import (
    Arrival,
    Close,
    Dispatch,
    Doubt,
    Drop,
    Event,
    Failure,
    Finish,
    Seen,
    Task,
    Update,
)
from seqgc.profiles import ByRound
from seqgc.rounds import ClosingRule, PolicyDefence, ResumablePolicy, num_rounds
from seqgc.schemes import parse_scheme
from seqgc.testing._codes import calling, check_value, complaining, refuses
from seqgc.testing._ledger import Ledger
from seqgc.virtual import Conduct, Fault, Faults, RandomFaults, VirtualBackend, WorkerKind

_RATES: Final = (0.0, 0.1, 0.3)  # of tasks that fail
_DEATHS: Final = (0.0, 0.1)  # and of those of which their worker dies
_JOBS: Final = 6  # of a run, at most
_FAR: Final = 10**6  # a round, or an attempt, that there is not
_NO_STATES: Final[tuple[object, ...]] = (None, [], {}, {"jobs": 1}, "state", 7)


def check_defence(defence: PolicyDefence, *, runs: int = 10, seed: int = 0) -> None:
    """Check that a defence keeps the contract of `seqgc.rounds.PolicyDefence` and of its policy.

    It is a value (frozen, picklable, ``eval(repr(x)) == x``, spelt by its spec). In virtual time,
    with workers of random speed whose tasks fail and who die, functions or residents: every run
    ends; each part of each job is applied once (or again, if it says so, `most_again` of them for
    each task that fails at most), and the parts add up to the gradient; no task is
    made of weights that lack more jobs than `staleness` says; each task touches no more than its
    `Dispatch` charges; rounds close in order; the same events bring the same actions. A run that is
    broken off and goes on from a snapshot, as JSON says it, applies all parts once as well; events
    that nobody waits for are dropped and change nothing, those of workers that there are not are
    refused, as is a state that is none; a run may end early, with whole jobs. If a worker's
    failures are final (`seqgc.ports.Failure`), the other workers do all of the work, or the run
    ends with a `WorkerError` that names this worker. Take few workers: each of the ``runs``, drawn
    from ``seed``, is made five times.

    `AssertionError` says in one line what is broken, with which seed.

    Examples
    --------
    >>> from seqgc.clocks import Clocks
    >>> check_defence(Clocks(n=3, slack=1), runs=2)
    """
    with complaining(repr(defence), f" (seed {seed})"):
        _check_content(defence)
        for number in range(runs):
            _check_run(defence, [seed, number])
            _check_final_failure(defence, [seed, number])
        _check_states(defence)


def _check_content(defence: PolicyDefence) -> None:
    """Require a frozen value that its spec spells, and numbers of the right kind."""
    assert isinstance(defence, PolicyDefence), "is no seqgc.rounds.PolicyDefence"
    list(check_value(defence, {type(defence).__name__: type(defence)}, field="n"))
    with calling("reading its spec"):  # which looks at loads and fractions
        assert parse_scheme(defence.spec, n=defence.n) == defence, "must be what its spec names"
    for name in ("worker_loads", "chunk_fractions"):
        assert not getattr(defence, name).flags.writeable, f"{name} must be read-only"
    kinds = ("exact",) if defence.exact else ("approximate", "stale")
    assert defence.kind in kinds, f"kind is {defence.kind}, and exact {defence.exact}"
    lacks = defence.staleness
    assert lacks is None or (type(lacks) is int and lacks >= 0), "staleness must be an int or None"
    assert not defence.exact or lacks == 0, "an exact defence has staleness 0"
    for name, least in (("jobs_per_task", 1), ("most_again", 0)):
        count = getattr(defence, name)
        assert isinstance(count, int), f"{name} must be an int, is {count!r}"
        assert count >= least, f"{name} must be at least {least}, is {count}"
    lines = defence.tolerates.splitlines()
    assert len(lines) == 1, "tolerates must be a few words in one line"


@dataclass(frozen=True, kw_only=True)
class _Weather:
    """What a run is made of; each of its runs has the same times, failures and orders."""

    defence: PolicyDefence
    seed: Sequence[int]

    @cached_property
    def _draws(self) -> tuple[int, _Crew, ClosingRule]:
        rng, n = np.random.default_rng(self.seed), self.defence.n
        times = 0.1 + rng.exponential(size=(int(rng.integers(1, 5)), n))
        times *= np.where(rng.random(n) < 0.2, 10.0, 1.0)  # some are slow for good
        if rng.random() < 0.5:
            times = np.ceil(times)  # many at one instant
        pace = ByRound(latencies_s=times, rates=np.array([[float(rng.choice([0.0, 5.0]))]]))
        rates = float(rng.choice(_RATES)), float(rng.choice(_DEATHS))
        faults = RandomFaults(seed=int(rng.integers(1000)), fail=rates[0], die=rates[1])
        kinds: tuple[WorkerKind, ...] = ("function", "resident")
        maker = _Crew(pace, kinds[int(rng.integers(2))], faults)
        rule = ClosingRule(max_attempts=int(rng.integers(1, 4)))
        return int(rng.integers(1, _JOBS + 1)), maker, rule

    @property
    def jobs(self) -> int:
        return self._draws[0]

    def backend(self, ledger: Ledger, faults: Faults | None = None) -> VirtualBackend:
        return self._draws[1].backend(ledger, faults)

    def policy(self) -> ResumablePolicy:
        with calling("making its policy"):
            return self.defence.policy(self._draws[2], num_jobs=self.jobs)


@dataclass(frozen=True)
class _Crew:
    """Makes the workers of a weather anew."""

    pace: ByRound
    kind: WorkerKind
    faults: RandomFaults

    def backend(self, ledger: Ledger, faults: Faults | None) -> VirtualBackend:
        """Return workers that compute what a ledger checks, with other ``faults`` if given."""
        return VirtualBackend(
            self.pace.n,
            self.pace,
            workers=self.kind,
            compute=ledger.compute,
            faults=faults or self.faults,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneIsGone:
    """Faults of a worker that fails all tasks from round ``answers`` on; each failure is final."""

    worker: int
    answers: int

    def __call__(self, task: Task) -> Fault | None:
        is_gone = task.worker == self.worker and task.round >= self.answers
        return Fault(final=True) if is_gone else None


class _EnoughError(Exception):
    """A run was to be broken off here."""


class _Play:
    """One run, or several after another that make up one; looked at by `Conduct` and `Ledger`."""

    def __init__(self, weather: _Weather, faults: Faults | None = None) -> None:
        self._weather, self._faults, defence = weather, faults, weather.defence
        self.ledger = Ledger(defence)
        self._conduct = Conduct("it", n=defence.n, num_jobs=weather.jobs, remedy="")
        self.log = list[object]()
        self.rests = self._again = self._lost = 0

    def run(
        self,
        policy: ResumablePolicy,
        rest: Callable[[int, VirtualBackend], None] = lambda _number, _backend: None,
    ) -> None:
        """Run a policy; ``rest`` is called between events, with their number."""
        backend = self._weather.backend(self.ledger, self._faults)
        self.rests = 0
        self._lost += self._weather.defence.n if self.log else 0  # of the run that was broken off
        if isinstance(policy, ControlledPolicy):
            self.ledger.cut_by(policy.scheme_of)

        def pause(_: object) -> None:
            self.rests += 1
            rest(self.rests, backend)

        try:
            master.run(policy, backend, self.ledger, observe=self._see, rest=pause)
        except (AssertionError, _EnoughError):
            raise
        except Exception as error:
            if self._faults is not None and isinstance(error, WorkerError):
                raise
            raise AssertionError(f"a run ends with {type(error).__name__}: {error}") from error

    def end(self) -> None:
        """Require that all is done, and closed."""
        try:
            self._conduct.end()
        except ScheduleError as error:
            raise AssertionError(str(error)) from error
        most = self._weather.defence.most_again * self._lost
        line = f"{self._again} parts are applied again, {self._lost} tasks having failed"
        assert self._again <= most, f"{line}: above most_again"

    def _see(self, seen: Seen) -> None:
        self._conduct(seen)
        self._lost += isinstance(seen, Failure | Doubt)
        if isinstance(seen, Update) and (part := seen.decoding().part) is not None:
            self._again += part.again
        if isinstance(seen, Dispatch):
            self.ledger.look_at(seen)
        self.log.append(_said(seen))


def _said(seen: Seen) -> object:
    """Return what an event or an action says, to be compared."""
    match seen:
        case Dispatch():
            tasks = {
                worker: [(t.job, t.slot, t.chunks.tolist(), t.cover, t.place) for t in mini_tasks]
                for worker, mini_tasks in seen.assignment.items()
            }
            return seen.round, seen.attempt, tasks
        case Update() | Finish():
            return seen.decoding()
        case Close():
            return seen.record.round, seen.record.duration_s, seen.jobs
        case Arrival() | Failure():
            return seen.round, seen.worker, seen.attempt, seen.at
    return type(seen).__name__


def _check_run(defence: PolicyDefence, seed: Sequence[int]) -> None:
    """Follow a run to its end, another like it, one broken off, and one that ends early."""
    weather = _Weather(defence=defence, seed=seed)
    whole, policy = _Play(weather), weather.policy()
    whole.run(policy)
    whole.end()
    rounds = num_rounds(defence, weather.jobs)
    assert policy.rounds == rounds, f"rounds is {policy.rounds} at the end, not {rounds}"
    assert policy.num_jobs == weather.jobs, f"num_jobs is {policy.num_jobs}, not {weather.jobs}"
    twin = _Play(weather)
    twin.run(weather.policy())
    assert twin.log == whole.log, "the same events bring other actions"
    number = 1 + int(np.random.default_rng([*seed, 1]).integers(whole.rests))
    _check_broken_off(weather, number)
    _check_early_end(weather, number)


def _check_final_failure(defence: PolicyDefence, seed: Sequence[int]) -> None:
    """Make one worker's failures final: the others do all work, or the error names the worker."""
    weather, rng = _Weather(defence=defence, seed=seed), np.random.default_rng([*seed, 2])
    gone = _OneIsGone(worker=int(rng.integers(defence.n)), answers=int(rng.integers(3)))
    play, blamed = _Play(weather, gone), gone.worker
    try:
        play.run(weather.policy())
        play.end()
    except WorkerError as error:
        blamed = -1 if error.worker is None else error.worker
    line = f"worker {gone.worker} answers no more, and the run ends over worker {blamed}"
    assert blamed == gone.worker, line


def _check_broken_off(weather: _Weather, number: int) -> None:
    """Break a run off between two events, and go on; before, tell it what nobody waits for."""
    play, first, state = _Play(weather), weather.policy(), list[object]()

    def stop(rest: int, backend: VirtualBackend) -> None:
        if rest == number:
            if not first.done and first.wake_at > backend.now:
                _check_foreign(first, weather.defence.n, at=backend.now)
            state.append(_state(first))
            raise _EnoughError

    with suppress(_EnoughError):
        play.run(first, stop)
    second = weather.policy()
    with calling("restoring its own snapshot"):
        second.restore(state[0])
    same = first.done or _state(second) == state[0]
    assert same, "a restored policy has another snapshot"
    play.run(second)
    play.end()


def _check_early_end(weather: _Weather, number: int) -> None:
    """End a run after a job that has begun: what has begun is done whole."""
    play, policy, last = _Play(weather), weather.policy(), list[int]()

    def stop(rest: int, _: VirtualBackend) -> None:
        if rest == number and not policy.done:
            last.append(play.ledger.begun)
            policy.end_after(last[0])

    play.run(policy, stop)
    begun, jobs, whole = play.ledger.begun + 1, policy.num_jobs, sorted(play.ledger.whole)
    most = last[0] + weather.defence.jobs_per_task if last else weather.jobs
    line = f"told to end after job {last} it has {jobs} jobs, has begun {begun}, and whole {whole}"
    assert begun <= jobs <= min(most, weather.jobs), line
    assert whole == list(range(jobs)), line


def _state(policy: ResumablePolicy) -> object:
    with calling("a snapshot as JSON"):
        return json.loads(json.dumps(policy.snapshot()))


def _check_foreign(policy: ResumablePolicy, n: int, *, at: float) -> None:
    """Events that nobody waits for are dropped, and those of nobody refused; nothing changes."""
    before = _state(policy), policy.wake_at
    for round, attempt in ((_FAR, 0), (0, _FAR)):
        events: tuple[Event, ...] = (
            Arrival(round=round, worker=0, attempt=attempt, at=at, results={}),
            Failure(round=round, worker=0, attempt=attempt, at=at, reason="fell"),
        )
        for event in events:
            what = f"an event of round {round}, attempt {attempt}"
            with calling(what):
                actions = policy.on(event)
            dropped = [type(action) for action in actions] == [Drop]
            assert dropped, f"{what} that nobody waits for must be dropped"
    for worker in (n, -1):
        stray = Arrival(round=0, worker=worker, attempt=0, at=at, results={})
        refuses(f"an answer of worker {worker}", WireError, policy.on, stray)
    assert (_state(policy), policy.wake_at) == before, "what is dropped or refused changes it"


def _check_states(defence: PolicyDefence) -> None:
    """Require what is no state to be refused."""
    for state in _NO_STATES:
        try:
            defence.policy(ClosingRule(), num_jobs=2).restore(state)
        except (ValueError, KeyError, TypeError):
            continue
        except Exception as error:
            line = f"restoring {state!r} raises {type(error).__name__}, no ValueError"
            raise AssertionError(line) from error
        raise AssertionError(f"restores {state!r}, which is no state")
