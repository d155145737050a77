"""Results of a run: what it counted, what became of each model."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from torch import nn

from seqgc import ports
from seqgc.models.evaluation import Best, Evaluation
from seqgc.ports import Payload

if TYPE_CHECKING:
    from seqgc.training.adaptive import Switch
    from seqgc.training.tuner import Answer

__all__ = ["FAILURES", "Parked", "Parking", "RunCounts", "TrainResult"]


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


Parking: TypeAlias = Literal["diverged", "raised", "crashed", "hung", "stopped early"]
"""Why a model is parked, in one or two words.

Its loss or gradient was not finite or too large (``diverged``); or computing them ``raised``, ended
the processes of workers (``crashed``), or took longer than the time limit (``hung``); or it was
``stopped early`` by a validation or a callback.
"""

FAILURES: Final[frozenset[Parking]] = frozenset({"diverged", "raised", "crashed", "hung"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """What became of a model; its weights are those after ``step`` steps, and stay so.

    Examples
    --------
    >>> parked = Parked(kind="diverged", why="its loss is not finite", step=7)
    >>> str(parked), parked.failed
    ('diverged after 7 steps: its loss is not finite', True)
    """

    kind: Parking
    why: str  # one line; may be empty
    step: int  # how many it has taken

    @property
    def failed(self) -> bool:
        """Whether it could not be trained on."""
        return self.kind in FAILURES

    def __str__(self) -> str:
        steps = f"{self.step} step{'s' * (self.step != 1)}"
        return f"{self.kind} after {steps}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a finished run came to."""

    run: Path
    scheme: str  # what the run began with
    jobs: int
    seconds: float  # from the first dispatch to the last decoding: workers had been started before
    counts: RunCounts
    # By model, on its test data if it has any; without those that cannot be evaluated.
    evaluations: dict[str, Evaluation]
    payload: Payload  # the format in which results travelled
    switches: tuple[Switch, ...] = ()
    answers: tuple[Answer, ...] = ()  # of the searches for a better setting
    # Models that were trained no further before the run's end, and why.
    parked: dict[str, Parked] = field(default_factory=dict)
    # Models that were trained to their end and could not be evaluated then, and why.
    unevaluated: dict[str, str] = field(default_factory=dict)
    # By model, in the run's precision: as trained; those with which it validated best are in
    # `checkpoints/NAME.best.safetensors`.
    modules: dict[str, nn.Module] = field(default_factory=dict, repr=False)
    best: dict[str, Best] = field(default_factory=dict)  # of the models that are validated

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes that ran, in order."""
        return (self.scheme, *(switch.after.scheme.spec for switch in self.switches))

    @property
    def failed(self) -> dict[str, Parked]:
        """The models that could not be trained to their end; the others are none the worse."""
        return {name: each for name, each in self.parked.items() if each.failed}

    @property
    def ranking(self) -> tuple[str, ...]:
        """The models that have not failed, by their `evaluations`' loss: the least comes first.

        Equal ones stay in the plan's order.
        """
        losses = {name: seen.loss for name, seen in self.evaluations.items()}
        sound = [name for name in losses if name not in self.failed and isfinite(losses[name])]
        return tuple(sorted(sound, key=losses.__getitem__))
