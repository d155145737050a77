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
    workload.finish(decoded(job), torch.ones(workload.result_form(job).size).numpy())
    workload.flush()
    after = torch.nn.utils.parameters_to_vector(workload.module("net").parameters())
    assert not torch.equal(before, after)
"""
LATER = """
for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
    workload = begun(kind)
    take_a_step(workload, 0)
assert "torch._dynamo" not in sys.modules
assert "_dynamo" not in vars(torch)
"""
INSIDE = """
class Asking(torch.optim.SGD):
    def step(self, closure=None):
        import torch._dynamo
        assert callable(torch._dynamo.reset)
        super().step(closure)
take_a_step(begun(Asking), 0)
assert 'torch._dynamo.convert_frame' in sys.modules
assert torch._dynamo is sys.modules['torch._dynamo']
"""
FORKED = """
import os, traceback
if (child := os.fork()) == 0:
    try:
        exec(inside)
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)
exec(later)
assert os.waitpid(child, 0)[1] == 0, "inside"
"""


def test_no_optimizer_imports_the_compiler_and_whoever_wants_it_gets_the_real_one() -> None:
    """In two processes, of one that has imported PyTorch and computed nothing."""
    code = f"{SETTING}\nlater, inside = {LATER!r}, {INSIDE!r}\n{FORKED}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
