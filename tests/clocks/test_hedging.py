"""Hedged requests: late tasks are copied, and the first answer counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from seqgc import ports
from seqgc.clocks import Hedge
from seqgc.errors import ParameterError
from seqgc.master import run
from seqgc.ports import FloatArray, Seen, Task
from seqgc.profiles import ByRound
from seqgc.rounds import ClosingRule
from seqgc.schemes import parse_scheme
from seqgc.virtual import Fault, VirtualBackend


def played(
    hedge: Hedge,
    times: FloatArray,
    *,
    gone: int | None = None,
    bad: int | None = None,
    rule: ClosingRule = ClosingRule(),  # noqa: B008 (frozen)
) -> list[Seen]:
    """Run as many jobs as there are rows of ``times`` (s).

    Worker ``gone`` always fails; worker ``bad`` fails at parts of other workers.
    """

    def faults(task: Task) -> Fault | None:
        is_copy = any(item.slot != task.worker for item in task.items)
        return Fault() if task.worker == gone or (task.worker == bad and is_copy) else None

    seen = list[Seen]()
    policy = hedge.policy(rule, num_jobs=len(times))
    backend = VirtualBackend(hedge.n, ByRound(latencies_s=times, rates=[[0.0]]), faults=faults)
    run(policy, backend, observe=seen.append)
    return seen


def seconds(seen: list[Seen]) -> list[float]:
    return [each.record.duration_s for each in seen if isinstance(each, ports.Close)]


def asked(seen: list[Seen]) -> Counter[tuple[int, int]]:
    """Return how often each part of each job was sent to a worker."""
    tasks = [m for d in seen if isinstance(d, ports.Dispatch) for m in d.assignment.values()]
    return Counter((task.job, task.place or task.cover) for each in tasks for task in each)


def test_a_late_task_is_copied_once_and_the_first_answer_counts() -> None:
    times = np.ones((3, 4))
    times[1, 2] = times[2, 2] = 50.0
    times[2, 0] = times[2, 1] = 1.5
    seen = played(Hedge(n=4, q=0.5, factor=2.0), times)
    assert seconds(seen)[:2] == [1.0, 3.0], "2 s until it is late, and 1 s for the copy"
    assert {part for part, count in asked(seen).items() if count > 1} == {(1, 2), (2, 2)}
    assert max(asked(seen).values()) == 2
    updates = [each.decoding() for each in seen if isinstance(each, ports.Update)]
    assert sorted((each.job, each.part.index) for each in updates if each.part) == [
        (job, part) for job in range(3) for part in range(4)
    ]
    assert any(isinstance(each, ports.Cancel) and each.workers == (2,) for each in seen)


def test_nothing_is_sent_twice_while_nobody_is_late() -> None:
    seen = played(Hedge(n=4, factor=1.5), np.ones((5, 4)))
    assert set(asked(seen).values()) == {1}
    assert seconds(seen) == [1.0] * 5


def test_the_part_of_a_worker_that_is_gone_is_done_by_another() -> None:
    seen = played(Hedge(n=3), np.ones((30, 3)), gone=1)
    assert len(seconds(seen)) == 30
    assert float(np.mean(seconds(seen))) < 2.5, "its own second, or that of the failure, and one"


def test_a_late_task_whose_copy_fails_is_copied_again() -> None:
    times = np.ones((2, 3))
    times[1] = 50.0, 1.0, 6.0
    seen = played(Hedge(n=3, q=0.5, factor=2.0), times, bad=1)
    assert seconds(seen)[1] < 15.0, "worker 2 does its own part in 6 s, and then the copy"


def test_it_waits_for_all_until_it_knows_how_long_tasks_take() -> None:
    times = np.ones((1, 3))
    times[0, 1] = 9.0
    assert seconds(played(Hedge(n=3), times)) == [9.0]


def test_hedging_takes_the_second_fastest_of_rare_stragglers() -> None:
    rng = np.random.default_rng(0)
    times = 1 + rng.random((200, 16)) / 10
    times[rng.random((200, 16)) < 0.01] *= 20
    seen = played(Hedge(n=16), times)
    assert float(np.mean(seconds(seen)[1:])) < 2.4, "1.1 until a task is late, and 1.1 for its copy"
    assert float(np.mean(times.max(axis=1))) > 3.5
    assert sum(asked(seen).values()) < 1.15 * 200 * 16


@pytest.mark.parametrize(
    ("spec", "message"),
    [("hedge:q=1.0", "q.*0 < q < 1.*1.0"), ("hedge:factor=0", "factor.*> 0.*0")],
)
def test_what_is_no_rule_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        parse_scheme(spec, n=4)
