"""The profile of a network: the time of each layer on this machine, and its sizes."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from seqgc.errors import refusing, require_int
from seqgc.pipeline.chain import Chain, Layer, Source
from seqgc.pipeline.network import load_network


def measure_chain(source: Source, *, minibatches: int = 20) -> Chain:
    """Measure the layers of a network on this machine, one minibatch after the other.

    Times are medians over ``minibatches``, after one minibatch that is not counted. The last layer
    includes the loss.

    Raises
    ------
    ParameterError
        If a name is unknown, or the network is no chain of layers (`LayerChain`), or it does not
        take the data.
    """
    require_int("minibatches", minibatches, least=1)
    network = load_network(source)
    layers = [network.layers.stage(at, at) for at in range(len(network.layers))]
    seconds = np.zeros((minibatches + 1, len(layers), 2))
    sizes = [0] * len(layers)
    for number in range(minibatches + 1):
        value, target = network.minibatch(number)
        for at, layer in enumerate(layers):
            value = value.detach().requires_grad_(at > 0)
            wanted = [each for each in (value, *layer.parameters()) if each.requires_grad]
            start = perf_counter()
            output: Tensor = layer(value)
            with refusing("loss", "must take the output and the targets ({})", source.loss):
                result = network.loss(output, target) if at == len(layers) - 1 else output
            middle = perf_counter()
            if result.requires_grad:
                torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True)
            seconds[number, at] = middle - start, perf_counter() - middle
            sizes[at] = output.numel() * output.element_size()
            value = output
    medians = np.median(seconds[1:], axis=0).tolist()
    rows = zip(network.layers.names, medians, sizes, layers, strict=True)
    return Chain(
        tuple(
            Layer(name, forward_s, backward_s, size, _parameter_bytes(layer))
            for name, (forward_s, backward_s), size, layer in rows
        ),
        source,
    )


def _parameter_bytes(layer: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in layer.parameters())
