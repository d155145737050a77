"""What the rounds of a run came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from seqgc import ports

__all__ = ["RunCounts"]


@dataclass(slots=True, kw_only=True)
class RunCounts:
    """What the rounds of a run came to; an observer of the run."""

    rounds: int = 0
    waited_out: int = 0  # rounds that stayed open beyond (1+mu)*kappa
    stragglers: int = 0  # (round, worker) pairs without a used answer, be it a late one
    answers: int = 0
    failures: int = 0
    dropped: int = 0
    approximate: int = 0  # jobs decoded approximately
    largest_error: float = 0.0  # of those (see `Decoding`)
    expelled: list[int] = field(default_factory=list)  # workers, by an audit
    repeated: int = 0  # parts that moved the weights once more (`seqgc.ports.Part.again`)
    uncompared: int = 0  # results that nobody else answered who was asked for them, in an audit

    def __call__(self, seen: ports.Seen) -> None:
        match seen:
            case ports.Close(record=record):
                self.rounds += 1
                self.waited_out += record.waited_out
                self.stragglers += record.missed
            case ports.Arrival():
                self.answers += 1
            case ports.Failure():
                self.failures += 1
            case ports.Drop():
                self.dropped += 1
            case ports.Notice(kind="expelled", fields=fields):
                self.expelled.append(int(str(fields["worker"])))
            case ports.Notice(kind="uncompared", fields=fields):
                self.uncompared += int(str(fields["results"]))
            case ports.Update(decoding=decoding):
                part = decoding().part
                self.repeated += part is not None and part.again
            case ports.Finish(decoding=decoding):
                error = decoding().error
                self.approximate += error > 0
                self.largest_error = max(self.largest_error, error)
