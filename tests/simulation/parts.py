"""What must hold where batches come in parts, each applied by itself: an observer of every master.

Each part of each job moves the weights once, of all that the run's checkpoints have had; or again,
where a shard that was lost is done again, and says so, but not when its job is over. It does so by
an answer that is what was asked for, to the newest task of its worker. One worker at a time has a
part, or a piece of it, which nobody is asked for that is in; and nobody begins a clock that is
further ahead of the slowest part than the slack allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TypeAlias

from seqgc import ports
from seqgc.clocks import Clocks, FlexRR
from seqgc.ports import Arrival, Drop, FloatArray, MiniTask, Seen
from seqgc.rounds import PolicyDefence
from tests.simulation.ledger import is_as_asked, write
from tests.simulation.seams import PartsState, WorkloadState
from tests.simulation.world import Violation, World

Address: TypeAlias = tuple[int, int, int]  # round, worker, attempt
PartOf: TypeAlias = tuple[int, int]  # job, part
PieceOf: TypeAlias = tuple[int, int, int]  # job, part, place


class PartsLedger:
    """A `tests.simulation.ledger.Ledger` of a ``defence`` whose batches come in parts.

    ``repeats`` says whether a run that is gone on with ends in the same bits; if not, it must say
    so. ``aware`` says whether updates may weigh less than 1.
    """

    def __init__(
        self, world: World, defence: PolicyDefence, *, repeats: bool, aware: bool, jobs: int
    ) -> None:
        self._world, self._defence, self._jobs = world, defence, jobs
        self._repeats, self._aware = repeats, aware
        self._pieces = defence.num_pieces // defence.n or 1  # of a part
        self._accepted: dict[Address, MiniTask] = {}  # worker, round, slot
        self._out: dict[Address, Mapping[int, MiniTask]] = {}
        self._last: Arrival | None = None
        self.repeated, self._failed = 0, 0  # parts that moved the weights again; tasks
        self.begin()

    def begin(self) -> None:
        """Another master begins."""
        self.true: dict[Address, Mapping[int, FloatArray]] = {}  # what an attempt was asked for
        self._forged: dict[int, tuple[Arrival, Set[int]]] = {}  # by identity: its slots
        if self._pieces == 1:
            self._accepted.clear()
        elif self._last is not None:  # the last master may have taken it; pieces are in checkpoints
            address = self._last.round, self._last.worker, self._last.attempt
            self._take(address, self._out.get(address, {}))
        self._out.clear()
        self._last = None
        self._lost: set[Address] = set()  # what workers who were replaced had been sent
        self._applied: set[PartOf] = set()
        self._closed: int | None = None  # clocks; None until one has, of this master
        self._over: set[int] = set()  # jobs
        self._warnings: list[str] = []
        self._failed += self._defence.n  # whatever the last master's workers were doing

    def forge(self, answer: Arrival, slots: Set[int]) -> None:
        """Take note of an answer of which these slots are not to be used."""
        self._forged[id(answer)] = answer, slots

    def go_on(self, state: WorkloadState) -> None:
        """The loop begins, with weights that have so much."""
        self._applied = _applied(state, n=self._defence.n)
        self._over = set(range(state.begun)) - state.parts.keys()
        said = any("newer weights, and applied" in text for text in self._warnings)
        due = state.begun > 0 and not self._repeats
        self._require(said == due, f"that it goes on from a checkpoint is told: {said}, not {due}")

    def compare(self, state: WorkloadState) -> None:
        """See that the weights have the updates that the policy gave out, and no others."""
        odd = self._applied ^ _applied(state, n=self._defence.n)
        self._require(not odd, f"parts {sorted(odd)} are in the weights, or were given out alone")

    def check_end(self) -> None:
        """See that nothing is left to do."""
        jobs = {job for job, _ in self._applied}
        parts = len(jobs) * self._defence.n
        self._require(len(self._applied) == parts, f"{len(self._applied)} of {parts} parts are in")
        self._require(jobs == set(range(len(jobs))), f"of {max(jobs)} jobs {len(jobs)} are done")

    def __call__(self, seen: Seen) -> None:
        if not self._world.alive:
            return
        write(self._world, seen)
        last, self._last = self._last, None
        if last is not None:
            self._judge(last, seen)
        match seen:
            case Arrival():
                self._last = seen
            case ports.Failure():
                why = f"worker {seen.worker} failed, and nothing had happened: {seen.reason}"
                is_lost = (seen.round, seen.worker, seen.attempt) in self._lost
                self._require(is_lost or self._world.may_fail, why)
                self._fail(seen)
            case ports.Restart(worker=worker):
                self._forget({worker})
                self._failed += 1
                self._lost |= {address for address in self.true if address[1] == worker}
            case ports.Cancel(round=round, workers=workers):
                self._failed += self._forget(set(workers), round=round)
            case ports.Notice(kind="warning"):
                self._warnings.append(str(seen.fields["text"]))
            case _:
                self._follow(seen)

    def _forget(self, workers: Set[int], *, round: int | None = None) -> int:
        """Forget what these workers have been asked, and return the number of tasks."""
        addresses = [a for a in self._out if a[1] in workers and round in (None, a[0])]
        for address in addresses:
            del self._out[address]
        return len(addresses)

    def _judge(self, answer: Arrival, seen: Seen) -> None:
        """Take an answer for what the policy does with it, which is what is seen next."""
        if not isinstance(seen, Drop) or seen.event is not answer:
            self._accept(answer)

    def _follow(self, action: Seen) -> None:
        match action:
            case ports.Dispatch():
                self._send(action)
            case ports.Update():
                self._apply(action)
            case ports.Close():
                self._close(action)

    def _fail(self, event: ports.Failure) -> None:
        self._failed += 1
        self._out.pop((event.round, event.worker, event.attempt), None)

    # ---- what is asked for ----------------------------------------------------------------------

    def _send(self, dispatch: ports.Dispatch) -> None:
        self._world.jobs_begun = True
        for worker, tasks in dispatch.assignment.items():
            if self._pieces == 1:  # else a worker may have several tasks
                self._forget({worker})
            at_work = {self._of(task) for sent in self._out.values() for task in sent.values()}
            for task in tasks:
                job, part, _ = piece = self._of(task)
                what = f"worker {worker} is asked for part {part} of job {job}"
                self._require(job < self._jobs, f"{what}, of {self._jobs} jobs")
                self._require(not self._is_over(job, part), f"{what}, which is in")
                self._require(piece not in at_work, f"{what}, which another one has")
            if isinstance(self._defence, Clocks | FlexRR) and tasks:  # else it is greeted
                self._check_clock(self._defence, dispatch.round, worker, tasks)
            address = dispatch.round, worker, dispatch.attempt
            self._out[address] = {task.slot: task for task in tasks}

    def _check_clock(
        self, clocks: Clocks | FlexRR, clock: int, worker: int, tasks: tuple[MiniTask, ...]
    ) -> None:
        jobs = {task.job for task in tasks}
        wpc = clocks.jobs_per_task
        due = set(range(clock * wpc, min((clock + 1) * wpc, self._jobs)))
        # Of fewer models there are fewer jobs.
        self._require(jobs <= due and bool(jobs), f"clock {clock} is jobs {due}, and not {jobs}")
        for part in {self._of(task)[1] for task in tasks}:
            done = self._completed(part)
            self._require(done == clock, f"part {part} has {done} clocks, and is to begin {clock}")
        ahead = clock - min(map(self._completed, range(self._defence.n)))
        if clocks.slack is not None:
            allowed = f"worker {worker} begins clock {clock}, {ahead} ahead: {clocks.slack} at most"
            self._require(ahead <= clocks.slack, allowed)

    def _completed(self, part: int) -> int:
        """Return how many clocks a part has completed."""
        wpc = self._defence.jobs_per_task
        jobs = sum(p == part for _, p in self._applied)
        return -(-jobs // wpc) if jobs == self._jobs else jobs // wpc

    # ---- what comes of it -----------------------------------------------------------------------

    def _accept(self, answer: Arrival) -> None:
        round, worker, attempt = address = answer.round, answer.worker, answer.attempt
        name = f"the answer of worker {worker}, round {round}, attempt {attempt}"
        self._require(address in self._out, f"{name} was accepted, and is not to its newest task")
        tasks = self._out.pop(address)
        true = self.true.get(address)
        forged = self._forged.get(id(answer), (answer, set[int]()))[1]
        self._require(not tasks.keys() & forged, f"{name}, which is forged, was accepted")
        for slot in tasks:
            self._require(
                true is not None and is_as_asked(answer, slot, true[slot]),
                f"{name} was accepted, and slot {slot} is not what was asked for",
            )
        self._take(address, tasks)

    def _take(self, address: Address, tasks: Mapping[int, MiniTask]) -> None:
        round, worker, _ = address
        self._accepted |= {(worker, round, slot): task for slot, task in tasks.items()}

    def _apply(self, update: ports.Update) -> None:
        decoding = update.decoding()
        assert decoding.part is not None
        job, part = decoding.job, decoding.part.index
        name = f"part {part} of job {job}"
        self._require(not self._is_over(job, part), f"{name} is applied twice")
        again = (job, part) in self._applied
        self._require(decoding.part.again == again, f"{name} does not say that it is in: {again}")
        self.repeated += again
        most = self._failed * self._defence.most_again
        often = f"{self.repeated} parts moved the weights again, {self._failed} tasks having failed"
        self._require(self.repeated <= most, often)
        pieces = set[PieceOf]()
        for term in decoding.terms:
            task = self._accepted.get((term.worker, term.round, term.slot))
            if self._pieces == 1:
                self._accepted.pop((term.worker, term.round, term.slot), None)
            self._require(task is not None, f"{name} is of an answer that was not accepted")
            pieces |= set() if task is None else {self._of(task)}
            weighs = 0 < term.weight <= 1 if self._aware else term.weight == 1
            self._require(weighs, f"{name} weighs {term.weight}")
        due = {(job, part, place) for place in range(self._pieces)}
        self._require(pieces == due, f"{name} is the sum of {sorted(pieces)}")
        self._applied.add((job, part))

    def _close(self, close: ports.Close) -> None:
        clock, n = close.record.round, self._defence.n
        in_order = self._closed in (None, clock)
        self._require(in_order, f"clock {clock} closes, and {self._closed} is the next")
        self._closed = clock + 1
        self._over.update(close.jobs)
        missing = {(job, p) for job in close.jobs for p in range(n)} - self._applied
        self._require(not missing, f"clock {clock} has passed, and {sorted(missing)} are not in")

    def _is_over(self, job: int, part: int) -> bool:
        """Say whether a part is in, and may not come again."""
        is_over = job in self._over or not self._defence.most_again
        return (job, part) in self._applied and is_over

    def _of(self, task: MiniTask) -> PieceOf:
        """Return the piece that a task is, of a part that has one or several."""
        of_part = -1 if task.cover is None else task.cover
        if task.chunks.tolist() != [of_part * self._pieces + task.place]:
            raise Violation(f"a task of job {task.job} is no part of it: {task.chunks.tolist()}")
        return task.job, of_part, task.place

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            raise Violation(message)


def _applied(state: WorkloadState, *, n: int) -> set[PartOf]:
    """Return the parts that are in the weights, or in what waits to be added up."""
    whole = PartsState(of=n, losses={part: [] for part in range(n)}, sums=[])
    return {(j, p) for j in range(state.begun) for p in state.parts.get(j, whole).losses}
