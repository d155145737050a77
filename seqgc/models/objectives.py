"""Objectives on a worker, which are computed one by one, or in groups of the same form.

Theory of operation
-------------------
A `LocalObjective` loads a model's weights into a copy of its module, and executes one forward and
one backward pass. For a small model most of this time is overhead between torch's operations.

An `ObjectiveGroup` executes one forward and one backward pass for several models of one form: with
the same structure of module and loss. The weights of the models are stacked, and `torch.vmap` maps
the forward pass over them; each model has its own points and coefficients. The backward pass begins
at the losses of all models. No operation adds numbers of different models; therefore a NaN of one
model does not affect the results of other models. Frozen parameters and buffers are equal in all
models of a form, and are not stacked. A tied parameter is stacked once.

`torch.vmap` raises an error if it cannot map a module, for example if the control flow depends on
values, or if an operation changes a tensor that is not stacked. The caller then computes the models
one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import default_collate

from seqgc.models.datasets import collate, has_tensors, items_of, leaves_of
from seqgc.models.dropout import dropout_layers, masks_of, stacked_masks_of
from seqgc.models.losses import PointLosses, loss_in, point_losses
from seqgc.models.model import Digests, Objective, ParameterVector, structure_of
from seqgc.models.precision import autocasting, require_autocast
from seqgc.ports import FloatArray, WeightedPoints, WeightRef
from seqgc.worker import PROGRESS

__all__ = ["Fetch", "LocalModule", "LocalObjective", "ObjectiveGroup", "forms_of"]

Fetch: TypeAlias = Callable[[WeightRef], FloatArray]


class LocalModule:
    """A worker's copy of a module, with one version of the weights at a time."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.dtype: Final = dtype
        self.call: Final = copy.deepcopy(module).to(device="cpu", dtype=dtype)
        self.parameters: Final = ParameterVector(self.call)
        self.dropouts: Final = dropout_layers(self.call)
        self._loaded: object = None

    def load(self, part: WeightedPoints, fetch: Fetch) -> None:
        """Load the weights of a part into the module, unless the module already has them."""
        version = part.weights, part.span
        if version != self._loaded:
            self._loaded = None  # if this raises, the weights may be incomplete
            self.parameters.write(part.parameters(fetch))
            self._loaded = version


class LocalObjective:
    """An objective on a worker, with a module that other objectives may share."""

    def __init__(self, objective: Objective, module: LocalModule) -> None:
        require_autocast(objective.autocast)  # the master's machine may support other formats
        self.objective, self.module = objective, module
        self.loss: Final = loss_in(objective.loss, module.dtype)
        self.parameters: Final = module.parameters

    def compute(self, part: WeightedPoints, *, out: FloatArray) -> None:
        """Write the result of a part into ``out`` (size,), computed with the loaded weights."""
        objective, module, dtype = self.objective, self.module, self.module.dtype
        x, y = collate(objective.dataset, self.items(part), dtype=dtype)
        # Copied, because the coefficients are read-only and torch warns of such arrays.
        coefficients = torch.from_numpy(part.coefficients.copy()).to(dtype)
        with masks_of(module.dropouts, part.points, seed=objective.seed):
            with autocasting(objective.autocast):
                losses = point_losses(self.loss, module.call(x), y, count=len(part.points))
            values = losses.values.to(dtype)
            self.parameters.clear_gradient()
            if values.requires_grad:  # False if the output uses no trainable parameter
                torch.autograd.backward(values, coefficients)  # the gradient of their weighted sum
        points = float(np.add.reduce(part.coefficients))
        received = self.parameters.read_gradient(out[: self.parameters.size])
        self.parameters.layout.write(
            out,
            loss=torch.dot(coefficients, values.detach()).item(),
            weight=losses.weight(part.coefficients, points),
            points=points,
            received=received,
        )

    def items(self, part: WeightedPoints) -> Any:
        """Return the dataset's indices (m,) of the points of a part."""
        # If there are dropout layers, the numbers of points contain the epoch.
        if not self.module.dropouts:
            return part.points
        return items_of(self.objective.dataset, part.points)


class ObjectiveGroup:
    """Objectives with the form of ``first``, of which at most ``most`` are computed at once."""

    def __init__(self, first: LocalObjective, most: int) -> None:
        self._first: Final = first
        self.most: Final = most
        module = first.module
        self._sizes: Final = [p.numel() for p in module.parameters.tensors]
        self._weights = torch.empty(0, module.parameters.size, dtype=module.dtype)

    def load(self, parts: Sequence[WeightedPoints], fetch: Fetch) -> None:
        """Stack the weights of these parts in the given order."""
        if len(parts) > len(self._weights):
            # Allocated by torch: the rounding of a product may depend on the alignment in memory.
            self._weights = self._weights.new_empty(len(parts), self._weights.shape[1])
        rows = self._weights.numpy()
        for row, part in enumerate(parts):
            rows[row] = part.parameters(fetch)

    def compute(
        self, parts: Sequence[tuple[LocalObjective, WeightedPoints]], *, out: FloatArray
    ) -> None:
        """Write the results of all parts into ``out`` (parts, size).

        Each part comes with its objective. All parts have the same number of points. `load` must
        have been called for the same parts in the same order. Errors of the user's code, and of
        `torch.vmap` if it cannot map the code, are raised.
        """
        parameters, count = self._first.parameters, len(parts)
        x, y = self._read(parts)
        PROGRESS.enter("")  # several models at the same time
        pieces = self._weights[:count].split_with_sizes(self._sizes, dim=1)
        stacks = [
            piece.view(count, *p.shape).detach().requires_grad_()
            for piece, p in zip(pieces, parameters.tensors, strict=True)
        ]
        losses = self._losses(parts, stacks, x, y)
        flat = np.concatenate([part.coefficients for _, part in parts])
        coefficients = flat.reshape(count, -1)
        in_dtype = torch.from_numpy(coefficients).to(self._weights.dtype)
        values = losses.values.to(self._weights.dtype)
        gradients: Sequence[Tensor | None] = [None] * len(stacks)
        if values.requires_grad:
            gradients = torch.autograd.grad(values, stacks, in_dtype, allow_unused=True)
        rows = torch.from_numpy(out[:, : parameters.size]).split_with_sizes(self._sizes, dim=1)
        for row, stack, gradient in zip(rows, stacks, gradients, strict=True):
            if gradient is None:
                row.zero_()
            else:
                row.view(stack.shape).copy_(gradient)
        points = np.add.reduce(coefficients, axis=1)
        parameters.layout.write(
            out,
            loss=(in_dtype * values.detach()).sum(1).numpy(),
            weight=losses.weight(coefficients, points),
            points=points,
            received=[gradient is not None for gradient in gradients],
        )

    def _losses(
        self,
        parts: Sequence[tuple[LocalObjective, WeightedPoints]],
        stacks: Sequence[Tensor],
        x: object,
        y: object,
    ) -> PointLosses:
        """Return the losses (parts, m) of all parts."""
        first, module, points = self._first, self._first.module, parts[0][1].points
        names = module.parameters.names
        masks = stacked_masks_of(
            module.dropouts,
            [part.points for _, part in parts],
            seeds=[each.objective.seed for each, _ in parts],
        )

        def losses_of(
            weights: Sequence[Tensor], x: object, y: object, number: Tensor
        ) -> tuple[Tensor, ...]:
            with masks(number):
                output = functional_call(module.call, dict(zip(names, weights, strict=True)), (x,))
                losses = point_losses(first.loss, output, y, count=len(points))
            if losses.weights is None:
                return (losses.values,)
            return losses.values, losses.weights

        with autocasting(first.objective.autocast):
            return PointLosses(*torch.vmap(losses_of)(stacks, x, y, torch.arange(len(parts))))

    def _read(self, parts: Sequence[tuple[LocalObjective, WeightedPoints]]) -> tuple[Any, Any]:
        """Return ``(x, y)`` of all parts, stacked along a first axis of the parts."""
        dataset, dtype = parts[0][0].objective.dataset, self._first.module.dtype
        items = [each.items(part) for each, part in parts]
        is_shared = all(each.objective.dataset is dataset for each, _ in parts)
        if is_shared and has_tensors(dataset):
            shape = len(parts), len(items[0])
            x, y = collate(dataset, np.concatenate(items), dtype=dtype)
            return x.unflatten(0, shape), y.unflatten(0, shape)
        batches = []
        for (each, part), some in zip(parts, items, strict=True):
            PROGRESS.enter(part.model)  # reading may execute the user's code
            batches.append(collate(each.objective.dataset, some, dtype=dtype))
        # Stacking would convert the data of all models to one dtype.
        if len({tuple(leaf.dtype for leaf in leaves_of(batch)) for batch in batches}) > 1:
            raise TypeError("the data of the models have different dtypes")
        return tuple(default_collate(batches))


def forms_of(objectives: Iterable[Objective]) -> list[list[Objective]]:
    """Group the objectives by form: the structure of module and loss, and autocast."""
    forms, digests = dict[object, list[Objective]](), Digests()
    keys = dict[int, object]()  # by identity, because models share modules and losses

    def key(part: object) -> object:
        if id(part) not in keys:
            keys[id(part)] = structure_of(part, digests) or id(part)
        return keys[id(part)]

    for each in objectives:
        form = key(each.module), key(each.loss), each.autocast
        forms.setdefault(form, []).append(each)
    return list(forms.values())
