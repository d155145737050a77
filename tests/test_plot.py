"""Pictures show what their tables say; neither is large, whatever is drawn."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from seqgc import DelayProfile, Rehearsal, Setting, parse_scheme, plot, replay
from seqgc.errors import ParameterError
from seqgc.plot import tables
from seqgc.search import Replay, SearchSpace, Tuning, tune
from seqgc.stragglers import straggler_pattern, straggler_stats
from tests.comparison.made import comparison_of

N, ROUNDS = 6, 30


@pytest.fixture(scope="module")
def profile() -> DelayProfile:
    rng = np.random.default_rng(4)
    times = 1 + rng.exponential(0.6, (ROUNDS, N))
    status = (rng.random((ROUNDS, N)) < 0.05).astype(np.int8)
    return DelayProfile(times=times, status=status)


@pytest.fixture(scope="module")
def replayed(profile: DelayProfile) -> dict[str, Replay]:
    rehearsal = Rehearsal(profile=profile.awaited(), alpha=0.5)
    specs = "uncoded", "gc:s=1", "_sr-sgc:B=1,W=2,lam=2"
    return {
        spec: replay(Setting(scheme=parse_scheme(spec.strip("_"), n=N)), rehearsal)
        for spec in specs
    }


@pytest.fixture(scope="module")
def tuning(profile: DelayProfile) -> Tuning:
    space = SearchSpace(families=("gc", "sr-sgc"), mus=(0.5,), jobs_per_round=(1,), max_delay=2)
    rehearsal = Rehearsal(profile=profile.awaited(), alpha=0.5)
    return tune(rehearsal, space=space, top=1000, prune=False, pareto=True)


def drawn(draw: Callable[..., Axes], data: object) -> Axes:
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    ax = draw(data, ax=figure.subplots())
    assert ax.figure is figure
    assert ax.get_xlabel()
    figure.draw_without_rendering()
    return ax


def test_the_heat_map_has_the_seconds_and_the_stragglers(profile: DelayProfile) -> None:
    image, marks = (each.get_array() for each in drawn(plot.heat_map, profile).images)
    stragglers = straggler_pattern(profile, mu=1.0)
    assert image is not None
    assert marks is not None
    assert np.ma.compressed(image.T) == pytest.approx(profile.times[profile.answered])
    assert (marks[..., 3].T > 0).tolist() == stragglers.tolist()
    table = tables.heat_map(profile)
    assert table["straggling"] == pytest.approx(stragglers.mean(axis=1))


def test_a_heat_map_of_very_many_rounds_has_no_more_cells_than_a_picture_shows() -> None:
    times = np.ones((5000, 2))
    times[4321, 1] = 3.0
    ax = drawn(plot.heat_map, DelayProfile.from_times(times))
    marks = np.asarray(ax.images[1].get_array())[..., 3]
    assert marks.shape == (2, 1024)
    assert np.argwhere(marks).tolist() == [[1, 4321 * 1024 // 5000]]
    assert 0 < marks.max() < 1  # one of several
    assert tables.heat_map(DelayProfile.from_times(times))["round"][-1] < 5000


def test_a_stall_that_rounds_waited_for_does_not_make_all_else_pale() -> None:
    times = np.random.default_rng(1).uniform(
        1.0, 1.5, size=(400, 1)
    )  # who is alone never straggles
    times[7] = 30.0
    image = drawn(plot.heat_map, DelayProfile.from_times(times)).images[0]
    assert image.norm.vmax is not None
    assert 1.4 < image.norm.vmax < 1.5


def test_a_replay_has_no_delays_to_map(replayed: dict[str, Replay]) -> None:
    with pytest.raises(ParameterError, match="must be a delay profile or a recorded run"):
        plot.heat_map(replayed["uncoded"])  # type: ignore[arg-type]


def test_bursts_are_those_of_the_statistics(profile: DelayProfile) -> None:
    bursts = tables.bursts(profile, mu=0.3)["bursts"]
    assert bursts.tolist() == straggler_stats(profile, mu=0.3).bursts.tolist()
    heights = [bar.get_height() for bar in drawn(plot.bursts, profile).patches]
    assert heights == tables.bursts(profile)["bursts"].tolist()


def test_completion_times_rise_to_the_share_that_was_answered(profile: DelayProfile) -> None:
    table = tables.completion_times(profile)
    assert (np.diff(table["answered"]) > 0).all()
    assert table["answered"][-1] == pytest.approx(profile.answered.mean())
    ax = drawn(plot.completion_times, {"_one": profile, "$two$": profile.scaled(20.0)})
    assert [line.get_label() for line in ax.lines] == [" _one", r"\$two\$"]


def test_the_timeline_names_why_rounds_closed(replayed: dict[str, Replay]) -> None:
    ax = drawn(plot.timeline, replayed)
    table = tables.timeline(replayed)
    legend = ax.get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 1 + len(set(table["reason"]))
    corners = sum(len(each.get_paths()) for each in ax.collections)
    assert corners == 2 * len(table["round"])
    for name, run in replayed.items():
        of = table["run"] == name
        assert (table["closed_s"] - table["began_s"])[of] == pytest.approx(run.round_seconds)


def test_finished_jobs_are_the_replays(replayed: dict[str, Replay]) -> None:
    ax = drawn(plot.finished_jobs, replayed)
    for line, run in zip(ax.lines, replayed.values(), strict=True):
        x, y = line.get_data()
        assert x[-1] == pytest.approx(np.cumsum(run.round_seconds)[run.job_finish_round].max())
        assert (y[0], y[-1]) == (0, len(run.job_finish_round))


def test_the_landscape_marks_the_winner(tuning: Tuning) -> None:
    ax = drawn(plot.landscape, tuning)
    table = tables.landscape(tuning)
    cells = np.ma.compressed(np.ma.masked_invalid(np.asarray(ax.images[0].get_array(), float)))
    assert len(cells) == len(table["runtime_s"]) > 10
    assert cells.min() == 1.0
    (column,), (row,) = ax.lines[0].get_data()
    names = [label.get_text() for label in ax.get_yticklabels()]
    best = tuning.best.setting.scheme.spec
    assert names[int(row)].split()[0] == best.partition(":")[0]
    ticks = [label.get_text() for label in ax.get_xticklabels()]
    assert f"={ticks[ax.get_xticks().tolist().index(column)]}" in best


def test_ratios_and_the_front_are_the_searchs(tuning: Tuning) -> None:
    ratios = tables.ratios(tuning)
    assert ratios["ratio"] == pytest.approx(ratios["runtime_s"] / ratios["ideal_s"])
    assert ratios["ratio"].tolist() == drawn(plot.ratios, tuning).lines[0].get_xdata().tolist()
    table = tables.pareto(tuning)
    front = {(row.runtime_s, row.billed_worker_s) for row in tuning.pareto}
    on_front = zip(
        table["runtime_s"][table["front"]], table["billed_worker_s"][table["front"]], strict=True
    )
    assert set(on_front) == front
    drawn(plot.pareto, tuning)


def test_a_comparison_shows_who_is_unbeaten_and_counts_who_is_not_there() -> None:
    found = comparison_of(
        ("asp", "stale", 10.0, 3.0),
        ("uncoded", "exact", 20.0, 1.0),
        ("_lb$", "exact", 20.0, 2.0),
        ("backup:b=1", "approximate", 30.0, 1.0),
        ("ssp:slack=1", "stale", None, None),
    )
    table = tables.comparison(found)
    assert table["front"].tolist() == [True, True, False, False, False]
    assert np.isnan(table["usd"]).tolist() == [False] * 4 + [True]
    ax = drawn(plot.comparison, found)
    line, *marks = (each.get_xydata().tolist() for each in ax.lines)
    assert line == [[10, 3], [20, 1]]
    assert marks == [[[20, 1], [20, 2]], [[30, 1]], [[10, 3]], []]
    assert [text.get_text() for text in ax.texts] == ["asp", "uncoded", r" _lb\$", "backup:b=1"]
    legend = ax.get_legend()
    assert legend is not None
    assert legend.get_texts()[-1].get_text() == "not at the target: 1"


def test_names_of_defences_lie_beside_each_other() -> None:
    rng = np.random.default_rng(3)
    crowd = [
        (f"ssp:slack={k}", "stale", 20 + 5 * rng.random(), 1 + 0.3 * rng.random())
        for k in range(12)
    ]
    ax = drawn(plot.comparison, comparison_of(*sorted(crowd, key=lambda row: row[2])))
    boxes = [Text.get_window_extent(each) for each in ax.texts]  # without what leads to the marks
    frame = ax.get_window_extent()
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)
    shared = sum(
        np.prod(np.diff(both.get_points(), axis=0))
        for one, other in combinations(boxes, 2)
        if (both := Bbox.intersection(one, other)) is not None
    )
    assert len(ax.get_yticks()) > 3
    assert shared < 0.02 * sum(box.width * box.height for box in boxes)


def test_a_comparison_in_which_nobody_gets_there_is_drawn_empty() -> None:
    ax = drawn(plot.comparison, comparison_of(("asp", "stale", None, None)))
    assert not ax.texts


def test_a_large_profile_is_small_as_svg() -> None:
    times = 1 + np.random.default_rng(2).exponential(0.5, (480, 256))
    file = io.BytesIO()
    drawn(plot.heat_map, DelayProfile.from_times(times)).figure.savefig(file, format="svg")
    assert len(file.getvalue()) < 1_000_000


def test_without_matplotlib_one_line_says_what_to_install(
    profile: DelayProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ParameterError, match=r"pip install 'seqgc\[plot\]'"):
        plot.heat_map(profile)
    with pytest.raises(ParameterError, match="at least one profile or run"):
        plot.bursts([])
