"""The dropout of a run is that of a plain loop with the same masks, under every code."""

from __future__ import annotations

import copy
import pickle
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seqgc.errors import ParameterError
from seqgc.models.factories import make_models_compute, register_module, workload_of
from seqgc.ports import FloatArray, MiniTask
from seqgc.stores import MemoryStore
from seqgc.training import (
    Dropout,
    Model,
    TorchCompute,
    TorchWorkload,
    TrainingPlan,
    batch_indices,
    dropout_masks,
    evaluate,
    resume,
    train,
)
from tests.models.test_factories import Spec, model_of
from tests.models.test_factories import registered_names_do_not_stay as registered  # noqa: F401
from tests.training.reference import Chunks, blobs, flat, make_model
from tests.training.test_resume import CopyAt, crew, outcome
from tests.training.test_resume import whole_checkpoints as whole_checkpoints

SIZE, BATCH, STEPS, MODELS = 24, 10, 6, 4  # batches go from one epoch into the next
ADAM = partial(torch.optim.Adam, lr=0.01)


class Net(nn.Module):
    """Drops elements, channels and rows; one of its layers is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.channels, self.rows, self.twice = Dropout(0.2, axes=2), Dropout(0.1, axes=1), Dropout()
        self.hidden, self.last = nn.Linear(4 * 36, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.channels(self.convolution(x)).flatten(1).relu()
        x = self.twice(self.hidden(self.twice(x)))
        return self.last(self.rows(x))


def model(name: str = "net", *, seed: int = 0, module: nn.Module | None = None) -> Model:
    torch.manual_seed(seed)
    data = blobs(SIZE, seed=seed)
    return make_model(
        name, seed=seed, module=module or Net(), dataset=data, batch_size=BATCH, optimizer=ADAM
    )


def models() -> list[Model]:
    return [model(f"m{seed}", seed=seed) for seed in range(MODELS)]


def points_of(model: Model, step: int) -> list[tuple[int, int]]:
    """Return the epoch and the item of each data point of a step."""
    items = batch_indices(SIZE, batch_size=BATCH, seed=model.seed, step=step).tolist()
    return [((step * BATCH + at) // SIZE, item) for at, item in enumerate(items)]


def plain(model: Model, dtype: torch.dtype) -> FloatArray:
    """Return the weights that a loop without workers ends in."""
    module, loss = copy.deepcopy(model.module).to(dtype), nn.CrossEntropyLoss()
    x, y = model.dataset.tensors
    optimizer = ADAM(module.parameters())
    for step in range(STEPS):
        points = points_of(model, step)
        items = [item for _, item in points]
        optimizer.zero_grad()
        with dropout_masks(module, [e * SIZE + i for e, i in points], seed=model.seed):
            loss(module(x[items].to(dtype)), y[items]).backward()
        optimizer.step()
    return flat(module)


@cache
def expected(precision: Literal["float32", "float64"]) -> list[FloatArray]:
    return [plain(each, getattr(torch, precision)) for each in models()]


@pytest.mark.parametrize(
    ("spec", "precision"),
    [
        ("uncoded", "float32"),
        ("gc:s=2", "float32"),
        ("uncoded", "float64"),
        ("gc-rep:s=1", "float64"),
        ("gc:s=2", "float64"),
        ("sr-sgc:B=1,W=2,lam=2", "float64"),
        ("m-sgc:B=1,W=2,lam=2", "float64"),
        ("deal", "float64"),
        ("bsp", "float64"),
    ],
)
def test_every_defence_ends_with_the_weights_of_a_plain_loop_with_the_same_masks(
    spec: str, precision: Literal["float32", "float64"], tmp_path: Path
) -> None:
    plan = TrainingPlan(
        models=models(), scheme=spec, jobs_per_round=1, steps=STEPS, precision=precision
    )
    result = train(plan, crew(), run=tmp_path / "run")
    close = 1e-5 if precision == "float32" else 1e-10
    for each, weights in zip(result.modules.values(), expected(precision), strict=True):
        np.testing.assert_allclose(flat(each), weights, rtol=0, atol=close)


@pytest.mark.parametrize("spec", ["gc:s=2", "m-sgc:B=1,W=2,lam=2", "backup:b=2"])
def test_a_resumed_run_draws_the_masks_of_one_that_was_not_broken_off(
    spec: str, tmp_path: Path
) -> None:
    def plan() -> TrainingPlan:
        return TrainingPlan(
            models=models(), scheme=spec, jobs_per_round=1, steps=STEPS, checkpoint_every_s=1e-9
        )

    watch = CopyAt(tmp_path / "run", {150})
    result = train(plan(), crew(), run=tmp_path / "run", observers=[watch])
    (copied,) = watch.copies
    assert outcome(resume(copied, plan(), crew()).run) == outcome(result.run)


def test_functions_draw_the_masks_of_local_workers() -> None:
    register_module("dropping")(lambda seed: Net())  # noqa: ARG005 (drawn from torch's state)
    model, store = model_of(Spec(name="a", module="dropping", seed=3)), MemoryStore()
    with torch.random.fork_rng(devices=[]):
        workload = TorchWorkload([model], scheme=Chunks(), store=store, precision="float64")
        workload.begin(0)
        part = workload.resolve(
            MiniTask(job=0, slot=0, chunks=np.arange(4), coefficients=np.ones(4))
        )
        local = TorchCompute([model.objective], store=store, precision="float64")(part)
        sent = workload_of([model], precision="float64").settings
        assert np.array_equal(make_models_compute(sent, store.fetch)(part), local)
        other = TorchCompute([model_of(Spec(name="a", module="dropping", seed=4)).objective],
                             store=store, precision="float64")  # fmt: skip
        assert not np.allclose(other(part), local), "another seed draws other masks"


# ---- one layer -----------------------------------------------------------------------------------


def mask(layer: Dropout, points: list[int], *, size: int = 4096, seed: int = 0) -> Tensor:
    with dropout_masks(layer, points, seed=seed):
        return layer(torch.ones(len(points), size))


def test_a_mask_follows_from_seed_epoch_and_item_and_from_nothing_else() -> None:
    layer = Dropout(0.25)
    three = mask(layer, [7, 3, 12])
    assert torch.equal(mask(layer, [3])[0], three[1])
    assert torch.equal(mask(pickle.loads(pickle.dumps(layer)), [12, 7])[0], three[2])
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert torch.equal(mask(layer, [7, 3, 12]), three)
    assert torch.equal(torch.get_rng_state(), before)
    twice = nn.Sequential(layer, Dropout(0.25))
    with dropout_masks(twice, [7, 7 + SIZE], seed=0):
        x = torch.ones(2, 4096)
        drawn = [*layer(x), *layer(x), *twice[1](x)]
    drawn += [*three[1:], *mask(layer, [7], seed=1)]
    kept = torch.stack(drawn) > 0
    share = 0.75 * 0.75 + 0.25 * 0.25  # of elements about which two masks agree
    for one in range(len(kept)):
        for other in range(one):
            agree = float((kept[one] == kept[other]).double().mean())
            assert abs(agree - share) < 5 * (share * (1 - share) / 4096) ** 0.5


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_elements_are_dropped_with_their_probability_and_the_others_scaled(p: float) -> None:
    drawn = mask(Dropout(p), list(range(200)), size=1000)
    assert torch.equal(drawn.unique(), torch.tensor([0, 1 / (1 - p)]))
    assert float((drawn == 0).double().mean()) == pytest.approx(p, abs=5 * (p / 200_000) ** 0.5)
    by_element = (drawn == 0).double().mean(0)
    assert float(by_element.std()) == pytest.approx((p * (1 - p) / 200) ** 0.5, rel=0.15)
    alone = Dropout(p)(torch.ones(200, 1000))  # outside of a run: from torch's own generator
    assert torch.equal(alone.unique(), drawn.unique())


def test_elements_that_agree_along_the_first_axes_are_dropped_together() -> None:
    with dropout_masks(layer := Dropout(0.5, axes=2), [4, 2, 9], seed=0):
        drawn = layer(torch.ones(3, 64, 5, 6))
    assert torch.equal(drawn, drawn[:, :, :1, :1].expand(3, 64, 5, 6))
    assert 0 < int((drawn[:, :, 0, 0] == 0).sum()) < 192
    with dropout_masks(layer := Dropout(0.5, axes=1), range(64), seed=0):
        drawn = layer(torch.ones(64, 5))
    assert torch.equal(drawn, drawn[:, :1].expand(64, 5))
    rows, layer = torch.ones(6, 50), Dropout(0.5)  # three a point
    assert torch.equal(mask(layer, [4, 2], size=150).view(6, 50), drawn_of(layer, rows, [4, 2]))


def drawn_of(layer: Dropout, x: Tensor, points: list[int]) -> Tensor:
    with dropout_masks(layer, points, seed=0):
        return layer(x)


def test_in_eval_mode_nothing_is_dropped() -> None:
    trained = model()
    without = copy.deepcopy(trained.module)
    without.channels = without.rows = without.twice = nn.Identity()
    arguments = {"loss": nn.CrossEntropyLoss(), "dataset": trained.dataset}
    assert evaluate(trained.module, **arguments) == evaluate(without, **arguments)
    x = torch.ones(3, 2)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


class Checkpointed(nn.Module):
    """A network whose middle is computed again in the backward pass."""

    def __init__(self, layers: int, *, again: bool) -> None:
        super().__init__()
        self.first, self.last, self.again = nn.Linear(64, 32), nn.Linear(32, 10), again
        self.drops = nn.ModuleList(Dropout() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.again:
            return checkpoint(self.rest, x, use_reentrant=False)
        return self.rest(x)

    def rest(self, x: Tensor) -> Tensor:
        return self.last(self.drops[-1](self.first(self.drops[0](x))))


def gradient(module: nn.Module) -> FloatArray:
    whole, store = model(module=module), MemoryStore()
    workload = TorchWorkload([whole], scheme=Chunks(), store=store, precision="float64")
    workload.begin(0)
    part = workload.resolve(MiniTask(job=0, slot=0, chunks=np.arange(4), coefficients=np.ones(4)))
    return TorchCompute([whole.objective], store=store, precision="float64")(part)


def test_activations_that_are_computed_again_are_dropped_again() -> None:
    kept, again = Checkpointed(2, again=False), Checkpointed(2, again=True)
    again.load_state_dict(kept.state_dict())
    assert np.array_equal(gradient(kept), gradient(again))
    gradient(Checkpointed(1, again=False))
    with pytest.raises(Exception, match="must not call a Dropout layer several times"):
        gradient(Checkpointed(1, again=True))


class Second(nn.Module):
    """Drops where the batch is the second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.last = Dropout(), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(x.flatten(1).T).T)


class Unknown(Second):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [self.drop]
        del self.drop

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden[0](x.flatten(1)))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 10)), "seqgc.training.Dropout"),
        (nn.Sequential(nn.Flatten(), nn.AlphaDropout(), nn.Linear(64, 10)), "training.Dropout"),
        (Second(), "first axis"),
        (Unknown(), "as a submodule"),
    ],
)
def test_what_would_draw_other_masks_elsewhere_is_refused(module: nn.Module, words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        TorchWorkload([model(module=module)], scheme=Chunks(), store=MemoryStore())
    assert caught.value.argument == "module"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arguments", [{"p": 1.0}, {"p": -0.1}, {"p": "half"}, {"axes": 0}])
def test_arguments_that_make_no_layer_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=f"`{next(iter(arguments))}` must be"):
        Dropout(**arguments)
