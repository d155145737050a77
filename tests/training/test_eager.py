"""Optimizers do not import the compiler; who needs it gets the real one."""

from __future__ import annotations

import subprocess
import sys

TRAINS = """
import functools, sys, torch
from seqgc.stores import MemoryStore
from seqgc.training._learner import Learner
from tests.training.reference import make_model

for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
    model = make_model(optimizer=functools.partial(kind, lr=0.1))
    learner = Learner(model, store=MemoryStore(), precision="float32")
    before = learner.module[1].weight.clone()
    learner.apply(torch.ones(learner.result_size - 1).numpy())
    assert not torch.equal(before, learner.module[1].weight), kind
assert "torch._dynamo" not in sys.modules
assert "_dynamo" not in vars(torch)
"""


def python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_no_optimizer_imports_the_compiler() -> None:
    python(TRAINS)


def test_whoever_wants_the_compiler_later_gets_it() -> None:
    later = "import torch._dynamo\nassert torch._dynamo.is_dynamo_supported\nlearner.apply("
    python(TRAINS + later + "torch.ones(learner.result_size - 1).numpy())\n")


def test_what_is_asked_for_inside_is_the_real_compiler() -> None:
    python(
        "import sys, torch\n"
        "from seqgc.training._learner import without_compiler\n"
        "with without_compiler():\n"
        "    import torch._dynamo\n"
        "    assert callable(torch._dynamo.reset)\n"
        "assert 'torch._dynamo.convert_frame' in sys.modules\n"
        "assert torch._dynamo is sys.modules['torch._dynamo']\n"
    )
