"""`part_task`, the mini-task of one part of a job; `part_update`, the action to use its result."""

from __future__ import annotations

from functools import partial

import numpy as np

from seqgc.ports import Decoding, MiniTask, Part, Term, Update

__all__ = ["part_task", "part_update"]

_ONE = np.ones(1)
_ONE.setflags(write=False)


def part_task(job: int, part: int, *, slot: int = 0) -> MiniTask:
    """Return the mini-task of a part of a job: the gradient of the chunk with the same number."""
    return MiniTask(job=job, slot=slot, chunks=np.array([part]), coefficients=_ONE, cover=part)


def part_update(
    task: MiniTask,
    *,
    of: int,
    worker: int,
    round: int,
    again: bool = False,
    ends: tuple[int, ...] | None = None,
) -> Update:
    """Return the action that uses the result of a `part_task`, for a job of ``of`` parts.

    The result is the answer of ``worker`` in ``round``. Only policies that may apply a part a
    second time need ``again`` and ``ends`` (`seqgc.ports.Part`, `seqgc.ports.Decoding`).

    Examples
    --------
    >>> update = part_update(part_task(3, 1), of=2, worker=0, round=7)
    >>> update.decoding().part, update.decoding().terms
    (Part(index=1, of=2, again=False), (Term(worker=0, round=7, slot=0, weight=1.0),))
    """
    assert task.cover is not None
    part = Part(index=task.cover, of=of, again=again)
    terms = (Term(worker=worker, round=round, slot=task.slot, weight=1.0),)
    decoding = partial(Decoding, job=task.job, terms=terms, part=part, ends=ends)
    return Update(job=task.job, decoding=decoding)
