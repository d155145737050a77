"""Optimizers do not import the compiler; who needs it gets the real one."""

from __future__ import annotations

import subprocess
import sys

SETTING = """
import functools, sys, torch
from seqgc.stores import MemoryStore
from seqgc.training import TorchWorkload
from tests.kit import decoded
from tests.training.reference import Chunks, make_model

def begun(kind):
    model = make_model(optimizer=functools.partial(kind, lr=0.1))
    return TorchWorkload([model], scheme=Chunks(), store=MemoryStore())

def take_a_step(workload, job):
    parameters = workload.module("net").parameters()
    before = torch.nn.utils.parameters_to_vector(parameters).clone()
    workload.begin(job)
    workload.finish(decoded(job), torch.ones(len(before) + 1).numpy())
    workload.flush()
    after = torch.nn.utils.parameters_to_vector(workload.module("net").parameters())
    assert not torch.equal(before, after)
"""
TRAINS = f"""
{SETTING}
for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
    workload = begun(kind)
    take_a_step(workload, 0)
assert "torch._dynamo" not in sys.modules
assert "_dynamo" not in vars(torch)
"""


def python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_no_optimizer_imports_the_compiler_and_whoever_wants_it_later_gets_it() -> None:
    later = "import torch._dynamo\nassert torch._dynamo.is_dynamo_supported\n"
    python(TRAINS + later + "take_a_step(workload, 1)\n")


def test_what_is_asked_for_inside_is_the_real_compiler() -> None:
    python(
        f"{SETTING}\n"
        "class Asking(torch.optim.SGD):\n"
        "    def step(self, closure=None):\n"
        "        import torch._dynamo\n"
        "        assert callable(torch._dynamo.reset)\n"
        "        super().step(closure)\n"
        "take_a_step(begun(Asking), 0)\n"
        "assert 'torch._dynamo.convert_frame' in sys.modules\n"
        "assert torch._dynamo is sys.modules['torch._dynamo']\n"
    )
