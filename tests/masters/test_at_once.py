"""Several masters at once: one run has one of them, and runs that nobody named are as many."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.kit import SOAK
from tests.masters.kit import Nursery, outcome
from tests.masters.test_killed import LINE

MASTERS = 8 if SOAK else 3
LONG = [*LINE, "--steps", "100000", "--backend", "local", "--scheme", "uncoded"]


def test_of_eight_masters_of_one_run_one_goes_on(nursery: Nursery, tmp_path: Path) -> None:
    """They are started at once; the last one left is told to stop."""
    begin = [LONG] * MASTERS
    for argvs, refusal in (
        (begin, "must not exist"),
        ([["resume", "run"]] * MASTERS, "no other master"),
    ):
        ends = nursery.masters(argvs, folder=tmp_path, number=signal.SIGTERM)
        refused = [end for end in ends if end.status == 2]
        assert len(refused) == MASTERS - 1, [end.said[-300:] for end in ends]
        for end in refused:
            last = end.said.splitlines()[-1]
            assert last.startswith("seqgc: `run` "), end.said
            assert refusal in last or "can be made" in last, end.said
        (stopped,) = (end for end in ends if end.status != 2)
        assert stopped.status == 143, stopped
        assert outcome(tmp_path / "run")


def test_runs_that_nobody_named_never_collide(nursery: Nursery, tmp_path: Path) -> None:
    named = LINE.index("--run")
    unnamed = [*LINE[:named], *LINE[named + 2 :], "--steps", "1"]
    ends = nursery.masters([unnamed] * MASTERS, folder=tmp_path)
    assert [end.status for end in ends] == [0] * MASTERS, ends
    assert len(list((tmp_path / "runs").iterdir())) == MASTERS
