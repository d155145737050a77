"""``metrics.csv``: what of it a power cut could take is held, and that is never much."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqgc.ports import Notice
from seqgc.training import JobMetrics
from tests.training.inside import MetricsLog

MOST_HELD = 1000
END = Notice(kind="end", fields={})


def test_losses_are_held_until_the_disk_has_them_and_of_a_long_run_no_more_than_some(
    tmp_path: Path,
) -> None:
    jobs = 2 * MOST_HELD + 500
    new: list[JobMetrics] = []

    def take() -> list[JobMetrics]:
        taken, new[:] = new[:], []
        return taken

    log = MetricsLog(tmp_path / "metrics.csv", metrics=take, warn=pytest.fail)
    for job in range(jobs):
        new.append(JobMetrics(job=job, model="m", step=job, loss=0.5))
        log(END)
        assert log.unwritten[-1:] in ([], [JobMetrics(job=job, model="m", step=job, loss=0.5)])
        assert len(log.unwritten) <= MOST_HELD
        sure = (tmp_path / "metrics.csv").read_bytes()[: log.lasting.size_bytes]
        assert max(0, sure.count(b"\n") - 1) + len(log.unwritten) == job + 1
    log.close()
