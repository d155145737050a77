"""A network with its data and loss, made from the names in a profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqgc.errors import ParameterError
from seqgc.models.datasets import PointDataset, collate
from seqgc.models.factories import factories_of, make_module, named_data
from seqgc.models.losses import Loss, loss_in, make_loss, point_losses
from seqgc.models.model import Objective, Recipe
from seqgc.models.provenance import objectives_fingerprint
from seqgc.pipeline.chain import Chain, Source
from seqgc.pipeline.layers import LayerChain


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread in this block, because the last bits depend on the number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def seeded(seed: int, *, minibatch: int, stage: int) -> Iterator[None]:
    """Draw random numbers in this block, such as masks of dropout, from the pass alone."""
    entropy = np.random.SeedSequence([seed, minibatch, stage])
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(entropy.generate_state(1)[0]))
        yield


@dataclass(frozen=True, slots=True)
class Network:
    """The layers of a network, the loss, and the minibatches in the order of training."""

    layers: LayerChain
    module: nn.Module
    dataset: PointDataset
    point_loss: Loss
    source: Source
    dtype: torch.dtype

    def minibatch(self, index: int) -> tuple[Any, Any]:
        """Return the inputs and targets of a minibatch. Each epoch has a new order of points."""
        size, count = self.source.batch_size, len(self.dataset)
        places = np.arange(index * size, (index + 1) * size)
        points = [
            np.random.default_rng([self.source.seed, epoch]).permutation(count)[
                places[places // count == epoch] % count
            ]
            for epoch in np.unique(places // count).tolist()
        ]
        return collate(self.dataset, np.concatenate(points), dtype=self.dtype)

    def fingerprint(self) -> dict[str, str]:
        """Return texts, by name, that change with the code and the data of this network."""
        names = Recipe(module=self.source.module, data=self.source.data, loss=self.source.loss)
        whole = Objective(
            name="network", module=self.module, loss=self.point_loss, dataset=self.dataset
        )
        return objectives_fingerprint([whole], [names], code_of=factories_of(names))

    def state_with(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the network's state dict with the values of the stages, which are copied into it.

        Stages lack what no pass uses, and the second name of a parameter that has two. They have
        buffers that are not in the state dict.
        """
        with torch.no_grad():
            for name, each in (
                *self.module.named_parameters(remove_duplicate=False),
                *self.module.named_buffers(remove_duplicate=False),
            ):
                if name in trained:
                    each.copy_(trained[name])
        state = self.module.state_dict()
        return {
            name: each.clone(memory_format=torch.contiguous_format) for name, each in state.items()
        }

    def loss(self, output: Any, target: Any) -> Tensor:
        """Return the mean loss of a minibatch or a part of one."""
        losses = point_losses(self.point_loss, output, target, count=len(output))
        if losses.weights is None:
            return losses.values.mean()
        return losses.values.sum() / losses.weights.sum().to(losses.values.dtype)


def load_network(source: Source, *, dtype: torch.dtype = torch.float32) -> Network:
    """Return the network that a profile's names describe, drawn with its seed.

    Raises
    ------
    ParameterError
        If a name is unknown, or the network is no chain of layers (`LayerChain`).
    """
    module = make_module(source.module, seed=source.seed).to(dtype).train()
    dataset, _ = named_data(source.data)
    loss = loss_in(make_loss(source.loss), dtype)
    points = np.arange(min(source.batch_size, len(dataset)))
    example, _ = collate(dataset, points, dtype=dtype)
    return Network(LayerChain(module, example), module, dataset, loss, source, dtype)


def profiled_network(chain: Chain, *, dtype: torch.dtype = torch.float32) -> Network:
    """Return the network of a profile, or raise `ParameterError` if its layers have changed."""
    if chain.source is None:
        raise ParameterError("file", "must name its network, as `profile` does", None)
    network, names = load_network(chain.source, dtype=dtype), [each.name for each in chain.layers]
    if network.layers.names != names:
        rule = "must be a profile of the network as it is now"
        raise ParameterError("file", rule, ", ".join(names), "make it again")
    return network
