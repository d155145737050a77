"""The models of a simulated run, made alike by masters and functions.

They import nothing of the simulation: a run's fingerprint has all that lies beside their code.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Final

import torch

from seqgc.training import Model, Recipe
from seqgc.training.factories import register_data, register_module

WILD: Final = "m1"
"""The model that diverges in a scenario that has one."""


def models(count: int, *, wild: bool = False) -> tuple[Model, ...]:
    return tuple(_model(index, wild=wild and f"m{index}" == WILD) for index in range(count))


@cache
def _model(index: int, *, wild: bool) -> Model:
    generator = torch.Generator().manual_seed(index)
    module = _linear(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    points = torch.randn((24, 3), generator=generator)
    targets = torch.randint(2, (24,), generator=generator)
    dataset = torch.utils.data.TensorDataset(points, targets)
    register_data(f"simulated-{index}")(lambda: (dataset, dataset))
    optimizers = torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9)
    return Model(
        name=f"m{index}",
        module=module,
        loss=torch.nn.CrossEntropyLoss(),
        dataset=dataset,
        optimizer=partial(optimizers[index % 2], lr=3.3e38 if wild else 0.05),
        batch_size=12 + index,
        seed=index,
        recipe=Recipe(module="simulated", data=f"simulated-{index}", loss="cross-entropy"),
    )


@register_module("simulated")
def _linear(_: int) -> torch.nn.Linear:
    return torch.nn.Linear(3, 2)
