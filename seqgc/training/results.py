"""Results of a run: its counts, its parked models and its `TrainResult`."""

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
    """An observer that counts the events of a run."""

    rounds: int = 0
    waited_out: int = 0  # rounds that stayed open beyond (1+mu)*kappa
    stragglers: int = 0  # (round, worker) pairs without a used answer, in time or late
    answers: int = 0
    failures: int = 0
    dropped: int = 0
    approximate: int = 0  # jobs decoded approximately
    largest_error: float = 0.0  # of the approximate jobs (see `Decoding`)
    expelled: list[int] = field(default_factory=list)  # workers, by an audit
    repeated: int = 0  # parts that were applied a second time (`seqgc.ports.Part.again`)
    uncompared: int = 0  # results in an audit with the answer of a single worker

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
"""The reason why a model is parked.

``diverged``: its loss or gradient was not finite, or too large. ``raised``: its code raised an
error. ``crashed``: its computation killed worker processes. ``hung``: its computation exceeded the
time limit. ``stopped early``: a validation or a callback stopped it.
"""

FAILURES: Final[frozenset[Parking]] = frozenset({"diverged", "raised", "crashed", "hung"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """The reason why a model is parked; its weights are those after ``step`` steps.

    Examples
    --------
    >>> parked = Parked(kind="diverged", why="its loss is not finite", step=7)
    >>> str(parked), parked.failed
    ('diverged after 7 steps: its loss is not finite', True)
    """

    kind: Parking
    why: str  # one line; may be empty
    step: int  # number of steps taken

    @property
    def failed(self) -> bool:
        """True unless the model was stopped early."""
        return self.kind in FAILURES

    def __str__(self) -> str:
        steps = f"{self.step} step{'s' * (self.step != 1)}"
        return f"{self.kind} after {steps}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """The result of a finished run."""

    run: Path
    scheme: str  # the scheme at the beginning
    jobs: int
    seconds: float  # from the first dispatch to the last decoding, without the start of workers
    counts: RunCounts
    # By model, on its test data if it has any; without models that cannot be evaluated.
    evaluations: dict[str, Evaluation]
    payload: Payload  # the format of results in messages
    switches: tuple[Switch, ...] = ()
    answers: tuple[Answer, ...] = ()  # of the searches for a better setting
    # Models whose training stopped before the run's end, and why.
    parked: dict[str, Parked] = field(default_factory=dict)
    # Models that were trained to their end but could not be evaluated, and why.
    unevaluated: dict[str, str] = field(default_factory=dict)
    # By model: the trained module in the run's precision. The weights that validated best are in
    # `checkpoints/NAME.best.safetensors`.
    modules: dict[str, nn.Module] = field(default_factory=dict, repr=False)
    best: dict[str, Best] = field(default_factory=dict)  # of the models that are validated

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes that ran, in order."""
        return (self.scheme, *(switch.after.scheme.spec for switch in self.switches))

    @property
    def failed(self) -> dict[str, Parked]:
        """The models whose training failed, which does not affect the other models."""
        return {name: each for name, each in self.parked.items() if each.failed}

    @property
    def ranking(self) -> tuple[str, ...]:
        """The models that have not failed, by the loss of their `evaluations`, smallest first.

        Models with equal losses stay in the plan's order.
        """
        losses = {name: evaluation.loss for name, evaluation in self.evaluations.items()}
        sound = [name for name in losses if name not in self.failed and isfinite(losses[name])]
        return tuple(sorted(sound, key=losses.__getitem__))
