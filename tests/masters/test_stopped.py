"""Real masters are told to stop at any instant: what they leave can be gone on with.

Signals come once or twice, after so many seconds or at a call that makes files last; a terminal is
closed; what a master says cannot be written. In ``make test`` a few instants, with
``SEQGC_SOAK=1`` a hundred of each kind, start-up and the last checkpoint included.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.kit import SOAK
from tests.masters.kit import End, Nursery, outcome
from tests.masters.test_killed import LINE, new

INSTANTS = 100 if SOAK else 1
SPECS = ["uncoded", "gc-rep:s=1"]
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
ENDS: dict[str, dict[str, object]] = {
    "SIGINT": {"number": signal.SIGINT},
    "SIGTERM": {"number": signal.SIGTERM},
    "SIGHUP": {"number": signal.SIGHUP},
    "twice": {"number": signal.SIGINT, "times": 2},
    "terminal": {"number": signal.SIGHUP, "terminal": True},
    "full": {"number": signal.SIGTERM, "err": "/dev/full"},
}
pytestmark = pytest.mark.timeout(0 if SOAK else 180)


@pytest.mark.parametrize("kind", ENDS if SOAK else ["twice", "terminal"])
def test_a_master_that_is_told_to_stop_leaves_a_run_that_goes_on(
    kind: str, nursery: Nursery, tmp_path: Path
) -> None:
    rng = np.random.default_rng([1, *kind.encode()])
    faults, seconds = list[str](), list[float]()
    whole: dict[str, tuple[End, dict[str, object]]] = {}
    for spec in SPECS[: 2 if SOAK else 1]:
        end = nursery.master(*LINE, "--scheme", spec, folder=(folder := new(tmp_path / spec[:2])))
        assert (end.status, end.left) == (0, []), end.said
        whole[spec] = end, outcome(folder / "run")
    for instant in range(INSTANTS):
        spec = SPECS[instant // 2 % len(whole)]
        end, expected = whole[spec]
        at: dict[str, object] = {"after_s": float(rng.uniform(0, end.seconds))}
        if instant % 2 == 0 and kind != "terminal":
            at = {"call": int(rng.integers(end.calls)), "when": float(rng.random())}
        folder = new(tmp_path / str(instant))
        line = [*LINE, "--scheme", spec]
        try:
            stopped = nursery.master(*line, folder=folder, **at, **ENDS[kind])
            assert not stopped.left, stopped
            assert not stopped.stuck, stopped
            assert "Traceback" not in stopped.said, stopped.said
            # Or it had ended before, or had no handler yet, or none any more: for a shell the same.
            number = signal.Signals(int(str(ENDS[kind]["number"])))
            assert stopped.status in {STATUS[number], 0, -number}, stopped
            if stopped.status:
                seconds.append(stopped.seconds_to_end)
            run = folder / "run"
            if not (run / "config.toml").exists():
                assert stopped.status, stopped
                shutil.rmtree(run, ignore_errors=True)
                nursery.master(*line, folder=folder)
            elif stopped.status:
                begun, sent = _on_record(run)
                newest = [int(p.name) for p in run.glob("checkpoints/[0-9]*")]
                assert not sent or newest, "there is no checkpoint"
                assert max(newest, default=0) >= begun - 1, f"{newest}, and {begun} rounds"
                after = nursery.master("resume", "run", folder=folder)
                assert (after.status, after.left) == (0, []), f"{after.said}\n{stopped}"
            assert outcome(run) == expected
        except AssertionError as error:
            faults.append(f"{kind}, {spec}, {at}: {error}")
            print(faults[-1], flush=True)  # long before the end of a hundred
        finally:
            shutil.rmtree(folder)
    if SOAK:
        worst = ", ".join(f"{s:.3f}" for s in np.quantile(seconds, [0.5, 0.9, 0.99, 1.0]))
        load = os.getloadavg()[0]
        print(f"{kind}: {len(seconds)} of {INSTANTS}, median, 90 %, 99 %, most: {worst} s ({load})")
    assert not faults, "\n".join(faults)


def _on_record(run: Path) -> tuple[int, bool]:
    """Return how many rounds a journal has, and whether tasks were sent."""
    journal = run / "journal.jsonl"
    text = journal.read_text() if journal.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # a line may be torn, as by a signal within it
    kinds = [json.loads(line)["kind"] for line in whole.splitlines()]
    return kinds.count("round"), "round" in kinds
