"""`DealtJob`: which pieces of a job are left, out or in."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from seqgc.ports import Decoding, MiniTask, RoundRecord, Term
from seqgc.rounds._errands import Errand

__all__ = ["DealtJob"]

_ONE = np.ones(1)
_ONE.setflags(write=False)


@dataclass(slots=True, eq=False)
class DealtJob:
    """The pieces of one job: each is left to be dealt, or out, or in.

    ``left`` may hold pieces that have come in meanwhile: `next_for` passes over them.
    """

    number: int
    pieces: int
    left: deque[int]
    givers: dict[int, int] = field(default_factory=dict)
    """By piece that is in, whose result it is."""
    out: dict[int, set[Errand]] = field(default_factory=dict)
    """By piece, who has been sent it and has not answered."""
    losses: dict[int, Counter[int]] = field(default_factory=dict)
    """By piece, how many tasks for it failed of which worker."""
    attempts: Counter[int] = field(default_factory=Counter)  # by worker: tasks sent
    debtors: set[int] = field(default_factory=set)  # whose tasks failed
    began_at: float = float("inf")
    first_at: float = float("nan")  # when the first piece came in

    @property
    def complete(self) -> bool:
        """Whether every piece is in."""
        return len(self.givers) == self.pieces

    def next_for(self, worker: int, others: Collection[int]) -> int | None:
        """Return the piece to be dealt to a worker next, if one is left.

        One that it has lost is left to the ``others``, if any of them has lost it less often.
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

    def errand(
        self, worker: int, piece: int | None = None, *, share: float = 0.0, is_probe: bool = False
    ) -> Errand:
        """Return a worker's next errand for the job: a piece, that share of a batch, or none."""
        attempt = self.attempts[worker]
        self.attempts[worker] += 1
        return Errand(
            job=self.number,
            worker=worker,
            attempt=attempt,
            piece=piece,
            share=share,
            is_copy=piece in self.out,
            is_probe=is_probe,
        )

    def deal(self, errand: Errand, piece: int) -> None:
        """Note that a piece goes out."""
        if piece in self.left:
            self.left.remove(piece)
        self.out.setdefault(piece, set()).add(errand)

    def lose(self, piece: int, worker: int) -> None:
        """Note that a worker's task for a piece has failed."""
        self.losses.setdefault(piece, Counter())[worker] += 1
        self.debtors.add(worker)

    def put_back(self, piece: int) -> None:
        """Have a piece dealt once more, before all others, unless it is in or left or watched.

        It is watched while somebody has it who has not been copied: if that takes too long, he is.
        """
        watched = any(not errand.copied for errand in self.out.get(piece, ()))
        if piece not in self.givers and not watched and piece not in self.left:
            self.left.appendleft(piece)

    def forget(self, errand: Errand) -> None:
        """Note that nobody waits for an errand any more."""
        if errand.piece is not None and (out := self.out.get(errand.piece)) is not None:
            out.discard(errand)
            if not out:
                del self.out[errand.piece]

    def mini_task(self, piece: int) -> MiniTask:
        """Return what a worker computes: the chunk of this number, a summand of the job's sum."""
        return MiniTask(
            job=self.number,
            slot=piece,
            chunks=np.array([piece]),
            coefficients=_ONE,
            cover=0,
            place=piece,
        )

    def decoding(self) -> Decoding:
        """Return the complete job's gradient: the sum of its pieces."""
        terms = tuple(
            Term(worker=worker, round=self.number, slot=piece, weight=1.0)
            for piece, worker in sorted(self.givers.items())
        )
        return Decoding(job=self.number, terms=terms)

    def record(self, now: float, *, n: int, after: float) -> RoundRecord:
        """Return how the complete job closed; the one before had done so ``after``."""
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
