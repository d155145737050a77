"""What all controllers have in common: names, exactness, checkpoints."""

from __future__ import annotations

import importlib.metadata
import json
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqgc import control
from seqgc.control import LBBSP, AntDTDD, AntDTND, Controlled
from seqgc.errors import ParameterError
from seqgc.master import run
from seqgc.ports import Dispatch, Seen
from seqgc.profiles import ByTime
from seqgc.rounds import ClosingRule
from seqgc.schemes import Balanced, parse_scheme
from seqgc.virtual import RandomFaults, VirtualBackend
from tests.control.sums import Sums, summed

SPECS = [
    "lb-bsp",
    "lb-bsp:least=2,most=30",
    "antdt-nd:lam=1.2,trans=2.0,per=4.0,act=1.0,back=0.5",
    "antdt-dd:most=9,probe=2",
]
N, BATCH = 4, 50
RULE = ClosingRule(max_attempts=5)


def defence(spec: str, n: int = N) -> Controlled:
    parsed = parse_scheme(spec, n=n)
    assert isinstance(parsed, Controlled)
    return parsed


@pytest.mark.parametrize("spec", [*SPECS, "antdt-nd", "antdt-dd"])
def test_a_defence_is_what_its_spec_and_its_repr_say(spec: str) -> None:
    parsed = defence(spec)
    assert parsed.spec == spec
    assert eval(repr(parsed), vars(control)) == parsed == pickle.loads(pickle.dumps(parsed))
    assert (parsed.kind, parsed.exact, parsed.delay) == ("exact", True, 0)


def test_the_defaults_are_the_papers() -> None:
    assert AntDTND(n=3) == AntDTND(n=3, lam=1.5, trans=300.0, per=600.0, act=300.0, back=0.0)
    assert LBBSP(n=3) == LBBSP(n=3, least=1, most=0)


def test_they_are_found_by_their_names_in_an_environment_that_has_seqgc() -> None:
    points = importlib.metadata.entry_points(group="seqgc.schemes")
    assert "seqgc.control" in {point.value for point in points}


def random_pace(seed: int) -> ByTime:
    rng = np.random.default_rng(seed)
    return ByTime(
        rates=0.5 + rng.pareto(1.0, (40, N)).clip(max=30),
        width_s=float(rng.uniform(0.2, 3.0)),
        latencies_s=rng.exponential(0.05, (40, N)),
    )


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), fail=st.sampled_from([0.0, 0.05]))
def test_whatever_the_shares_each_point_counts_once_and_every_gradient_is_exact(
    spec: str, seed: int, fail: float
) -> None:
    policy = defence(spec).policy(RULE, num_jobs=12, batches=[BATCH])
    workload, faults = Sums(policy, batch=BATCH), RandomFaults(seed=seed, fail=fail, die=fail)
    backend = VirtualBackend(N, random_pace(seed), compute=summed, faults=faults)
    run(policy, backend, workload)
    assert workload.done == list(range(12))
    assert policy.rounds == 12
    for segment in policy.segments:
        scheme = segment.setting.scheme
        assert isinstance(scheme, Balanced)
        assert scheme.parts.sum() == BATCH
    if "most=9" in spec:
        assert workload.largest <= 9


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("cut", [0, 1, 5, 11])
def test_a_run_that_goes_on_has_the_shares_that_it_had(spec: str, cut: int) -> None:
    whole = defence(spec).policy(RULE, num_jobs=12, batches=[BATCH])
    states: list[dict[str, object]] = [whole.snapshot()]
    sent: list[list[tuple[int, int, list[int]]]] = []

    def watch(seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.attempt == 0:
            states.append(whole.snapshot())
            sent.append(tasks(seen))

    run(whole, VirtualBackend(N, random_pace(7)), observe=watch)
    other = defence(spec).policy(RULE, num_jobs=12, batches=[BATCH])
    other.restore(json.loads(json.dumps(states[1 + cut])))
    assert other.rounds == cut
    assert other.scheme_of(cut) == whole.scheme_of(cut)
    sent_again: list[list[tuple[int, int, list[int]]]] = []
    run(
        other,
        VirtualBackend(N, random_pace(7)),
        observe=lambda seen: sent_again.append(tasks(seen)) if isinstance(seen, Dispatch) else None,
    )
    assert sent_again[0] == sent[cut]
    assert other.rounds == 12
    assert len(sent_again) == 12 - cut


def tasks(seen: Dispatch) -> list[tuple[int, int, list[int]]]:
    return [
        (task.job, task.slot, task.chunks.tolist())
        for worker in seen.assignment.values()
        for task in worker
    ]


def test_a_run_may_end_early_and_stays_ended_when_it_goes_on() -> None:
    policy = defence("lb-bsp").policy(RULE, num_jobs=12, batches=[BATCH])

    def watch(seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.round == 4:
            policy.end_after(4)

    run(policy, VirtualBackend(N, random_pace(1)), observe=watch)
    assert (policy.rounds, policy.num_jobs, policy.done) == (5, 5, True)
    other = defence("lb-bsp").policy(RULE, num_jobs=12, batches=[BATCH])
    other.restore(policy.snapshot())
    assert (other.done, other.num_jobs) == (True, 5)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ([1], TypeError),
        ({"rounds": 1, "jobs": 2}, KeyError),
        ({"jobs": "many"}, ValueError),
    ],
)
def test_what_is_no_state_is_refused(state: object, error: type[Exception]) -> None:
    policy = defence("lb-bsp").policy(RULE, num_jobs=3, batches=[BATCH])
    with pytest.raises(error):
        policy.restore(state)


def test_shares_for_other_workers_are_refused() -> None:
    setting = {"scheme": "balanced:shares=1x3", "mu": 0.0, "wait_out": "feasible"}
    setting |= {"timeout_s": None, "max_attempts": 3, "jobs_per_round": 1}
    policy = defence("lb-bsp").policy(RULE, num_jobs=3, batches=[BATCH])
    with pytest.raises(ParameterError, match="must list one integer for each of n=4 workers"):
        policy.restore({**policy.snapshot(), "setting": setting})


@pytest.mark.parametrize("spec", SPECS[:1] + SPECS[2:])
def test_batches_of_several_sizes_are_shared_out_alike(spec: str) -> None:
    policy = defence(spec).policy(RULE, num_jobs=6, batches=[20, 44])
    run(policy, VirtualBackend(N, random_pace(3)))
    last = policy.segments[-1].setting.scheme
    assert last.cut(44).sum() == 44
    assert last.cut(20).sum() == 20


@pytest.mark.parametrize("make", [LBBSP, AntDTND, AntDTDD])
def test_one_worker_alone_is_a_run_like_any_other(make: Callable[..., Controlled]) -> None:
    policy = make(n=1).policy(RULE, num_jobs=4, batches=[7])
    backend = VirtualBackend(1, ByTime(rates=[[2.0]], width_s=1.0))
    run(policy, backend)
    assert math.isclose(backend.now, 8.0)


def test_workers_are_whole_numbers() -> None:
    with pytest.raises(ParameterError, match="`n` must be >= 1 \\(workers\\); got 0"):
        LBBSP(n=0)


def test_they_say_what_slow_workers_cost() -> None:
    assert LBBSP(n=4).tolerates == AntDTDD(n=4).tolerates
    assert LBBSP(n=4).tolerates.startswith("each round waits for all workers")
    rule = "1.2 times as slow as the average for 4 s is replaced"
    assert AntDTND(n=4, lam=1.2, per=4.0).tolerates.endswith(rule)
