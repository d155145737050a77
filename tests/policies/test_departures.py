"""Many workers leave at once, and some come back: the others do their work, spread evenly."""

from __future__ import annotations

import numpy as np
import pytest

from seqgc import master
from seqgc.ports import Close, Seen, Task
from seqgc.profiles import ByTime
from seqgc.rounds import ClosingRule, Setting, policy_of
from seqgc.schemes import parse_scheme
from seqgc.virtual import Fault, VirtualBackend

ANY_CAN = [
    "bsp",
    "ssp:slack=1",
    "asp",
    "hedge",
    "flexrr:slack=1,pieces=4",
    "bsp-rr:pieces=4",
    "deal",
    "asp-dds",
    "antdt-nd-asp",
]
"""Defences in which any worker can do the work of any other."""


def clocks_s(
    spec: str,
    n: int,
    *,
    left: int,
    jobs: int,
    gone: tuple[int, int] = (5, 10**6),
    greets: bool = False,
) -> list[float]:
    """Return the seconds between two closes; a clock of all workers takes 1 s.

    All workers but the first ``left`` ones fail, from the first job in ``gone`` to the second. If
    one ``greets``, it answers tasks without work all the same.
    """
    closed = list[float]()

    def faults(task: Task) -> Fault | None:
        is_gone = task.worker >= left and gone[0] <= len(closed) < gone[1]
        is_gone &= not greets or len(task.items) > 0
        return Fault(share=0.0) if is_gone else None

    def see(seen: Seen) -> None:
        if isinstance(seen, Close):
            closed.append(backend.now)

    pace = ByTime(rates=np.full((1, n), float(n)), width_s=1e9)
    backend = VirtualBackend(n, pace, faults=faults, message_s=0.001)
    setting = Setting(scheme=parse_scheme(spec, n=n), rule=ClosingRule(timeout_s=60.0))
    master.run(policy_of(setting, num_jobs=jobs), backend, observe=see)
    assert len(closed) == jobs
    return np.diff(closed).tolist()


@pytest.mark.parametrize("spec", ANY_CAN)
def test_three_of_eight_workers_share_the_work_of_all(spec: str) -> None:
    seconds = clocks_s(spec, 8, left=3, jobs=40)
    assert np.mean(seconds[20:]) <= 1.15 * 8 / 3


@pytest.mark.parametrize("spec", ANY_CAN)
def test_a_run_ends_though_all_but_eight_of_64_workers_leave_at_once(spec: str) -> None:
    assert np.mean(clocks_s(spec, 64, left=8, jobs=16)[10:]) < 1.15 * 64 / 8


@pytest.mark.parametrize("spec", ANY_CAN)
def test_workers_that_come_back_get_their_work_back(spec: str) -> None:
    seconds = clocks_s(spec, 8, left=3, jobs=90, gone=(5, 20))
    assert np.mean(seconds[-10:]) < 1.2, "as fast as before they left"


@pytest.mark.parametrize("spec", ANY_CAN)
def test_workers_that_greet_and_fail_all_work_end_no_run(spec: str) -> None:
    """No piece is to blame for having been with each of them once."""
    assert np.mean(clocks_s(spec, 40, left=1, jobs=10, greets=True)[-3:]) < 1.15 * 40
