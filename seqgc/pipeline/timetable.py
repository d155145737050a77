"""The schedule 1F1B: which pass of which minibatch a worker does next, drawn as a timetable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from seqgc.errors import require_int
from seqgc.pipeline.planner import PlannedStage, in_flight

_FORWARD_SLOTS, _BACKWARD_SLOTS = 1, 2
_MOST_ROWS = 4  # of a stage; of more replicas the first two and the last are drawn


class Pass(NamedTuple):
    """A forward or backward pass of a minibatch, which is counted from 0."""

    kind: Literal["forward", "backward"]
    minibatch: int


def one_f_one_b(minibatches: Sequence[int], *, in_flight: int) -> Iterator[Pass]:
    """Yield the passes of a worker in order.

    The worker first makes ``in_flight`` forward passes, then backward and forward passes in turn.
    Source: thesis of A. Harlap, section 5.3.2.

    Examples
    --------
    >>> [f"{kind[0]}{minibatch}" for kind, minibatch in one_f_one_b(range(4), in_flight=2)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'f3', 'b2', 'b3']
    """
    for at, minibatch in enumerate(minibatches):
        if at >= in_flight:
            yield Pass("backward", minibatches[at - in_flight])
        yield Pass("forward", minibatch)
    for minibatch in minibatches[-in_flight:]:
        yield Pass("backward", minibatch)


def draw_timetable(stages: Sequence[PlannedStage], *, slots: int = 24) -> str:
    """Return the timetable of the first slots: a row for each worker, ``3>`` forward, ``<3`` back.

    Minibatch b goes to replica b modulo the number of replicas (1F1B-RR). Stages are drawn as
    balanced: on one worker a forward pass takes one slot and a backward pass two, and on a stage
    with r replicas r times as long. Of more than four replicas, the first two
    and the last are drawn.

    Examples
    --------
    >>> from seqgc.pipeline import PlannedStage
    >>> print(draw_timetable([PlannedStage(0, 0), PlannedStage(1, 1)], slots=12))
    stage 1 1> 2>       <1 <1 3> <2 <2 4> <3 <3
    stage 2    1> <1 <1 2> <2 <2 3> <3 <3 4> <4
    """
    require_int("slots", slots, least=1)
    count = slots + sum(stage.replicas for stage in stages)
    rows = []
    starts = _starts(stages, count)
    for s, stage in enumerate(stages):
        for replica in range(stage.replicas):
            if stage.replicas > _MOST_ROWS and 2 <= replica < stage.replicas - 1:
                if replica == 2:
                    rows.append(("…", [""]))
                continue
            cells = [""] * slots
            for (kind, minibatch), start in starts[s, replica].items():
                label = f"{minibatch + 1}>" if kind == "forward" else f"<{minibatch + 1}"
                for slot in range(start, min(start + _slots(kind, stage), slots)):
                    cells[slot] = label
            number = f".{replica + 1}" if stage.replicas > 1 else ""
            rows.append((f"stage {s + 1}{number}", cells))
    margin = max(len(name) for name, _ in rows)
    width = 1 + max(len(cell) for _, cells in rows for cell in cells)
    return "\n".join(
        (name.ljust(margin) + "".join(cell.rjust(width) for cell in cells)).rstrip()
        for name, cells in rows
    )


def _slots(kind: str, stage: PlannedStage) -> int:
    return stage.replicas * (_FORWARD_SLOTS if kind == "forward" else _BACKWARD_SLOTS)


def _starts(stages: Sequence[PlannedStage], count: int) -> dict[tuple[int, int], dict[Pass, int]]:
    """Return the slot in which each pass begins, by stage and replica."""
    left = {
        (s, replica): list(
            one_f_one_b(
                range(replica, count, stage.replicas),
                in_flight=in_flight(stages, s),
            )
        )
        for s, stage in enumerate(stages)
        for replica in range(stage.replicas)
    }
    starts: dict[tuple[int, int], dict[Pass, int]] = {worker: {} for worker in left}
    free = dict.fromkeys(left, 0)
    ends: dict[tuple[int, Pass], int] = {}
    while any(left.values()):
        for worker, passes in left.items():
            s = worker[0]
            while passes:
                ready = ends.get(_needed(s, passes[0], last=len(stages) - 1))
                if ready is None and not (s == 0 and passes[0].kind == "forward"):
                    break  # another worker has not made the pass that this pass needs
                next_pass = passes.pop(0)
                starts[worker][next_pass] = start = max(free[worker], ready or 0)
                free[worker] = start + _slots(next_pass.kind, stages[s])
                ends[s, next_pass] = free[worker]
    return starts


def _needed(s: int, each: Pass, *, last: int) -> tuple[int, Pass]:
    """Return the stage and the pass whose result a pass on stage s needs."""
    if each.kind == "forward":
        return s - 1, each
    return (s, Pass("forward", each.minibatch)) if s == last else (s + 1, each)
