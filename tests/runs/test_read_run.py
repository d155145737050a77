"""What is read from a run's folder, whoever wrote it and whatever has become of it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from seqgc import plot
from seqgc.errors import ParameterError
from seqgc.plot import tables
from seqgc.runs import RecordedRun, read_run
from tests.test_plot import drawn

HEADER = {"event": "run", "at_s": 0.0, "schema": 1, "workers": 3, "scheme": "gc:s=1"}
METRICS = "seconds,job,model,step,loss\r\n1.0,0,a,0,2.5\r\n2.0,1,b,0,nan\r\n3.0,2,a,1,1.5\r\n"


def answer(at_s: float, round: int, worker: int, **more: object) -> dict[str, object]:
    about = {"round": round, "worker": worker, "attempt": 0, "elapsed_s": 0.5, "took_s": 0.4}
    return {"event": "arrival", "at_s": at_s, **about, **more}


def a_round(began_s: float, round: int, reason: str = "tolerance") -> list[dict[str, object]]:
    """Three workers: 0 and 1 answer in time, 2 is given up."""
    about = {"round": round, "kappa_s": 0.25, "duration_s": 0.5, "stragglers": [2]}
    return [
        {"event": "dispatch", "at_s": began_s, "round": round, "attempt": 0, "load": 0.5},
        answer(began_s + 0.25, round, 1),
        answer(began_s + 0.5, round, 0),
        {"event": "close", "at_s": began_s + 0.5, "reason": reason, "waited_out": False, **about},
        {"event": "cancel", "at_s": began_s + 0.5, "round": round, "workers": [2]},
        {"event": "decode", "at_s": began_s + 0.75, "job": round, "error": 0.0},
    ]


LOG = [
    HEADER,
    *a_round(1.0, 0),
    {"event": "warning", "at_s": 1.9, "text": "line one\nline two"},
    *a_round(2.0, 1, "wait-out"),
    answer(2.75, 0, 2),
    {**answer(2.75, 0, 2), "event": "drop", "reason": "its round is closed"},
    {**answer(2.8, 1, 2, took_s=0.8), "event": "failure", "reason": "gone"},
    {"event": "resume", "at_s": 0.0, "schema": 1, "workers": 3},
    *a_round(0.5, 1, "again"),
    *a_round(1.5, 2),
    {"event": "end", "at_s": 2.5, "outcome": "finished"},
]


def text_of(log: list[dict[str, object]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in log)


def recorded(folder: Path, log: str | None = None, metrics: str | None = METRICS) -> RecordedRun:
    (folder / "events.jsonl").write_text(text_of(LOG) if log is None else log)
    if metrics is not None:
        (folder / "metrics.csv").write_bytes(metrics.encode())
    return read_run(folder)


def test_a_round_is_told_once_and_the_clock_goes_on_through_masters(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    rounds = run.rounds()
    assert rounds["round"].tolist() == [0, 1, 2]
    assert rounds["reason"].tolist() == ["tolerance", "again", "tolerance"]
    assert rounds["master"].tolist() == [1, 2, 2]
    assert rounds["began_s"].tolist() == pytest.approx([1.0, 2.8 + 0.5, 2.8 + 1.5])
    assert (rounds["closed_s"] - rounds["began_s"]).tolist() == pytest.approx([0.5] * 3)
    assert rounds["load"].tolist() == [0.5] * 3
    assert run.jobs()["finished_s"].tolist() == pytest.approx([1.75, 2.8 + 1.25, 2.8 + 2.25])
    assert (run.scheme, run.workers, run.outcome, run.gaps) == ("gc:s=1", 3, "finished", ())
    assert "line one line two" in run.notices()["text"].tolist()


def test_every_task_has_one_row_that_says_what_became_of_it(tmp_path: Path) -> None:
    answers = recorded(tmp_path).answers()
    rows = zip(*(answers[name] for name in ("round", "worker", "outcome", "late")), strict=True)
    assert sorted(rows) == [
        (0, 0, "used", False), (0, 1, "used", False), (0, 2, "dropped", True),
        (1, 0, "used", False), (1, 1, "used", False), (1, 2, "unanswered", False),
        (2, 0, "used", False), (2, 1, "used", False), (2, 2, "unanswered", False),
    ]  # fmt: skip
    given_up = answers["outcome"] == "unanswered"
    assert answers["took_s"][given_up].tolist() == pytest.approx([0.5, 0.5])


def test_losses_stand_at_the_time_of_their_jobs(tmp_path: Path) -> None:
    models = recorded(tmp_path).models()
    assert models["model"].tolist() == ["a", "a", "b"]
    assert models["job"].tolist() == [0, 2, 1]
    assert models["at_s"].tolist() == pytest.approx([1.75, 5.05, 4.05])
    assert np.isnan(models["loss"][2])  # not finite


def test_what_is_whole_is_shown_and_what_is_missing_is_said(tmp_path: Path) -> None:
    lines = text_of(LOG).splitlines(keepends=True)
    torn = recorded(tmp_path, "".join(lines[:6]) + lines[6][:20], metrics=None)
    assert torn.rounds()["round"].tolist() == [0]
    assert torn.jobs()["job"].size == 0
    assert "incomplete" in torn.gaps[0]
    assert "There are no losses" in torn.gaps[1]
    lines[3] = '{"event": "arrival", "round": -7}\n'
    lines[4] = "no json\n"
    damaged = recorded(tmp_path, "".join(lines), METRICS + "1,2\r\n1.0,3,a")
    assert sorted(damaged.gaps) == [
        "1 of the rounds up to 2 are not in events.jsonl.",
        "2 lines of events.jsonl cannot be read and are left out (from line 4 on).",
        "Of metrics.csv 1 lines cannot be read and are left out.",
        "The last line of metrics.csv is incomplete, or too long.",
    ]
    assert damaged.rounds()["round"].tolist() == [1, 2]


@pytest.mark.parametrize("jobs", [3, 4])
def test_the_last_jobs_are_missing_of_as_many_as_the_run_has_in_the_end(
    jobs: int, tmp_path: Path
) -> None:
    """A master may go on to fewer steps than the one before had sent work of."""
    sent = {"event": "dispatch", "at_s": 3.0, "round": 3, "attempt": 0, "jobs": [3]}
    log = [{**each, "jobs": jobs} if each["event"] == "resume" else each for each in LOG]
    at = log.index(LOG[-1]) - len(a_round(0.5, 1)) - len(a_round(1.5, 2)) - 1
    found = recorded(tmp_path, text_of([*log[:at], sent, *log[at:]])).gaps
    assert [gap for gap in found if "of the jobs" in gap] == (
        ["1 of the jobs up to 3 are not in events.jsonl."] if jobs == 4 else []
    )


def test_names_of_others_are_one_printable_line(tmp_path: Path) -> None:
    scheme = "<script>\x1b[31m\n" + "x" * 1000
    metrics = METRICS.replace(",a,", ',"\x1b]0;</td>",')
    run = recorded(tmp_path, text_of([{**HEADER, "scheme": scheme}, *LOG[1:]]), metrics)
    for text in (run.scheme, *run.models()["model"], *run.notices()["text"]):
        assert text.isprintable()
        assert len(text) <= 300


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (None, "No such file"),
        ("", "no complete line that begins a run"),
        ("no json\n{}\n", "no complete line that begins a run"),
        (text_of([{**HEADER, "schema": 9}]), "schema 9, and this version of seqgc reads 1"),
        (text_of([{**HEADER, "schema": 10**400}]), "schema 1000000000000000000…, and this"),
        (text_of([{**HEADER, "workers": 10**9}]), "no complete line that begins a run"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, log: str | None, why: str) -> None:
    if log is not None:
        (tmp_path / "events.jsonl").write_text(log)
    with pytest.raises(ParameterError, match=why) as refused:
        read_run(tmp_path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_changed_run_is_read_or_refused(tmp_path: Path) -> None:
    chance, good, read = random.Random(3), text_of(LOG).encode(), 0
    for _ in range(60):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (tmp_path / "events.jsonl").write_bytes(data)
        (tmp_path / "metrics.csv").write_bytes(METRICS.encode()[: chance.randrange(90)])
        try:
            run = read_run(tmp_path)
        except ParameterError:
            continue
        read += 1
        for table in (run.rounds(), run.answers(), run.jobs(), run.models(), run.notices()):
            assert len({len(column) for column in table.values()}) == 1
    assert read > 30


def test_the_pictures_of_a_run_show_its_tables(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    cells = drawn(plot.heat_map, run).images[0].get_array()
    assert cells is not None
    assert np.ma.compressed(cells) == pytest.approx([0.4] * 7)  # six in time and one late
    lines = drawn(plot.losses, run).lines
    assert {line.get_label(): len(line.get_xdata()) for line in lines} == {"a": 2, "b": 1}
    table = tables.worker_seconds([run, run])
    assert table["run"].tolist() == ["gc:s=1", "gc:s=1 (2)"]
    assert table["used_s"].tolist() == pytest.approx([6 * 0.4] * 2)
    assert table["unanswered_s"].tolist() == pytest.approx([1.0] * 2)
    bars = drawn(plot.worker_seconds, run).patches
    assert sum(bar.get_width() for bar in bars) == pytest.approx(table["total_s"][0])
    assert tables.bursts(run)["bursts"].tolist() == [0, 0, 1]  # worker 2, in every round
    taken_late = recorded(tmp_path, text_of([*LOG[:-1], answer(2.4, 2, 2), LOG[-1]]))
    assert taken_late.answers()["late"].sum() == 2
    assert tables.bursts(taken_late)["bursts"].tolist() == [0, 0, 1]
