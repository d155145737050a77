"""A run whose master has died goes on, to the same bits, from any instant."""

from __future__ import annotations

import csv
import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import cast
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from seqgc import workers
from seqgc.errors import DamageError, ParameterError, StoreError
from seqgc.ports import Backend, Close, Dispatch, FloatArray, Observer, Seen, WeightedPoints
from seqgc.runs import RecordedRun, read_run
from seqgc.runs.journal import Journal, read_journal
from seqgc.runs.lease import Lease
from seqgc.runs.snapshots import Snapshot, SnapshotFolder
from seqgc.search import ReplayBackend
from seqgc.training import Adaptation, TorchCompute, TrainingPlan, resume, train
from seqgc.worker import ComputeFactory
from tests.kit import SOAK, interrupts, system_calls
from tests.training.inside import Checkpointer
from tests.training.reference import make_model
from tests.training.test_adaptive import HandDriven, replayed

N, STEPS = 6, 4
WRITING = Lock()
ADAM = partial(torch.optim.Adam, lr=0.05)
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def plan(
    spec: str,
    *,
    every_s: float = 1e-9,
    steps: int = STEPS,
    jobs_per_round: int = 1,
    **options: object,
) -> TrainingPlan:
    models = [
        make_model(f"m{i}", seed=i, batch_size=12 + i, optimizer=[ADAM, MOMENTUM][i % 2])
        for i in range(4)
    ]
    return TrainingPlan(
        models=models,
        scheme=spec,
        jobs_per_round=jobs_per_round,
        steps=steps,
        checkpoint_every_s=every_s,
        **options,
    )


def times(seed: int = 0) -> FloatArray:
    return 1 + np.minimum(np.random.default_rng(seed).pareto(1.0, (60, N)), 9)


def crew(seed: int = 0) -> workers.WorkerSet:
    return workers.custom(N, replayed(times(seed)))


@pytest.fixture(autouse=True)
def whole_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no folder be copied while a checkpoint is written: a crash is an instant, a copy not."""
    write = SnapshotFolder.write

    def locked(self: SnapshotFolder[object], snapshot: Snapshot[object]) -> None:
        with WRITING:
            write(self, snapshot)

    monkeypatch.setattr(SnapshotFolder, "write", locked)


class CopyAt:
    """Copies a run's folder when it is shown its k-th event: what a crash would leave there."""

    def __init__(self, run: Path, instants: set[int]) -> None:
        self._run, self._instants = run, instants
        self.seen = 0
        self.copies: list[Path] = []

    def __call__(self, _: Seen) -> None:
        if self.seen in self._instants and (self._run / "journal.jsonl").exists():
            to = self._run.with_name(f"{self._run.name}-{self.seen}")
            with WRITING:
                shutil.copytree(self._run, to / self._run.name)
            self.copies.append(to / self._run.name)
        self.seen += 1


def outcome(run: Path) -> tuple[dict[str, str], list[list[str]]]:
    """Return the last checkpoint's digests, optimizers included, and the jobs' losses."""
    rows = list(csv.reader((run / "metrics.csv").read_text().splitlines()))
    return digests(run), [row[1:] for row in rows]


def digests(run: Path) -> dict[str, str]:
    """Return the digests of the last checkpoint's tensors, optimizers' included."""
    newest = max(run.glob("checkpoints/[0-9]*"), key=lambda folder: int(folder.name))
    return {
        f"{path.name}: {name}": hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        for path in newest.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }


def seconds_by_round(run: RecordedRun) -> dict[int, float]:
    rounds = run.rounds()
    return dict(zip(rounds["round"].tolist(), rounds["duration_s"].tolist(), strict=True))


def test_from_any_instant_it_ends_in_the_same_bits(tmp_path: Path) -> None:
    """Of one scheme, with all files; `tests.simulation.test_resume` has the table of all."""
    spec, every_s = "m-sgc:B=1,W=2,lam=2", 1e-9
    watch = CopyAt(tmp_path / "run", set(range(3, 400, 7 if SOAK else 97)))
    result = train(plan(spec, every_s=every_s), crew(), run=tmp_path / "run", observers=[watch])
    expected, whole = outcome(result.run), read_run(result.run)
    assert len(expected[1]) == 1 + 4 * STEPS, "every job once"
    assert len(watch.copies) >= 2
    for copy in watch.copies:
        again = resume(copy, plan(spec, every_s=every_s), crew())
        assert outcome(again.run) == expected, copy
        recorded = read_run(copy)  # each round, job and step once, whoever was the master
        lost = sum(int(gap.split()[0]) for gap in recorded.gaps)  # with the killed one's last lines
        rounds, jobs = recorded.rounds()["round"], recorded.jobs()["job"]
        assert len(set(rounds)) + len(set(jobs)) + lost == max(rounds) + 1 + 4 * STEPS
        assert len(rounds) + len(jobs) == len(set(rounds)) + len(set(jobs))
        assert len(recorded.models()["step"]) == 4 * STEPS
        assert again.counts.rounds == result.counts.rounds
        assert seconds_by_round(recorded).items() <= seconds_by_round(whole).items()


def forgetful(n: int, factory: Callable[[], TorchCompute]) -> Backend:
    """A backend whose workers read the weights from the store for every task."""
    threads = torch.get_num_threads()
    compute = factory()
    torch.set_num_threads(threads)

    def anew(parts: tuple[WeightedPoints, ...]) -> FloatArray:
        compute._fetch.cache_clear()
        return compute(parts)

    return ReplayBackend(times()[:, :n], compute=anew)


def test_a_late_task_finds_its_weights_and_so_does_one_that_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a late answer brings of the job before its own is read until its round is over."""
    late, crew = plan("ra-sgc:s=0,q=0.3,r=2,p=2", steps=2), workers.custom(N, forgetful)
    watch = CopyAt(tmp_path / "run", {102})
    due = property(lambda self: watch.seen > 90 and self.latest is None)
    monkeypatch.setattr(Checkpointer, "due", due)
    monkeypatch.setattr(Checkpointer, "begin", lambda self, take: self._write(take()))
    result = train(late, crew, run=tmp_path / "run", observers=[watch])
    seen: list[Seen] = []
    again = resume(watch.copies[0], late, crew, observers=[seen.append])
    assert outcome(again.run) == outcome(result.run)
    rounds = [action.round for action in seen if isinstance(action, Dispatch)]
    assert rounds[0] == rounds[1] - 1, "an answer to the round before is asked for again"


def test_rounds_on_record_close_on_the_same_answers_whoever_is_slow_now(tmp_path: Path) -> None:
    """Only rounds after the last one on record depend on the present workers' times."""
    watch = CopyAt(tmp_path / "run", {150})
    train(plan("gc:s=2", every_s=60.0), crew(), run=tmp_path / "run", observers=[watch])
    before = survivors(watch.copies[0])
    resume(watch.copies[0], plan("gc:s=2", every_s=60.0), crew(seed=1))
    assert len(before) > 3
    assert None not in before
    assert survivors(watch.copies[0])[: len(before)] == before


def test_a_code_with_the_same_bits_waits_for_no_worker_on_record(tmp_path: Path) -> None:
    """Its journal does not name them, and other workers give the same weights."""
    watch = CopyAt(tmp_path / "run", {150})
    seldom = plan("gc-rep:s=1", every_s=60.0)
    expected = outcome(train(seldom, crew(), run=tmp_path / "run", observers=[watch]).run)
    (copy,) = watch.copies
    reasons = list[str]()

    def note(seen: Seen) -> None:
        if isinstance(seen, Close):
            reasons.append(seen.record.reason)

    assert set(survivors(copy)) == {None}
    resume(copy, seldom, crew(seed=1), observers=[note])
    assert "again" not in reasons
    assert outcome(copy) == expected


def test_a_round_whose_worker_hangs_now_is_closed_on_others_and_that_is_said(
    tmp_path: Path,
) -> None:
    """It takes a part of the time limit, 60 s, once: what follows on record is void then."""
    watch = CopyAt(tmp_path / "run", {150})
    train(plan("gc:s=2", every_s=60.0), crew(), run=tmp_path / "run", observers=[watch])
    before = survivors(watch.copies[0])
    hanging = next(worker for worker in range(N) if worker not in before[0])
    slow = times()
    slow[:, hanging] = 1e6
    seen: list[Seen] = []
    again = resume(
        watch.copies[0],
        plan("gc:s=2", every_s=60.0),
        workers.custom(N, replayed(slow)),
        observers=[seen.append],
    )
    assert hanging in survivors(watch.copies[0])[len(before)]
    warnings = [e.fields["text"] for e in seen if getattr(e, "kind", "") == "warning"]
    assert [text[:40] for text in warnings] == ["round 0 closed on other answers than bef"]
    closed = [e.record for e in seen if isinstance(e, Close)]
    assert 20.0 <= closed[0].duration_s < 60.0
    assert max(record.duration_s for record in closed[1:]) <= 10.0
    assert again.jobs == 4 * STEPS


def survivors(run: Path) -> list[object]:
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return [line.get("stragglers") for line in lines if line["kind"] == "round"]


def test_a_run_is_resumed_again_and_again(tmp_path: Path) -> None:
    spec, run = "m-sgc:B=1,W=2,lam=2", tmp_path / "run"
    expected = outcome(train(plan(spec), crew(), run=tmp_path / "whole" / "run").run)

    class Killed(BaseException):
        pass

    def killed_after(events: int) -> Callable[[Seen], None]:
        left = [events]

        def observe(_: Seen) -> None:
            left[0] -= 1
            if not left[0]:
                raise Killed

        return observe

    with pytest.raises(Killed):
        train(plan(spec), crew(), run=run, observers=[killed_after(40)])
    for events in (3, 20, 37, 41):
        with pytest.raises(Killed):
            resume(run, plan(spec), crew(), observers=[killed_after(events)])
    assert outcome(resume(run, plan(spec), crew()).run) == expected
    assert sorted(p.name for p in (run / "masters").iterdir()) == [*"123456"]


def test_switches_that_were_made_are_made_again(tmp_path: Path) -> None:
    adaptive = partial(
        plan, "uncoded", steps=8, adaptation=Adaptation(probe=3, retune=4, alpha=0.1)
    )
    specs = ["m-sgc:B=1,W=2,lam=2", "gc-rep:s=2", "stay", "sr-sgc:B=1,W=2,lam=2"]
    watch = CopyAt(tmp_path / "run", set(range(11, 600, 97)))
    result = train(
        adaptive(), crew(), run=tmp_path / "run", observers=[watch], tuner=HandDriven(*specs)
    )
    assert len(result.schemes) == 4
    for copy in watch.copies:
        journal = (copy / "journal.jsonl").read_text()
        known = journal.count('"decide"')
        left = [s for s in specs if s != "stay"][known:]
        again = resume(copy, adaptive(), crew(), tuner=HandDriven(*left))
        assert again.schemes[: known + 1] == result.schemes[: known + 1]
        assert again.jobs == result.jobs
        assert len(outcome(copy)[1]) == 1 + 4 * 8


def test_a_search_that_led_to_a_switch_is_not_made_again(tmp_path: Path) -> None:
    """The checkpoint is from before the search, and the journal has what came of it."""
    once = plan("uncoded", steps=8, every_s=60.0, adaptation=Adaptation(probe=3, alpha=0.1))
    specs = ["gc-rep:s=2", "sr-sgc:B=1,W=2,lam=2"]
    watch = CopyAt(tmp_path / "run", set(range(80, 400, 97)))
    tuner = HandDriven(*specs, looks=3)
    train(once, crew(), run=tmp_path / "run", observers=[watch], tuner=tuner)
    assert len(tuner.questions) == 1
    known = [copy for copy in watch.copies if '"decide"' in (copy / "journal.jsonl").read_text()]
    assert len(known) >= 2
    for copy in known:
        again = resume(copy, once, crew(), tuner=(tuner := HandDriven(*specs[1:])))
        assert again.schemes == ("uncoded", "gc-rep:s=2")
        assert not tuner.questions


class Tally:
    """An observer that lasts: counts the rounds that are sent, over all masters."""

    def __init__(self) -> None:
        self.rounds = 0.0

    @property
    def memory(self) -> dict[str, float]:
        return {"rounds": self.rounds}

    def recall(self, memory: Mapping[str, float]) -> None:
        self.rounds = memory["rounds"]

    def __call__(self, seen: Seen) -> None:
        self.rounds += isinstance(seen, Dispatch)


def test_an_observer_that_lasts_remembers(tmp_path: Path) -> None:
    """What was sent after the checkpoint, and is sent again, counts twice: it was paid for."""
    first, second, anew = Tally(), Tally(), Tally()
    before: list[float] = []
    watch = CopyAt(tmp_path / "run", {100})

    def note(_: Seen) -> None:
        if watch.copies and not before:
            before.append(first.rounds)

    observers = [watch, first, note]
    train(plan("gc:s=1", every_s=60.0), crew(), run=tmp_path / "run", observers=observers)
    forgetful = cast("Observer", anew.__call__)
    resume(watch.copies[0], plan("gc:s=1", every_s=60.0), crew(), observers=[second, forgetful])
    assert first.rounds == anew.rounds == 4 * STEPS
    assert before[0] > 5
    assert second.rounds == before[0] + anew.rounds


def test_what_a_resumed_run_costs_before_it_begins_is_on_record(tmp_path: Path) -> None:
    """A master that is killed while it starts its workers has paid for that, each time."""

    class WarmUp(Tally):
        def __init__(self) -> None:
            self.rounds = 1000.0

        def recall(self, memory: Mapping[str, float]) -> None:
            self.rounds += memory["rounds"]

    def killed(_n: int, _compute: object) -> Backend:
        raise KeyboardInterrupt

    watch = CopyAt(tmp_path / "run", {100})
    train(plan("gc:s=1"), crew(), run=tmp_path / "run", observers=[watch, WarmUp()])
    (copy,) = watch.copies
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            resume(copy, plan("gc:s=1"), workers.custom(N, killed), observers=[WarmUp()])
    last = WarmUp()
    resume(copy, plan("gc:s=1"), crew(), observers=[last])
    assert last.rounds > 5000


def test_an_observer_that_is_new_begins_and_one_that_is_gone_is_missed_by_nobody(
    ended: Path,
) -> None:
    said: list[str] = []

    def listen(seen: Seen) -> None:
        if getattr(seen, "kind", "") == "warning":
            said.append(str(seen.fields["text"]))  # type: ignore[union-attr]

    resume(ended, plan("gc:s=1"), crew(), observers=[Tally(), listen])
    (text,) = said
    assert text.startswith("Tally: the journal")
    resume(ended, plan("gc:s=1"), crew())
    again = Tally()
    resume(ended, plan("gc:s=1"), crew(), observers=[again, listen])
    assert len(said) == 1


class FullUntil:
    """Stands for ``os``: there is no room for losses until a file of this name has been written."""

    def __init__(self, name: str) -> None:
        self._name, self._writes = name, 0
        self.full = True

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def write(self, descriptor: int, data: memoryview) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("metrics.csv"):  # noqa: PTH115
            self._writes += 1
            if self._writes > 1 and self.full:  # there was, for its head
                raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(descriptor, data)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)
        self.full &= target.name != self._name


def test_losses_that_a_full_disk_kept_back_are_written_at_the_end_if_there_is_room(
    tmp_path: Path,
) -> None:
    due = outcome(train(plan("gc:s=1"), crew(), run=tmp_path / "roomy").run)
    disk = FullUntil("m0.safetensors")
    with system_calls(disk):
        assert outcome(train(plan("gc:s=1"), crew(), run=tmp_path / "full").run) == due
    assert not disk.full


class InterruptedAt:
    """Stands for ``os``: once the last round has closed, Ctrl-C at the k-th call; an observer."""

    def __init__(self, call: int) -> None:
        self._call, self._count = call, -1

    def __call__(self, seen: Seen) -> None:
        if isinstance(seen, Close) and seen.record.round == 4 * STEPS - 1:
            self._count = 0

    def __getattr__(self, name: str) -> object:
        if self._count >= 0:
            self._count += 1
            if self._count == self._call:
                os.kill(os.getpid(), signal.SIGINT)
        return getattr(os, name)


@pytest.mark.parametrize("call", range(1, 40, 1 if SOAK else 9))
def test_ctrl_c_at_the_very_end_leaves_the_last_checkpoint(call: int, tmp_path: Path) -> None:
    at, run = InterruptedAt(call), tmp_path / "run"
    with interrupts(), system_calls(at), suppress(KeyboardInterrupt):
        train(plan("gc:s=1", every_s=60.0), crew(), run=run, observers=[at])
    assert max(int(path.name) for path in run.glob("checkpoints/[0-9]*")) == 4 * STEPS
    assert len(list(run.glob("checkpoints/*.safetensors"))) == 4
    assert "end" in (run / "events.jsonl").read_text().splitlines()[-1]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    return train(plan("gc:s=1"), crew(), run=tmp_path / "run").run


def test_a_run_that_has_ended_can_be_resumed_and_has_nothing_to_do(ended: Path) -> None:
    before = outcome(ended)
    result = resume(ended, plan("gc:s=1"), crew())
    assert outcome(ended) == before
    assert result.evaluations


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (partial(plan, "gc:s=2"), "scheme"),
        (partial(plan, "gc:s=1", steps=5), "steps"),
        (partial(plan, "gc:s=1", precision="float64"), "precision"),
        (partial(plan, "gc:s=1", payload="float16"), "payload"),
    ],
)
def test_another_plan_is_refused_with_what_differs(
    ended: Path, changed: Callable[[], TrainingPlan], what: str
) -> None:
    with pytest.raises(ParameterError, match=rf"changed since: .*{what} \(was .*, is .*--accept"):
        resume(ended, changed(), crew())


def test_other_data_or_another_module_is_refused(ended: Path) -> None:
    same = plan("gc:s=1")
    for changed in (
        make_model("m0", seed=9, batch_size=12, optimizer=ADAM),
        make_model("m0", seed=0, batch_size=12, optimizer=partial(torch.optim.Adam, lr=0.1)),
        make_model(
            "m0",
            seed=0,
            batch_size=12,
            optimizer=ADAM,
            module=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
        ),
    ):
        other = replace(same, models=[changed, *same.models[1:]])
        with pytest.raises(ParameterError, match="changed since: m0: "):
            resume(ended, other, crew())


def test_two_masters_never_work_on_one_run(ended: Path) -> None:
    def meanwhile(seen: Seen) -> None:
        if isinstance(seen, Dispatch):
            with pytest.raises(ParameterError, match="no other master is running"):
                resume(tmp, plan("gc:s=1"), crew())
            refused.append(True)

    refused: list[bool] = []
    tmp = ended.with_name("other")
    train(plan("gc:s=1"), crew(), run=tmp, observers=[meanwhile])
    assert refused


def test_a_master_that_was_replaced_sends_nothing_more(tmp_path: Path) -> None:
    """As on a file system that does not keep locks: the next master's number is seen."""
    run, sent = tmp_path / "run", list[int]()

    def replace(seen: Seen) -> None:
        if isinstance(seen, Dispatch):
            sent.append(seen.round)
            if seen.round == 2:
                (run / "masters" / "2").touch()

    with pytest.raises(StoreError, match="master 2 has taken the run over; this one, master 1"):
        train(plan("gc:s=1"), crew(), run=run, observers=[replace])
    assert sent == [0, 1, 2]
    assert survivors(run) == survivors(run)[:2], "and writes nothing more"


class Outlasting(ReplayBackend):
    """Its tasks outlast it, seven of them at any time."""

    under_way = 7


class Purse:
    """Remembers what the tasks under way may cost."""

    memory: Mapping[str, float] = {"open_usd": 0.5}

    def recall(self, memory: Mapping[str, float]) -> None: ...

    def __call__(self, seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.round == 2:
            raise RuntimeError("the end")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Outlasting, "7 tasks are under way, which may still cost $0.5000; continue with: seqgc "),
        (ReplayBackend, "continue with: seqgc "),
    ],
)
def test_a_run_that_ends_early_says_what_outlasts_it(
    kind: type[ReplayBackend], said: str, tmp_path: Path
) -> None:
    def start(n: int, factory: ComputeFactory) -> Backend:
        return kind(times()[:, :n], compute=factory())

    with pytest.raises(RuntimeError, match="the end") as caught:
        train(plan("gc:s=2"), workers.custom(N, start), run=tmp_path / "run", observers=[Purse()])
    (note,) = caught.value.__notes__
    assert note.startswith(said)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ParameterError, match=r"`run` must be the folder of a run .it has no config"
    ):
        resume(tmp_path, plan("gc:s=1"), crew())


# ---- damage --------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_passed_over_and_said(tmp_path: Path, ended: Path) -> None:
    expected, copy = outcome(ended), tmp_path / "early" / "run"

    def end_early(seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.round == 5:
            raise RuntimeError("early")

    with pytest.raises(RuntimeError, match="early"):  # it writes a checkpoint then
        train(plan("gc:s=1"), crew(), run=copy, observers=[end_early])
    newest = max(copy.glob("checkpoints/[0-9]*"), key=lambda folder: int(folder.name))
    said: list[str] = []

    def listen(seen: Seen) -> None:
        if getattr(seen, "kind", "") == "warning":
            said.append(str(seen.fields["text"]))  # type: ignore[union-attr]

    for file in newest.iterdir():
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 16
        file.write_bytes(data)
        break
    resume(copy, plan("gc:s=1"), crew(), observers=[listen])
    assert outcome(copy) == expected
    assert any(f"checkpoint {newest.name} is damaged" in text for text in said)


def test_if_every_checkpoint_is_damaged_it_says_so(ended: Path) -> None:
    for state in ended.glob("checkpoints/*/state.json"):
        state.write_text("{}")
    with pytest.raises(StoreError, match=r"no checkpoint in .* can be used: checkpoint"):
        resume(ended, plan("gc:s=1"), crew())


def test_a_torn_line_is_cut_and_damage_before_the_end_refused(tmp_path: Path) -> None:
    seldom = plan("gc:s=1", every_s=60.0)
    watch = CopyAt(tmp_path / "run", {100})
    expected = outcome(train(seldom, crew(), run=tmp_path / "run", observers=[watch]).run)
    (copy,) = watch.copies
    journal = copy / "journal.jsonl"
    data = journal.read_bytes()
    broken = copy.parent / "broken" / "run"
    shutil.copytree(copy, broken)
    journal.write_bytes(data + data.splitlines(keepends=True)[-1][:-9])
    resume(copy, seldom, crew())
    assert outcome(copy) == expected
    lines = data.splitlines(keepends=True)
    lines[2] = lines[2].replace(b"round", b"rounc", 1)
    (broken / "journal.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(
        DamageError, match=r"journal .* is damaged in line 3, and more lines follow"
    ):
        resume(broken, seldom, crew())


def test_what_a_dead_master_left_of_a_checkpoint_is_in_nobodys_way(ended: Path) -> None:
    newest = max(ended.glob("checkpoints/[0-9]*"), key=lambda folder: int(folder.name))
    shutil.copytree(newest, newest.with_name(f".{newest.name}.1.old"))
    resume(ended, plan("gc:s=1"), crew())
    assert not newest.with_name(f".{newest.name}.1.old").exists()


def test_a_line_of_an_earlier_master_amidst_the_next_ones_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first, second = Journal(path, master=1), Journal(path, master=2, lines=1)
    first.append("begin")
    second.append("begin")
    first.append("round", round=0)
    second.append("round", round=0)
    first.close()
    second.close()
    with pytest.raises(DamageError, match="damaged in line 3"):
        read_journal(path)


def test_a_run_on_a_file_system_without_locks_is_refused(tmp_path: Path) -> None:
    no_locks = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    with (
        mock.patch.object(fcntl, "flock", side_effect=no_locks),
        pytest.raises(ParameterError, match="`run` must be on a file system that has locks"),
    ):
        Lease(tmp_path)


def test_a_checkpoint_of_a_master_that_another_one_passed_over_is_not_used(tmp_path: Path) -> None:
    """It could not be read when the next master began, and can be now."""
    run, aside = tmp_path / "run", tmp_path / "aside"
    watch = CopyAt(run, {60, 100})
    expected = outcome(train(plan("gc:s=1"), crew(), run=run, observers=[watch]).run)
    early, late = watch.copies
    newest = max(late.glob("checkpoints/[0-9]*"), key=lambda folder: int(folder.name))
    newest.rename(aside)

    class Killed(BaseException): ...

    def kill(seen: Seen) -> None:
        if isinstance(seen, Dispatch):
            raise Killed

    with pytest.raises(Killed):
        resume(late, plan("gc:s=1"), crew(), observers=[kill])
    aside.rename(newest)
    said: list[str] = []
    resume(late, plan("gc:s=1"), crew(), observers=[lambda seen: said.extend(warnings_of(seen))])
    assert said[0] == f"checkpoint {newest.name} has rounds that the journal does not have"
    assert outcome(late) == expected
    assert early.exists()


def warnings_of(seen: Seen) -> list[str]:
    return [str(seen.fields["text"])] if getattr(seen, "kind", "") == "warning" else []  # type: ignore[union-attr]


def test_a_checkpoint_that_a_later_master_writes_is_left_alone(tmp_path: Path) -> None:
    for master in (1, 2):
        (tmp_path / f".4.{master}.part").mkdir(parents=True)
    folder = SnapshotFolder(tmp_path, dict[str, int], master=1)
    folder.write(Snapshot(rounds=4, state={}, files={}))
    assert sorted(path.name for path in tmp_path.glob(".[0-9]*")) == [".4.2.part"]
