"""FlexRR: faster workers compute pieces of the parts of slower workers.

Theory of operation
-------------------
A clock is one job, and each worker has a part of every job: worker p has part p. A part may be up
to ``slack`` clocks ahead of the slowest part, as with `Clocks`. In each clock a part is cut into
``pieces``, and a task is one piece. A worker that holds fewer than ``ahead`` tasks has room for
another piece. Pieces are not assigned before. Each worker may *help* with a few parts. It takes the
first piece that it finds in this order:

1. The last piece of a part that is at an earlier clock than the worker's own part, and more than
   ``trigger`` of a clock behind it. If there are several such parts, the one furthest behind.
2. The next piece of the worker's own part, if the slack admits the part's clock.
3. The last piece of a part that is behind the worker's own part. Again the one furthest behind.

This is Algorithm 2 of the paper, as an order of choice. In the paper, workers send each other
messages (do this, begun, cancel) because there is no master, and a piece may be computed twice if
messages cross. Here the master gives each piece to one worker.

*Helpers.* Part p is helped by worker ``p + 1`` and by others up to ``n / 2`` away (`helpers_of`).
A worker that helps much falls behind with its own part, and is helped itself.

*Failures.* If a worker fails or is silent, the pieces that it held go back to their parts. Any
worker may compute pieces of its own part until it has answered a task again. If an answer has
flaws, for example a NaN, the piece is given to another worker. The same worker may compute it again
only if all other workers fail, or their answers to this piece had flaws, too.

*Addresses.* The round of a task is the clock of its part, and its slot is the number of its chunk.
When all pieces of a part have arrived, one `Update` applies the part. The sum of a part is a cover,
and its pieces are the places of the cover (`MiniTask`). Therefore the sum has the same bits
whichever workers computed the pieces.

Source: Harlap et al., "Addressing the straggler problem for iterative convergent parallel ML", SoCC
2016, sections 3 and 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias, TypedDict

import numpy as np

from seqgc import ports
from seqgc.clocks._barrier import Slack
from seqgc.clocks._global_clock import GlobalClock
from seqgc.errors import ParameterError, require_int, require_number
from seqgc.ports import (
    Action,
    Capability,
    Decoding,
    Dispatch,
    FloatArray,
    IntArray,
    MiniTask,
    Part,
    Payload,
    Term,
    Update,
)
from seqgc.rounds import ClosingRule, Engine, EngineTask, Loss, PolicyDefence, Records
from seqgc.schemes import Kind, register

__all__ = ["FlexRR", "FlexRRPolicy"]

_Piece: TypeAlias = tuple[int, int]  # part, and number of the piece in the part
_ONE: Final = np.ones(1)
_ONE.setflags(write=False)


@register("flexrr")
@register("bsp-rr", slack=0)
@dataclass(frozen=True, kw_only=True)
class FlexRR(PolicyDefence):
    """Bounded staleness, with help for parts that are behind; see this module's docstring.

    A worker may be ``slack`` clocks ahead of the slowest part, and a clock is one job. With
    ``bsp-rr`` the slack is 0: all parts wait for each other after every job, and gradients are
    exact. The part of a job is cut into ``pieces``, or fewer if it has fewer data points. Each part
    has up to ``helpers`` workers that may compute some of its pieces. A worker helps first with a
    part that is more than the fraction ``trigger`` of a clock behind its own part. A worker holds
    at most ``ahead`` tasks, so that its next task is there when it has finished one.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> from seqgc.schemes import parse_scheme
    >>> flexrr = parse_scheme("flexrr:slack=1,pieces=10", n=8)
    >>> flexrr.staleness, flexrr.kind, flexrr.spec
    (1, 'stale', 'flexrr:slack=1,pieces=10')
    >>> FlexRR(n=8, slack=0).spec
    'bsp-rr'
    """

    n: int
    slack: int
    pieces: int = 20
    helpers: int = 4
    trigger: float = 0.2
    ahead: int = 2

    def __post_init__(self) -> None:
        self._keep_integers("n", "slack", "pieces", "helpers", "ahead")
        for name, least in (("slack", 0), ("pieces", 1), ("helpers", 0), ("ahead", 1)):
            require_int(name, getattr(self, name), least=least)
        object.__setattr__(self, "trigger", float(require_number("trigger", self.trigger, least=0)))

    @property
    def staleness(self) -> int:
        return self.slack

    @property
    def in_order(self) -> bool:
        return True  # a piece of the next clock is given out when all pieces of this one are in

    @property
    def exact(self) -> bool:
        return self.slack == 0

    @property
    def kind(self) -> Kind:
        return "exact" if self.exact else "stale"

    @property
    def tolerates(self) -> str:
        return "slow workers: workers that are ahead compute pieces of their parts"

    @property
    def chunk_fractions(self) -> FloatArray:
        chunks = self.n * self.pieces
        return np.broadcast_to(np.float64(1 / chunks), (chunks,))

    @property
    def num_pieces(self) -> int:
        return self.n * self.pieces

    def fitted(self, bundles: int, *, batch: int | None = None) -> FlexRR:  # noqa: ARG002
        """Return this defence with fewer pieces, if there would be pieces without a data point."""
        most = self.pieces if batch is None else max(1, batch // self.n)
        return replace(self, pieces=min(self.pieces, most))

    def points_touched(self, sizes: IntArray) -> IntArray:
        of_parts: IntArray = sizes.reshape(self.n, self.pieces).sum(axis=1)
        return of_parts

    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,  # noqa: ARG002 (a plain sum has no weights to judge)
    ) -> FlexRRPolicy:
        same = len(set(batches)) == 1
        shares = self.cut(batches[0]) / batches[0] if same else self.chunk_fractions
        loads = shares.reshape(self.n, self.pieces)
        return FlexRRPolicy(self, rule, num_jobs=num_jobs, loads=loads)


def helpers_of(part: int, *, n: int, helpers: int) -> list[int]:
    """Return the workers that may help with a part: the next one, and others up to n / 2 away.

    The distances of the others are n / 2 and, from there, in geometric steps down to
    ``n / 2**helpers``. Workers next to each other are often on one machine, and slow together.

    Examples
    --------
    >>> helpers_of(0, n=64, helpers=4), helpers_of(2, n=3, helpers=4)
    ([1, 4, 11, 32], [0, 1])
    """
    distances: list[int] = [1][:helpers]
    for distance in np.geomspace(n / 2**helpers, n / 2, max(helpers - 1, 0)):
        distances.append(max(round(distance), distances[-1] + 1))
    return [(part + distance) % n for distance in distances if distance < n]


class FlexRRState(TypedDict):
    """The state of a `FlexRRPolicy`."""

    jobs: int
    completed: list[int]  # by part, the number of clocks that are complete
    givers: list[tuple[int, int, int]]  # part, piece and worker: the answers of incomplete clocks


class FlexRRPolicy(Engine[_Piece]):
    """A policy that runs ``num_jobs`` jobs of ``n`` parts in pieces; see this module's docstring.

    ``loads`` (n, pieces) are the loads of the pieces, as shares of a batch.

    Examples
    --------
    Worker 2 takes ten times as long as the others, which compute most of its part:

    >>> from seqgc.master import run
    >>> from seqgc.profiles import ByRound
    >>> from seqgc.virtual import VirtualBackend
    >>> pace = ByRound(latencies_s=[[0.0]], rates=[[3.0, 3.0, 30.0]])
    >>> backend = VirtualBackend(3, pace)
    >>> run(FlexRR(n=3, slack=0).policy(ClosingRule(), num_jobs=2), backend)
    >>> round(backend.now, 2)  # 20 s without helpers
    4.0
    """

    needs: Final = frozenset[Capability]({"stay"})

    def __init__(
        self, flexrr: FlexRR, rule: ClosingRule, *, num_jobs: int, loads: FloatArray
    ) -> None:
        super().__init__(flexrr.n, rule, num_jobs=num_jobs)
        self.ahead = flexrr.ahead
        self._pieces, self._trigger, self._loads = flexrr.pieces, flexrr.trigger, loads
        self._barrier = Slack(slack=flexrr.slack)
        self._clocks, self._latest = GlobalClock([0] * self._n), -1
        self._todo = [deque(range(self._pieces)) for _ in range(self._n)]  # by part: not given out
        self._givers: list[dict[int, int]] = [{} for _ in range(self._n)]  # by part: piece, worker
        self._helped: list[list[int]] = [[] for _ in range(self._n)]  # by worker: parts
        for part in range(self._n):
            for worker in helpers_of(part, n=self._n, helpers=flexrr.helpers):
                self._helped[worker].append(part)
        self._records = Records(self._n, "everyone")

    @property
    def rounds(self) -> int:
        """The number of jobs of which all parts are complete."""
        return self._clocks.least

    @property
    def _goal(self) -> str:
        return f"clock {self.rounds}"

    def end_after(self, job: int) -> None:
        """End the run after ``job``, or after the latest clock of which a piece has been sent."""
        self._num_jobs = min(self._num_jobs, max(job, self._latest) + 1)

    def snapshot(self) -> FlexRRState:
        """Return the state as JSON: the answers that have been used."""
        givers = [
            (part, piece, worker)
            for part, answered in enumerate(self._givers)
            for piece, worker in sorted(answered.items())
        ]
        completed = list(self._clocks.completed)
        return FlexRRState(jobs=self._num_jobs, completed=completed, givers=givers)

    def _recall(self, state: Mapping[str, Any]) -> None:
        if len(completed := state["completed"]) != self._n:
            rule = f"must be a snapshot of {self._n} parts"
            raise ParameterError("state", rule, completed)
        self._clocks = GlobalClock(completed)
        self._latest = max(completed) - 1
        for part, piece, worker in state["givers"]:
            part_ = require_int("givers", part, least=0, most=self._n - 1)
            piece_ = require_int("givers", piece, least=0, most=self._pieces - 1)
            self._givers[part_][piece_] = require_int("givers", worker, least=0, most=self._n - 1)
            self._todo[part_].remove(piece_)
            self._latest = max(self._latest, self._clocks.clock(part_))
        for part in range(self._n):
            self._records.recall(self._clocks.clock(part), self._givers[part].values())

    def skip_to(self, job: int, *, round: int) -> None:  # noqa: ARG002 (a round is a job)
        """Begin with ``job``, as if all earlier jobs had ended; only before the start."""
        self._clocks, self._latest = GlobalClock([job] * self._n), job - 1

    # ---- decisions -------------------------------------------------------------------------------

    def _next(self, worker: int) -> tuple[int, _Piece] | None:
        piece = self._piece_for(worker)
        if piece is None:
            return None
        self._todo[piece[0]].remove(piece[1])
        clock = self._clocks.clock(piece[0])
        self._latest = max(self._latest, clock)
        return clock, piece

    def _piece_for(self, worker: int) -> _Piece | None:
        """Return the worker's next piece, by the order in the module's docstring."""
        anybodys = {*self._failing, *(part for part, _ in self._flawed)}
        clock, mine = self._clocks.clock(worker), self._progress(worker)
        behind = sorted(
            (self._progress(part), place, part)
            for place, part in enumerate(dict.fromkeys([*self._helped[worker], *anybodys]))
            if self._todo[part] and part != worker
        )
        urgent, late = list[int](), list[int]()
        for at, _, part in behind:
            if at < mine - self._trigger and self._clocks.clock(part) < clock:
                urgent.append(part)
            elif at < mine or part in anybodys:
                late.append(part)
        for part in (*urgent, worker, *late):
            if self._is_open(part):
                pieces = self._todo[part] if part == worker else reversed(self._todo[part])
                for piece in pieces:
                    if self._may(worker, (part, piece)):
                        return part, piece
        return None

    def _is_open(self, part: int) -> bool:
        clock = self._clocks.clock(part)
        return clock < self._num_jobs and self._barrier.admits(part, clock, self._clocks)

    def _progress(self, part: int) -> float:
        """Return the clocks that a part has completed, with the fraction of its open clock."""
        return self._clocks.clock(part) + len(self._givers[part]) / self._pieces

    def _left(self, task: EngineTask[_Piece], at: float) -> None:
        self._records.leave(task.round, at)

    def _done(self, task: EngineTask[_Piece], actions: list[Action]) -> None:
        assert task.work is not None
        clock, worker, (part, piece) = task.round, task.worker, task.work
        self._givers[part][piece] = worker
        self._flawed.pop(task.work, None)
        self._records.answer(clock, worker, self._now)
        if len(self._givers[part]) < self._pieces:
            return
        actions.append(self._update(part, clock))
        self._todo[part].extend(range(self._pieces))
        self._givers[part].clear()
        if self._clocks.complete([part]):
            self._forget_round(clock)
            record = self._records.close(clock, self._now)
            actions.append(ports.Close(record=record, jobs=(clock,)))
        self._ask_idle()

    def _update(self, part: int, clock: int) -> Update:
        """Return the update with the sum of a part's pieces."""
        terms = tuple(
            Term(worker=worker, round=clock, slot=part * self._pieces + piece, weight=1.0)
            for piece, worker in sorted(self._givers[part].items())
        )
        decoding = partial(Decoding, job=clock, terms=terms, part=Part(index=part, of=self._n))
        return Update(job=clock, decoding=decoding)

    def _lost(self, loss: Loss[_Piece], actions: list[Action]) -> None:
        task, piece = loss.task, loss.task.work
        assert piece is not None
        if loss.is_flawed:
            self._flawed.setdefault(piece, set()).add(task.worker)
        self._release(task, actions, rest_s=loss.wait_s)
        self._todo[piece[0]].append(piece[1])
        self._ask_idle()

    def _dispatches(self, tasks: Sequence[EngineTask[_Piece]]) -> list[Dispatch]:
        clock, attempt = tasks[0].round, tasks[0].attempt
        pieces = {task.worker: task.work for task in tasks if task.work is not None}
        loads = np.zeros(self._n)
        for worker, (part, piece) in pieces.items():
            loads[worker] = self._loads[part, piece]
        assignment = {who: (self._mini_task(clock, *piece),) for who, piece in pieces.items()}
        return [Dispatch(round=clock, attempt=attempt, assignment=assignment, loads=loads)]

    def _mini_task(self, clock: int, part: int, piece: int) -> MiniTask:
        chunk = part * self._pieces + piece
        return MiniTask(
            job=clock,
            slot=chunk,
            chunks=np.array([chunk]),
            coefficients=_ONE,
            cover=part,
            place=piece,
        )
