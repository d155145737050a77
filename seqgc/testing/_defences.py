"""`check_defence`, which checks the contract of a defence with its own policy in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from seqgc import master
from seqgc.errors import ScheduleError, WireError, WorkerError
from seqgc.ports import (
    Arrival,
    Close,
    Decoding,
    Dispatch,
    Drop,
    Event,
    Failure,
    Finish,
    FloatArray,
    MiniTask,
    PartialArrival,
    Seen,
    Task,
    Update,
    WeightedPoints,
    WeightRef,
)
from seqgc.profiles import ByRound
from seqgc.rounds import (
    ClosingRule,
    PolicyDefence,
    RunPolicy,
    SkippingPolicy,
    SwitchingPolicy,
    num_rounds,
)
from seqgc.schemes import Defence, parse_scheme
from seqgc.testing._codes import calling, check_value, complaining, refuses
from seqgc.virtual import Conduct, Fault, Faults, RandomFaults, VirtualBackend, WorkerKind

_RATES: Final = (0.0, 0.1, 0.3)  # probabilities that a task fails
_DEATHS: Final = (0.0, 0.1)  # probabilities that a task kills its worker
_JOBS: Final = 6  # the most jobs of a run
_FAR: Final = 10**6  # a round or an attempt that does not exist
_SIZE: Final = 3  # parameters of a model
_TOLERANCE: Final = 1e-9  # relative, of gradients and loads
_Rest: TypeAlias = Callable[[int, VirtualBackend, master.Holding], None]
_NO_STATES: Final[tuple[object, ...]] = (None, [], {}, {"jobs": 1}, "state", 7)


def check_defence(defence: PolicyDefence, *, runs: int = 10, seed: int = 0) -> None:
    """Check that a defence and its policy fulfil the contract of `seqgc.rounds.PolicyDefence`.

    The defence must be frozen and picklable, with ``eval(repr(x)) == x``, and its spec must
    describe it. Its policy then runs in virtual time, with functions or resident workers of random
    speed that fail and die. The check requires:

    - Every run ends. Rounds close in order. The same events cause the same actions.
    - Each part of each job is applied once, and the sum of the parts is the gradient. If the policy
      reports it, a part may be applied again: at most `most_again` parts for each failed task.
    - The weights of a task lack at most `staleness` jobs. If the defence is `in_order`, they lack
      no earlier update of the task's own part. A task processes at most the load in its `Dispatch`.
    - A run that is interrupted, and restored from its snapshot as JSON, also applies each part
      once. A state that is not a snapshot raises an error.
    - If a run ends early, and the policy has `skip_to` (`seqgc.rounds.SkippingPolicy`), another
      policy that skips its jobs completes the other jobs.
    - Events that the policy does not wait for are dropped and change nothing. Events of workers
      that do not exist raise an error.
    - If a run must end early, it completes all jobs that have begun.
    - If the failures of one worker are final (`seqgc.ports.Failure`), the other workers do all the
      work, or the run ends with a `WorkerError` that names this worker.

    Use few workers: each of the ``runs``, drawn with ``seed``, is made five times.

    Raises
    ------
    AssertionError
        If the contract is broken; one line names the defence, the fault and the seed.

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
    assert isinstance(defence, PolicyDefence), "must be a seqgc.rounds.PolicyDefence"
    list(check_value(defence, {type(defence).__name__: type(defence)}, field="n"))
    with calling("reading its spec"):  # also checks loads and fractions
        assert parse_scheme(defence.spec, n=defence.n) == defence, "must equal its parsed spec"
    for name in ("worker_loads", "chunk_fractions"):
        assert not getattr(defence, name).flags.writeable, f"{name} must be read-only"
    kinds = ("exact",) if defence.exact else ("approximate", "stale")
    assert defence.kind in kinds, f"kind {defence.kind} does not fit exact {defence.exact}"
    lacks = defence.staleness
    assert lacks is None or (type(lacks) is int and lacks >= 0), (
        f"staleness must be None or an int >= 0, got {lacks!r}"
    )
    assert not defence.exact or lacks == 0, f"an exact defence must have staleness 0, got {lacks}"
    for name, least in (("jobs_per_task", 1), ("most_again", 0)):
        count = getattr(defence, name)
        assert isinstance(count, int), f"{name} must be an int, got {count!r}"
        assert count >= least, f"{name} must be at least {least}, got {count}"
    lines = defence.tolerates.splitlines()
    assert len(lines) == 1, f"tolerates must be one line, got {len(lines)}"


class _GradientLedger:
    """A workload that adds up the applied parts of each job, and compares the sum to its gradient.

    A chunk has one data point. ``begun`` is the latest job that has begun, or -1. ``complete`` are
    the jobs whose gradients are complete. The ledger raises `AssertionError` if the weights of a
    task lack more jobs than the defence's `staleness`, if a task processes more than its load, or
    if the sum of a job's parts is not its gradient.
    """

    def __init__(self, defence: PolicyDefence) -> None:
        self._defence = defence
        self._scheme_of: Callable[[int], Defence] = lambda _: defence
        self._sums: dict[int, FloatArray] = {}
        self._parts: dict[int, int] = {}  # applied, by job
        self._applied = set[tuple[int, int | None]]()  # job and part, of jobs that are not complete
        self.begun, self.complete = -1, set[int]()

    def cut_by(self, scheme_of: Callable[[int], Defence]) -> None:
        """Set the defence that cuts the batch of each job."""
        self._scheme_of = scheme_of

    def check_loads(self, action: Dispatch) -> None:
        loads = action.loads
        assert loads is not None, f"round {action.round}: a Dispatch must state loads"
        for worker, mini_tasks in action.assignment.items():
            touched = 0.0
            for task in mini_tasks:
                fractions = self._scheme_of(task.job).chunk_fractions
                valid = ((task.chunks >= 0) & (task.chunks < len(fractions))).all()
                assert valid, f"job {task.job}: chunks {task.chunks} of {len(fractions)}"
                touched += float(fractions[task.chunks].sum())
            line = f"round {action.round}: worker {worker} touches {touched:.6g} of a batch"
            assert touched <= loads[worker] * (1 + _TOLERANCE), f"{line}, above its load"

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (the protocol's)
        """Return True, so that every task uses all gradients that have been decoded before."""
        return True

    def begin(self, job: int) -> None:
        self.begun = max(job, self.begun)

    def result_form(self, job: int) -> None:
        """Return None, because the first result determines the form of all results."""

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Return each chunk as a data point; check that the weights are new enough."""
        job, lacks = mini_task.job, self._defence.staleness
        if lacks is not None:
            missing = sorted(set(range(max(0, job - lacks))) - self.complete)
            assert not missing, (
                f"a task of job {job} lacks job {missing[:1]}, but staleness is {lacks}"
            )
        if self._defence.in_order:
            for earlier in range(job):
                known = earlier in self.complete or (earlier, mini_task.cover) in self._applied
                line = f"a task of part {mini_task.cover} of job {job} lacks it of job {earlier}"
                assert known, f"{line}, but in_order is True"
        ref = WeightRef(model="m", version=job, digest="0" * 64, dtype="float64", size=_SIZE)
        points, coefficients = mini_task.chunks, mini_task.coefficients
        return (WeightedPoints(model="m", weights=ref, points=points, coefficients=coefficients),)

    def compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        (part,) = parts
        rows = [_gradient(part.weights.version, chunk) for chunk in part.points.tolist()]
        total: FloatArray = part.coefficients @ np.array(rows)
        return total

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Add a part to the sum of its job, and check the sum when the job is complete."""
        job, of = decoding.job, 1 if decoding.part is None else decoding.part.of
        if decoding.share:  # a share of 0 was added before
            self._sums[job] = self._sums.get(job, np.zeros(_SIZE)) + gradient
            self._parts[job] = self._parts.get(job, 0) + 1
            if decoding.part is not None:
                self._applied.add((job, decoding.part.index))
        complete = (job,) if self._parts[job] == of else ()
        for ended in complete if decoding.ends is None else decoding.ends:
            self._end(ended)

    def _end(self, job: int) -> None:
        self.complete.add(job)
        chunks = range(len(self._scheme_of(job).chunk_fractions))
        direct = np.sum([_gradient(job, chunk) for chunk in chunks], axis=0)
        off = float(np.linalg.norm(self._sums[job] - direct))
        if self._defence.kind != "approximate":
            line = f"the parts of job {job} add up to a gradient that is off by {off:.3g}"
            assert off <= _TOLERANCE * max(1.0, float(np.linalg.norm(direct))), line


def _gradient(job: int, chunk: int) -> FloatArray:
    """Return a random gradient (3,) of a chunk, which depends only on the job and the chunk."""
    return np.random.default_rng([job, chunk]).normal(size=_SIZE)


@dataclass(frozen=True, kw_only=True)
class _RunConditions:
    """The conditions of a run; runs with equal conditions have equal times, failures and orders."""

    defence: PolicyDefence
    seed: Sequence[int]

    @cached_property
    def _draws(self) -> tuple[int, _Crew, ClosingRule]:
        rng, n = np.random.default_rng(self.seed), self.defence.n
        times = 0.1 + rng.exponential(size=(int(rng.integers(1, 5)), n))
        times *= np.where(rng.random(n) < 0.2, 10.0, 1.0)  # some workers are always slow
        if rng.random() < 0.5:
            times = np.ceil(times)  # many answers at the same time
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

    def backend(self, ledger: _GradientLedger, faults: Faults | None = None) -> VirtualBackend:
        return self._draws[1].backend(ledger, faults)

    def policy(self) -> RunPolicy:
        with calling("making its policy"):
            return self.defence.policy(self._draws[2], num_jobs=self.jobs)


@dataclass(frozen=True)
class _Crew:
    """The kind, pace and faults of the workers, from which each run makes a new backend."""

    pace: ByRound
    kind: WorkerKind
    faults: RandomFaults

    def backend(self, ledger: _GradientLedger, faults: Faults | None) -> VirtualBackend:
        return VirtualBackend(
            self.pace.n,
            self.pace,
            workers=self.kind,
            compute=ledger.compute,
            faults=faults or self.faults,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneWorkerGone:
    """A fault: from round ``answers`` on, all tasks of one ``worker`` fail permanently."""

    worker: int
    answers: int

    def __call__(self, task: Task) -> Fault | None:
        is_gone = task.worker == self.worker and task.round >= self.answers
        return Fault(final=True) if is_gone else None


class _InterruptedRunError(Exception):
    """The check raises this error to interrupt a run."""


class _ObservedRun:
    """A run, or the parts of an interrupted run, observed by `Conduct` and `_GradientLedger`.

    ``log`` contains the events and actions; ``rests`` is the number of pauses between events.
    """

    def __init__(self, conditions: _RunConditions, faults: Faults | None = None) -> None:
        self._conditions, self._faults, defence = conditions, faults, conditions.defence
        self.ledger = _GradientLedger(defence)
        self._conduct = Conduct("it", n=defence.n, num_jobs=conditions.jobs, remedy="")
        self.log = list[object]()
        self.rests = self._again = self._lost = 0

    def run(
        self,
        policy: RunPolicy,
        rest: _Rest = lambda _number, _backend, _hold: None,
        *,
        held: master.Held | None = None,
    ) -> None:
        """Run a policy, and call ``rest`` in each pause between events, with its number.

        ``held`` are the results of an interrupted run that have not been applied.
        """
        backend = self._conditions.backend(self.ledger, self._faults)
        self.rests = 0
        self._lost += self._conditions.defence.n if self.log else 0  # tasks of the interrupted run
        if isinstance(policy, SwitchingPolicy):
            self.ledger.cut_by(policy.scheme_of)

        def pause(hold: master.Holding) -> None:
            self.rests += 1
            rest(self.rests, backend, hold)

        try:
            master.run(policy, backend, self.ledger, observe=self._see, rest=pause, held=held)
        except (AssertionError, _InterruptedRunError):
            raise
        except Exception as error:
            if self._faults is not None and isinstance(error, WorkerError):
                raise
            raise AssertionError(f"a run ends with {type(error).__name__}: {error}") from error

    def end(self) -> None:
        """Require that the run is complete."""
        try:
            self._conduct.end()
        except ScheduleError as error:
            raise AssertionError(str(error)) from error
        most = self._conditions.defence.most_again * self._lost
        line = f"{self._again} parts are applied again after {self._lost} failed tasks"
        assert self._again <= most, f"{line}: more than most_again allows"

    def _see(self, seen: Seen) -> None:
        self._conduct(seen)
        self._lost += isinstance(seen, Failure)
        if isinstance(seen, Update) and (part := seen.decoding().part) is not None:
            self._again += part.again
        if isinstance(seen, Dispatch):
            self.ledger.check_loads(seen)
        self.log.append(_content(seen))


def _content(seen: Seen) -> object:
    """Return the content of an event or an action, for comparisons."""
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
        case PartialArrival():
            return seen.round, seen.worker, seen.attempt, seen.at, seen.slot
    return type(seen).__name__


def _check_run(defence: PolicyDefence, seed: Sequence[int]) -> None:
    """Check a complete run, its repetition, an interrupted run, and a run that ends early."""
    conditions = _RunConditions(defence=defence, seed=seed)
    complete, policy = _ObservedRun(conditions), conditions.policy()
    complete.run(policy)
    complete.end()
    rounds = num_rounds(defence, conditions.jobs)
    assert policy.rounds == rounds, f"rounds is {policy.rounds} at the end, not {rounds}"
    assert policy.num_jobs == conditions.jobs, (
        f"num_jobs is {policy.num_jobs}, not {conditions.jobs}"
    )
    twin = _ObservedRun(conditions)
    twin.run(conditions.policy())
    assert twin.log == complete.log, "the same events cause other actions"
    number = 1 + int(np.random.default_rng([*seed, 1]).integers(complete.rests))
    _check_interruption(conditions, number)
    _check_early_end(conditions, number)
    _check_skipping(conditions, number)


def _check_final_failure(defence: PolicyDefence, seed: Sequence[int]) -> None:
    """Check a run in which all failures of one worker are final."""
    conditions, rng = _RunConditions(defence=defence, seed=seed), np.random.default_rng([*seed, 2])
    gone = _OneWorkerGone(worker=int(rng.integers(defence.n)), answers=int(rng.integers(3)))
    run, blamed = _ObservedRun(conditions, gone), gone.worker
    try:
        run.run(conditions.policy())
        run.end()
    except WorkerError as error:
        blamed = -1 if error.worker is None else error.worker
    line = f"worker {gone.worker} has failed for ever, but the error names worker {blamed}"
    assert blamed == gone.worker, line


def _check_interruption(conditions: _RunConditions, number: int) -> None:
    """Interrupt a run at pause ``number``, send unexpected events, and restore its snapshot."""
    run, first, state = _ObservedRun(conditions), conditions.policy(), list[object]()
    held: master.Held | None = None

    def stop(rest: int, backend: VirtualBackend, hold: master.Holding) -> None:
        nonlocal held
        if rest == number:
            if not first.done and first.wake_at > backend.now:
                _check_foreign(first, conditions.defence.n, at=backend.now)
            state.append(_state(first))
            held = hold()
            raise _InterruptedRunError

    with suppress(_InterruptedRunError):
        run.run(first, stop)
    second = conditions.policy()
    with calling("restoring its own snapshot"):
        second.restore(state[0])
    same = first.done or _state(second) == state[0]
    assert same, "a restored policy must have the same snapshot"
    run.run(second, held=held)
    run.end()


def _check_early_end(conditions: _RunConditions, number: int) -> None:
    """End a run after a job that has begun; every job that has begun must be completed."""
    run, policy, last = _ObservedRun(conditions), conditions.policy(), list[int]()

    def stop(rest: int, _backend: VirtualBackend, _hold: master.Holding) -> None:
        if rest == number and not policy.done:
            last.append(run.ledger.begun)
            policy.end_after(last[0])

    run.run(policy, stop)
    begun, jobs, complete = run.ledger.begun + 1, policy.num_jobs, sorted(run.ledger.complete)
    most = last[0] + conditions.defence.jobs_per_task if last else conditions.jobs
    line = f"told to end after job {last} it has {jobs} jobs, {begun} begun, complete: {complete}"
    assert begun <= jobs <= min(most, conditions.jobs), line
    assert complete == list(range(jobs)), line


def _check_skipping(conditions: _RunConditions, number: int) -> None:
    """End a run after a job that has begun; another policy that skips its jobs does the rest."""
    run, first, second = _ObservedRun(conditions), conditions.policy(), conditions.policy()
    if not isinstance(second, SkippingPolicy) or conditions.defence.most_again:
        return

    def stop(rest: int, _backend: VirtualBackend, _hold: master.Holding) -> None:
        if rest == number and not first.done:
            first.end_after(run.ledger.begun)

    run.run(first, stop)
    jobs, rounds = first.num_jobs, first.rounds
    if jobs == conditions.jobs:
        return
    with calling("skipping jobs"):
        second.skip_to(jobs, round=rounds)
    assert second.rounds == rounds, f"it has {second.rounds} rounds after {jobs} skipped jobs"
    run.run(second, held=master.Held(begun=jobs, jobs=()))
    run.end()


def _state(policy: RunPolicy) -> object:
    with calling("a snapshot as JSON"):
        return json.loads(json.dumps(policy.snapshot()))


def _check_foreign(policy: RunPolicy, n: int, *, at: float) -> None:
    """Require that unexpected events are dropped or raise an error, and change nothing."""
    state = _state(policy), policy.wake_at
    for round, attempt in ((_FAR, 0), (0, _FAR)):
        events: tuple[Event, ...] = (
            Arrival(round=round, worker=0, attempt=attempt, at=at, results={}),
            Failure(round=round, worker=0, attempt=attempt, at=at, reason="fell"),
        )
        if "partial" in getattr(policy, "needs", ()):
            about = {"round": round, "worker": 0, "attempt": attempt}
            events += (PartialArrival(**about, at=at, slot=0, results={}),)
        for event in events:
            what = f"an event of round {round}, attempt {attempt}"
            with calling(what):
                actions = policy.on(event)
            dropped = [type(action) for action in actions] == [Drop]
            assert dropped, f"{what}, which the policy does not wait for, must be dropped"
    for worker in (n, -1):
        stray = Arrival(round=0, worker=worker, attempt=0, at=at, results={})
        refuses(f"an answer of worker {worker}", WireError, policy.on, stray)
    unchanged = (_state(policy), policy.wake_at) == state
    assert unchanged, "an event that is dropped or refused must not change the policy"


def _check_states(defence: PolicyDefence) -> None:
    for state in _NO_STATES:
        try:
            defence.policy(ClosingRule(), num_jobs=2).restore(state)
        except (ValueError, KeyError, TypeError):
            continue
        except Exception as error:
            line = f"restoring {state!r} raises {type(error).__name__}, not ValueError"
            raise AssertionError(line) from error
        raise AssertionError(f"restores {state!r}, which is not a snapshot")
