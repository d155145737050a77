"""A master that has lost its lock, and is replaced, leaves the run to that one.

It happens to one whose disk, or whose terminal, has kept it waiting: the next one is at work, or at
the end, when it goes on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seqgc import workers
from seqgc.errors import StoreError
from seqgc.ports import Dispatch, Observer, Seen
from seqgc.training import TrainingPlan, resume, train
from tests.kit import SOAK, system_calls
from tests.simulation.seams import checkpoints_at_once
from tests.training.reference import make_model
from tests.training.test_adaptive import replayed
from tests.training.test_resume import outcome, times

N = 4
EVERY = 1 if SOAK else 127


class Disk:
    """Stands for ``os`` where files are made to last: at the k-th fsync another one takes over.

    The k-th of those since the first tasks left. The next master is at its end when it is done.
    """

    def __init__(self, run: Path, at: int) -> None:
        self._run, self._at, self.calls, self.began = run, at, 0, False
        self.left: dict[Path, bytes] | None = None  # the files of the run, once it has ended

    def __getattr__(self, name: str) -> Callable[..., object]:
        return getattr(os, name)  # type: ignore[no-any-return]

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)
        if not self.began:
            return
        if self.calls == self._at:
            self.take_over()
        self.calls += 1

    def take_over(self) -> None:
        self.began = False
        (self._run / "lock").unlink()  # as if it held nobody back
        resume(self._run, plan(), crew())
        self.left = files(self._run)


def plan() -> TrainingPlan:
    models = [make_model(f"m{i}", seed=i, batch_size=12) for i in range(2)]
    return TrainingPlan(
        models=models, scheme="gc-rep:s=1", jobs_per_round=1, steps=4, checkpoint_every_s=1e-9
    )


def crew() -> workers.WorkerSet:
    return workers.custom(N, replayed(times()[:, :N]))


def files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def end_of(run: Path, observe: Observer) -> BaseException | None:
    try:
        train(plan(), crew(), run=run, observers=[observe])
    except (StoreError, KeyboardInterrupt) as error:
        return error
    return None


@contextmanager
def on(disk: Disk) -> Iterator[None]:
    with checkpoints_at_once(time), system_calls(disk):
        yield


@pytest.mark.parametrize("interrupted", [False, True])
def test_whatever_kept_it_waiting_nothing_of_the_next_ones_is_touched(
    interrupted: bool, tmp_path: Path
) -> None:
    """At any fsync, those of the end and of the trained weights included."""
    expected = outcome(train(plan(), crew(), run=tmp_path / "expected").run)
    taken = 0
    for at in range(interrupted, 10**6, EVERY if interrupted or SOAK else 2 * EVERY):
        run = tmp_path / str(at)
        disk = Disk(run, at)

        def observe(seen: Seen, disk: Disk = disk) -> None:
            if isinstance(seen, Dispatch):
                if interrupted and seen.round == 3:
                    raise KeyboardInterrupt
                disk.began |= disk.left is None

        with on(disk):
            error = end_of(run, observe)
        if disk.left is None:  # it has ended before it was to be replaced
            break
        taken += 1
        said = f"{error}; {'; '.join(getattr(error, '__notes__', []))}"
        assert said.count("master 2 has taken the run over") == 1, said
        assert "continue with" not in said
        assert outcome(run) == expected, at
        now = files(run)
        logs = {run / name for name in ("journal.jsonl", "events.jsonl")}  # it may add a line
        changed = {path for path in now | disk.left if now.get(path) != disk.left.get(path)}
        assert {path for path in changed if path.suffix != ".tmp"} <= logs  # its own, gone by now
        assert not any(path.suffix == ".tmp" for path in now)
        told = map(json.loads, (run / "events.jsonl").read_text().splitlines())
        assert [each["outcome"] for each in told if each["event"] == "end"] == ["finished"]
    assert taken > 1


def test_one_that_was_stopped_between_two_rounds_takes_no_checkpoint(tmp_path: Path) -> None:
    """Not even one that has become due meanwhile."""
    expected = outcome(train(plan(), crew(), run=tmp_path / "expected").run)
    disk = Disk(tmp_path / "run", -1)

    class Stopped:
        def on_step(self, *_: object) -> None:
            if disk.left is None:
                disk.take_over()

    with on(disk), pytest.raises(StoreError, match="master 2 has taken the run over"):
        train(plan(), crew(), run=tmp_path / "run", callbacks=[Stopped()])
    assert {*files(tmp_path / "run")} == {*(disk.left or ())}
    assert outcome(tmp_path / "run") == expected


def test_a_run_that_is_moved_away_ends_there_and_leaves_none_behind(tmp_path: Path) -> None:
    expected = outcome(train(plan(), crew(), run=tmp_path / "expected").run)
    run, moved = tmp_path / "run", tmp_path / "moved"

    def observe(seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.round == 2 and run.exists():
            run.rename(moved)

    with pytest.raises(StoreError, match=r"run has been moved or removed; its master stops$"):
        train(plan(), crew(), run=run, observers=[observe])
    assert not files(run), "a folder that looks like a run"
    resume(moved, plan(), crew())
    assert outcome(moved) == expected
