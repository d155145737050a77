"""`DealtJob`: the pieces of a job, and the workers that compute them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from seqgc.ports import Decoding, MiniTask, RoundRecord, Term
from seqgc.rounds._answer_times import SentPiece

__all__ = ["DealtJob", "mini_task"]

_ONE = np.ones(1)
_ONE.setflags(write=False)


@dataclass(slots=True, eq=False)
class DealtJob:
    """The state of each piece of a job.

    A piece is *left* if it is to be dealt, *out* if a worker has been sent it, and *in* if its
    result has arrived. ``left`` may also hold pieces that are in: `next_for` skips them.
    """

    number: int
    pieces: int
    left: deque[int]
    givers: dict[int, int] = field(default_factory=dict)
    """For each piece that is in: the worker whose result counts."""
    out: dict[int, dict[SentPiece, int]] = field(default_factory=dict)
    """For each piece that is out: its tasks, and the worker of each task."""
    losses: dict[int, Counter[int]] = field(default_factory=dict)
    """For each piece that has failed: the number of failed tasks, by worker."""
    began_at: float = float("inf")
    first_at: float = float("nan")  # the time at which the first piece came in

    @property
    def complete(self) -> bool:
        """True if every piece is in."""
        return len(self.givers) == self.pieces

    def next_for(self, worker: int, others: Collection[int]) -> int | None:
        """Return the next piece for a worker, or None if there is no piece for it.

        A piece is skipped if one of the ``others`` has lost it less often than the worker.
        """
        while self.left and self.left[0] in self.givers:
            self.left.popleft()
        for piece in self.left:
            if piece in self.givers:
                continue
            if piece not in self.losses or not self._is_for_others(piece, worker, others):
                return piece
        return None

    def _is_for_others(self, piece: int, worker: int, others: Collection[int]) -> bool:
        losses = self.losses[piece]
        return any(losses[each] < losses[worker] for each in others)

    def deal(self, piece: int, worker: int, *, share: float) -> SentPiece:
        """Record that a piece is sent to a worker; ``share`` is its fraction of a batch."""
        if piece in self.left:
            self.left.remove(piece)
        sent = SentPiece(piece=piece, share=share, is_copy=piece in self.out)
        self.out.setdefault(piece, {})[sent] = worker
        return sent

    def lose(self, piece: int, worker: int) -> None:
        """Record that a worker's task for a piece has failed."""
        self.losses.setdefault(piece, Counter())[worker] += 1

    def put_back(self, piece: int) -> None:
        """Make a piece the next one to be dealt, if it has to be dealt again.

        Nothing is done if the piece is in or is left already. Nothing is done either if one of its
        tasks is out and has not been copied: when this task is overdue, the piece is copied
        (`AnswerTimes.to_copy`).
        """
        watched = any(not sent.copied for sent in self.out.get(piece, ()))
        if piece not in self.givers and not watched and piece not in self.left:
            self.left.appendleft(piece)

    def forget(self, sent: SentPiece) -> None:
        """Record that the answer to one task of a piece is no longer awaited."""
        del (out := self.out[sent.piece])[sent]
        if not out:
            del self.out[sent.piece]

    def decoding(self) -> Decoding:
        """Return the decoding of the complete job: its gradient is the sum of its pieces."""
        terms = tuple(
            Term(worker=worker, round=self.number, slot=piece, weight=1.0)
            for piece, worker in sorted(self.givers.items())
        )
        return Decoding(job=self.number, terms=terms)

    def record(self, now: float, *, n: int, after: float) -> RoundRecord:
        """Return the record of the complete job, which closes at the time ``now``.

        ``n`` is the number of workers, and ``after`` is the time at which the previous job closed.
        Both times are in seconds on the clock of the backend.
        """
        responded = np.zeros(n, dtype=np.bool_)
        responded[list(self.givers.values())] = True
        responded.flags.writeable = False
        return RoundRecord(
            round=self.number,
            responded=responded,
            kappa_s=self.first_at - self.began_at,
            duration_s=now - max(self.began_at, after),
            reason="dealt",
            waited_out=False,
        )


def mini_task(job: int, piece: int) -> MiniTask:
    """Return the mini-task of a piece: the gradient of the chunk with the same number."""
    return MiniTask(
        job=job,
        slot=piece,
        chunks=np.array([piece]),
        coefficients=_ONE,
        cover=0,
        place=piece,
    )
