"""Uncoded work in unequal shares: slower workers get less of each batch.

As with `Uncoded`, nothing is coded and no answer may be missing. But the batch has ``sum(shares)``
equal parts, and worker i computes ``shares[i]`` of these parts. If shares are proportional to
speeds, all workers answer at the same time. A controller measures the speeds (`seqgc.control`).
Because the delay is 0, a run can change from one `Balanced` scheme to another between two rounds
without an extra round (`seqgc.rounds.Decision`).

*Blocks.* A worker computes each mini-task in one pass, which takes memory in proportion to its data
points. A share that does not fit into memory can be cut into several equal mini-tasks, its blocks,
whose results are added. In AntDT this is called gradient accumulation (Eq. 4, C_i).

*Spelling.* ``shares`` lists one integer for each worker, joined by ``-``; ``144x4-48x4`` means four
times 144 and four times 48. ``blocks`` is spelled in the same way, and is omitted if each worker
has one block.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import ClassVar

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, MiniTask, Payload, Term
from seqgc.schemes._registry import register
from seqgc.schemes._scheme import Assignment, Schedule, Scheme
from seqgc.stragglers import PerRound, StragglerModel

__all__ = ["Balanced"]

_LARGEST_SHARE = 10**9
_MOST_BLOCKS = 1000  # for one worker
_RUN = re.compile(r"(\d{1,10})(?:x(\d{1,10}))?", re.ASCII)


@register("balanced")
@dataclass(frozen=True, kw_only=True)
class Balanced(Scheme):
    """Uncoded work: worker i computes ``shares[i]`` of the ``sum(shares)`` parts of each batch.

    The delay is 0, and gradients are exact. ``shares`` lists integers >= 0, not all of them 0. A
    worker with share 0 gets no task. ``blocks`` lists the number of mini-tasks, from 1 to 1000,
    into which each worker's share is cut. The module's docstring explains the spelling of both
    lists. `of` creates a scheme from lists of integers.

    Examples
    --------
    >>> scheme = Balanced(n=3, shares="3-1-2")
    >>> scheme.cut(12).tolist(), scheme.spec
    ([6, 2, 4], 'balanced:shares=3-1-2')
    >>> Balanced.of([144, 48, 48], blocks=[2, 1, 1])
    Balanced(n=3, shares='144-48x2', blocks='2-1x2')
    """

    n: int
    shares: str
    blocks: str = ""
    delay: ClassVar[int] = 0
    exact: ClassVar[bool] = True
    tolerated: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._keep_integers("n")
        shares = _numbers(self.shares, self.n, argument="shares", most=_LARGEST_SHARE)
        if not any(shares):
            raise ParameterError("shares", "must not all be 0 (balanced)", self.shares)
        object.__setattr__(self, "shares", _spelt(shares))
        if self.blocks:
            blocks = _numbers(self.blocks, self.n, argument="blocks", most=_MOST_BLOCKS)
            if min(blocks) < 1:
                rule = f"must be integers from 1 to {_MOST_BLOCKS} (balanced)"
                raise ParameterError("blocks", rule, self.blocks)
            object.__setattr__(self, "blocks", _spelt(blocks) if max(blocks) > 1 else "")

    @classmethod
    def of(cls, shares: Sequence[int], *, blocks: Sequence[int] = ()) -> Balanced:
        """Return the scheme with these ``shares`` and numbers of ``blocks``, listed by worker."""
        return cls(n=len(shares), shares=_spelt(shares), blocks=_spelt(blocks))

    @property
    def parts(self) -> IntArray:
        """The workers' shares as integers (n,), read-only."""
        return _layout(self).parts

    @property
    def worker_loads(self) -> FloatArray:
        return _layout(self).loads

    @property
    def chunk_fractions(self) -> FloatArray:
        """The share of each chunk in the batch, (chunks,).

        Each block of a worker with a share above 0 is a chunk; chunks are ordered by worker.
        """
        return _layout(self).fractions

    def points_touched(self, sizes: IntArray) -> IntArray:
        return np.bincount(_layout(self).holders, weights=sizes, minlength=self.n).astype(np.intp)

    @property
    def same_bits(self) -> bool:
        return True

    @property
    def promise(self) -> StragglerModel:
        return PerRound(s=0)

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return BalancedSchedule(self, num_jobs, conformity=conformity)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layout:
    """The shares and blocks of a scheme as read-only arrays."""

    parts: IntArray  # (n,)
    loads: FloatArray  # (n,)
    holders: IntArray  # (chunks,) the worker that holds each chunk
    fractions: FloatArray  # (chunks,)


@lru_cache(maxsize=256)
def _layout(scheme: Balanced) -> _Layout:
    n, words = scheme.n, scheme.blocks or f"1x{scheme.n}"
    parts = np.array(_numbers(scheme.shares, n, argument="shares", most=_LARGEST_SHARE))
    blocks = np.array(_numbers(words, n, argument="blocks", most=_MOST_BLOCKS))
    loads = parts / parts.sum()
    holders = np.repeat(np.arange(n), np.where(parts > 0, blocks, 0))
    fractions = (loads / blocks)[holders]
    for array in (parts, loads, holders, fractions):
        array.setflags(write=False)
    return _Layout(parts=parts, loads=loads, holders=holders, fractions=fractions)


class BalancedSchedule(Schedule):
    """A run of `Balanced`.

    Round ``t`` computes job ``t``, and every worker with data points must answer.
    """

    def __init__(
        self, scheme: Balanced, num_jobs: int, *, conformity: StragglerModel | None = None
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self._holders = _layout(scheme).holders
        self._is_finished = False  # True if the latest round finished a job
        self._empty: BoolArray = np.zeros(len(self._holders), dtype=np.bool_)
        self._leave_out(self._empty)

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:  # noqa: ARG002 (a sum)
        if not self._is_finished or job != self._round - 1:
            raise self._not_finished(job)
        terms = [
            Term(worker=worker, round=job, slot=slot, weight=1.0)
            for worker in np.flatnonzero(~self._excused).tolist()
            for slot in range(len(self._chunks(worker)))
        ]
        return Decoding(job=job, terms=tuple(terms))

    def _chunks(self, worker: int) -> list[int]:
        """Return the non-empty chunks of a worker."""
        chunks: list[int] = np.flatnonzero((self._holders == worker) & ~self._empty).tolist()
        return chunks

    def _leave_out(self, empty: BoolArray) -> bool:
        self._empty = self._empty | empty
        busy = np.bincount(self._holders, weights=~self._empty, minlength=self.n) > 0
        self._excused = ~busy
        return bool(self._empty.any())

    def _assign(self) -> Assignment:
        job, one = self._round, np.ones(1)
        one.setflags(write=False)

        def tasks_of(worker: int) -> tuple[MiniTask, ...]:
            return tuple(
                MiniTask(
                    job=job,
                    slot=slot,
                    chunks=_read_only(chunk),
                    coefficients=one,
                    cover=0,
                    place=chunk,
                )
                for slot, chunk in enumerate(self._chunks(worker))
            )

        return Assignment(~self._excused, tasks_of)

    def _feasible(self, responded: BoolArray) -> bool:
        return int(np.count_nonzero(responded)) == self.n

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        if not self._feasible(responded):
            raise self._late(self._round)
        self._is_finished = True
        return (self._round,)


def _read_only(chunk: int) -> IntArray:
    chunks = np.array([chunk])
    chunks.setflags(write=False)
    return chunks


def _spelt(numbers: Sequence[int]) -> str:
    """Return the spelling of a list of integers, such as ``144x4-48x4`` for 4 x 144 and 4 x 48."""
    runs = [(value, len(list(run))) for value, run in groupby(map(int, numbers))]
    return "-".join(f"{value}x{times}" if times > 1 else str(value) for value, times in runs)


def _numbers(word: str, n: int, *, argument: str, most: int) -> list[int]:
    """Return the integers of ``n`` workers from their spelling (`_spelt`).

    Raises `ParameterError`, which names the ``argument``, if an integer is above ``most`` or the
    spelling is wrong.
    """
    numbers: list[int] = []
    for run in word.split("-") if isinstance(word, str) else [""]:
        match = _RUN.fullmatch(run)
        times = int(match[2] or 1) if match else 0
        if match is None or not 0 <= int(match[1]) <= most or not 1 <= times <= n:
            rule = f"must be integers from 0 to {most} joined by '-', as in 3-1-2 or 3x4-1x4"
            raise ParameterError(argument, f"{rule} (balanced)", word)
        numbers += [int(match[1])] * times
        if len(numbers) > n:
            break
    if len(numbers) != n:
        raise ParameterError(argument, f"must list one integer for each of n={n} workers", word)
    return numbers
