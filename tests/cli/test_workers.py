"""``seqgc workers RUN COUNT``: processes that leave a run and return, and what that changes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from distributed import LocalCluster

from seqgc.backends import dask_, local
from seqgc.cli import main
from seqgc.ports import Close, Seen
from seqgc.progress import RunProgress
from seqgc.runs import read_run
from seqgc.testing import eventually
from tests.backends.dask import warm as warm
from tests.cli.kit import SGD, Out, events, signalled, weights
from tests.cli.refused import refused
from tests.kit import SOAK
from tests.test_commands_in_docs import lines

TRAIN = ["train", "--models", "1", "--batch-size", "64", *SGD, "-n", "4"]
STEPS = 60
CHANGES = {3: 3, 8: 1, 20: 4}
"""How many are to work once a round has closed."""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "_ASK_EVERY_S", 0.01)


@contextmanager
def after_rounds(act: Callable[[int], object]) -> Iterator[None]:
    """Call ``act`` with the number of each round that closes, in a run of `main`."""
    show = RunProgress.__call__

    def see(self: RunProgress, seen: Seen) -> None:
        show(self, seen)
        if isinstance(seen, Close):
            act(seen.record.round)

    with mock.patch.object(RunProgress, "__call__", see):
        yield


def workers(count: int | str, run: str = "r") -> int:
    """Run the verb as another process would: where signals are not handled."""
    status = list[int]()
    thread = threading.Thread(target=lambda: status.append(main(["workers", run, str(count)])))
    thread.start()
    thread.join()
    return status[0]


@pytest.mark.parametrize("spec", ["deal", "ssp:slack=2", "flexrr:slack=1,pieces=4", "gc-rep:s=1"])
def test_workers_leave_and_return_and_nothing_is_lost(spec: str, capsys: Out) -> None:
    train = [*TRAIN, "--scheme", spec, "--steps", str(STEPS)]

    def change(closed: int) -> None:
        if closed in CHANGES:
            assert workers(CHANGES[closed]) == 0

    with after_rounds(change):
        assert main([*train, "--run", "r"]) == 0
    assert [
        (each["present"], each["of"]) for each in events("r") if each["event"] == "workers"
    ] == [(count, 4) for count in CHANGES.values()]
    assert "3 of 4 workers" in capsys.readouterr().err
    run = read_run("r")
    assert run.outcome == "finished"
    assert [each for each in events("r") if each["event"] == "failure"] == []
    assert run.jobs()["job"].tolist() == list(range(STEPS))
    if spec in ("deal", "gc-rep:s=1"):
        assert main([*train, "--run", "undisturbed"]) == 0
        np.testing.assert_allclose(weights("r"), weights("undisturbed"), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("spec", ["ssp:slack=2", "gc-rep:s=1"])
def test_dask_workers_leave_and_return_even_if_all_are_gone_for_a_while(
    spec: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_, "_LOOK_EVERY_S", 0.05)
    train = [*TRAIN, "--scheme", spec, "--steps", str(STEPS)]
    with LocalCluster(
        n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:

        def scale(closed: int) -> None:
            if (count := {**CHANGES, 14: 0}.get(closed)) is not None:
                cluster.scale(count)
                eventually(lambda: len(cluster.scheduler.workers) == count, f"{count} workers")
            if count == 0:
                threading.Thread(target=cluster.scale, args=[1]).start()

        dask = ["--backend", "dask", "--dask-scheduler", cluster.scheduler_address]
        with after_rounds(scale):
            assert main([*train, *dask, "--run", "r"]) == 0
    assert read_run("r").jobs()["job"].tolist() == list(range(STEPS))
    if spec == "gc-rep:s=1":
        assert main([*train, "--run", "undisturbed"]) == 0
        np.testing.assert_allclose(weights("r"), weights("undisturbed"), rtol=1e-10, atol=1e-12)
    capsys.readouterr()


def test_the_page_shows_what_can_be_typed(capsys: Out) -> None:
    page = Path(__file__).parents[2] / "docs" / "elastic.md"
    typed = [words for words in lines(page) if words[1] == "workers"]
    assert [words[3] for words in typed] == ["3", "8"]

    def type_next(closed: int) -> None:
        if closed in (3, 20):
            assert workers(*reversed(typed.pop(0)[2:])) == 0

    train = [*TRAIN, "-n", "8", "--scheme", "uncoded", "--steps", str(STEPS)]
    with after_rounds(type_next):
        assert main([*train, "--run", "runs/first"]) == 0
    assert [each["present"] for each in events("runs/first") if each["event"] == "workers"] == [
        3,
        8,
    ]
    capsys.readouterr()


def test_a_number_stays_when_the_master_ends(capsys: Out) -> None:
    train = [*TRAIN, "--scheme", "deal", "--steps", str(STEPS), "--run", "r"]
    with (
        after_rounds(lambda closed: closed == 3 and workers(1)),
        signalled(signal.SIGTERM, after=12),
    ):
        assert main(train) == 128 + signal.SIGTERM
    assert workers(2) == 0
    assert "2 of 4 workers, when the run continues: seqgc resume r" in capsys.readouterr().out
    assert main(["resume", "r"]) == 0
    present = [each["present"] for each in events("r") if each["event"] == "workers"]
    assert present == [1, 2]
    capsys.readouterr()
    assert refused(capsys, "workers", "r", "3") == "seqgc: `run` must not be finished; got 'r'\n"


@pytest.mark.skipif(not SOAK, reason="SEQGC_SOAK=1 changes the number after every round")
def test_another_number_after_every_round_harms_no_run(capsys: Out) -> None:
    chance = np.random.default_rng(7)
    train = [*TRAIN, "--scheme", "gc-rep:s=1", "--steps", str(STEPS)]
    with after_rounds(lambda _: workers(int(chance.integers(1, 5)))):
        assert main([*train, "--run", "r"]) == 0
    assert main([*train, "--run", "undisturbed"]) == 0
    np.testing.assert_allclose(weights("r"), weights("undisturbed"), rtol=1e-10, atol=1e-12)
    capsys.readouterr()


def test_a_number_that_cannot_be_and_a_run_on_a_cluster_are_refused(capsys: Out) -> None:
    train = [*TRAIN, "--scheme", "uncoded", "--steps", "9", "--run", "r"]
    with signalled(signal.SIGTERM, after=2):
        assert main(train) == 128 + signal.SIGTERM
    capsys.readouterr()
    for count, rule in (("0", "`count` must be an integer >= 1"), ("5", "<= 4"), ("x", "'x'")):
        assert rule in refused(capsys, "workers", "r", count)
    config = Path("r/config.toml")
    config.write_text(config.read_text().replace('backend = "local"', 'backend = "dask"'))
    assert "`run` must be a run on local processes; got 'r, on dask'" in refused(
        capsys, "workers", "r", "1"
    )
    Path("empty").mkdir()
    assert "`run` must be the folder of a run" in refused(capsys, "workers", "empty", "1")
