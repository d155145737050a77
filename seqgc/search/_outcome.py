"""`Replay`: what a run on recorded times comes to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from seqgc.ports import (
    BoolArray,
    Close,
    CloseReason,
    FloatArray,
    IntArray,
    RoundRecord,
    Seen,
    Table,
)

__all__ = ["Recorder", "Replay"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """What a run on recorded times comes to.

    ``round_seconds`` (rounds,); ``kappa_s`` (rounds,), to the first answer; ``responded``
    (rounds, n), whose answers were used; ``waited_out`` (rounds,); ``reasons`` why each round
    closed; ``job_finish_round`` (jobs,). Where work is dealt, a round is a job, and lasts from the
    end of the one before to its own. ``loads`` (rounds,): what a worker had on average, as a share
    of a batch; None where work is dealt.
    """

    round_seconds: FloatArray
    kappa_s: FloatArray
    responded: BoolArray
    waited_out: BoolArray
    reasons: tuple[CloseReason, ...]
    job_finish_round: IntArray
    loads: FloatArray | None = None

    @property
    def runtime_s(self) -> float:
        """Seconds of all rounds together."""
        return float(np.sum(self.round_seconds))

    def rounds(self) -> Table:
        """Return a row for each round, with the columns of `seqgc.runs.RecordedRun.rounds`.

        There is no ``master``: nobody resumes a replay.
        """
        closed_s, count = np.cumsum(self.round_seconds), len(self.round_seconds)
        return {
            "round": np.arange(count),
            "began_s": closed_s - self.round_seconds,
            "closed_s": closed_s,
            "kappa_s": self.kappa_s,
            "duration_s": self.round_seconds,
            "reason": np.array(self.reasons, dtype=np.object_),
            "waited_out": self.waited_out,
            "stragglers": (~self.responded).sum(axis=1),
            "load": np.full(count, np.nan) if self.loads is None else self.loads,
        }

    def answers(self) -> Table:
        """Return a row for each round and worker whose answer was used: ``round``, ``worker``."""
        rounds, workers = np.nonzero(self.responded)
        return {"round": rounds, "worker": workers}

    def jobs(self) -> Table:
        """Return a row for each job: ``job`` and ``finished_s``, the end of its last round."""
        finished_s = np.cumsum(self.round_seconds)[self.job_finish_round]
        return {"job": np.arange(len(finished_s)), "finished_s": finished_s}


@dataclass(slots=True)
class Recorder:
    """Watches a run, and says what it came to."""

    _records: list[RoundRecord] = field(default_factory=list)
    _finish_rounds: dict[int, int] = field(default_factory=dict)  # by job

    def __call__(self, seen: Seen) -> None:
        if isinstance(seen, Close):
            self._records.append(seen.record)
            self._finish_rounds |= dict.fromkeys(seen.jobs, seen.record.round)

    def replay(self) -> Replay:
        """Return what was seen; every job must have finished."""
        records, rounds = self._records, self._finish_rounds
        return Replay(
            round_seconds=np.array([record.duration_s for record in records]),
            kappa_s=np.array([record.kappa_s for record in records]),
            responded=np.stack([record.responded for record in records]),
            waited_out=np.array([record.waited_out for record in records]),
            reasons=tuple(record.reason for record in records),
            job_finish_round=np.array([rounds[job] for job in range(len(rounds))], dtype=np.intp),
        )
