"""The planner finds what trying every pipeline finds, and the timetable is that of the thesis."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seqgc.cli import main
from seqgc.errors import ParameterError
from seqgc.pipeline import (
    Chain,
    Layer,
    Level,
    PlannedStage,
    draw_timetable,
    one_f_one_b,
    parse_stages,
    plan,
    read_chain,
    write_chain,
)
from tests.cli.refused import refused
from tests.pipeline.vgg import vgg16
from tests.test_imports import modules_after

Out = pytest.CaptureFixture[str]
Cost = Literal["paper", "released"]


class Part(NamedTuple):
    """A stage of a level: its layers, its components, and the pipeline in each of them."""

    first: int
    last: int
    components: int
    inside: tuple[Part, ...]


def pipelines(first: int, last: int, sizes: tuple[int, ...]) -> Iterator[tuple[Part, ...]]:
    """Yield every pipeline of the layers on machines of these levels, the highest one first."""
    if not sizes:
        yield ()
        return
    components, below = sizes[0], sizes[1:]
    for count in range(1, min(components, last - first + 1) + 1):
        for cuts in itertools.combinations(range(first, last), count - 1):
            ends = (*cuts, last)
            starts = (first, *(cut + 1 for cut in cuts))
            for marks in itertools.combinations(range(1, components), count - 1):
                shares = [b - a for a, b in itertools.pairwise((0, *marks, components))]
                inside = [pipelines(*each, below) for each in zip(starts, ends, strict=True)]
                for chosen in itertools.product(*map(list, inside)):
                    yield tuple(map(Part, starts, ends, shares, chosen))


def seconds_of(
    parts: tuple[Part, ...], chain: Chain, levels: list[Level], cost: Cost, below: int = 1
) -> float:
    """Return the time of the slowest stage or cut, by the formulas of the thesis or the program."""
    level = levels[-1]
    below = levels[-2].size if len(levels) > 1 else 1
    times = []
    for at, part in enumerate(parts):
        layers = chain.layers[part.first : part.last + 1]
        weights = sum(layer.weight_bytes for layer in layers)
        inside = sum(layer.forward_s + layer.backward_s for layer in layers)
        if part.inside:
            inside = seconds_of(part.inside, chain, levels[:-1], cost)
        m = part.components
        if cost == "paper":
            times.append(max(inside / m, 2 * (m - 1) * weights / level.bandwidth / m))
            if at:
                cut = chain.layers[part.first - 1].activation_bytes
                times.append(2 * cut / level.bandwidth)
        else:
            shared = 4 * (m - 1) / m * weights / level.bandwidth
            times.append((inside + (shared / below if at == 0 else shared)) / m)
    return max(times)


def flat(parts: tuple[Part, ...], times: int = 1) -> list[PlannedStage]:
    """Return the stages of all levels in order, with all their replicas."""
    stages = []
    for part in parts:
        replicas = times * part.components
        stages += flat(part.inside, replicas) or [PlannedStage(part.first, part.last, replicas)]
    return stages


def largest_memory(stages: list[PlannedStage], chain: Chain) -> int:
    """Return the bytes that the worker with the most weights and activations holds."""
    sizes = []
    for at, stage in enumerate(stages):
        layers = chain.layers[stage.first : stage.last + 1]
        versions = -(-sum(each.replicas for each in stages[at:]) // stage.replicas)
        sizes.append(versions * sum(each.weight_bytes + each.activation_bytes for each in layers))
    return max(sizes)


LAYERS = st.builds(
    Layer, st.just("layer"), *[st.integers(0, 9)] * 2, st.integers(0, 20), st.integers(0, 20)
)
CHAINS = st.lists(LAYERS, min_size=1, max_size=7).map(lambda layers: Chain(tuple(layers)))
SIZES = st.sampled_from(
    [(6,), (3, 2), (2, 3), (5,), (2, 2), (4,), (3,), (1, 4), (5, 1), (2,), (1,)]
)
BANDWIDTH = st.sampled_from([1.0, 5.0, 20.0, 80.0])
TWO = Chain((Layer("a", 2.0, 2.0, 1, 10), Layer("b", 2.0, 2.0, 1, 10)))  # best as 2-2


@settings(max_examples=150)
@example(TWO, (4,), (10.0, 1.0), "paper", math.inf, False)
@example(TWO, (2, 2), (20.0, 10.0), "released", 60.0, False)
@given(
    CHAINS,
    SIZES,
    st.tuples(BANDWIDTH, BANDWIDTH),
    st.sampled_from(["paper", "released"]),
    st.sampled_from([math.inf, 200.0, 90.0, 40.0]),
    st.booleans(),
)
def test_no_pipeline_is_faster_than_the_planned_one(
    chain: Chain,
    sizes: tuple[int, ...],
    bandwidths: tuple[float, float],
    cost: Cost,
    memory_bytes: float,
    straight: bool,
) -> None:
    levels = [Level(*each) for each in zip(sizes, bandwidths, strict=False)]
    tried = [
        (seconds_of(parts, chain, levels, cost), flat(parts))
        for parts in pipelines(0, len(chain) - 1, sizes[::-1])
    ]
    possible = [
        (seconds, stages)
        for seconds, stages in tried
        if largest_memory(stages, chain) <= memory_bytes
        and not (straight and any(stage.replicas > 1 for stage in stages))
    ]
    if not possible:
        with pytest.raises(ParameterError, match=r"memory_bytes|workers"):
            plan(chain, levels, memory_bytes=memory_bytes, model=cost, straight=straight)
        return
    best = plan(chain, levels, memory_bytes=memory_bytes, model=cost, straight=straight)
    assert best.seconds == pytest.approx(min(possible, key=lambda each: each[0])[0], rel=1e-12)
    equal = [stages for seconds, stages in possible if seconds <= best.seconds * (1 + 1e-12)]
    assert list(best.stages) in equal
    assert largest_memory(list(best.stages), chain) == max(
        best.memory_bytes(s) for s in range(len(best.stages))
    )
    (everywhere,) = (s for s, stages in tried if len(stages) == 1)
    assert best.data_parallel_s == pytest.approx(everywhere, rel=1e-12)


@pytest.mark.parametrize(
    ("levels", "cost", "config"),
    [
        (["4x12e9"], "released", "3-1"),
        (["16x1.25e9"], "released", "15-1"),
        (["16x1.25e9"], "paper", "15-1"),
    ],
)
def test_a_profile_of_the_shape_of_vgg16_is_split_as_published(
    levels: list[str], cost: Cost, config: str
) -> None:
    best = plan(vgg16(), [Level.parse(each) for each in levels], model=cost)
    assert best.config == config
    assert best.noam == 2
    assert best.data_parallel_s > best.seconds
    assert {"fc6", "fc7", "fc8"} <= {layer.name for layer in vgg16().layers[best.stages[1].first :]}


def test_four_stages_have_the_timetable_of_the_thesis() -> None:
    """Figure 5.4: four minibatches are admitted, and from slot 20 on nobody waits."""
    rows = draw_timetable([PlannedStage(s, s) for s in range(4)], slots=48).splitlines()
    first = rows[0].split()[2:]
    assert first[:6] == ["1>", "2>", "3>", "4>", "<1", "<1"]
    for row in rows:
        cells = [row[len("stage 1") :][at : at + 4].strip() for at in range(0, 4 * 48, 4)]
        assert all(cells[20:])


def test_passes_alternate_after_as_many_minibatches_as_are_in_flight() -> None:
    for count, in_flight in itertools.product(range(9), range(1, 5)):
        held, most, seen = set[int](), 0, []
        for kind, minibatch in one_f_one_b(range(count), in_flight=in_flight):
            seen.append((kind, minibatch))
            (held.add if kind == "forward" else held.remove)(minibatch)
            most = max(most, len(held))
        assert most == min(count, in_flight)
        assert not held
        assert sorted(seen) == [(k, b) for k in ("backward", "forward") for b in range(count)]


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_chain(vgg16(), tmp_path / "vgg.json")
    assert read_chain(tmp_path / "vgg.json") == vgg16()


def test_stages_are_read_as_they_are_shown() -> None:
    best = plan(vgg16(), [Level(4, 12e9)], model="released")
    assert parse_stages(",".join(map(str, best.stages)), best.chain) == best.stages
    for text in ("1-3", "2-16", "1-9,9-16", "1-9x0,10-16", "1-9y,10-16", "9-1"):
        with pytest.raises(ParameterError, match="stages"):
            parse_stages(text, best.chain)


def test_the_verb_prints_the_plan(
    capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_chain(vgg16(), Path("vgg.json"))
    line = ["pipeline", "plan", "vgg.json", "--level", "4x12e9", "--model", "released"]
    assert main([*line, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["config"], facts["noam"], facts["workers"]) == ("3-1", 2, 4)
    assert facts["stages"][1] == {"first": 9, "last": 15, "replicas": 1}
    assert main(line) == 0
    out = capsys.readouterr().out
    for word in ("3-1", "1-9x3,10-16", "stage 1.3", "NOAM"):
        assert word in out


def test_planning_needs_no_torch() -> None:
    loaded = modules_after("import seqgc.pipeline, seqgc.cli._pipeline")
    assert "seqgc.pipeline.planner" in loaded
    assert "torch" not in loaded


def test_the_plan_says_if_data_parallelism_does_not_fit(
    capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_chain(vgg16(), Path("vgg.json"))
    line = ["pipeline", "plan", "vgg.json", "--level", "2x12e9", "--memory-gb"]
    for memory_gb, fits in (("26", True), ("2.5", False)):
        assert main([*line, memory_gb]) == 0
        assert ("GB fitted" not in capsys.readouterr().out) == fits


BAD = {
    "nowhere.json --level 4x1": "`file` must be a file that can be read",
    "text.json --level 4x1": "`file` must be JSON",
    "other.json --level 4x1": "`file` must be a profile of format 1",
    "field.json --level 4x1": "`layer 1` must be an object with the fields name, forward_s",
    "type.json --level 4x1": "`layer 1: weight_bytes` must be of type int; got '4'",
    "negative.json --level 4x1": "`layer 1: forward_s` must be a finite number >= 0; got -1",
    "empty.json --level 4x1": "`layers` must have at least one layer",
    "vgg.json": "Missing option '--level'",
    "vgg.json --level 4": "`level` must be COMPONENTSxBYTES_PER_SECOND, for example 4x12e9",
    "vgg.json --level 0x1": "`level` must be an integer >= 1; got 0",
    "vgg.json --level 4x-1": "`level` must have a bandwidth above 0; got -1",
    "vgg.json --level 4x1 --model thesis": "`model` must be one of paper, released; got 'thesis'",
    "vgg.json --level 4x1 --memory-gb 0": "`memory_bytes` must be a finite number > 0",
    "vgg.json --level 4x1 --memory-gb 0.1": "`memory_bytes` must hold a stage of each of the 4",
    "vgg.json --level 17x1 --straight": "`workers` must be at most the number of layers, 16",
    "vgg.json --level 99999x1": "`workers` must be an integer <= 4096; got 99999",
    "vgg.json --level 4x1 --slots 0": "`slots` must be an integer >= 1; got 0",
}


@pytest.mark.parametrize("line", BAD)
def test_what_cannot_be_planned_is_refused_in_one_line(
    line: str, capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_chain(vgg16(), Path("vgg.json"))
    layer = {"name": "a", "forward_s": 1, "backward_s": 1, "activation_bytes": 1, "weight_bytes": 4}
    layers: dict[str, object] = {
        "field": [layer | {"colour": "red"}],
        "type": [layer | {"weight_bytes": "4"}],
        "negative": [layer | {"forward_s": -1}],
        "empty": [],
    }
    for name, value in layers.items():
        Path(f"{name}.json").write_text(json.dumps({"format": 1, "layers": value}))
    Path("text.json").write_text("layers")
    Path("other.json").write_text("[]")
    assert BAD[line] in refused(capsys, "pipeline", "plan", *line.split())
