"""The models of a simulated run, made alike by masters and functions.

They import nothing of the simulation: a run's fingerprint has all that lies beside their code.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Final

import torch
from torch import Tensor, nn

from seqgc.models.factories import register_data, register_module
from seqgc.training import Model, Recipe

WILD: Final = "m1"
"""The model that diverges in a scenario that has one."""


_STRAIGHT: Final = 1e-6
"""Of the usual logits: so small that no weights that there are change a gradient by 1e-5 of it."""


def models(count: int, *, wild: bool = False) -> tuple[Model, ...]:
    return tuple(_model(index, wild=wild and f"m{index}" == WILD) for index in range(count))


@cache
def straight_models(count: int) -> tuple[Model, ...]:
    """Return models whose gradients are the same on any weights, as far as can be told.

    So where a run ends says which parts of which batches have moved the weights, and how often,
    whatever the weights were that these parts were computed on. Each part may move them by itself.
    """
    changed = []
    for index in range(count):
        usual = _model(index, wild=False)
        module = _Straight()
        with torch.no_grad():
            for parameter, start in zip(
                module.parameters(), usual.module.parameters(), strict=True
            ):
                parameter.copy_(start + 1)  # no weights are the usual model's
        optimizer = partial(torch.optim.SGD, lr=0.05 / _STRAIGHT)
        recipe = Recipe(module="straight", data=f"simulated-{index}", loss="cross-entropy")
        changed.append(replace(usual, module=module, optimizer=optimizer, recipe=recipe))
    return tuple(changed)


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


class _Straight(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)

    def forward(self, points: Tensor) -> Tensor:
        return _STRAIGHT * super().forward(points)


@register_module("straight")
def _straight(_: int) -> nn.Module:
    return _Straight()
