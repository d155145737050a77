"""With an audit, whoever lies where others were asked for the same is found, named and expelled."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from seqgc import master, workers
from seqgc.errors import AuditError, ParameterError, WorkerError
from seqgc.ports import Arrival, Close, Dispatch, Failure, FloatArray, Notice, Seen, Task
from seqgc.rounds import ClosingRule, RoundPolicy, Setting
from seqgc.schemes import parse_scheme
from seqgc.search import ReplayBackend
from seqgc.testing import ChunkWorkload
from seqgc.training import TrainingPlan, resume, train
from seqgc.virtual import Fault
from tests.training.stale_runs import backend_of
from tests.training.test_diverged import SEEDS, Damage, crew, logged, models, others, wired
from tests.training.test_resume import WRITING, CopyAt, whole_checkpoints  # noqa: F401

N = 6
REPLICATED = ["gc-rep:s=2", "gc-binary:s=2", "sr-sgc-rep:B=1,W=2,lam=3"]


def plan(spec: str, *, audit: bool = True, steps: int = 4, every_s: float = 60.0) -> TrainingPlan:
    rule = ClosingRule(max_attempts=1)  # an expelled worker would be asked again for nothing
    setting = Setting(scheme=parse_scheme(spec, n=N), rule=rule, jobs_per_round=2)
    return TrainingPlan(
        models=models(wild=None),
        scheme=setting,
        steps=steps,
        audit=audit,
        checkpoint_every_s=every_s,
    )


def lies(liars: tuple[int, ...], *, seed: int, since: int = 0) -> Damage:
    """Add a little to what these workers answer, each something else."""

    def damage(task: Task, results: dict[int, FloatArray]) -> None:
        if task.worker in liars and task.round >= since:
            rng = np.random.default_rng([seed, task.round, task.worker])
            for slot, result in results.items():
                lie = result.copy()
                lie[rng.integers(len(lie))] += rng.choice([1e-3, -1.0, 1e4])
                results[slot] = lie

    return damage


@pytest.mark.parametrize("seed", range(2 * SEEDS))
@pytest.mark.parametrize("spec", REPLICATED)
def test_one_who_lies_is_outvoted_and_expelled(spec: str, seed: int, tmp_path: Path) -> None:
    liar, since = seed % N, 2 + seed % 3
    fine = train(plan(spec, audit=False), crew(seed), run=tmp_path / "fine")
    notices: list[Seen] = []
    deceit = lies((liar,), seed=seed, since=since)
    bad = train(plan(spec), crew(seed, deceit), run=tmp_path / "bad", observers=[notices.append])
    assert others(bad, "none") == others(fine, "none"), "not a bit of it was applied"
    assert bad.counts.expelled == [liar]
    told = [seen.fields for seen in notices if isinstance(seen, Notice) and seen.kind == "expelled"]
    assert [fields["worker"] for fields in told] == [liar]
    refused = logged(bad.run, "failure")
    assert {line["worker"] for line in refused} <= {liar}
    assert all("expelled" in str(line["reason"]) for line in refused)


@pytest.mark.parametrize(
    ("spec", "group"), [("gc-rep:s=1", (0, 3)), ("gc-rep:s=2", (0, 2, 4))], ids=["s=1", "s=2"]
)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_where_nobody_can_say_who_lies_the_run_ends_and_names_them(
    spec: str, group: tuple[int, ...], seed: int, tmp_path: Path
) -> None:
    liars, named = group[:-1], ", ".join(map(str, group))
    with pytest.raises(
        AuditError, match=rf"^job 3: workers {named} have different results"
    ) as caught:
        train(plan(spec), crew(seed, lies(liars, seed=seed, since=3)), run=tmp_path / "run")
    assert caught.value.workers == group


@pytest.mark.parametrize("spec", REPLICATED)
def test_honest_workers_are_left_in_peace(spec: str, tmp_path: Path) -> None:
    plain = train(plan(spec, audit=False), crew(1), run=tmp_path / "plain")
    audited = train(plan(spec), crew(1), run=tmp_path / "audited")
    assert others(audited, "none") == others(plain, "none")
    assert audited.counts.expelled == []
    assert audited.counts.uncompared == 0, "rounds wait for those who can be compared"


def test_without_an_audit_a_lie_is_applied(tmp_path: Path) -> None:
    """So the tests above would fail without it."""
    fine = train(plan("gc-rep:s=2", audit=False), crew(1), run=tmp_path / "fine")
    deceit = lies(tuple(range(N)), seed=1, since=3)
    bad = train(plan("gc-rep:s=2", audit=False), crew(1, deceit), run=tmp_path / "bad")
    assert others(bad, "none") != others(fine, "none")


@pytest.mark.parametrize("spec", ["uncoded", "gc:s=2", "gc:s=3", "m-sgc:B=1,W=2,lam=2"])
def test_a_scheme_without_replicas_says_so_before_anything_is_started(spec: str) -> None:
    with pytest.raises(ParameterError, match=r"`audit` needs .*rep"):
        plan(spec).on(N)


def test_a_scheme_with_some_replicas_says_how_many_results_have_none(tmp_path: Path) -> None:
    seen: list[Seen] = []
    few = plan("m-sgc-rep:B=1,W=2,lam=2", steps=2)
    train(few, crew(0), run=tmp_path / "run", observers=[seen.append])
    (text,) = (each.fields["text"] for each in seen if getattr(each, "kind", "") == "warning")
    assert text == (
        "audit: 6 of a job's 8 results come from one worker each; "
        "a wrong finite value in one of them is not found"
    )


@pytest.mark.parametrize("spec", ["gc-rep:s=2", "gc-binary:s=2"])
def test_who_is_expelled_is_asked_no_more(spec: str, tmp_path: Path) -> None:
    """Once it has answered in vain; nor does a round wait for it, however often it may be asked."""
    often = plan(spec)
    often = replace(often, scheme=replace(often.on(N).setting, rule=ClosingRule(max_attempts=5)))
    seen: list[Seen] = []
    alike = workers.custom(N, partial(wired, seed=None, damage=lies((2,), seed=0, since=2)))
    train(often, alike, run=tmp_path / "run", observers=[seen.append])
    first = next(at for at, each in enumerate(seen) if isinstance(each, Failure))
    asked = {w for each in seen[first:] if isinstance(each, Dispatch) for w in each.assignment}
    assert asked == {0, 1, 3, 4, 5}
    lasted = {each.record.duration_s for each in seen if isinstance(each, Close)}
    assert max(lasted) < 1.5 * min(lasted)


def test_a_run_that_lacks_who_is_expelled_ends(tmp_path: Path) -> None:
    """Of m-sgc-rep each worker has data of its own, and what it has said of these is not used."""
    spec, run = "m-sgc-rep:B=1,W=2,lam=2", tmp_path / "run"

    def lie(task: Task, results: dict[int, FloatArray]) -> None:
        if (task.round, task.worker) == (3, 0):
            results[max(results)] = results[max(results)] + 1.0

    lied = r"excluded workers \(0\)"
    with pytest.raises(AuditError, match=lied):
        train(plan(spec), crew(1, lie), run=run)
    with pytest.raises(WorkerError, match="worker 0: expelled"):
        resume(run, plan(spec), crew(1))


@pytest.mark.parametrize("liars", [{0}, {0, 3}])
def test_a_round_that_lacks_who_is_expelled_ends_at_once(liars: set[int]) -> None:
    """It is asked once, and then no more, for there are others."""
    scheme = parse_scheme("m-sgc-rep:B=1,W=2,lam=2", n=N)
    workload, seen = ChunkWorkload(scheme, seed=0), list[Seen]()
    backend = ReplayBackend(np.ones((9, N)), compute=workload.compute)
    held = master.Held(begun=0, jobs=(), expelled=frozenset(liars))
    policy = RoundPolicy(scheme.start(4), ClosingRule())
    with pytest.raises(WorkerError, match="worker 0: expelled") as ended:
        master.run(policy, backend, workload, observe=seen.append, held=held)
    assert ended.value.round == 1
    asked = [sorted(each.assignment) for each in seen if isinstance(each, Dispatch)]
    assert asked == [[*range(N)], sorted({*range(N)} - liars)]
    answered = [each.at for each in seen if isinstance(each, Arrival | Failure)]
    assert max(answered) - min(answered) < 2.0


@pytest.mark.parametrize("every_s", [1e-9, 60.0])
def test_a_resumed_run_knows_who_lied(every_s: float, tmp_path: Path) -> None:
    """Whoever was expelled is refused from its first round on, be the last checkpoint older."""
    make = partial(plan, "gc-rep:s=2", every_s=every_s)
    run, copy = tmp_path / "run", tmp_path / "copy"
    notices: list[Seen] = []

    def watch(seen: Seen) -> None:
        if isinstance(seen, Notice) and seen.kind == "expelled":
            notices.append(seen)
        elif isinstance(seen, Dispatch) and notices and not copy.exists():
            with WRITING:
                shutil.copytree(run, copy)

    train(make(), crew(3, lies((2,), seed=0, since=2)), run=run, observers=[watch])
    events: list[Seen] = []
    again = resume(copy, make(), crew(3), observers=[events.append])
    assert again.counts.expelled == [2]
    answers = {seen.worker for seen in events if isinstance(seen, Arrival)}
    refused = {seen.worker for seen in events if isinstance(seen, Failure)}
    assert (answers, refused) == ({0, 1, 3, 4, 5}, {2})


def test_a_resumed_run_still_has_what_is_to_be_compared(tmp_path: Path) -> None:
    make = partial(plan, "sr-sgc-rep:B=1,W=2,lam=3", every_s=1e-9)
    deceit = lies((2,), seed=0, since=4)
    watch = CopyAt(tmp_path / "run", set(range(17, 200, 23)))
    result = train(make(), crew(3, deceit), run=tmp_path / "run", observers=[watch])
    assert len(watch.copies) > 2
    assert result.counts.expelled == [2]
    for copy in watch.copies:
        again = resume(copy, make(), crew(3, deceit))
        assert others(again, "none") == others(result, "none"), copy
        assert set(again.counts.expelled) == {2}


def test_a_resumed_run_says_what_nobody_could_compare(tmp_path: Path) -> None:
    """Who was asked in a round that is closed is known to a master that did not ask."""

    def faults(task: Task) -> Fault | None:  # of job 2 one group has no result, another has one
        return Fault() if task.round == 2 and task.worker in (0, 1, 3) else None

    make = partial(plan, "sr-sgc-rep:B=1,W=3,lam=3", every_s=1e-9)
    alike = workers.custom(N, partial(backend_of, times=np.ones((60, N)), faults=faults))
    watch = CopyAt(tmp_path / "run", set(range(41, 60, 3)))
    assert train(make(), alike, run=tmp_path / "run", observers=[watch]).counts.uncompared == 1
    assert len(watch.copies) > 5
    for copy in watch.copies:
        assert resume(copy, make(), alike).counts.uncompared == 1, copy
