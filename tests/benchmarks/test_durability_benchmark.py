"""What it costs the demo that it can be resumed: at most 2 % of its time.

Two runs differ by more than that from one to the next, so one is looked at: the time for which the
master's loop stands still (a line of the journal is on the disk before anything else happens, a
checkpoint is copied), and the processor's time of the thread that writes checkpoints, which the
workers cannot have then.

Of the demo's third run, which deals work, lines of the journal are counted by the processor's time:
there all cores are busy, and the loop waits for one whatever it does. A job of it takes 12 ms of
two cores, so a line's 0.3 ms weighs most there: that part is printed by itself.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from seqgc.cli import main
from seqgc.runs.journal import Journal
from seqgc.runs.snapshots import SnapshotFolder
from tests.training.inside import Checkpointer


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    extra_info: dict[str, float]

    def pedantic(self, target: Callable[[], int], *, rounds: int) -> int: ...


class Timer:
    """Adds up what calls of methods take, by the given clock; one within another counts once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, deals: Callable[[], bool]) -> None:
        self._monkeypatch, self.deals = monkeypatch, deals
        self.dealing_s = 0.0  # of the journal's lines while a run deals
        self._within = threading.local()
        self.seconds: dict[str, float] = {}

    def watch(self, owner: type, name: str, clock: Callable[[], float]) -> None:
        method, key = getattr(owner, name), f"{owner.__name__}.{name}"
        self.seconds[key] = 0.0

        def timed(*args: object, **options: object) -> object:
            if getattr(self._within, "one", False):
                return method(*args, **options)
            self._within.one, began, began_cpu = True, clock(), time.thread_time()
            try:
                return method(*args, **options)
            finally:
                self._within.one = False
                if owner is Journal and self.deals():
                    self.dealing_s += time.thread_time() - began_cpu
                else:
                    self.seconds[key] += clock() - began

        self._monkeypatch.setattr(owner, name, timed)


@pytest.mark.timeout(900)
@pytest.mark.benchmark(group="durability")
def test_the_demo_pays_little_for_being_resumable(
    benchmark: Benchmark,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    timer = Timer(monkeypatch, deals=lambda: any(tmp_path.glob("*-deal-*")))
    timer.watch(Journal, "append", time.perf_counter)
    timer.watch(Checkpointer, "begin", time.perf_counter)
    timer.watch(Checkpointer, "settle", time.perf_counter)
    timer.watch(SnapshotFolder, "write", time.thread_time)
    command = ["demo", "--runs", str(tmp_path), "--json"]
    assert benchmark.pedantic(lambda: main(command), rounds=1) == 0
    facts = json.loads(capsys.readouterr().out)
    seconds = timer.seconds | {"Journal.append while dealing": timer.dealing_s}
    total_s = sum(facts[run]["seconds"] for run in ("uncoded", "coded", "dealt"))
    ratio = sum(seconds.values()) / total_s
    benchmark.extra_info |= {"total_s": total_s, "ratio": ratio} | seconds
    parts = ", ".join(f"{name} {1e3 * each:.1f} ms" for name, each in seconds.items())
    print(f"\n{ratio:.2%} of {total_s:.1f} s: {parts}")
    print(f"of the dealt run by itself: {timer.dealing_s / facts['dealt']['seconds']:.2%}")
    assert all(each > 0 for each in seconds.values()), "something is not looked at"
    assert ratio <= 0.02  # 0.013 on an idle machine
