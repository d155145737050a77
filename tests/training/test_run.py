"""Whole runs on real worker processes: every scheme, stragglers, deaths; and what a run leaves."""

from __future__ import annotations

import csv
import json
import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from seqgc import workers
from seqgc.backends import LocalBackend, Messaging
from seqgc.errors import ModelError, ParameterError
from seqgc.ports import Close, Dispatched, FloatArray, Seen
from seqgc.profiles import LAMBDA_CNN
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import Deal, Scheme, parse_scheme
from seqgc.training import (
    Model,
    TorchComputeFactory,
    TrainingPlan,
    TrainResult,
    digits,
    evaluate,
    load_checkpoint,
    make_module,
    train,
)
from tests.kit import SOAK
from tests.training.reference import Poisoned, flat, make_model, train_alone

SPLIT = digits()
SCALE = 0.005  # of the fitted Lambda seconds: rounds of about 5 ms, and computing
STEPS = 6
ADAM_STEPS = 25
SCHEMES = [
    "uncoded",
    "gc:s=2",
    "gc-rep:s=1",
    "gc-binary:s=3",
    "sr-sgc:B=2,W=3,lam=4",
    "sr-sgc-rep:B=1,W=2,lam=2",
    "m-sgc:B=1,W=2,lam=2",
    "m-sgc:B=2,W=3,lam=6",
    "m-sgc-rep:B=2,W=3,lam=2",
    "ra-sgc:s=1,q=0.5,r=2",
]
WORKERS = 6
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def models(
    optimizer: object, *, count: int = 4, batch_size: int = 100, module: str = "digits-cnn"
) -> list[Model]:
    return [
        Model(
            name=f"m{seed}",
            module=make_module(module, seed=seed),
            loss=nn.CrossEntropyLoss(),
            dataset=SPLIT.train,
            optimizer=optimizer,
            batch_size=batch_size,
            seed=seed,
            test_dataset=SPLIT.test,
        )
        for seed in range(count)
    ]


def stragglers(scheme: Scheme, *, seed: int = 0) -> np.ndarray:
    """Injected seconds, (rounds, workers): the generator fitted to Lambda, with its bad states."""
    profile = LAMBDA_CNN.profile(60, workers=scheme.n, rng=np.random.default_rng(seed))
    return np.minimum(profile.scaled(SCALE).times, 0.5)


def run(
    scheme: Scheme,
    trained: list[Model],
    path: Path,
    *,
    steps: int = STEPS,
    precision: str = "float64",
    **options: object,
) -> TrainResult:
    seconds = stragglers(scheme)
    own = workers.local(scheme.n, delays=lambda row, worker, _: float(seconds[row % 60, worker]))
    rule, bundle = options.pop("rule", ClosingRule()), options.pop("jobs_per_round", 1)
    setting = Setting(scheme=scheme, rule=rule, jobs_per_round=bundle)
    watch = options.pop("observers", ())
    crew, config = options.pop("workers", own), options.pop("config", "")
    plan = TrainingPlan(models=trained, scheme=setting, steps=steps, precision=precision, **options)
    with crew as w:
        return train(plan, w, run=path, observers=watch, config=config)


@pytest.fixture(scope="module")
def weights_alone() -> dict[str, FloatArray]:
    """Each model's weights after plain training."""
    weights = {}
    for model in models(SGD):
        module, _ = train_alone(model, steps=STEPS, dtype=torch.float64)
        weights[model.name] = flat(module)
        assert np.abs(flat(module) - flat(model.module)).max() > 1e-3, "nothing was learnt"
    return weights


def assert_weights(result: TrainResult, expected: dict[str, FloatArray]) -> None:
    for name, weights in expected.items():
        coded = make_module("digits-cnn", seed=99).double()
        load_checkpoint(result.run / "checkpoints" / f"{name}.safetensors", coded)
        assert np.abs(flat(coded) - weights).max() <= 1e-8, name


# `test_every_scheme` has all of them, in virtual time.
@pytest.mark.parametrize("spec", SCHEMES if SOAK else ["uncoded", "gc:s=2", "m-sgc:B=2,W=3,lam=6"])
def test_sgd_in_float64_ends_at_the_weights_of_a_single_process(
    spec: str, weights_alone: dict[str, FloatArray], tmp_path: Path
) -> None:
    scheme = parse_scheme(spec, n=WORKERS)
    result = run(scheme, models(SGD), tmp_path / "run")
    assert result.jobs == 4 * STEPS
    assert result.counts.rounds == 4 * STEPS + scheme.delay
    if spec != "uncoded":
        assert result.counts.stragglers > 0, "the test must have stragglers to survive"
    assert_weights(result, weights_alone)


def with_adam() -> list[Model]:
    optimizer = partial(torch.optim.Adam, lr=0.01)
    return models(optimizer, batch_size=128, module="mlp")


@pytest.fixture(scope="module")
def accuracies_alone() -> dict[str, float]:
    accuracies = {}
    for model in with_adam():
        module, _ = train_alone(model, steps=ADAM_STEPS, dtype=torch.float32)
        found = evaluate(module, loss=model.loss, dataset=SPLIT.test)
        accuracies[model.name] = found.accuracy
    return accuracies


# The weights of all others are compared above, which no accuracy can be wrong without.
@pytest.mark.parametrize("spec", SCHEMES if SOAK else ["m-sgc:B=2,W=3,lam=6"])
def test_adam_in_float32_is_as_accurate_as_a_single_process(
    spec: str, accuracies_alone: dict[str, float], tmp_path: Path
) -> None:
    trained = with_adam()
    result = run(
        parse_scheme(spec, n=WORKERS),
        trained,
        tmp_path / "run",
        steps=ADAM_STEPS,
        precision="float32",
    )
    assert spec == "uncoded" or result.counts.stragglers > 0
    found = {name: evaluation.accuracy for name, evaluation in result.evaluations.items()}
    assert found == pytest.approx(accuracies_alone, abs=0.01)


class Massacre:
    """Kills a third of the workers, -9, as tasks leave in each of the given rounds.

    In every round another third answers ``slow_s`` seconds after the others.
    """

    def __init__(self, rounds: set[int], *, slow_s: float = 0.0) -> None:
        self._rounds, self._slow_s = rounds, slow_s
        self._backend: LocalBackend | None = None
        self.killed = self.late = 0

    def start(self, n: int, factory: TorchComputeFactory) -> LocalBackend:
        messaging = Messaging(delays=lambda t, i: 0.05 + self._slow_s * ((t + i) % 3 == 0))
        self._backend = LocalBackend(n, factory, messaging=messaging, preload=("seqgc.training",))
        return self._backend

    def __call__(self, seen: Seen) -> None:
        if isinstance(seen, Close):
            self.late += len(seen.record.late)
        if isinstance(seen, Dispatched) and seen.attempt == 0 and seen.round in self._rounds:
            assert self._backend is not None
            self._rounds.remove(seen.round)  # a job that is dealt has a first task of each worker
            for pid in self._backend.pids[::3]:
                os.kill(pid, signal.SIGKILL)
                self.killed += 1


@pytest.mark.parametrize("spec", ["gc:s=1", "deal"])
def test_a_third_of_the_workers_killed_mid_run_changes_nothing(
    spec: str, weights_alone: dict[str, FloatArray], tmp_path: Path
) -> None:
    massacre = Massacre({3, 11})
    result = run(
        parse_scheme(spec, n=WORKERS),
        models(SGD),
        tmp_path / "run",
        workers=workers.custom(WORKERS, massacre.start),
        observers=[massacre],
    )
    assert massacre.killed == 2 * (WORKERS // 3)
    assert result.counts.failures >= 1, "a death must be seen"
    assert_weights(result, weights_alone)


@pytest.mark.parametrize("late", ["take", "drop"] if SOAK else ["take"])
def test_whoever_is_killed_or_late_each_missing_chunk_is_added_once(
    late: str, weights_alone: dict[str, FloatArray], tmp_path: Path
) -> None:
    """It may come late from its own worker, and again from another that it was dealt to."""
    massacre = Massacre({3, 11}, slow_s=0.04)
    result = run(
        parse_scheme(f"ra-sgc:s=0,q=0.5,r=2,late={late}", n=WORKERS),
        models(SGD),
        tmp_path / "run",
        workers=workers.custom(WORKERS, massacre.start),
        observers=[massacre],
    )
    assert massacre.killed == 2 * (WORKERS // 3)
    assert (massacre.late > 0) == (late == "take")
    assert_weights(result, weights_alone)


def test_a_worker_that_is_dealt_work_is_delayed_in_every_piece_by_its_round_and_load(
    weights_alone: dict[str, FloatArray], tmp_path: Path
) -> None:
    asked: list[tuple[int, int, float]] = []

    def delays(row: int, worker: int, load: float) -> float:
        asked.append((row, worker, load))
        return 0.02 * (worker == 0) + 0.01 * load

    own, deal = workers.local(WORKERS, delays=delays), Deal(n=WORKERS, pieces=2 * WORKERS)
    result = run(deal, models(SGD), tmp_path / "run", workers=own)
    assert_weights(result, weights_alone)
    assert {row for row, _, _ in asked} == set(range(result.jobs))
    shares = deal.chunk_fractions
    assert {load for _, _, load in asked} == {0.0, *shares.tolist()}
    log = (tmp_path / "run" / "events.jsonl").read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    assert not any("load" in each for each in lines)  # a task's is no round's
    pieces = {
        (e["round"], e["attempt"])
        for e in lines
        if e["event"] == "dispatch" and e.get("workers") == [0] and e["mini_tasks"]
    }
    took_s = [
        e["took_s"]
        for e in lines
        if e["event"] == "arrival" and e["worker"] == 0 and (e["round"], e["attempt"]) in pieces
    ]
    assert took_s
    assert min(took_s) >= 0.02


def test_bundles_of_models_share_rounds_and_end_at_the_same_weights(
    weights_alone: dict[str, FloatArray], tmp_path: Path
) -> None:
    scheme = parse_scheme("m-sgc:B=1,W=2,lam=2", n=WORKERS)
    result = run(scheme, models(SGD), tmp_path / "run", jobs_per_round=2)
    assert result.jobs == 2 * STEPS
    assert_weights(result, weights_alone)


def test_one_model_with_a_delay_applies_gradients_exactly_that_much_later(tmp_path: Path) -> None:
    (model,) = models(partial(torch.optim.SGD, lr=0.05), count=1)
    scheme = parse_scheme("sr-sgc:B=2,W=3,lam=4", n=WORKERS)
    with pytest.raises(ParameterError, match="`models` must number at least"):
        run(scheme, [model], tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    result = run(scheme, [model], tmp_path / "run", stale=True)
    alone, _ = train_alone(model, steps=STEPS, dtype=torch.float64, steps_late=2)
    assert_weights(result, {"m0": flat(alone)})


# ---- what a run leaves behind --------------------------------------------------------------------


def events(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]


def test_the_run_directory_says_what_happened_and_why(tmp_path: Path) -> None:
    scheme = parse_scheme("gc:s=2", n=WORKERS)
    closed: list[Close] = []

    def watch(seen: Seen) -> None:
        if isinstance(seen, Close):
            closed.append(seen)

    result = run(
        scheme,
        models(partial(torch.optim.SGD, lr=0.1), count=2),
        tmp_path / "run",
        steps=3,
        observers=[watch],
        config="steps = 3\n",
    )
    assert (result.run / "config.toml").read_text() == "steps = 3\n"
    log = events(result.run)
    assert (log[0]["event"], log[0]["scheme"], log[0]["workers"]) == ("run", "gc:s=2", WORKERS)
    assert (log[-1]["event"], log[-1]["outcome"]) == ("end", "finished")
    closes = [line for line in log if line["event"] == "close"]
    assert len(closes) == len(closed) == 6
    for line, action in zip(closes, closed, strict=True):
        record = action.record
        assert line["reason"] == record.reason
        assert line["duration_s"] == record.duration_s
        assert line["stragglers"] == np.flatnonzero(~record.responded).tolist()
        # The trace is a delay profile: who answered by the closing is who counted.
        times = {
            arrival["worker"]: arrival["elapsed_s"]
            for arrival in log
            if arrival["event"] == "arrival" and arrival["round"] == record.round
        }
        # And so are the workers' own times, without what the master took to send to the others.
        arrivals = [a for a in log if a["event"] == "arrival" and a["round"] == record.round]
        sent_after = [a["elapsed_s"] - a["took_s"] for a in arrivals]
        assert all(a["took_s"] > 1e-4 for a in arrivals)
        assert min(sent_after) >= 0
        assert len({round(s, 9) for s in sent_after}) == len(arrivals), "each left by itself"
        in_time = {worker for worker, seconds in times.items() if seconds <= record.duration_s}
        assert in_time == set(np.flatnonzero(record.responded).tolist())
    assert [line["job"] for line in log if line["event"] == "decode"] == list(range(6))
    with (result.run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["job"], row["model"], row["step"]) for row in rows] == [
        (str(job), f"m{job % 2}", str(job // 2)) for job in range(6)
    ]
    assert float(rows[0]["loss"]) == pytest.approx(np.log(10), abs=0.3)
    assert not any((result.run / "weights").iterdir()), "no version in flight is left"


def test_a_run_never_overwrites_another(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(ParameterError, match="never overwrites another"):
        run(parse_scheme("uncoded", n=2), models(torch.optim.SGD), tmp_path / "run")
    assert not any((tmp_path / "run").iterdir())


def test_when_every_worker_raises_the_run_ends_with_the_cause_and_its_checkpoints(
    tmp_path: Path,
) -> None:
    model = make_model("bad", module=Poisoned(), dataset=SPLIT.train)
    soon = ClosingRule(timeout_s=5.0)
    cause = r"^bad raised after 0 steps: ArithmeticError: no such unit \(.*reference.py:\d+"
    with pytest.raises(ModelError, match=cause):
        run(parse_scheme("gc:s=1", n=3), [model], tmp_path / "run", rule=soon)
    log = events(tmp_path / "run")
    assert "no such unit" in str(log[-1]["outcome"])
    assert (tmp_path / "run" / "checkpoints" / "bad.safetensors").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, "`steps` must be an integer >= 1; got 0"),
        ({"jobs_per_round": 9}, "`jobs_per_round` must be >= 1 and at most"),
        ({"precision": "float8"}, "precision"),
        ({"payload": "float8"}, "`payload` must be one of float64, float32, float16, bfloat16"),
        (
            {"precision": "float32", "payload": "float64"},
            "`payload` must not be wider than the precision, float32; got 'float64'",
        ),
        (
            {"stochastic_rounding": True},
            "`stochastic_rounding` must be off",
        ),
        (
            {"stochastic_rounding": True, "payload": "float64"},
            "precision and payload are float64; got True",
        ),
    ],
)
def test_bad_arguments_leave_nothing(
    changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match=message):
        run(parse_scheme("uncoded", n=2), models(torch.optim.SGD), tmp_path / "r", **changed)
    assert not any(tmp_path.iterdir())


def test_a_generator_that_no_checkpoint_can_hold_leaves_nothing(tmp_path: Path) -> None:
    numpys = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with pytest.raises(ParameterError, match=r"`numpy.random` must be MT19937.*'PCG64'"):
            run(parse_scheme("uncoded", n=2), models(torch.optim.SGD), tmp_path / "r")
    finally:
        np.random.set_bit_generator(numpys)
    assert not any(tmp_path.iterdir())
