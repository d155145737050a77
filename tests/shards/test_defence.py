"""`asp-dds` by its name: what it charges, and how long it takes on a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqgc.errors import ParameterError
from seqgc.master import run
from seqgc.ports import Close, Seen
from seqgc.profiles import ByRound, latency_pace, read_profile
from seqgc.rounds import ClosingRule, Setting, policy_of
from seqgc.schemes import parse_scheme
from seqgc.search import Rehearsal, replay
from seqgc.shards import AspDds
from seqgc.virtual import VirtualBackend


def test_the_defence_by_its_name() -> None:
    defence = parse_scheme("asp-dds:M=3", n=4)
    assert defence == AspDds(n=4, M=3)
    assert eval(repr(defence)) == defence
    assert (defence.spec, AspDds(n=4).spec) == ("asp-dds:M=3", "asp-dds")
    assert (defence.kind, defence.exact) == ("stale", False)
    anew = parse_scheme("asp-dds:M=4,resume=shard", n=4)
    assert anew == AspDds(n=4, M=4, resume="shard")
    assert (anew.spec, anew.most_again) == ("asp-dds:M=4,resume=shard", 3)
    assert (defence.most_again, AspDds(n=4, resume="shard").most_again) == (0, 0)
    setting = Setting(scheme=defence)
    policy = policy_of(setting, num_jobs=3, batches=[10])
    assert policy.num_jobs == 3
    closed: list[tuple[int, ...]] = []

    def look(seen: Seen) -> None:
        if isinstance(seen, Close):
            closed.append(seen.jobs)

    pace = ByRound(latencies_s=[[1.0] * 4], rates=[[0.0]])
    run(policy, VirtualBackend(4, pace), observe=look)
    assert closed == [(0,), (1,), (2,)]


def test_every_worker_is_charged_the_largest_part_of_a_batch() -> None:
    policy = AspDds(n=4).policy(ClosingRule(), num_jobs=1, batches=[10, 10])
    (dispatch,) = policy.start()
    assert dispatch.loads is not None
    assert dispatch.loads.tolist() == [0.3] * 4
    (dispatch,) = AspDds(n=4).policy(ClosingRule(), num_jobs=1, batches=[10, 12]).start()
    assert dispatch.loads is not None
    assert dispatch.loads.tolist() == [0.25] * 4


@pytest.mark.parametrize(
    ("argument", "value"), [("M", 0), ("M", 10**10), ("n", 0), ("M", 1.5), ("resume", "all")]
)
def test_a_wrong_argument_is_refused(argument: str, value: object) -> None:
    with pytest.raises(ParameterError, match=argument):
        AspDds(**{"n": 2, argument: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", ["resident", "function"])
@pytest.mark.parametrize(("alpha", "due_s"), [(1.12, 21.9995), (60.0, 28.9583)])
def test_the_figures_of_a_recording(
    recorded_profiles: Path, workers: str, alpha: float, due_s: float
) -> None:
    name = "cnn-canada-batch2048-load0.000-30rounds-d.csv"
    profile = read_profile(recorded_profiles / name)
    policy = AspDds(n=256, M=1).policy(ClosingRule(), num_jobs=30)
    backend = VirtualBackend(256, latency_pace(profile, alpha=alpha), workers=workers)  # type: ignore[arg-type]
    run(policy, backend)
    assert backend.now == pytest.approx(due_s, abs=1e-4)
    setting = Setting(scheme=AspDds(n=256, M=1))
    assert replay(setting, Rehearsal(profile=profile, num_jobs=30, alpha=alpha)).runtime_s == (
        pytest.approx(due_s, abs=1e-4)
    )
