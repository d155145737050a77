"""A Python file with the stages of a network, for torch.distributed.pipelining."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import indent
from types import ModuleType
from typing import Final

from torch import fx

from seqgc.pipeline.network import Network
from seqgc.pipeline.planner import PlannedStage, require_straight

_FILE: Final = '''\
"""{module} in {number} stages, made by `seqgc pipeline export`.

    torchrun --nproc-per-node {number} {name} --steps 100

Schedule1F1B flushes: a step divides its minibatch into microbatches, and all weights change once,
after the last microbatch. No weights are stashed, and no gradient is delayed. The stages wait for
each other at the end of each step, the less the more microbatches there are.
"""

import argparse

{imports}

SOURCE = {source!r}


class _Stage(nn.Module):
    """Some layers of the network, whose parameters keep their names."""

    NAMES = ()

    def __init__(self, network):
        super().__init__()
        for name in self.NAMES:
            *path, last = name.split(".")
            parent, found = self, network
            for part in path:
                if part not in parent._modules:
                    parent.add_module(part, nn.Module())
                parent, found = getattr(parent, part), getattr(found, part)
            setattr(parent, last, getattr(found, last))


{classes}


STAGES = [{stages}]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--microbatches", type=int, default={microbatches})
    parser.add_argument("--lr", type=float, default=0.05)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if last + 1 != len(STAGES):
        raise SystemExit(f"start {{len(STAGES)}} processes, one for each stage, not {{last + 1}}")
    network = load_network(SOURCE)
    stage = STAGES[rank](network.module)
    schedule = Schedule1F1B(
        PipelineStage(stage, rank, len(STAGES), torch.device("cpu")),
        options.microbatches,
        loss_fn=network.loss,
    )
    weights = list(stage.parameters())
    optimizer = torch.optim.SGD(weights, lr=options.lr) if weights else None
    for step in range(options.steps):
        x, y = network.minibatch(step)
        losses = []
        stage.zero_grad()
        inputs = (x,) if rank == 0 else ()
        schedule.step(*inputs, target=y if rank == last else None, losses=losses)
        if optimizer is not None:
            optimizer.step()
        if rank == last:
            print(f"step {{step}}: loss {{torch.stack(losses).mean():.9g}}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''
_CLASS: Final = '''\
class Stage{number}(_Stage):
    """Layers {stage}: {layers}."""

    NAMES = {names}

{forward}'''
_DELETED: Final = re.compile(r";  (?:\w+ = )+None")  # torch.fx frees values after their last use
_IMPORTS: Final = (
    "import torch",
    "from torch import distributed as dist",
    "from torch import nn",
    "from torch.distributed.pipelining import PipelineStage, Schedule1F1B",
    "",
    "from seqgc.pipeline import Source, load_network",
)


def stages_source(network: Network, stages: Sequence[PlannedStage], *, name: str) -> str:
    """Return the source of a program that trains the stages under torchrun.

    ``name`` is the name of the file.

    Raises
    ------
    ParameterError
        If a stage has several replicas.
    """
    require_straight(stages)
    imports, classes = dict.fromkeys(_IMPORTS), []
    for number, stage in enumerate(stages, 1):
        module = network.layers.stage(stage.first, stage.last)
        code = module.graph.python_code("self")
        imports |= dict.fromkeys(_imports_of(code.src, code.globals))
        classes.append(
            _CLASS.format(
                number=number,
                stage=stage,
                layers=" … ".join(
                    dict.fromkeys(network.layers.names[at] for at in (stage.first, stage.last))
                ),
                names=_names_used(module),
                forward=indent(_DELETED.sub("", code.src).strip(), "    "),
            )
        )
    return _FILE.format(
        module=network.source.module,
        number=len(stages),
        name=name,
        imports="\n".join(imports),
        source=network.source,
        classes="\n\n\n".join(classes),
        microbatches=_microbatches(network.source.batch_size, least=len(stages)),
        stages=", ".join(f"Stage{number}" for number in range(1, len(stages) + 1)),
    )


def _microbatches(batch_size: int, *, least: int) -> int:
    """Return the smallest number, ``least`` or more, of equal parts of a minibatch."""
    numbers = range(min(least, batch_size), batch_size + 1)
    return next(number for number in numbers if batch_size % number == 0)


def _names_used(module: fx.GraphModule) -> tuple[str, ...]:
    """Return the names of the modules and parameters that a stage uses."""
    nodes = [node for node in module.graph.nodes if node.op in ("call_module", "get_attr")]
    return tuple(dict.fromkeys(str(node.target) for node in nodes))


def _imports_of(source: str, names: dict[str, object]) -> list[str]:
    """Return import statements for the names that generated code uses."""
    statements = []
    for name, value in names.items():
        if not re.search(rf"\b{name}\b", source):
            continue
        if isinstance(value, ModuleType):
            same = value.__name__ == name
            statements.append(f"import {value.__name__}" + ("" if same else f" as {name}"))
        elif isinstance(value, float):
            statements.append(f"from math import {name}")
        else:
            home = getattr(value, "__module__", None) or "builtins"
            own = getattr(value, "__qualname__", name)
            statements.append(f"from {home} import {own} as {name}")
    return statements
