"""Traces of other tools become profiles, with every decision named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgc.errors import ParameterError, ProfileError
from seqgc.profiles import DelayProfile, import_trace
from tests.profiles.traces import EXPECTED, FORMATS, write

GENERIC = {
    "node": ["a", "b", "a", "b", "a", "b"],
    "step": [0, 0, 1, 1, 2, 2],
    "took_ms": [900, 800, 700, 2500, 750, 1000],
}


def times(profile: DelayProfile) -> list[list[float | None]]:
    """Return the seconds as lists, None where a worker did not answer."""
    rows = zip(profile.times.tolist(), profile.answered.tolist(), strict=True)
    return [
        [s if is_answer else None for s, is_answer in zip(row, mask, strict=True)]
        for row, mask in rows
    ]


# ---- formats that are recognised ----------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_a_known_format_needs_no_options_whatever_the_file_is_called(
    name: str, tmp_path: Path
) -> None:
    trace = import_trace(write(name, tmp_path / "trace.dat"))
    expected = EXPECTED[name]
    assert (trace.format, times(trace.profile)) == (expected.format, expected.times)
    for part in expected.notes:
        assert any(part in note for note in trace.notes), (part, trace.notes)
    assert trace.profile.meta.base_load == 1 / trace.profile.num_workers
    assert trace.profile.meta.source == expected.format


def test_a_worker_that_starts_before_its_request_has_another_clock(tmp_path: Path) -> None:
    calls = json.loads(write("lithops", tmp_path / "a").read_text())
    for call in calls:
        call["worker_start_tstamp"] -= 1.0
        call["worker_end_tstamp"] -= 1.0
    trace = import_trace(calls)
    assert any("6 of 6 rows start before their request, by up to 0.875 s" in n for n in trace.notes)
    on_the_way_s = 0.125
    expected = [[s - on_the_way_s for s in row] for row in EXPECTED["lithops"].times]
    assert times(trace.profile) == expected


def test_a_log_without_streams_counts_the_calls_of_each_round(tmp_path: Path) -> None:
    events = json.loads(write("cloudwatch-json", tmp_path / "a").read_text())["events"]
    for event in events:
        del event["logStreamName"]
    trace = import_trace(events)
    assert trace.workers == ("0", "1")
    assert any("name no log stream" in note for note in trace.notes)


def test_new_workers_take_the_places_of_workers_that_are_gone() -> None:
    stream = [
        {"worker": worker, "key": f"k{i}", "startstops": [
            {"action": "compute", "start": float(start), "stop": start + 1.0}]}
        for i, (worker, start) in enumerate(
            [("a", 0), ("b", 0), ("a", 10), ("b", 10), ("c", 20), ("b", 20)]
        )
    ]  # fmt: skip
    trace = import_trace(stream)
    assert trace.workers == ("a+c", "b")
    assert times(trace.profile) == [[1.0, 1.0]] * 3
    assert any("3 workers took 2 places" in note for note in trace.notes)


def test_the_most_frequent_task_of_a_timeline_is_the_one_that_counts(tmp_path: Path) -> None:
    events = json.loads(write("ray-timeline", tmp_path / "a").read_text())
    other = [e | {"cat": "task::other", "name": "other"} for e in events if e["name"] == "work"]
    trace = import_trace([*events, *other[:1]])
    assert times(trace.profile) == EXPECTED["ray-timeline"].times
    assert any("cat=task::work count (4 of 5 rows; next: task::other)" in n for n in trace.notes)


# ---- columns that are named ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows", "columns", "csv", "json", "lines", "joined", "nested"])
def test_rows_come_in_many_forms(kind: str, tmp_path: Path) -> None:
    rows = [
        dict(zip(GENERIC, values, strict=True)) for values in zip(*GENERIC.values(), strict=True)
    ]
    path, column, source = tmp_path / "trace", "took_ms", None
    match kind:
        case "rows":
            source = rows
        case "columns":
            source = {name: np.array(values) for name, values in GENERIC.items()}
        case "csv":
            lines = [",".join(map(str, row.values())) for row in rows]
            path.write_text("\n".join(["node,step,took_ms", *lines]))
        case "json":
            path.write_text(json.dumps(GENERIC))
        case "lines":
            path.write_text("\n".join(map(json.dumps, rows)))
        case "joined":
            path.write_text(",\n".join(map(json.dumps, rows)) + ",\n")
        case "nested":
            column = "time.took_ms"
            nested = [{**row, "time": {"took_ms": row.pop("took_ms")}} for row in rows]
            path.write_text(json.dumps(nested))
    given = path if source is None else source
    trace = import_trace(given, worker="node", round="step", duration=column)
    assert times(trace.profile) == [[0.9, 0.8], [0.7, 2.5], [0.75, 1.0]]
    assert (trace.workers, trace.rounds) == (("a", "b"), ("0", "1", "2"))
    assert f"times are in ms, because of the name of the column {column}" in trace.notes


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_times_of_day_tell_their_unit_by_their_size(unit: str, scale: int) -> None:
    starts = [1_600_000_000 * scale + second * scale for second in (0, 0, 60, 60)]
    rows = {
        "who": ["a", "b"] * 2,
        "from": starts,
        "to": [start + int(s * scale) for start, s in zip(starts, (1, 2, 3, 4), strict=True)],
    }
    trace = import_trace(rows, worker="who", round="gap", start="from", end="to")
    assert times(trace.profile) == [[1.0, 2.0], [3.0, 4.0]]
    assert any(note.startswith(f"from is in {unit}, because") for note in trace.notes)
    assert any(
        "2 rounds, separated by gaps between starts of at least 60 s" in n for n in trace.notes
    )


def test_times_in_text_may_have_zones() -> None:
    rows = {
        "who": ["a", "b"],
        "step": [1, 1],
        "from": ["2026-01-31T12:00:00Z", "2026-01-31 13:00:00.5+01:00"],
        "to": ["2026-01-31T12:00:01.25", "2026-01-31T12:00:02Z"],
    }
    trace = import_trace(rows, worker="who", round="step", start="from", end="to")
    assert times(trace.profile) == [[1.25, 1.5]]


@pytest.mark.parametrize("nothing", ["", "NaT", None, "null"])
def test_a_time_of_day_that_is_missing_is_a_failure(nothing: object) -> None:
    noon = "2026-01-31T12:00:00Z"
    rows = {
        "who": ["a", "b"], "step": [1, 1],
        "from": [noon, noon], "to": ["2026-01-31T12:00:02Z", nothing],
    }  # fmt: skip
    trace = import_trace(rows, worker="who", round="step", start="from", end="to")
    assert times(trace.profile) == [[2.0, None]]


@pytest.mark.parametrize("submit", [1_769_860_800, "2026-01-31T12:00:00Z", 1_769_860_800_000])
def test_each_column_of_times_has_its_own_unit(submit: object) -> None:
    rows = {
        "who": ["a", "b"], "step": [1, 1], "asked": [submit, submit],
        "from_ms": [1_769_860_800_100] * 2, "to_us": [1_769_860_801_500_000, 1_769_860_802_500_000],
    }  # fmt: skip
    trace = import_trace(
        rows, worker="who", round="step", submit="asked", start="from_ms", end="to_us"
    )
    assert times(trace.profile) == [[1.5, 2.5]]


@pytest.mark.parametrize("yes", ["yes", "T", True, 1, 1.0, "timeout"])
def test_a_column_failed_may_say_so_in_many_words(yes: object) -> None:
    failed = ["no", "F", False, 0, 0.0, "", None, yes]
    rows = {"worker": range(8), "round": [0] * 8, "seconds": [1.0] * 8, "failed": failed}
    assert import_trace(rows).profile.status.tolist() == [[0] * 7 + [1]]


@pytest.mark.parametrize(
    ("attempts", "expected"), [("span", 5.0), ("sum", 4.0), ("first", 1.0), ("last", 3.0)]
)
def test_of_several_rows_in_a_round_the_named_ones_count(attempts: str, expected: float) -> None:
    rows = {
        "who": ["a", "a", "b"], "step": [1, 1, 1],
        "from_s": [0.0, 2.0, 0.0], "to_s": [1.0, 5.0, 2.0], "ok": [False, True, True],
    }  # fmt: skip
    trace = import_trace(
        rows, worker="who", round="step", start="from_s", end="to_s", failed=["ok=false"],
        attempts=attempts,
    )  # fmt: skip
    assert trace.profile.times.tolist() == [[expected, 2.0]]
    assert trace.profile.status.tolist() == [[int(attempts == "first"), 0]]
    assert any("1 of 2 answers have several rows" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [("fail", [[1.0, 2.0, 3.0], [4.0, None, 5.0]]), ("drop", [[1.0, 2.0, 3.0]])],
)
def test_a_missing_answer_is_a_failure_or_costs_its_round(
    missing: str, expected: list[list[float | None]]
) -> None:
    rows = {
        "who": [1, 2, 3, 1, 3, 1],
        "step": [0, 0, 0, 1, 1, 2],
        "s": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    }
    trace = import_trace(rows, worker="who", round="step", duration="s", unit="s", missing=missing)
    assert times(trace.profile) == expected
    dropped = "2 of 3 rounds left out" if missing == "drop" else "1 of 3 rounds left out"
    assert any(dropped in note for note in trace.notes), trace.notes
    if missing == "fail":
        assert any("1 of 6 answers are missing, in 1 round:" in note for note in trace.notes)
        assert trace.profile.times[1, 1] == 5.0, "a missing answer takes as long as the slowest"


def test_a_failure_keeps_the_time_at_which_it_was_known() -> None:
    rows = {
        "who": [1, 2, 3] * 2,
        "step": [0, 0, 0, 1, 1, 1],
        "s": [1.0, 2.0, 3.0, 9.0, None, 2.5],
        "state": ["ok", "ok", "ok", "FAILED", "ok", "ok"],
    }
    trace = import_trace(
        rows, worker="who", round="step", duration="s", unit="s", failed=["state=failed"],
        base_load=0.25,
    )  # fmt: skip
    assert trace.profile.status.tolist() == [[0, 0, 0], [1, 1, 0]]
    assert trace.profile.times[1].tolist() == [9.0, 2.5, 2.5]
    assert any("2 of 6 calls failed" in note for note in trace.notes)
    assert trace.profile.meta.base_load == 0.25


def test_a_round_in_which_nobody_answered_is_left_out() -> None:
    rows = {
        "who": [1, 2] * 3, "step": [0, 0, 1, 1, 2, 2], "s": [1.0, 2.0, 9.0, 9.0, 3.0, 4.0],
        "state": ["ok", "ok", "lost", "lost", "ok", "ok"],
    }  # fmt: skip
    trace = import_trace(
        rows, worker="who", round="step", duration="s", unit="s", failed=["state=lost"]
    )
    assert times(trace.profile) == [[1.0, 2.0], [3.0, 4.0]]
    assert trace.rounds == ("0", "2")
    assert any("1 of 3 rounds left out, in which nobody answered: 1" in n for n in trace.notes)
    with pytest.raises(ProfileError, match="no worker answered"):
        import_trace(
            rows, worker="who", round="step", duration="s", unit="s", failed=["who=1", "who=2"]
        )


def test_numbers_in_names_sort_by_value() -> None:
    rows = {"who": ["w10", "w9", "w1"], "step": [1, 1, 1], "took_s": [10, 9, 1]}
    trace = import_trace(rows, worker="who", round="step", duration="took_s")
    assert trace.workers == ("w1", "w9", "w10")
    assert times(trace.profile) == [[1.0, 9.0, 10.0]]


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "`--worker`|--worker"),
        ({"worker": "node"}, "round.*gap"),
        ({"worker": "node", "round": "step"}, "duration"),
        ({"worker": "nod", "round": "step", "duration": "took_ms"}, "nod'.*did you mean 'node'"),
        ({"worker": "node", "round": "gap", "duration": "took_ms"}, "round.*start"),
        ({"worker": "node", "round": "step", "duration": "node"}, "row 0.*node must be a number"),
        ({"worker": "node", "round": "step", "duration": "step"}, "unit.*step"),
        ({"worker": "node", "round": "step", "duration": "step", "unit": "s"}, "row 0.*0 s"),
        ({"worker": "node", "round": "node", "duration": "took_ms"}, "attempts.*span, sum"),
        ({"worker": "node", "unit": "min"}, "unit.*s, ms, us or ns"),
        ({"worker": "node", "failed": ["x"]}, "failed.*COLUMN=VALUE"),
        ({"worker": "node", "where": ["node=c"]}, "node=c"),
        ({"worker": "node", "round": "gap:x"}, "round.*gap:SECONDS"),
    ],
)
def test_what_cannot_be_decided_is_refused_with_the_option_to_give(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises((ParameterError, ProfileError), match=f"(?s){named}"):
        import_trace(GENERIC, **options)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"\x80\x04K\x01.", "pickle.*json"),
        (b"", "no rows"),
        (b"{", "neither JSON"),
        (b"[" * 100_000, "JSON|nested"),
        (b"3", "not a trace of a known format|no rows"),
        (b"[1, 2]", "record 0.*int"),
        (b"a,b\n1\n", "row 0.*1 cells"),
        (b"a,a\n1,2\n", "named 'a'"),
        (b"PAR1", "parquet"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"REPORT RequestId: 1\tDuration: 3 ms\tBilled Duration: 3 ms\n", "time stamps.*aws logs"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_name(
    content: bytes, named: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=f"(?s)trace.json: .*({named})"):
        import_trace(path)


def test_a_long_pause_does_not_hide_the_rounds_before_and_after_it() -> None:
    begins = (0.0, 2.0, 4.0, 600.0, 602.0)
    rows = {
        "who": ["a", "b"] * len(begins),
        "from_s": [begin + late for begin in begins for late in (0.0, 0.5)],
        "s": [0.75] * 2 * len(begins),
    }
    trace = import_trace(rows, worker="who", round="gap", start="from_s", duration="s", unit="s")
    assert trace.profile.times.shape == (5, 2)


@pytest.mark.parametrize(("worker", "remedy"), [("order", "--worker"), ("call", "--round")])
def test_a_single_round_that_gaps_found_is_a_likely_mistake(worker: str, remedy: str) -> None:
    rows = {"call": list(range(20)), "from_ms": list(range(20)), "took_ms": [900] * 20}
    trace = import_trace(rows, worker=worker, round="gap", start="from_ms", duration="took_ms")
    (warning,) = trace.warnings
    assert trace.profile.dimensions == "1 round of 20 workers"
    assert warning in trace.notes
    assert "all 20 tasks" in warning
    assert remedy in warning
    assert ("--worker" in warning) == (worker == "order")
    named = import_trace(rows | {"step": [0] * 20}, worker="call", round="step", duration="took_ms")
    assert not named.warnings


def test_an_end_time_given_as_the_duration_is_a_likely_mistake() -> None:
    rng = np.random.default_rng(0)
    for rounds, expected in ((8, 1), (5, 0)):  # a few rounds may rise by chance
        at = np.repeat(np.arange(rounds), 3)
        took_ms = rng.uniform(500, 1500, len(at)).round()
        rows = {"who": [0, 1, 2] * rounds, "step": at, "took_ms": took_ms}
        rows["end_ms"] = at * 2000 + took_ms
        trace = import_trace(rows, worker="who", round="step", duration="end_ms")
        assert len(trace.warnings) == expected
        assert all("end_ms" in each and "--end" in each for each in trace.warnings)
        assert not import_trace(rows, worker="who", round="step", duration="took_ms").warnings


def test_a_burst_of_tasks_is_one_round_although_their_starts_come_in_ticks() -> None:
    starts = [0.016 * tick for tick in (0, 0, 0, 1, 1, 4, 4, 9)]
    rows = {"who": list(range(8)), "from_s": starts, "s": [1.0] * 8}
    trace = import_trace(rows, worker="who", round="gap", start="from_s", duration="s", unit="s")
    assert trace.profile.times.shape == (1, 8)


def test_gaps_that_differ_little_do_not_separate_rounds() -> None:
    rows = {"who": ["a", "b", "c", "d"], "from_s": [0.0, 1.0, 2.1, 3.3], "s": [1.0, 1.0, 1.0, 1.0]}
    with pytest.raises(ParameterError, match="gap:SECONDS"):
        import_trace(rows, worker="who", round="gap", start="from_s", duration="s", unit="s")
    trace = import_trace(
        rows, worker="order", round="gap:1.05", start="from_s", duration="s", unit="s"
    )
    assert trace.profile.num_rounds == 3
