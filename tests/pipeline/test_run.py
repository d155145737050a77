"""A pipeline of processes comes to the bits of a simulation without any pipeline."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from seqgc.cli import main
from seqgc.errors import ParameterError, WorkerError
from seqgc.pipeline import (
    Chain,
    Layer,
    PipelineRun,
    PlannedStage,
    Source,
    parse_stages,
    run_pipeline,
    write_chain,
)
from seqgc.pipeline._delayed import simulate_delayed
from seqgc.pipeline.network import load_network, one_thread, seeded
from tests.cli.refused import refused
from tests.kit import SOAK
from tests.pipeline import nets
from tests.pipeline.nets import BATCH, KILL_IN_DATA, KILL_IN_LOSS

Out = pytest.CaptureFixture[str]
STAGES = {2: "1-3,4-6", 3: "1,2-4,5-6"}


def chain_of(source: Source) -> Chain:
    """Return a profile whose times nobody has measured."""
    names = load_network(source).layers.names
    return Chain(tuple(Layer(name, 1.0, 1.0, 8, 8) for name in names), source)


@pytest.fixture(scope="module")
def chain() -> Chain:
    own = "tests.pipeline.nets"
    return chain_of(
        Source(module=f"{own}:net", data=f"{own}:data", loss=f"{own}:loss", batch_size=BATCH)
    )


def settings(chain: Chain, stages: str, **changes: object) -> PipelineRun:
    run = PipelineRun(
        chain=chain, stages=parse_stages(stages, chain), minibatches=60, precision="float64",
        optimizer="Adam", lr=0.01, checkpoint_every=10,
    )  # fmt: skip
    return replace(run, **changes)  # type: ignore[arg-type]


def expected(run: PipelineRun) -> tuple[dict[str, torch.Tensor], list[float]]:
    optimizer = partial(getattr(torch.optim, run.optimizer), lr=run.lr)
    return simulate_delayed(
        run.network(), run.stages, minibatches=run.minibatches, optimizer=optimizer,
        vertical_sync=run.vertical_sync,
    )  # fmt: skip


def assert_same(weights: Path, state: dict[str, torch.Tensor]) -> None:
    found = load_file(weights)
    assert found.keys() == state.keys()
    for name, value in state.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize(
    ("number", "vertical_sync"),
    [(number, sync) for number in STAGES for sync in (False, True) if SOAK or sync == (number > 2)],
)
def test_sixty_minibatches_come_to_the_bits_of_delayed_gradients(
    chain: Chain, number: int, vertical_sync: bool, tmp_path: Path
) -> None:
    run = settings(chain, STAGES[number], vertical_sync=vertical_sync)
    result = run_pipeline(run, tmp_path / "run")
    state, losses = expected(run)
    assert list(result.losses) == losses
    assert_same(result.weights, state)
    held = [number] * number if vertical_sync else list(range(number, 0, -1))
    assert list(result.versions_held) == held
    assert sum(losses[-10:]) < sum(losses[:10])


def test_the_delay_matters_and_one_stage_has_none(chain: Chain) -> None:
    """The simulation that the pipeline equals is not plain SGD, except with one stage."""
    run = settings(chain, STAGES[3])
    whole = replace(run, stages=(PlannedStage(0, 5),))
    plain = run.network()
    optimizer = torch.optim.Adam(plain.module.parameters(), lr=run.lr)
    losses = []
    for t in range(60):
        x, y = plain.minibatch(t)
        optimizer.zero_grad()
        with one_thread():
            with seeded(0, minibatch=t, stage=0):
                loss = plain.loss(plain.module(x), y)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert expected(whole)[1] == losses
    assert expected(run)[1] != losses
    assert expected(run)[1] != expected(replace(run, vertical_sync=True))[1]


@pytest.mark.parametrize("marker", [KILL_IN_DATA, KILL_IN_LOSS] if SOAK else [KILL_IN_LOSS])
def test_a_stage_that_is_killed_continues_to_the_same_bits(
    chain: Chain, marker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = settings(chain, STAGES[2])
    Path(marker).touch()
    with pytest.raises(WorkerError, match="killed by signal 9") as death:
        run_pipeline(run, Path("run"))
    assert marker == KILL_IN_DATA or "stage 2 " in str(death.value)  # both stages read data
    assert not Path(marker).exists()
    assert not Path("run/weights.safetensors").exists()
    for stage in (1, 2):  # it continues in the middle
        assert list(Path("run").glob(f"stage-{stage}-*.safetensors"))
    result = run_pipeline(run, Path("run"), or_resume=True)
    state, losses = expected(run)
    assert list(result.losses) == losses
    assert_same(result.weights, state)


def test_a_run_that_is_done_can_have_more_minibatches(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = settings(chain, STAGES[2], minibatches=7, vertical_sync=True)
    run_pipeline(run, tmp_path / "run")
    longer = replace(run, minibatches=15)
    result = run_pipeline(longer, tmp_path / "run", or_resume=True)
    state, losses = expected(longer)
    assert list(result.losses) == losses
    assert_same(result.weights, state)
    assert sorted(path.suffix for path in (tmp_path / "run").iterdir()).count(".json") == 1
    assert not list((tmp_path / "run").glob("rendezvous-*"))
    monkeypatch.setattr(nets, "DROPOUT", 0.4)
    with pytest.raises(ParameterError, match=r"`run` .*network tests"):
        run_pipeline(longer, tmp_path / "run", or_resume=True)
    monkeypatch.undo()
    for name, other in {"minibatches": {"minibatches": 7}, "lr": {"lr": 0.5}}.items():
        with pytest.raises(ParameterError, match=f"`{name}`"):
            run_pipeline(replace(longer, **other), tmp_path / "run", or_resume=True)


def test_the_weights_load_into_a_network_with_ties_and_16_bit_outputs(tmp_path: Path) -> None:
    own = "tests.pipeline.nets"
    chain = chain_of(Source(module=f"{own}:odd", data=f"{own}:data", batch_size=BATCH))
    assert chain.layers[3].name == "tanh_1", chain.layers
    run = settings(chain, "1-3,4-6", minibatches=5, precision="float32")
    result = run_pipeline(run, tmp_path / "run")
    state, losses = expected(run)
    assert list(result.losses) == losses
    found, network = load_file(result.weights), run.network().module
    network.load_state_dict(found, strict=True)
    for name, value in network.state_dict().items():
        first = name.replace("two.weight", "one.weight")
        assert torch.equal(found[name], state.get(first, value)), name
    assert "unused.weight" in found


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "NAdam"])  # NAdam has a float32 product
def test_an_optimizer_continues_to_the_same_bits(
    chain: Chain, optimizer: str, tmp_path: Path
) -> None:
    run = settings(chain, STAGES[2], minibatches=8, optimizer=optimizer)
    run_pipeline(replace(run, minibatches=4), tmp_path / "run")
    result = run_pipeline(run, tmp_path / "run", or_resume=True)
    state, losses = expected(run)
    assert list(result.losses) == losses
    assert_same(result.weights, state)


def test_a_loss_that_is_not_finite_ends_the_run(chain: Chain, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"stage 2.*loss of minibatch \d+ is not finite"):
        run_pipeline(settings(chain, STAGES[2], lr=1e300), tmp_path / "run")


def test_the_verb_trains_a_profile(
    capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_chain(chain_of(Source(module="mlp", batch_size=16)), Path("m.json"))
    line = ["pipeline", "run", "m.json", "--processes", "2", "--minibatches", "20", "--run", "r"]
    assert main([*line, "--vertical-sync", "--optimizer", "adam", "--lr", "0.003", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["versions_held"] == [2, 2]
    assert len(facts["losses"]) == 20
    assert Path(facts["weights"]).is_file()
    assert "--or-resume" in refused(capsys, *line)


BAD = {
    "m.json --run r": "`processes` must be an integer >= 1; got None",
    "m.json --run r --processes 5": "`workers` must be at most the number of layers, 4",
    "m.json --run r --stages 1-2x2,3-4": "`stages` must have one worker each",
    "m.json --run r --stages 1-2,3-4 --processes 3": "`processes` must be the number of stages",
    "m.json --run r --stages 1-2": "`stages` must cover the layers 1 to 4",
    "m.json --run r --processes 2 --optimizer sdg": "(did you mean 'sgd'?)",
    "m.json --run r --processes 2 --lr 0": "`lr` must be a finite number > 0; got 0",
    "m.json --run r --processes 2 --precision float16": "`precision` must be float32 or float64",
    "m.json --run r --processes 2 --minibatches 0": "`minibatches` must be an integer >= 1; got 0",
    "old.json --run r --processes 2": "`file` must be a profile of the network as it is now",
    "nameless.json --run r --processes 2": "`file` must name its network",
    "m.json --run there --processes 2 --or-resume": "`run` must be the folder of a run",
}


@pytest.mark.parametrize("line", BAD)
def test_what_cannot_be_run_is_refused_in_one_line(
    line: str, capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = chain_of(Source(module="mlp"))
    write_chain(made, Path("m.json"))
    write_chain(Chain(made.layers[1:], made.source), Path("old.json"))
    write_chain(Chain(made.layers), Path("nameless.json"))
    Path("there").mkdir()
    assert BAD[line] in refused(capsys, "pipeline", "run", *line.split())
