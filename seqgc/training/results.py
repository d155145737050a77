"""Results of a run: its counts, its parked models and its `TrainResult`."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy.typing as npt
from torch import nn

from seqgc import ports
from seqgc._tabular import Summarised, columns, number
from seqgc.models.evaluation import Best, Evaluation
from seqgc.ports import Payload

if TYPE_CHECKING:
    from seqgc.training.adaptive import Switch
    from seqgc.training.tuner import Answer

__all__ = ["FAILURES", "Parked", "Parking", "RunCounts", "TrainResult"]


@dataclass(slots=True, kw_only=True)
class RunCounts:
    """An observer that counts the events of a run."""

    rounds: int = 0  # closed rounds
    # Rounds that waited for stragglers: longer than 1 + mu times the time of the first answer.
    waited_out: int = 0
    stragglers: int = 0  # pairs (round, worker) without an answer that was used, in time or late
    answers: int = 0
    failures: int = 0
    dropped: int = 0  # answers and failures that were late, duplicate or unexpected
    approximate: int = 0  # jobs whose gradient was decoded approximately
    largest_error: float = 0.0  # largest error bound of the approximate jobs (see `Decoding`)
    expelled: list[int] = field(default_factory=list)  # workers that an audit has excluded
    repeated: int = 0  # parts that were applied a second time (`seqgc.ports.Part.again`)
    uncompared: int = 0  # results that an audit could not compare: only one worker answered

    def __call__(self, seen: ports.Seen) -> None:
        match seen:
            case ports.Close(record=record):
                self.rounds += 1
                self.waited_out += record.waited_out
                self.stragglers += record.missed
            case ports.Arrival() | ports.PartialArrival():
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
"""The kind of reason why a model is *parked*: its training has stopped, and other models continue.

``diverged``: the model's loss or gradient was not finite, or too large. ``raised``: the model's
code raised an error. ``crashed``: its computation killed worker processes. ``hung``: its
computation exceeded the time limit. ``stopped early``: a validation or a callback stopped it.
"""

FAILURES: Final[frozenset[Parking]] = frozenset({"diverged", "raised", "crashed", "hung"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """The reason why the training of a model has stopped before the end of the run.

    The model keeps its weights after ``step`` steps.

    Examples
    --------
    >>> parked = Parked(kind="diverged", why="its loss is not finite", step=7)
    >>> str(parked), parked.failed
    ('diverged after 7 steps: its loss is not finite', True)
    """

    kind: Parking
    why: str  # one line; may be empty
    step: int  # number of steps that the model has taken

    @property
    def failed(self) -> bool:
        """True unless a validation or a callback has stopped the model."""
        return self.kind in FAILURES

    def __str__(self) -> str:
        steps = f"{self.step} step{'s' * (self.step != 1)}"
        return f"{self.kind} after {steps}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainResult(Summarised):
    """The result of a finished run."""

    run: Path  # the folder of the run
    scheme: str  # the scheme at the beginning
    jobs: int
    seconds: float  # duration of training by all masters, without the start of workers
    counts: RunCounts
    # By model: the evaluation on its test data, or on its training data if it has no test data.
    # Models that cannot be evaluated are missing.
    evaluations: dict[str, Evaluation]
    payload: Payload  # the format of results in messages
    switches: tuple[Switch, ...] = ()
    answers: tuple[Answer, ...] = ()  # the results of the searches for a better setting
    # Models whose training stopped before the run's end, and why.
    parked: dict[str, Parked] = field(default_factory=dict)
    # Models that were trained to their end but could not be evaluated, and why.
    unevaluated: dict[str, str] = field(default_factory=dict)
    # By model: the module at the end of training, in the run's precision. The weights with the best
    # validation are in the file `checkpoints/NAME.best.safetensors` of the run.
    modules: dict[str, nn.Module] = field(default_factory=dict, repr=False)
    best: dict[str, Best] = field(default_factory=dict)  # the best validation, by model

    def summary(self) -> dict[str, object]:
        shown: dict[str, object] = {
            "run": str(self.run),
            "scheme": ", then ".join(self.schemes),
            "jobs": self.jobs,
            "rounds": self.counts.rounds,
            "time": f"{number(self.seconds)} s",
        }
        if self.ranking:
            best = self.ranking[0]
            shown["least loss"] = f"{number(self.evaluations[best].loss)} ({best})"
        return shown | ({"failed": len(self.failed)} if self.failed else {})

    def summary_table(self) -> dict[str, npt.NDArray[Any]]:
        names = dict.fromkeys([*self.ranking, *self.evaluations, *self.unevaluated, *self.parked])
        return columns(
            (
                {
                    "model": name,
                    "loss": self.evaluations[name].loss if name in self.evaluations else None,
                    "accuracy": getattr(self.evaluations.get(name), "accuracy", None),
                    "remark": self.unevaluated.get(name) or str(self.parked.get(name, "")),
                }
                for name in names
            ),
            names=("model", "loss", "accuracy", "remark"),
        )

    @property
    def schemes(self) -> tuple[str, ...]:
        """The specs of the schemes that ran, in order."""
        return (self.scheme, *(switch.after.scheme.spec for switch in self.switches))

    @property
    def failed(self) -> dict[str, Parked]:
        """The models whose training failed. Their failures do not affect the other models."""
        return {name: each for name, each in self.parked.items() if each.failed}

    @property
    def ranking(self) -> tuple[str, ...]:
        """The names of the models in the order of their `evaluations`, the smallest loss first.

        Models that have failed, or have no finite loss, are left out. Models with equal losses are
        in the order of the plan.
        """
        losses = {name: evaluation.loss for name, evaluation in self.evaluations.items()}
        sound = [name for name in losses if name not in self.failed and isfinite(losses[name])]
        return tuple(sorted(sound, key=losses.__getitem__))
