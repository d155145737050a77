"""``seqgc pipeline``: the split of one network into the stages of a pipeline."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import typer

from seqgc._durable import replacing
from seqgc.cli._help import Group, Verb
from seqgc.cli._options import AsJson, with_plugins
from seqgc.cli._show import TableOutput, busy, print_pairs, require_writable, show
from seqgc.config._names import OPTIMIZERS
from seqgc.config._tables import import_plugins
from seqgc.errors import ParameterError, Stopped, WorkerError, require_int
from seqgc.pipeline import (
    Chain,
    CostModel,
    Level,
    Plan,
    PlannedStage,
    Source,
    draw_timetable,
    parse_stages,
    read_chain,
    require_straight,
    write_chain,
)
from seqgc.pipeline import plan as plan_chain
from seqgc.plot import tables
from seqgc.worker import require_known

ModelFile = Annotated[Path, typer.Argument(help="Profile of a network (.json).")]

Processes = Annotated[
    int | None, "Number of stages, if --stages is absent. Computation is shared out evenly."
]
Stages = Annotated[str | None, "Layers of the stages, as `plan` prints them, for example 1-3,4-8."]

app = typer.Typer(cls=Group, help="Split one network into the stages of a pipeline (PipeDream).")


@app.callback()
def pipeline() -> None:
    """Split one network into the stages of a pipeline."""


@app.command(
    "profile",
    cls=Verb,
    help="Measure the layers of a network on this machine.",
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
    *,
    table: TableOutput,
) -> None:
    """Measure the layers of a network on this machine."""
    require_writable(output)
    source = Source(module=module, data=data, loss=loss, batch_size=batch_size, seed=seed)
    import_plugins(())  # also finds modules in the working directory
    with busy("importing PyTorch"):
        from seqgc.pipeline import measure_chain
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
    table.show(tables.layers(chain), facts=facts, text=pairs | total, saved=True)


@app.command("plan", cls=Verb, help="Find the fastest pipeline for your accelerators.")
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
    *,
    table: TableOutput,
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

    def text() -> None:
        print_pairs(_pairs(best, memory_gb))
        typer.echo(f"\n{timetable}")

    table.show(tables.stages(best), facts=facts, text=text)


@app.command(
    "run",
    cls=Verb,
    help="Train a network as a pipeline of processes, here.",
)
@with_plugins
def run(
    file: ModelFile,
    run: Annotated[Path, "--run", "New folder for the weights and checkpoints."],
    processes: Processes = None,
    stages: Stages = None,
    minibatches: Annotated[int, "Number of minibatches to train on."] = 100,
    optimizer: Annotated[str, "Optimizer of each stage: sgd, adam, ..."] = "sgd",
    lr: Annotated[float, "Learning rate."] = 0.05,
    vertical_sync: Annotated[
        bool, "--vertical-sync", "Use the same version of the weights in all stages."
    ] = False,
    precision: Annotated[str, "Number format: float32 or float64."] = "float32",
    checkpoint_every: Annotated[
        int, "Number of minibatches between two checkpoints of a stage."
    ] = 50,
    or_resume: Annotated[
        bool, "--or-resume", "Continue the run if its folder exists; it may get more minibatches."
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a network as a pipeline of processes on this machine."""
    chain = read_chain(file)
    require_known("optimizer", optimizer, OPTIMIZERS.keys() - {"lbfgs"})
    chosen = _straight_stages(chain, processes=processes, stages=stages)
    import_plugins(())  # also finds modules in the working directory
    with busy("importing PyTorch"):
        from seqgc.pipeline import PipelineRun, run_pipeline
    settings = PipelineRun(
        chain=chain,
        stages=chosen,
        minibatches=minibatches,
        optimizer=OPTIMIZERS[optimizer],
        lr=lr,
        vertical_sync=vertical_sync,
        precision=precision,
        checkpoint_every=checkpoint_every,
    )
    with busy(f"training {minibatches} minibatches"):
        try:
            result = run_pipeline(settings, run, or_resume=or_resume)
        except (Stopped, WorkerError) as error:
            error.add_note("the same command with --or-resume continues")
            raise
    tenth = max(1, minibatches // 10)
    first, last = (
        math.fsum(each) / tenth for each in (result.losses[:tenth], result.losses[-tenth:])
    )
    facts = {
        "stages": [asdict(stage) for stage in chosen],
        "losses": result.losses,
        "versions_held": result.versions_held,
        "weights": str(result.weights),
    }
    pairs = {
        "stages": ",".join(map(str, chosen)),
        "minibatches": f"{minibatches}",
        "loss": f"{first:.4g} on average in the first tenth, {last:.4g} in the last tenth",
        "versions": f"{', '.join(map(str, result.versions_held))} of the weights in the stages",
        "weights": str(result.weights),
    }
    show(facts, pairs, as_json=as_json, saved=True)


@app.command(
    "export",
    cls=Verb,
    help="Write the stages as a program for torchrun.",
)
@with_plugins
def export(
    file: ModelFile,
    output: Annotated[Path, "-o", "--output", "File for the program (.py)."],
    processes: Processes = None,
    stages: Stages = None,
    as_json: AsJson = False,
) -> None:
    """Write the stages as a program for torchrun."""
    require_writable(output)
    chain = read_chain(file)
    chosen = _straight_stages(chain, processes=processes, stages=stages)
    import_plugins(())  # also finds modules in the working directory
    with busy("importing PyTorch"):
        from seqgc.pipeline import profiled_network, stages_source
    network = profiled_network(chain)
    source = stages_source(network, chosen, name=output.name)
    with replacing(output) as program:
        program.write(source.encode())
    facts = {"file": str(output), "stages": [asdict(stage) for stage in chosen]}
    pairs = {
        "stages": ",".join(map(str, chosen)),
        "file": str(output),
        "next": f"torchrun --nproc-per-node {len(chosen)} {output}",
    }
    show(facts, pairs, as_json=as_json, saved=True)


def _straight_stages(
    chain: Chain, *, processes: int | None, stages: str | None
) -> tuple[PlannedStage, ...]:
    """Return the stages that the options name, or share the computation out evenly."""
    if stages is None:
        number = require_int("processes", processes, least=1)
        return plan_chain(chain, [Level(number, math.inf)], straight=True).stages
    parsed = parse_stages(stages, chain)
    require_straight(parsed)
    if processes not in (None, len(parsed)):
        rule = f"must be the number of stages in --stages, {len(parsed)}, or be left out"
        raise ParameterError("processes", rule, processes)
    return parsed


def _pairs(best: Plan, memory_gb: float) -> dict[str, str]:
    pairs = {f"stage {s + 1}": _stage_words(best, s) for s in range(len(best.stages))}
    ratio = best.data_parallel_s / best.seconds if best.seconds else 1.0
    whole_gb = sum(each.weight_bytes + each.activation_bytes for each in best.chain.layers) / 1e9
    unfit = f", if {whole_gb:.3g} GB fitted" if whole_gb > memory_gb else ""
    return {
        "plan": f"{best.config}  (--stages {','.join(map(str, best.stages))})",
        **pairs,
        "NOAM": f"{best.noam}  (minibatches that each replica of stage 1 has in flight)",
        "time": f"{best.seconds:.4g} s for each minibatch, predicted",
        "data parallel": f"{best.data_parallel_s:.4g} s, {ratio:.2f} times as long{unfit}",
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
