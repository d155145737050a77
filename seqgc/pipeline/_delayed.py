"""A pipeline's training, computed one minibatch after the other with delayed weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from seqgc.pipeline.network import Network, one_thread, seeded
from seqgc.pipeline.planner import PlannedStage

MakeOptimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


@one_thread()
def simulate_delayed(
    network: Network,
    stages: Sequence[PlannedStage],
    *,
    minibatches: int,
    optimizer: MakeOptimizer,
    vertical_sync: bool = False,
) -> tuple[dict[str, Tensor], list[float]]:
    """Return the weights and the losses of a pipeline without any pipeline.

    In a pipeline of n stages, counted from 0, stage s computes the gradient of minibatch t at its
    weights after ``t - n + 1 + s`` updates, or with vertical sync after ``t - n + 1`` updates, but
    never fewer than 0. Source: thesis of A. Harlap, section 5.3.3. ``network`` is changed. Like the
    processes of a pipeline, this function computes with one thread.
    """
    n = len(stages)
    modules = [network.layers.stage(each.first, each.last) for each in stages]
    trained = [[each for each in module.parameters() if each.requires_grad] for module in modules]
    steps = [optimizer(each) if each else None for each in trained]
    history = [[_copy(module)] for module in modules]
    losses = []
    for t in range(minibatches):
        value, target = network.minibatch(t)
        chosen = []
        for s, module in enumerate(modules):
            version = max(0, t - n + 1 + (0 if vertical_sync else s))
            chosen.append(history[s][version])
            with seeded(network.source.seed, minibatch=t, stage=s):
                value = functional_call(module, chosen[s], (value,))
        loss = network.loss(value, target)
        losses.append(loss.item())
        wanted = [each for weights in chosen for each in weights.values() if each.requires_grad]
        found = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
        for s, module in enumerate(modules):
            for parameter in module.parameters():
                parameter.grad = next(found) if parameter.requires_grad else None
            if (step := steps[s]) is not None:
                step.step()
            history[s].append(_copy(module))
    state = {name: value for module in modules for name, value in module.state_dict().items()}
    return state, losses


def _copy(module: torch.nn.Module) -> dict[str, Tensor]:
    return {
        name: each.detach().clone().requires_grad_(each.requires_grad)
        for name, each in module.named_parameters()
    }
