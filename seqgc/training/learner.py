"""The master's state of one model: weights, optimizer and data queue."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import nn

from seqgc.models.datasets import AugmentedDataset
from seqgc.models.dropout import dropout_layers
from seqgc.models.evaluation import ValidationState, Validator
from seqgc.models.model import Model, ParameterVector, are_in, has_own_memory
from seqgc.models.optimizers import Stepper, move_together
from seqgc.models.precision import Precision, require_autocast, torch_dtype
from seqgc.models.results import ModelResult
from seqgc.ports import FloatArray
from seqgc.training.jobs import DataQueue

__all__ = ["Learner", "LearnerState", "Tensors", "apply_all"]

Tensors: TypeAlias = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerState:
    """The state of one model without its tensors, for checkpoints."""

    steps: int
    settings: str  # state of the optimizer and the scheduler without tensors, as JSON
    validation: ValidationState
    changes: int = 0  # changes of the weights: one for each step, or for each part of a step


class Learner:
    """One model in training.

    ``module`` is a copy of the model's module, on the CPU and in the run's precision.
    """

    def __init__(self, model: Model, *, precision: Precision) -> None:
        self.model: Final = model
        require_autocast(model.autocast, precision=precision)
        self.dtype: Final = torch_dtype(precision)
        self.module: Final[nn.Module] = copy.deepcopy(model.module).to(
            device="cpu", dtype=self.dtype
        )
        self._parameters = ParameterVector(self.module)
        self.layout: Final = self._parameters.layout
        self.stepper: Final = Stepper(model, self._parameters)
        rules = model.validation
        self.validator: Final = None if rules is None else Validator(model, rules)
        self.queue: Final = DataQueue(
            len(model.dataset),  # read once, because the workers have copies of the data
            batch_size=model.batch_size,
            seed=model.seed,
            by_epoch=isinstance(model.dataset, AugmentedDataset)
            or bool(dropout_layers(self.module)),
        )
        self.steps = self.changes = 0

    def apply(self, result: ModelResult) -> dict[str, float]:
        """Take one step with the gradient of ``result``; return the metrics of the step.

        The gradient must be writable and in the run's precision. `Stepper.clip` and `Stepper.end`
        define the metrics. If the optimizer or the scheduler raises an error, or its state cannot
        be stored in a checkpoint, the error is raised and the weights do not change.
        """
        with self._undone_by_errors():
            clipped = self.stepper.clip(result)
            self.stepper.set(result)
            self.stepper.move()
            metrics = self.stepper.end() | clipped
            self._require_state()
        self.steps, self.changes = self.steps + 1, self.changes + 1
        return metrics

    def _end_moved(
        self, clipped: dict[str, float], *, before: FloatArray | None
    ) -> dict[str, float] | BaseException:
        """End a step for which the optimizer has changed the weights; return its metrics.

        ``clipped`` are the metrics of the clipping. If the scheduler raises an error, return the
        error, and restore the weights ``before`` if they are given.
        """
        try:
            metrics = self.stepper.end() | clipped
        except BaseException as error:  # from the user's own scheduler
            if before is not None:
                self._parameters.write(before)
            return error
        self.steps, self.changes = self.steps + 1, self.changes + 1
        return metrics

    def apply_part(self, result: ModelResult) -> None:
        """Change the weights with the gradient of a part of the batch.

        The step continues until `end_step`. The gradient is not clipped, because the norm of the
        whole gradient is not known. Errors are raised as by `apply`.
        """
        with self._undone_by_errors():
            self.stepper.set(result)
            self.stepper.move()
            self._require_state()
        self.changes += 1

    def end_step(self) -> dict[str, float]:
        """End a step whose parts have all been applied; return its metrics (`Stepper.end`).

        If the scheduler raises an error, the error is raised. The weights keep the changes of the
        parts.
        """
        metrics = self.stepper.end()
        self.steps += 1
        return metrics

    def _require_state(self) -> None:
        """In the first step, raise an error if a checkpoint cannot store the optimizer's state."""
        if not self.changes:
            self.stepper.snapshot()

    @contextmanager
    def _undone_by_errors(self) -> Iterator[None]:
        """Restore the weights if the block raises an error."""
        before = self._parameters.read()
        try:
            yield
        except BaseException:
            self._parameters.write(before)
            raise

    def validate(self) -> dict[str, float]:
        """Validate the present weights; return the metrics (none without a validation)."""
        if self.validator is None:
            return {}
        metrics = self.validator.validate(self.module, step=self.steps)
        self.stepper.validated(self.validator.monitored(metrics))
        return metrics

    def snapshot(self, *, forgetful: bool = False) -> tuple[LearnerState, dict[str, Tensors]]:
        """Return a copy of the state, and copies of its tensors by file.

        If ``forgetful`` is True, the state of a new optimizer replaces the state of the model's
        optimizer. This is for an optimizer whose state cannot be stored.
        """
        stepper = Stepper(self.model, self._parameters) if forgetful else self.stepper
        settings, optimizer = stepper.snapshot()
        files: dict[str, Tensors] = {self._file(): self.weights()}
        files[self._file("optimizer")] = optimizer
        files |= {self._file("queue"): drawn} if (drawn := self.queue.snapshot()) else {}
        validation = ValidationState()
        if self.validator is not None:
            validation = self.validator.state
            files |= {self._file("best"): self.validator.weights} if validation.best else {}
        state = LearnerState(
            steps=self.steps, settings=settings, validation=validation, changes=self.changes
        )
        return state, files

    def vector(self) -> FloatArray:
        """Return a copy of the trainable parameters, (P,), read-only."""
        return self._parameters.read()

    def move_to(self, vector: torch.Tensor) -> None:
        """Copy the trainable parameters into ``vector`` (P,), and make them views of it.

        If a parameter shares memory with another tensor, or is not contiguous, do nothing.
        """
        if has_own_memory(self.module):
            self._parameters.move_to(vector)

    def is_in(self, vector: torch.Tensor) -> bool:
        """Return True if the trainable parameters are views of ``vector`` (see `move_to`)."""
        return are_in(self._parameters.tensors, vector)

    def move_out(self) -> None:
        """Give each trainable parameter its own memory again (see `move_to`)."""
        self.stepper.part()
        self._parameters.move_out()

    def weights(self) -> dict[str, torch.Tensor]:
        """Return copies of the module's parameters and buffers, by name."""
        return {name: t.clone().contiguous() for name, t in self.module.state_dict().items()}

    def restore(self, state: LearnerState, files: Mapping[str, Tensors]) -> None:
        """Restore the state and the tensors that `snapshot` returned."""
        self.module.load_state_dict(files[self._file()])
        self.stepper.restore(state.settings, files[self._file("optimizer")])
        self.queue.restore(files.get(self._file("queue"), {}))
        if self.validator is not None:
            self.validator.restore(state.validation, files.get(self._file("best"), {}))
        self.steps, self.changes = state.steps, max(state.steps, state.changes)

    def _file(self, what: str = "") -> str:
        return f"{self.model.name}{what and f'.{what}'}.safetensors"


def apply_all(
    learners: Sequence[Learner], results: Sequence[ModelResult]
) -> list[dict[str, float] | BaseException]:
    """Take one step of each learner; return for each its metrics or its error (`Learner.apply`).

    Learners with equal optimizers take their steps together, which is faster (`move_together`). The
    first step of a learner is taken alone, because it creates the optimizer's state and checks it.
    """
    outcomes: dict[Learner, dict[str, float] | BaseException] = {}
    equal: dict[object, list[tuple[Learner, ModelResult]]] = defaultdict(list)
    for learner, result in zip(learners, results, strict=True):
        if learner.changes and (settings := learner.stepper.settings):
            equal[settings].append((learner, result))
            continue
        try:
            outcomes[learner] = learner.apply(result)
        except BaseException as error:
            outcomes[learner] = error
    for group in equal.values():
        outcomes.update(_apply_together(group))
    return [outcomes[learner] for learner in learners]


def _apply_together(
    steps: Sequence[tuple[Learner, ModelResult]],
) -> Iterator[tuple[Learner, dict[str, float] | BaseException]]:
    before = [m._parameters.read() if m.stepper.is_scheduled else None for m, _ in steps]
    clipped = [learner.stepper.clip(result) for learner, result in steps]
    move_together([learner.stepper for learner, _ in steps], [result for _, result in steps])
    for (learner, _), own, weights in zip(steps, clipped, before, strict=True):
        yield learner, learner._end_moved(own, before=weights)
