"""What is shown of a run while it goes on: counters, a line a second, a live view, or nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from seqgc import SearchSpace, Trial, compare, tune
from seqgc.cli import main
from seqgc.cli.progress import run_progress
from seqgc.ports import Close, Dispatch, Finish, Notice, RoundRecord, Seen
from seqgc.progress import RunProgress, working
from tests.cli.inside import speaking
from tests.kit import decoded

Out = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    """A standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Hand:
    """A clock that is wound by hand, seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def terminal(monkeypatch: pytest.MonkeyPatch, kind: str) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "20")
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    return screen


def closed(round: int, *responded: bool, waited_out: bool = False) -> list[Seen]:
    record = RoundRecord(
        round=round, responded=np.array(responded), kappa_s=1.0, duration_s=2.0,
        reason="wait-out" if waited_out else "tolerance", waited_out=waited_out,
    )  # fmt: skip
    return [
        Dispatch(round=round, attempt=0, assignment={}),
        Finish(job=round, decoding=lambda: decoded(round)),
        Close(record=record, jobs=(round,)),
    ]


def shown(progress: RunProgress, *events: list[Seen], pause: Callable[[], None]) -> None:
    with progress:
        for group in events:
            for each in group:
                if isinstance(each, Close):
                    pause()
                progress(each)


def test_elsewhere_it_is_a_line_a_second_and_one_at_the_end(capsys: Out) -> None:
    clock = Hand()

    def pause() -> None:
        clock.now += 0.5

    progress = run_progress("gc:s=1", total=6, clock=clock)
    progress.on_step("small", 1, 0.25, {})
    rounds = [closed(t, True, t % 2 == 0, waited_out=t == 1) for t in range(5)]
    shown(progress, *rounds, pause=pause)
    begin = [line.partition("0 jobs/min, ")[0] for line in capsys.readouterr().err.splitlines()]
    assert begin == [
        "gc:s=1: 2 of 6 rounds, stragglers: 1 now and 1 survived, 1 wait-out, 12",
        "gc:s=1: 4 of 6 rounds, stragglers: 1 now and 2 survived, 1 wait-out, 12",
        "gc:s=1: 5 of 6 rounds, stragglers: 0 now and 2 survived, 1 wait-out, 12",
    ]


def test_a_resumed_run_goes_on_where_it_was_and_its_pace_is_its_own(capsys: Out) -> None:
    clock = Hand()

    def pause() -> None:
        clock.now += 2.0

    progress = run_progress("gc:s=1", total=6, clock=clock)
    resumed = Notice(kind="resume", fields={"rounds": 90})
    shown(progress, [resumed], closed(80, True), pause=pause)
    err = capsys.readouterr().err
    assert "81 of 90 rounds" in err
    assert err.endswith(" 0:18 left\n")


def test_a_resumed_run_is_drawn_where_it_was_before_a_round_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = terminal(monkeypatch, "xterm")
    resumed = Notice(kind="resume", fields={"rounds": 90})
    first = Dispatch(round=80, attempt=0, assignment={})
    shown(run_progress("gc:s=1", total=6), [resumed, first], pause=lambda: None)
    assert "80 of 90 rounds" in screen.getvalue()


def test_of_many_models_it_is_the_best_the_median_and_the_worst(capsys: Out) -> None:
    class Spent:
        spent_usd = 0.012345

    progress = run_progress("gc:s=1", total=2, spending=Spent())
    for name in range(40):
        progress.on_step(f"model-{name}", 1, 10.0 + name, {})
    parked = {"model": "model-0", "cause": "diverged", "step": 3, "why": "loss nan", "job": 0}
    shown(progress, [Notice(kind="parked", fields=parked)], closed(0, True), pause=lambda: None)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "model-0 diverged after step 3: loss nan; it is not trained further"
    assert "at most $0.0123 so far" in last
    assert last.endswith("loss of 40 models: best 11, median 30, worst 49, 1 parked")


def test_on_a_terminal_it_is_drawn_within_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch, "xterm")
    progress = run_progress("m-sgc:B=1,W=2,lam=27", total=2)
    for name in range(3):
        progress.on_step(f"model-{name}", 1, 0.5, {})
    told = Notice(kind="warning", fields={"text": "look"})
    shown(progress, closed(0, True, False), [told], pause=lambda: None)
    said = screen.getvalue()
    assert "1 of 2 rounds, stragglers: 1 now and 1 survived," in said
    assert "loss: model-0 0.5, model-1 0.5, model-2 0.5" in said
    assert "warning: look" in said.splitlines()[0]
    assert said.endswith("\x1b[?25h"), "the cursor is there again"
    plain = [line.rpartition("\x1b[2K")[2] for line in said.splitlines()]
    assert max(len(line) for line in plain if "\x1b" not in line) < 60


def test_a_terminal_that_cannot_be_drawn_on_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch, "dumb")
    shown(run_progress("gc:s=1", total=1), closed(0, True), pause=lambda: None)
    assert screen.getvalue().startswith("gc:s=1: 1 of 1 rounds, ")
    assert "\x1b" not in screen.getvalue()


def test_force_color_does_not_draw_into_a_file(
    capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown(run_progress("gc:s=1", total=1), closed(0, True), pause=lambda: None)
    assert capsys.readouterr().err.startswith("gc:s=1: 1 of 1 rounds, ")


@pytest.mark.parametrize(
    ("line", "quiet"),
    [
        ("train run.toml --quiet", True),
        ("profile record --quiet", True),
        ("train run.toml -- --quiet", False),
    ],
)
def test_quiet_leaves_warnings_and_is_an_option_before_two_dashes(
    line: str, quiet: bool, capsys: Out
) -> None:
    warning = Notice(kind="warning", fields={"text": "look"})
    with speaking(line.split()):
        shown(run_progress("gc:s=1", total=1), [warning], closed(0, True), pause=lambda: None)
    first, *more = capsys.readouterr().err.splitlines()
    assert first == "warning: look"
    assert len(more) == (0 if quiet else 1)


def test_quiet_is_an_option_of_verbs_and_leaves_errors(capsys: Out) -> None:
    assert main(["scheme", "gc:s=9", "-n", "2", "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("seqgc: ")
    assert main(["scheme", "gc:s=1", "-n", "2", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_in_python_only_a_terminal_shows_a_run(
    capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Notice(kind="warning", fields={"text": "look"})
    shown(RunProgress("gc:s=1", total=1), [told], closed(0, True), pause=lambda: None)
    assert capsys.readouterr() == ("", "")
    screen = terminal(monkeypatch, "xterm")
    shown(RunProgress("gc:s=1", total=1, draws=False), [told], closed(0, True), pause=lambda: None)
    assert not screen.getvalue()
    shown(RunProgress("gc:s=1", total=1), [told], closed(0, True), pause=lambda: None)
    assert "1 of 1 rounds" in screen.getvalue()
    assert "warning: look" in screen.getvalue()


@pytest.mark.parametrize(
    ("after_s", "quiet", "seen"), [(0.0, False, True), (0.0, True, False), (9.0, False, False)]
)
def test_long_work_is_shown_on_a_terminal_unless_it_is_quick_or_quiet(
    after_s: float, quiet: bool, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = terminal(monkeypatch, "xterm")
    with working("begin", quiet=quiet, after_s=after_s) as tell:
        tell("search [red]", 0.25)
    assert ("search [red]" in screen.getvalue()) == seen
    assert ("25 %" in screen.getvalue()) == seen


def test_searches_and_comparisons_show_their_progress_on_a_terminal_unless_told_not_to(
    capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SimpleNamespace(monotonic=count(step=2.0).__next__)  # each step takes two seconds
    monkeypatch.setattr("seqgc.progress.time", slow)
    name, space = "lambda-cnn:workers=4,rounds=4", SearchSpace(families=("gc-rep",))
    trial, calls = Trial(seeds=1, lrs=(8.0,)), list[object]()
    tune(name, space=space)
    compare(name, ["uncoded"], trial=trial)
    assert capsys.readouterr() == ("", "")
    for more in ({"quiet": True}, {"progress": lambda *call: calls.append(call)}, {}):
        screen = terminal(monkeypatch, "xterm")
        tune(name, space=space, **more)  # type: ignore[arg-type]
        assert ("search" in screen.getvalue()) == (not more)
        screen = terminal(monkeypatch, "xterm")
        compare(name, ["uncoded"], trial=trial, **more)  # type: ignore[arg-type]
        assert ("compare" in screen.getvalue()) == (not more)
    assert calls
