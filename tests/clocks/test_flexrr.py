"""FlexRR: who computes which piece, what it saves, and what it must not change."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from seqgc import ports, workers
from seqgc.clocks import FlexRR
from seqgc.comparison import compare
from seqgc.errors import ParameterError
from seqgc.master import run
from seqgc.ports import Seen, Task
from seqgc.profiles import ByRound, DelayProfile, Pace, ProfileMeta, SlowPeriods
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import parse_scheme
from seqgc.search import Rehearsal, replay
from seqgc.stragglers import busy_seconds
from seqgc.training import TrainingPlan, train
from seqgc.virtual import Fault, RandomFaults, VirtualBackend
from tests.training.reference import make_model
from tests.training.stale_runs import virtual


def played(
    spec: str,
    pace: Pace,
    *,
    jobs: int = 4,
    gone: int | None = None,
    message_s: float = 0.0,
    rule: ClosingRule = ClosingRule(),  # noqa: B008 (frozen)
) -> list[Seen]:
    """Run a defence in virtual time; worker ``gone`` always fails."""

    def faults(task: Task) -> Fault | None:
        return Fault() if task.worker == gone else None

    seen = list[Seen]()
    defence = parse_scheme(spec, n=pace.n)
    assert isinstance(defence, FlexRR)
    backend = VirtualBackend(pace.n, pace, message_s=message_s, faults=faults)
    run(defence.policy(rule, num_jobs=jobs), backend, observe=seen.append)
    return seen


def seconds(seen: list[Seen]) -> float:
    return sum(each.record.duration_s for each in seen if isinstance(each, ports.Close))


def sent(seen: list[Seen]) -> list[tuple[int, int, int, int]]:
    """Return job, part, piece and worker of each task, in the order in which they were sent."""
    return [
        (task.job, task.cover or 0, task.place, worker)
        for each in seen
        if isinstance(each, ports.Dispatch)
        for worker, tasks in each.assignment.items()
        for task in tasks
    ]


def steady(*rates: float) -> Pace:
    """Return workers with these seconds for a whole batch."""
    return ByRound(latencies_s=np.zeros((1, 1)), rates=np.array([rates]))


def test_helpers_take_the_last_pieces_of_a_part_that_is_behind() -> None:
    seen = played("bsp-rr:pieces=40,ahead=1", steady(4.0, 4.0, 4.0, 40.0))
    givers = defaultdict(list)
    for _, part, piece, worker in sent(seen):
        if part == 3:
            givers[worker].append(piece)
    assert max(givers[3]) < min(min(pieces) for worker, pieces in givers.items() if worker != 3)
    assert {worker for _, part, _, worker in sent(seen) if part != 3} < {0, 1, 2, 3}
    slow_piece_s = 10 / 40
    assert seconds(seen) < 4 * (4 / (3 + 0.1) + slow_piece_s), "all of them at work"


def test_each_piece_is_computed_once_and_each_part_is_one_update() -> None:
    seen = played("flexrr:slack=1,pieces=5", SlowPeriods(n=6, delay=4.0, seed=3).pace(), jobs=8)
    assert Counter((job, part, piece) for job, part, piece, _ in sent(seen)) == {
        (job, part, piece): 1 for job in range(8) for part in range(6) for piece in range(5)
    }
    updates = [each.decoding() for each in seen if isinstance(each, ports.Update)]
    assert sorted((each.job, each.part.index) for each in updates if each.part) == [
        (job, part) for job in range(8) for part in range(6)
    ]
    assert {len(each.terms) for each in updates} == {5}


@pytest.mark.parametrize("slack", [0, 1, 3])
def test_no_part_is_further_ahead_than_the_slack(slack: int) -> None:
    pace = SlowPeriods(n=6, delay=6.0, probability=0.05, seed=1).pace()
    closed, most = 0, 0
    for each in played(f"flexrr:slack={slack},pieces=4,helpers=1", pace, jobs=20):
        closed += isinstance(each, ports.Close)
        if isinstance(each, ports.Dispatch):
            most = max(most, each.round - closed)
    assert most == slack


def test_without_helpers_it_takes_as_long_as_bounded_staleness() -> None:
    slowdown = SlowPeriods(n=8, delay=4.0, probability=0.02, seed=2)
    alone = seconds(played("flexrr:slack=1,helpers=0,ahead=1", slowdown.pace(), jobs=10))
    ssp, backend = parse_scheme("ssp:slack=1", n=8), VirtualBackend(8, slowdown.pace())
    run(ssp.policy(ClosingRule(), num_jobs=10), backend)  # type: ignore[attr-defined]
    assert alone == pytest.approx(backend.now, rel=1e-6)
    assert seconds(played("flexrr:slack=1", slowdown.pace(), jobs=10)) < 0.8 * alone


def test_a_second_task_hides_the_way_of_messages() -> None:
    one, two = (
        seconds(played(f"bsp-rr:ahead={ahead}", steady(4.0, 4.0, 4.0, 4.0), message_s=0.01))
        for ahead in (1, 2)
    )
    assert one == pytest.approx(4 * (1 + 20 * 0.02), rel=0.01), "a round trip for each piece"
    assert two == pytest.approx(4 * (1 + 0.02), rel=0.02), "a round trip for each clock"


def test_others_compute_the_part_of_a_worker_that_always_fails() -> None:
    seen = played("flexrr:slack=1,helpers=1,pieces=8", steady(*[6.0] * 6), jobs=6, gone=2)
    helped = Counter(worker for _, part, _, worker in sent(seen) if part == 2)
    assert len(helped) > 3, "not only its helper"
    assert seconds(seen) < 1.6 * 6


def test_a_piece_that_had_flaws_at_every_worker_is_computed_again() -> None:
    """The flaws were of different models, so that neither a model nor a worker is at fault."""
    policy = FlexRR(n=3, slack=1, pieces=3).policy(ClosingRule(), num_jobs=2)
    out, flawed, now = deque[tuple[int, int, int, int]](), set[int](), 0.0

    def send(actions: Sequence[ports.Action]) -> None:
        for each in actions:
            if isinstance(each, ports.Dispatch):
                at, who = each.round, tuple(each.assignment)
                left_at = (now,) * len(who)
                left = ports.Dispatched(
                    round=at, attempt=each.attempt, workers=who, left_at=left_at
                )
                assert not policy.on(left)
                out.extend((at, w, each.attempt, each.assignment[w][0].slot) for w in who)

    send(policy.start())
    while not policy.done:
        if not out:
            assert policy.wake_at < np.inf, "nothing will ever happen"
            now = policy.wake_at
            send(policy.on(ports.Tick(at=now)))
            continue
        at, worker, attempt, slot = out.popleft()
        event: ports.Event = ports.Arrival(
            round=at, worker=worker, attempt=attempt, at=now, results={}
        )
        if (at, slot) == (0, 0) and worker not in flawed:
            flawed.add(worker)
            flaws = {f"m{worker}": ports.Flaw(kind="raised", why="no memory")}
            event = ports.Failure(
                round=at, worker=worker, attempt=attempt, at=now, reason="flaws", flaws=flaws
            )
        send(policy.on(event))
    assert flawed == {0, 1, 2}


@pytest.mark.parametrize("seed", [0, 1])
def test_bsp_rr_trains_the_weights_of_bsp(seed: int, tmp_path: Path) -> None:
    def trained(spec: str) -> dict[str, torch.Tensor]:
        adam = partial(torch.optim.Adam, lr=0.01)
        models = [make_model(f"m{i}", seed=i, batch_size=24, optimizer=adam) for i in range(2)]
        plan = TrainingPlan(models=models, scheme=spec, steps=6, precision="float64")
        faults = RandomFaults(seed=seed, fail=0.1, die=0.02)
        done = train(plan, virtual(seed, faults=faults), run=tmp_path / spec.partition(":")[0])
        return {
            f"{name}.{key}": value
            for name, module in done.modules.items()
            for key, value in module.state_dict().items()
        }

    bsp, bsp_rr = trained("bsp"), trained("bsp-rr:pieces=4")
    assert bsp.keys() == bsp_rr.keys()
    for name, value in bsp.items():
        torch.testing.assert_close(bsp_rr[name], value, rtol=1e-12, atol=1e-12)


def test_pieces_without_points_are_left_out() -> None:
    flexrr = FlexRR(n=4, slack=1, pieces=20)
    assert flexrr.fitted(1, batch=26) == FlexRR(n=4, slack=1, pieces=6)
    assert flexrr.fitted(1, batch=3).pieces == 1
    assert flexrr.fitted(1, batch=400) == flexrr


def test_functions_that_do_not_stay_are_refused(tmp_path: Path) -> None:
    plan = TrainingPlan(models=[make_model()], scheme="flexrr:slack=1", steps=2)
    with workers.lambda_local(2) as crew, pytest.raises(ParameterError) as caught:
        train(plan, crew, run=tmp_path / "run")
    assert all(
        word in str(caught.value) for word in ("lambda-local", "keep its workers", "--resident")
    )


def test_recorded_delays_must_be_speeds_of_workers_that_stay() -> None:
    times = 1 + np.random.default_rng(0).pareto(2.0, (12, 6))
    profile = DelayProfile.from_times(times, meta=ProfileMeta(base_load=1 / 6))
    setting = Setting(scheme=parse_scheme("flexrr:slack=1", n=6))
    with pytest.raises(ParameterError, match=r"latency.*flexrr:slack=1.*speed"):
        replay(setting, Rehearsal(profile=profile))
    speeds = Rehearsal(profile=profile, recorded="speed")
    found = replay(setting, speeds)
    least_s = busy_seconds(speeds.pace(jobs_per_round=1), 12)
    assert 1 <= found.runtime_s / least_s < 1.4
    with pytest.raises(ParameterError, match=r"flexrr:slack=1.*resident"):
        compare(speeds, ["flexrr:slack=1"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("flexrr", "slack"),
        ("flexrr:slack=-1", "slack.*-1"),
        ("flexrr:slack=1,pieces=0", "pieces.*0"),
        ("flexrr:slack=1,trigger=-0.1", r"trigger.*-0\.1"),
        ("bsp-rr:ahead=0", "ahead.*0"),
    ],
)
def test_what_is_no_rule_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        parse_scheme(spec, n=4)


def test_the_state_of_another_run_is_refused() -> None:
    policy = FlexRR(n=2, slack=0).policy(ClosingRule(), num_jobs=3)
    other = FlexRR(n=3, slack=0).policy(ClosingRule(), num_jobs=3)
    with pytest.raises(ParameterError, match="2 parts"):
        policy.restore(other.snapshot())
    assert np.all(np.array(policy.snapshot()["completed"]) == 0)
