"""Real masters are told to stop at any instant: what they leave can be gone on with.

Signals come once, or twice (at once, or 0.05 to 0.3 s later, when the second may end the master in
the middle of its last checkpoint), after some seconds or at a call that makes files last; a
terminal is closed. In ``make test`` a few instants, with ``SEQGC_SOAK=1`` a hundred of each kind,
start-up and the last checkpoint included, in turns over schemes and backends; then the last
checkpoint must also be on the disk within a second of a single signal.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.kit import SOAK, interrupts
from tests.masters.kit import End, Nursery, outcome
from tests.masters.test_killed import LINE, new

INSTANTS = 100 if SOAK else 1
CELLS = [(spec, kind) for spec in ("uncoded", "gc-rep:s=1") for kind in ("local", "lambda-local")]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
ENDS: dict[str, dict[str, object]] = {
    **{each.name: {"number": each} for each in SIGNALS},
    **{f"{each.name} twice": {"number": each, "times": 2} for each in SIGNALS},
    "terminal": {"number": signal.SIGHUP, "terminal": True},
}
CHECKPOINT_S = 1.0
pytestmark = pytest.mark.timeout(0 if SOAK else 180)


@pytest.mark.parametrize("kind", ENDS if SOAK else ["SIGINT twice", "terminal"])
def test_a_master_that_is_told_to_stop_leaves_a_run_that_goes_on(
    kind: str, nursery: Nursery, tmp_path: Path
) -> None:
    rng = np.random.default_rng([1, *kind.encode()])
    faults, ends, to_checkpoint = list[str](), list[End](), list[float]()
    whole: dict[tuple[str, str], tuple[End, dict[str, object]]] = {}
    for instant in range(INSTANTS):
        cell = CELLS[instant // 2 % len(CELLS)]
        line = [*LINE, "--scheme", cell[0], "--backend", cell[1]]
        if cell not in whole:
            end = nursery.master(*line, folder=(folder := new(tmp_path / f"whole {len(whole)}")))
            assert (end.status, end.left) == (0, []), end.said
            whole[cell] = end, outcome(folder / "run")
        end, expected = whole[cell]
        at = _at(rng, kind, end)
        folder = new(tmp_path / str(instant))
        try:
            ends.append(nursery.master(*line, folder=folder, **at, **ENDS[kind]))
            waits = _ended(ends[-1], ENDS[kind], folder / "run")
            to_checkpoint += waits
            assert not SOAK or max(waits, default=0.0) <= CHECKPOINT_S, f"{waits}, {ends[-1]}"
            if ends[-1].status:
                again = line
                if (folder / "run" / "config.toml").exists():
                    again = ["resume", "run"]
                else:
                    shutil.rmtree(folder / "run", ignore_errors=True)
                after = nursery.master(*again, folder=folder)
                assert (after.status, after.left) == (0, []), f"{after.said}\n{ends[-1]}"
            assert outcome(folder / "run") == expected
        except AssertionError as error:
            faults.append(f"{kind}, {cell}, {at}: {error}")
            print(faults[-1], flush=True)  # long before the end of a hundred
        finally:
            shutil.rmtree(folder)
    if SOAK:
        assert sum(end.status != 0 for end in ends) > INSTANTS // 10, "all had ended before"
        saved = [seconds for seconds in to_checkpoint if seconds > 0]  # or there was nothing to add
        _say(f"{kind}, to the checkpoint", saved)
        _say(f"{kind}, to the end", [end.seconds_to_end for end in ends if end.status > 0])
    assert not faults, "\n".join(faults)


def _at(rng: np.random.Generator, kind: str, whole: End) -> dict[str, object]:
    """Draw when a master is to be hit, of a run that takes so long."""
    at: dict[str, object] = {"after_s": float(rng.uniform(0, whole.seconds))}
    if rng.random() < 0.5 and kind != "terminal":
        at = {"call": int(rng.integers(whole.calls)), "when": float(rng.random())}
    if "twice" in kind and rng.random() < 0.5:
        at["gap_s"] = float(rng.uniform(0.05, 0.3))
    return at


def _ended(end: End, how: dict[str, object], run: Path) -> list[float]:
    """Look at what a signal has left; return after how many seconds the last checkpoint was there.

    That is less than none if there had been nothing to add.
    """
    assert not end.left, end
    assert not end.stuck, end
    assert "Traceback" not in end.said, end.said
    # Or it had ended before; or had not begun to listen, as the interpreter had not.
    number, twice = int(str(how["number"])), how.get("times") == 2
    killed = {-number} if twice or not run.exists() else set()
    assert end.status in {128 + number, 0} | killed, end
    if end.status <= 0 or twice:
        return []
    begun, sent = _on_record(run)
    newest = [int(p.name) for p in run.glob("checkpoints/[0-9]*")]
    assert not sent or newest, "there is no checkpoint"
    assert max(newest, default=0) >= begun - 1, f"{newest}, and {begun} rounds"
    states = [path.stat() for path in run.glob("checkpoints/[0-9]*/state.json")]
    return [max(max(at.st_mtime, at.st_ctime) for at in states) - end.hit_at] if states else []


def _say(what: str, seconds: list[float]) -> None:
    worst = ", ".join(f"{s:.3f}" for s in np.quantile(seconds, [0.5, 0.9, 0.99, 1.0]))
    print(f"{what}: median, 90 %, 99 %, most of {len(seconds)}: {worst} s ({os.getloadavg()[0]})")


def test_whoever_ignores_ctrl_c_can_stop_a_master_and_be_told_so(tmp_path: Path) -> None:
    """What a shell runs in the background ignores it, the tests and all masters there too."""
    line = [*LINE, "--scheme", "uncoded"]
    with interrupts(signal.SIG_IGN):
        nursery = Nursery()
        try:
            whole = nursery.master(*line, folder=(folder := new(tmp_path / "whole")))
            assert whole.status == 0, whole.said
            expected = outcome(folder / "run")
            last = {"call": whole.calls - 1}
            for number in SIGNALS if SOAK else SIGNALS[:1]:
                folder = new(tmp_path / number.name)
                stopped = nursery.master(*line, folder=folder, number=number, **last)
                assert stopped.status == 128 + number, stopped
                assert "continue with: seqgc resume run" in stopped.said, stopped.said
                assert nursery.master("resume", "run", folder=folder).status == 0
                assert outcome(folder / "run") == expected
        finally:
            nursery.close()


def _on_record(run: Path) -> tuple[int, bool]:
    """Return how many rounds a journal has, and whether tasks were sent."""
    journal = run / "journal.jsonl"
    text = journal.read_text() if journal.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # a line may be torn, as by a signal within it
    kinds = [json.loads(line)["kind"] for line in whole.splitlines()]
    return kinds.count("round"), "round" in kinds
