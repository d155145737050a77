"""The master's state of one model: weights, optimizer, data queue and published versions."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import nn

from seqgc.errors import StoreError
from seqgc.models.datasets import AugmentedDataset
from seqgc.models.dropout import dropout_layers
from seqgc.models.evaluation import ValidationState, Validator
from seqgc.models.model import Model, ParameterVector
from seqgc.models.optimizers import Stepper
from seqgc.models.precision import Precision, require_autocast, torch_dtype
from seqgc.models.results import ModelResult
from seqgc.ports import FloatArray, WeightRef, WeightStore
from seqgc.training.jobs import DataQueue

__all__ = ["Learner", "LearnerState", "Tensors"]

Tensors: TypeAlias = Mapping[str, torch.Tensor]

_LAST_FAILS: Final = 5  # removals that may fail when no version is needed any more


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerState:
    """State of one model without its tensors, for checkpoints."""

    steps: int
    settings: str  # of the optimizer and the scheduler: JSON of what `pack` returns
    validation: ValidationState
    changes: int = 0  # of the weights: one a step, or one a part if steps are taken in parts


class Learner:
    """One model in training; its module is a copy, in the run's precision, on the CPU."""

    def __init__(self, model: Model, *, store: WeightStore, precision: Precision) -> None:
        self.model: Final = model
        require_autocast(model.autocast, precision=precision)
        dtype = torch_dtype(precision)
        self.module: Final[nn.Module] = copy.deepcopy(model.module).to(device="cpu", dtype=dtype)
        self._parameters = ParameterVector(self.module)
        self.layout: Final = self._parameters.layout
        self.stepper: Final = Stepper(model, self._parameters)
        rules = model.validation
        self.validator: Final = None if rules is None else Validator(model, rules)
        self.queue: Final = DataQueue(
            len(model.dataset),  # read once, as the workers have copies
            batch_size=model.batch_size,
            seed=model.seed,
            by_epoch=isinstance(model.dataset, AugmentedDataset)
            or bool(dropout_layers(self.module)),
        )
        self._store = store
        self.steps = self.changes = 0
        self._published: list[WeightRef] = []
        self._unneeded: list[WeightRef] = []  # versions that are not removed yet
        self.unremoved = ""  # the first reason why a version could not be removed

    def apply(self, result: ModelResult) -> dict[str, float]:
        """Take one step along the gradient of ``result``, in the run's precision and writable.

        Returns the metrics of the step (`Stepper.end`). If the optimizer or the scheduler raises,
        or no checkpoint can hold its state, the error is raised and the weights are as before.
        """
        with self._undone_by_errors():
            clipped = self.stepper.clip(result)
            self.stepper.move()
            metrics = self.stepper.end() | clipped
            self._require_state()
        self.steps, self.changes = self.steps + 1, self.changes + 1
        return metrics

    def apply_part(self, result: ModelResult) -> None:
        """Move along the gradient of a part of the batch. Raises like `apply`.

        `end_step` ends the step. Nothing is clipped, as a part does not have the gradient's norm.
        """
        with self._undone_by_errors():
            self.stepper.set(result)
            self.stepper.move()
            self._require_state()
        self.changes += 1

    def end_step(self) -> dict[str, float]:
        """End a step whose parts have been applied; returns and raises like `apply`."""
        metrics = self.stepper.end()
        self.steps += 1
        return metrics

    def _require_state(self) -> None:
        """Raise if a checkpoint cannot hold the optimizer's state, which the first step makes."""
        if not self.changes:
            self.stepper.snapshot()

    @contextmanager
    def _undone_by_errors(self) -> Iterator[None]:
        """Restore the weights if the block raises; published weights are read from the store."""
        published = next((ref for ref in self._published if ref.version == self.changes), None)
        before = self._parameters.read() if published is None else None
        try:
            yield
        except BaseException:
            if published is not None:
                before = self._store.fetch(published)
            if before is not None:
                self._parameters.write(before)
            raise

    def validate(self) -> dict[str, float]:
        """Return the metrics of the present weights."""
        if self.validator is None:
            return {}
        metrics = self.validator.validate(self.module, step=self.steps)
        self.stepper.validated(self.validator.monitored(metrics))
        return metrics

    def publish(self) -> WeightRef:
        """Return a reference to the present weights; their version counts their changes."""
        if not self.is_published:
            weights = self._parameters.read()
            self._published.append(self._put(self.changes, weights))
        return self._published[-1]

    def _put(self, version: int, weights: FloatArray) -> WeightRef:
        ref = self._store.publish(self.model.name, version, weights)
        self._unneeded = [each for each in self._unneeded if each != ref]
        return ref

    @property
    def is_published(self) -> bool:
        """True if the present weights are published."""
        return bool(self._published) and self._published[-1].version == self.changes

    @property
    def latest(self) -> WeightRef | None:
        """The last published version, if it has not been discarded."""
        return self._published[-1] if self._published else None

    def snapshot(self, *, forgetful: bool = False) -> tuple[LearnerState, dict[str, Tensors]]:
        """Return copies of the state, and of its tensors by file.

        If ``forgetful``, the state of a new optimizer is returned, because that of the model's own
        cannot be stored.
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

    def weights(self) -> dict[str, torch.Tensor]:
        """Return copies of the weights and buffers."""
        return {name: t.clone().contiguous() for name, t in self.module.state_dict().items()}

    def restore(self, state: LearnerState, files: Mapping[str, Tensors]) -> None:
        """Restore a snapshot; no version is published then."""
        self.module.load_state_dict(files[self._file()])
        self.stepper.restore(state.settings, files[self._file("optimizer")])
        self.queue.restore(files.get(self._file("queue"), {}))
        if self.validator is not None:
            self.validator.restore(state.validation, files.get(self._file("best"), {}))
        self.steps, self.changes = state.steps, max(state.steps, state.changes)

    def _file(self, what: str = "") -> str:
        return f"{self.model.name}{what and f'.{what}'}.safetensors"

    def version(self, ref: WeightRef) -> FloatArray:
        """Return the weights (P,) of a published version."""
        is_present = ref.version == self.changes
        return self._parameters.read() if is_present else self._store.fetch(ref)

    def republish(self, version: int, weights: FloatArray) -> WeightRef:
        """Publish a version from before the run was resumed; versions come in order."""
        if not self._published or self._published[-1].version != version:
            self._published.append(self._put(version, weights))
        return self._published[-1]

    def keep(self, needed: Set[WeightRef]) -> None:
        """Discard the published versions that are not ``needed``.

        If a version cannot be removed, the run continues and tries again in a later call. A call
        ends after one failure, or after a few if no version is needed, because each takes time.
        """
        self._unneeded += [ref for ref in self._published if ref not in needed]
        self._published = [ref for ref in self._published if ref in needed]
        fails = 1 if needed else _LAST_FAILS
        while self._unneeded and fails:
            ref = self._unneeded.pop(0)
            try:
                self._store.discard(ref)
            except StoreError as error:
                self._unneeded.append(ref)
                self.unremoved = self.unremoved or str(error)
                fails -= 1
