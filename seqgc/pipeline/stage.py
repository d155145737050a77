"""A stage of a pipeline with weight stashing: its passes, its updates and its checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from seqgc.errors import SeqgcError
from seqgc.models.optimizers import restore_dtypes
from seqgc.pipeline.network import Network, seeded
from seqgc.pipeline.planner import PlannedStage

_Weights = dict[str, Tensor]


class _InFlight(NamedTuple):
    value: Tensor
    result: Tensor  # the output, or the loss of the last stage
    weights: _Weights


class StageTrainer:
    """The training of stage ``index`` of a pipeline, without its messages.

    A forward pass uses a version of the weights, and the backward pass of the same minibatch uses
    the same version again. Version v has v updates. Each update changes the newest version.

    The checkpoint of version c has everything that the passes of minibatch c and later need:

    - the versions that these minibatches use, which are older than c;
    - the state of the optimizer after c updates;
    - the buffers after the forward pass of minibatch c - 1. The stage has begun later minibatches,
      whose passes are repeated after a restart.
    """

    def __init__(
        self,
        network: Network,
        stages: tuple[PlannedStage, ...],
        index: int,
        *,
        optimizer: type[torch.optim.Optimizer],
        lr: float,
        vertical_sync: bool,
    ) -> None:
        self._network, self._index = network, index
        self.is_last = index == len(stages) - 1
        self._module = network.layers.stage(stages[index].first, stages[index].last)
        trained = [each for each in self._module.parameters() if each.requires_grad]
        self._optimizer = optimizer(trained, lr=lr) if trained else None  # type: ignore[call-arg]
        self.version = 0
        self.versions_held = len(stages) if vertical_sync else len(stages) - index
        self._versions: dict[int, _Weights] = {0: self._newest()}
        self._in_flight: dict[int, _InFlight] = {}
        self._buffers: dict[int, _Weights] = {}  # by the number of forward passes
        self.losses: list[float] = []

    def version_of(self, minibatch: int) -> int:
        """Return the version whose weights a minibatch uses, unless the first stage names it."""
        return max(0, minibatch + 1 - self.versions_held)

    def forward(self, minibatch: int, value: Tensor, target: Any, *, version: int) -> Tensor:
        """Return the output of a minibatch, or the loss if this is the last stage."""
        weights = self._versions[version]
        value = value.detach().requires_grad_(self._index > 0)
        with seeded(self._network.source.seed, minibatch=minibatch, stage=self._index):
            result: Tensor = functional_call(self._module, weights, (value,))
        if self.is_last:
            result = self._network.loss(result, target)
            self.losses.append(result.item())
            if not torch.isfinite(result):
                raise SeqgcError(f"the loss of minibatch {minibatch} is not finite: {result:g}")
        self._in_flight[minibatch] = _InFlight(value, result, weights)
        self._buffers[minibatch + 1] = _copies(self._module.named_buffers())
        return result.detach()

    def empty_gradient(self, minibatch: int) -> Tensor:
        """Return a tensor for the gradient of the output of a minibatch in flight."""
        result = self._in_flight[minibatch].result
        return torch.empty_like(result, memory_format=torch.contiguous_format, requires_grad=False)

    def backward(self, minibatch: int, gradient: Tensor | None) -> Tensor:
        """Update the newest weights; return the gradient for the stage before."""
        value, result, weights = self._in_flight.pop(minibatch)
        wanted = [value, *weights.values()]
        able = [each for each in wanted if each.requires_grad]
        found = iter(
            torch.autograd.grad(result, able, gradient, allow_unused=True)
            if result.requires_grad
            else [None] * len(able)
        )
        gradients = [next(found) if each.requires_grad else None for each in wanted]
        for parameter, each in zip(self._module.parameters(), gradients[1:], strict=True):
            parameter.grad = each
        if self._optimizer is not None:
            self._optimizer.step()
        self.version += 1
        self._versions[self.version] = self._newest()
        self._versions.pop(self.version - self.versions_held, None)
        self._buffers.pop(self.version - 1, None)
        return torch.zeros_like(value) if gradients[0] is None else gradients[0]

    def checkpoint(self) -> dict[str, Any]:
        """Return the state after the last update, see the class."""
        return {
            "version": self.version,
            "versions": self._versions,
            "optimizer": {} if self._optimizer is None else self._optimizer.state_dict(),
            "buffers": self._buffers[self.version],
            "losses": self.losses[: self.version],
        }

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.version, self.losses = checkpoint["version"], checkpoint["losses"]
        self._versions, newest = checkpoint["versions"], weights_in(checkpoint)
        for name, parameter in self._module.named_parameters():
            for weights in self._versions.values():
                weights[name].requires_grad_(parameter.requires_grad)
        with torch.no_grad():
            for name, each in (*self._module.named_parameters(), *self._module.named_buffers()):
                each.copy_(newest[name])
        if self._optimizer is not None:
            self._optimizer.load_state_dict(checkpoint["optimizer"])
            restore_dtypes(self._optimizer, checkpoint["optimizer"])

    def _newest(self) -> _Weights:
        return _copies(self._module.named_parameters())


def _copies(tensors: Iterable[tuple[str, Tensor]]) -> _Weights:
    return {
        name: each.detach().clone().requires_grad_(each.requires_grad) for name, each in tensors
    }


def weights_in(checkpoint: dict[str, Any]) -> _Weights:
    """Return the newest weights and the buffers of a stage's checkpoint, by their names."""
    weights: _Weights = checkpoint["versions"][checkpoint["version"]] | checkpoint["buffers"]
    return weights
