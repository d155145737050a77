"""``seqgc pipeline``: the split of one network into the stages of a pipeline."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import typer

from seqgc.cli._help import Group, Verb
from seqgc.cli._options import AsJson, with_plugins
from seqgc.cli._show import busy, require_writable, show
from seqgc.config._tables import import_plugins
from seqgc.pipeline import (
    CostModel,
    Level,
    Plan,
    Source,
    draw_timetable,
    read_chain,
    write_chain,
)
from seqgc.pipeline import plan as plan_chain

ModelFile = Annotated[Path, typer.Argument(help="Profile of a network (.json).")]

app = typer.Typer(cls=Group, help="Split one network into the stages of a pipeline (PipeDream).")


@app.callback()
def pipeline() -> None:
    """Split one network into the stages of a pipeline."""


@app.command(
    "profile",
    cls=Verb,
    help="Measure the layers of a network on this machine: times, outputs and weights.",
)
@with_plugins
def profile(
    module: Annotated[
        str, typer.Argument(help="Network: a name such as digits-cnn, or package.module:function.")
    ],
    output: Annotated[Path, "-o", "--output", "File for the profile (.json)."],
    data: Annotated[str, "Data: a name such as digits, or package.module:function."] = "digits",
    loss: Annotated[str, "Loss: cross-entropy, mse, or package.module:function."] = "cross-entropy",
    batch_size: Annotated[int, "Data points in a minibatch."] = 64,
    seed: Annotated[int, "Seed of the weights and of the order of the data points."] = 0,
    minibatches: Annotated[int, "Number of minibatches. Times are medians over them."] = 20,
    as_json: AsJson = False,
) -> None:
    """Measure the layers of a network on this machine."""
    require_writable(output)
    source = Source(module=module, data=data, loss=loss, batch_size=batch_size, seed=seed)
    import_plugins(())  # also finds modules in the working directory
    with busy("importing PyTorch"):
        from seqgc.pipeline.measuring import measure_chain
    chain = measure_chain(source, minibatches=minibatches)
    write_chain(chain, output)
    seconds = sum(layer.seconds for layer in chain.layers)
    size = sum(layer.weight_bytes for layer in chain.layers)
    facts = {
        "file": str(output),
        "seconds": seconds,
        "weight_bytes": size,
        "layers": [asdict(layer) for layer in chain.layers],
    }
    pairs = {
        f"layer {at}": f"{layer.name}: {1000 * layer.forward_s:.3g} ms forward, "
        f"{1000 * layer.backward_s:.3g} ms back, {layer.activation_bytes:,} bytes out, "
        f"{layer.weight_bytes:,} bytes of weights"
        for at, layer in enumerate(chain.layers, 1)
    }
    total = {
        "minibatch": f"{1000 * seconds:.3g} ms on this machine, {size:,} bytes of weights",
        "next": f"seqgc pipeline plan {output} --level WORKERSxBYTES_PER_SECOND",
    }
    show(facts, pairs | total, as_json=as_json, saved=True)


@app.command("plan", cls=Verb, help="Find the fastest pipeline for the accelerators that you have.")
@with_plugins
def plan(
    file: ModelFile,
    level: Annotated[
        list[str],
        "--level",
        "Number of workers, and bytes per second of a link between them: 4x12e9. Repeat the option "
        "for groups of these workers: --level 4x12e9 --level 2x1.25e9 are 2 servers of 4 workers.",
    ],
    memory_gb: Annotated[
        float, "Memory of a worker for weights and activations, in GB of 10^9 bytes."
    ] = math.inf,
    cost: Annotated[
        str, "--model", "Formulas of the times: paper (the thesis) or released (its program)."
    ] = "paper",
    straight: Annotated[bool, "--straight", "Replicate no stage."] = False,
    slots: Annotated[int, "Columns of the timetable."] = 24,
    as_json: AsJson = False,
) -> None:
    """Find the fastest pipeline for the accelerators that the user has."""
    best = plan_chain(
        read_chain(file),
        [Level.parse(each) for each in level],
        memory_bytes=memory_gb * 1e9,
        model=cast("CostModel", cost),
        straight=straight,
    )
    timetable = draw_timetable(best.stages, slots=slots)
    facts = {
        "config": best.config,
        "stages": [asdict(stage) for stage in best.stages],
        "workers": best.workers,
        "noam": best.noam,
        "seconds": best.seconds,
        "data_parallel_s": best.data_parallel_s,
        "memory_bytes": [best.memory_bytes(s) for s in range(len(best.stages))],
    }
    show(facts, _pairs(best), as_json=as_json)
    if not as_json:
        typer.echo(f"\n{timetable}")


def _pairs(best: Plan) -> dict[str, str]:
    pairs = {f"stage {s + 1}": _stage_words(best, s) for s in range(len(best.stages))}
    ratio = best.data_parallel_s / best.seconds
    return {
        "plan": f"{best.config}  (--stages {','.join(map(str, best.stages))})",
        **pairs,
        "NOAM": f"{best.noam}  (minibatches that each replica of stage 1 has in flight)",
        "time": f"{best.seconds:.4g} s for each minibatch, predicted",
        "data parallel": f"{best.data_parallel_s:.4g} s, {ratio:.2f} times as long",
    }


def _stage_words(best: Plan, s: int) -> str:
    stage, layers = best.stages[s], best.chain.layers
    names = layers[stage.first].name
    if stage.last > stage.first:
        names += f" … {layers[stage.last].name}"
    replicas = "1 worker" if stage.replicas == 1 else f"{stage.replicas} workers"
    memory_gb = best.memory_bytes(s) / 1e9
    versions = "1 version" if (held := best.in_flight(s)) == 1 else f"{held} versions"
    return f"{names}: {replicas}, {versions} of weights and activations in {memory_gb:.3g} GB"
