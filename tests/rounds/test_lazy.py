"""Assignments that are made when somebody looks at them."""

from __future__ import annotations

import numpy as np

from seqgc.rounds._lazy import ByWorker
from seqgc.schemes import Assignment


class Counted(int):
    """A worker's number that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_whom_to_ask_for_what_is_found_without_looking_through_all_workers() -> None:
    """A pass over n workers compares some n numbers, not n * n / 2."""
    n = 500
    everyone = Assignment(np.ones(n, dtype=np.bool_), lambda _: ())
    tasks = ByWorker(everyone, [Counted(worker) for worker in range(0, n, 2)])
    assert [tasks[worker] for worker in range(0, n, 2)] == [()] * (n // 2)
    assert len(tasks) == n // 2
    assert Counted.compared <= n
    assert 1 not in tasks
