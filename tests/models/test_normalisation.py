"""The two documented ways to avoid batch normalisation train like a plain loop."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from seqgc.errors import ParameterError
from seqgc.stores import MemoryStore
from seqgc.training import TorchCompute, TorchWorkload
from tests.training.reference import Chunks, blobs, flat, make_model, run_coded, train_alone

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
STEPS = 4


def of_the_page(name: str) -> object:
    """Return a function that the section on normalisation defines."""
    _, section = PAGE.read_text().split("\n## Normalisation\n")
    section = re.split(r"\n## ", section)[0]
    names = {"torch": torch}
    for example in doctest.DocTestParser().get_examples(section):
        exec(example.source, names)
    return names[name]


def net() -> nn.Module:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(block, nn.Flatten(), nn.Linear(4 * 36, 10))


def test_batch_normalisation_is_refused_and_the_message_names_the_page() -> None:
    with pytest.raises(ParameterError, match=r"BatchNorm2d '0\.1'.*docs/training\.md"):
        TorchWorkload([make_model(module=net())], scheme=Chunks(), store=MemoryStore())


@pytest.mark.parametrize("way", ["with_group_norm", "with_fixed_statistics"])
def test_a_way_out_of_the_page_trains_as_a_plain_loop(way: str) -> None:
    inputs = blobs().tensors[0]
    module = of_the_page(way)(net(), *[inputs] * (way == "with_fixed_statistics"))
    model, store = make_model(module=module), MemoryStore()
    workload = TorchWorkload([model], scheme=Chunks(), store=store, precision="float64")
    compute = TorchCompute([model.objective], store=store, precision="float64")
    run_coded(workload, compute, jobs=STEPS, scheme=Chunks())
    alone, _ = train_alone(model, steps=STEPS, dtype=torch.float64)
    np.testing.assert_allclose(flat(workload.module("net")), flat(alone), rtol=0, atol=1e-10)
    assert np.abs(flat(alone) - flat(module)).max() > 1e-3
    normed = module[0][:2](inputs).detach()
    assert float(normed.mean()) == pytest.approx(0, abs=1e-3)
    assert float(normed.std()) == pytest.approx(1, rel=1e-2)
