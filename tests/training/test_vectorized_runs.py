"""Runs whose workers compute models together: the record, resuming, and replicas."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seqgc import workers
from seqgc.errors import ParameterError
from seqgc.ports import FloatArray, Notice, Seen
from seqgc.rounds import Setting
from seqgc.runs.journal import Entry, read_journal
from seqgc.schemes import parse_scheme
from seqgc.training import Model, TrainingPlan, TrainResult, make_module, resume, train
from tests.training.reference import blobs, flat, make_model
from tests.training.test_adaptive import replayed
from tests.training.test_resume import CopyAt, outcome, whole_checkpoints  # noqa: F401

N, MODELS = 4, 6
ADAM = partial(torch.optim.Adam, lr=0.01)
DATA = blobs(60)


def models(**others: object) -> list[Model]:
    return [
        make_model(f"m{i}", seed=i, dataset=DATA, optimizer=ADAM, batch_size=12, **others)
        for i in range(MODELS)
    ]


def plan(
    vectorize: int | None,
    *,
    spec: str = "gc-rep:s=1",
    per_round: int = MODELS,
    steps: int = 6,
    trained: Sequence[Model] | None = None,
    **options: object,
) -> TrainingPlan:
    setting = Setting(scheme=parse_scheme(spec, n=N), jobs_per_round=per_round)
    given = {"models": models() if trained is None else trained, "scheme": setting, "steps": steps}
    return TrainingPlan(**given, vectorize=vectorize, checkpoint_every_s=1e-9, **options)


def crew() -> workers.WorkerSet:
    times = 1 + np.random.default_rng(0).pareto(1.0, (80, N)).clip(max=9)
    return workers.custom(N, replayed(times))


def weights(result: TrainResult) -> FloatArray:
    return np.concatenate([flat(result.modules[name]) for name in sorted(result.modules)])


def recorded(run: Path) -> list[Entry]:
    entries, _ = read_journal(run / "journal.jsonl")
    return [entry for entry in entries if entry.kind == "group"]


@pytest.mark.parametrize(("precision", "most"), [("float32", 1e-5), ("float64", 1e-12)])
def test_after_60_steps_weights_are_those_of_models_computed_alone(
    precision: str, most: float, tmp_path: Path
) -> None:
    options = {"spec": "uncoded", "steps": 60, "precision": precision}
    alone = train(plan(1, **options), crew(), run=tmp_path / "alone")
    together = train(plan(MODELS, **options), crew(), run=tmp_path / "together")
    difference = np.abs(weights(alone) - weights(together)).max()
    assert 0 < difference < most
    assert not recorded(tmp_path / "alone")
    (entry,) = recorded(tmp_path / "together")
    assert entry.fields == {"sizes": {f"m{i}": MODELS for i in range(MODELS)}}


@pytest.mark.parametrize("vectorize", [None, 2, 3])
@pytest.mark.parametrize("spec", ["gc:s=1", "m-sgc:B=1,W=2,lam=2", "deal"])
def test_a_resumed_run_ends_in_the_same_bits(
    vectorize: int | None, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = plan(vectorize, spec=spec, per_round=3)
    watch = CopyAt(tmp_path / "run", {40, 111})
    with workers.local(N) if spec == "deal" else crew() as some:
        result = train(whole, some, run=tmp_path / "run", observers=[watch])
        assert watch.copies
        record = recorded(result.run)
        assert vectorize is None or len(record) == 1

        def again(*_: object, **__: object) -> None:
            raise AssertionError("the number is on record")

        monkeypatch.setattr("seqgc.training.plan.choose_group_sizes", again)
        for copy in watch.copies:
            assert outcome(resume(copy, whole, some).run) == outcome(result.run)
            assert len(recorded(copy)) == len(record)


def test_bundles_of_different_sizes_are_computed_in_groups(tmp_path: Path) -> None:
    """Five models make a bundle of three and a bundle of two."""
    results = [
        train(
            plan(vectorize, spec="uncoded", per_round=3, trained=models()[:5]),
            crew(),
            run=tmp_path / str(vectorize),
        )
        for vectorize in (1, 9)
    ]
    assert 0 < np.abs(weights(results[0]) - weights(results[1])).max() < 1e-5
    (entry,) = recorded(results[1].run)
    assert entry.fields == {"sizes": {f"m{i}": 3 for i in range(5)}}


def test_a_run_can_go_on_with_another_number_if_the_change_is_accepted(tmp_path: Path) -> None:
    watch = CopyAt(tmp_path / "run", {60})
    result = train(plan(3), crew(), run=tmp_path / "run", observers=[watch])
    (copy,) = watch.copies
    with pytest.raises(ParameterError, match="vectorize"):
        resume(copy, plan(1), crew())
    resumed = resume(copy, plan(1), crew(), accept_changes=True)
    assert 0 < np.abs(weights(resumed) - weights(result)).max() < 1e-5
    assert [entry.fields["sizes"] for entry in recorded(copy)][1:] == [{}]


def test_replicas_of_vectorised_results_are_equal(tmp_path: Path) -> None:
    with workers.local(N) as some:
        result = train(plan(4, audit=True), some, run=tmp_path / "run")
    assert result.counts.expelled == []
    assert result.counts.rounds == 6


class Stepwise(nn.Module):
    """A network that `torch.vmap` cannot map, since its control flow depends on values."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.net = make_module("mlp", seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(-x if next(self.parameters()).sum() > 1e9 else x)


def test_a_warning_names_the_networks_that_are_computed_one_by_one(tmp_path: Path) -> None:
    seen: list[Seen] = []
    trained = [make_model(f"m{i}", module=Stepwise(i), dataset=DATA) for i in range(3)]
    result = train(
        plan(None, spec="uncoded", per_round=3, steps=2, trained=trained),
        crew(),
        run=tmp_path / "run",
        observers=[seen.append],
    )
    texts = [str(n.fields["text"]) for n in seen if isinstance(n, Notice) and n.kind == "warning"]
    (text,) = [text for text in texts if "one by one" in text]
    assert "Stepwise" in text
    assert not result.parked


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "auto"])
def test_the_number_of_models_is_checked(wrong: object) -> None:
    with pytest.raises(ParameterError, match="vectorize"):
        plan(wrong)
