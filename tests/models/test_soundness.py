"""A model that would be trained wrongly without an error is refused before the run."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import partial
from multiprocessing import RawValue

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from seqgc.errors import ParameterError
from seqgc.stores import MemoryStore
from seqgc.training import Model, TorchWorkload, TrainingPlan
from tests.training.reference import Chunks, blobs, flat, make_model


def start(model: Model) -> None:
    TorchWorkload([model], scheme=Chunks(), store=MemoryStore())


def net(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), *layers, nn.Flatten(), nn.Linear(4 * 36, 10))


class HandMadeBatchNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.std(0) + 1)


class ZeroGamma(nn.Module):
    """A residual branch that its initial weight of zero hides."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch, self.gamma = branch, nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma * self.branch(x)


class PythonDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * random.random()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


class Drifting(Counting):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.calls


class Tiring(nn.Module):
    """A layer whose output shrinks from call to call, without a buffer."""

    strength = 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.strength *= 0.99
        return self.strength * x


def pretrained(layer: nn.Module) -> nn.Module:
    """A layer in eval mode, with statistics of data that it has seen."""
    layer(torch.randn(8, 4, 6, 6, generator=torch.Generator().manual_seed(0)) + 1)
    return layer.eval()


@pytest.mark.parametrize(
    ("layer", "named", "why"),
    [
        (nn.BatchNorm2d(4), "BatchNorm2d '1'", "each point on its own"),
        (nn.BatchNorm2d(4, track_running_stats=False), "BatchNorm2d '1'", "each point on its own"),
        (HandMadeBatchNorm(), "Sequential", "each point on its own"),
        (ZeroGamma(HandMadeBatchNorm()), "Sequential", "each point on its own"),
        (nn.Dropout(0.01), "Dropout '1'", "must not draw random numbers"),
        (nn.Dropout2d(0.5), "Dropout2d '1'", "must not draw random numbers"),
        (nn.RReLU(), "RReLU '1'", "must not draw random numbers"),
        (PythonDropout(), "Sequential", "must not draw random numbers"),
        (Drifting(), "Sequential", "must not change from call to call"),
        (Counting(), "Sequential", "must not change from call to call"),
        (Tiring(), "Sequential", "must not change from call to call"),
        (nn.BatchNorm2d(4).eval(), "BatchNorm2d '1'", "initial statistics"),
        (nn.InstanceNorm2d(4, track_running_stats=True), "InstanceNorm2d '1'", "from call to call"),
        (nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 1)), "Sequential", "call to call"),
    ],
)
def test_a_module_whose_chunks_do_not_add_up_is_refused_by_name(
    layer: nn.Module, named: str, why: str
) -> None:
    model = make_model(module=net(layer))
    with pytest.raises(ParameterError, match=why) as caught:
        start(model)
    assert caught.value.argument == "module"
    assert str(caught.value.value).startswith(named)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "layer",
    [
        pretrained(nn.BatchNorm2d(4)),
        nn.Dropout(0.5).eval(),
        nn.Dropout(0.0),
        nn.InstanceNorm2d(4, affine=True),
        nn.GroupNorm(2, 4),
        nn.LayerNorm([4, 6, 6]),
        ZeroGamma(nn.Tanh()),
    ],
    ids=lambda layer: f"{type(layer).__name__}-{'train' if layer.training else 'eval'}",
)
def test_a_module_that_takes_each_point_on_its_own_passes_unchanged(layer: nn.Module) -> None:
    module = net(layer)
    before, torch_state, python_state = flat(module), torch.get_rng_state(), random.getstate()
    start(make_model(module=module))
    np.testing.assert_array_equal(flat(module), before)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state


def test_attention_over_the_batch_axis_is_refused_and_over_the_sequence_passes() -> None:
    data = TensorDataset(torch.randn(20, 3, 8), torch.randn(20, 3, 8))
    for batch_first in (True, False):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
        model = make_model(module=layer, loss=nn.MSELoss(), dataset=data)
        if batch_first:
            start(model)
        else:
            with pytest.raises(ParameterError, match="batch_first=True"):
                start(model)


def test_dropout_inside_a_recurrent_layer_is_named() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quiet = nn.Dropout(0.0)
            self.rnn = nn.LSTM(8, 10, num_layers=2, dropout=0.1, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(self.quiet(x.squeeze(1)))[0][:, -1]

    with pytest.raises(ParameterError, match=re.escape("LSTM 'rnn' of model 'net'")):
        start(make_model(module=Last()))


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """A dataset that flips images at random, with the given source of randomness."""

    def __init__(self, draw: object) -> None:
        self.points, self.draw = blobs(), draw

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.points[index]
        return (x.flip(-1) if self.draw(index) else x), y


OWN_STREAM = np.random.default_rng(0)


@pytest.mark.parametrize(
    "draw",
    [
        lambda _: torch.rand(()) < 0.5,
        lambda _: random.random() < 0.01,  # seldom, but the generator moves
        lambda _: np.random.rand() < 0.01,  # noqa: NPY002 (what is tested)
        lambda _: OWN_STREAM.random() < 0.5,
    ],
    ids=["torch", "python", "numpy", "own"],
)
def test_random_augmentation_is_refused(draw: object) -> None:
    with pytest.raises(ParameterError, match=r"same item on every read.*Augmented of model 'net'"):
        start(make_model(dataset=Augmented(draw)))


def test_what_another_thread_draws_meanwhile_is_not_the_models() -> None:
    seen = RawValue("i")  # in the child of a trial as well

    def elsewhere(index: int) -> bool:  # noqa: ARG001 (the points are alike)
        if seen.value < 20:  # the first try of the data, or the second: 3 reads of 16 points each
            random.random()
        seen.value += 1
        return False

    start(make_model(dataset=Augmented(elsewhere)))
    assert seen.value > 20


def test_augmentation_seeded_by_the_index_passes() -> None:
    start(make_model(dataset=Augmented(lambda i: np.random.default_rng(i).random() < 0.5)))


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CTCLoss(),
        lambda output, target: F.cross_entropy(output, target, reduction="none")[:2],
    ],
    ids=["mean", "sum", "ctc", "short"],
)
def test_a_loss_that_has_no_value_for_each_point_is_refused(loss: nn.Module) -> None:
    with pytest.raises(ParameterError, match=r"\(values, weights\)") as caught:
        start(make_model(loss=loss))
    assert caught.value.argument == "loss"


def test_a_loss_that_compares_the_points_of_a_batch_is_refused() -> None:
    def contrastive(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output @ output.T, torch.arange(len(target)), reduction="none")

    with pytest.raises(ParameterError, match="must not compare the points of a batch"):
        start(make_model(loss=contrastive))


def weakly_mixing(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none") + 1e-3 * output.mean(0).pow(2).sum()


@pytest.mark.parametrize("autocast", ["off", "bfloat16"])
def test_a_small_effect_of_other_points_is_found_whatever_the_rounding(autocast: str) -> None:
    with pytest.raises(ParameterError, match="must not compare the points of a batch"):
        start(make_model(loss=weakly_mixing, autocast=autocast))


class Coarse(nn.Module):
    """Computes a part of its forward pass in a dtype that is coarser than the run's."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.last, self.dtype = nn.Linear(64, 64), nn.Linear(64, 10), dtype

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            h = self.inner(x).to(self.dtype)
        return self.last(h.softmax(1).to(x.dtype))


@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.bfloat16, "float32"), (torch.float32, "float64")]
)
def test_the_rounding_of_a_coarser_dtype_is_not_taken_for_an_effect_of_other_points(
    dtype: torch.dtype, precision: str
) -> None:
    model = make_model(module=Coarse(dtype))
    TorchWorkload([model], scheme=Chunks(), store=MemoryStore(), precision=precision)


class Kinked(nn.Module):
    """A module that a few times gives a point alone another result, as a ReLU does at its kink."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1 or self.times == 0:
            return x
        self.times -= 1
        return 1.001 * x


def test_a_difference_counts_only_if_it_is_there_at_other_weights_too() -> None:
    start(make_model(module=net(Kinked(4))))
    with pytest.raises(ParameterError, match="each point on its own"):
        start(make_model(module=net(Kinked(40))))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_smallest_datasets_can_be_tried_out(size: int) -> None:
    start(make_model(dataset=blobs(size)))
    if size > 1:
        with pytest.raises(ParameterError, match="each point on its own"):
            start(make_model(module=net(HandMadeBatchNorm()), dataset=blobs(size)))


@pytest.mark.parametrize("optimizer", [torch.optim.LBFGS, partial(torch.optim.LBFGS, lr=0.1)])
def test_an_optimizer_that_needs_a_closure_is_refused_with_the_reason(optimizer: object) -> None:
    with pytest.raises(ParameterError, match=r"not from a closure.*'LBFGS'.*first-order"):
        start(make_model(optimizer=optimizer))


def test_an_optimizer_that_is_not_a_factory_is_refused() -> None:
    with pytest.raises(ParameterError, match="must be a factory"):
        start(make_model(optimizer=lambda parameters: sum(p.sum() for p in parameters).item()))


class Stream(IterableDataset[int]):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def frozen() -> nn.Module:
    return nn.Linear(2, 2).requires_grad_(False)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"name": ""}, "`name` must be 1 to 100"),
        ({"name": "../up"}, "`name` must be 1 to 100"),
        ({"batch_size": 0}, "`batch_size` must be an integer >= 1; got 0"),
        ({"batch_size": 2.5}, "`batch_size` must be an integer >= 1; got 2.5"),
        ({"seed": -1}, "`seed` must be an integer >= 0; got -1"),
        ({"dataset": Stream()}, "`dataset` must be map-style"),
        ({"dataset": iter([1])}, "`dataset` must be map-style"),
        ({"dataset": []}, "`dataset` must hold at least one"),
        ({"module": torch.nn.functional.relu}, "`module` must be a torch.nn.Module"),
        ({"module": frozen()}, "`module` must have a parameter that requires grad"),
        ({"loss": None}, "`loss` must be a function"),
    ],
)
def test_an_argument_of_a_model_out_of_its_range_is_named(
    changed: dict[str, object], rule: str
) -> None:
    good = {
        "name": "net",
        "module": nn.Linear(1, 1),
        "loss": nn.MSELoss(),
        "dataset": TensorDataset(torch.ones(2, 1), torch.ones(2, 1)),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
        "batch_size": 2,
        "seed": 0,
    }
    start(Model(**good))
    with pytest.raises(ParameterError, match=re.escape(rule)):
        Model(**(good | changed))


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_parameters_without_a_shape_are_refused_with_the_remedy() -> None:
    with pytest.raises(ParameterError, match="shape for every parameter; got 'weight'"):
        make_model(module=nn.LazyLinear(3))


def test_an_nn_loss_with_a_mean_is_taken_point_by_point_and_itself_left_alone() -> None:
    loss = nn.SmoothL1Loss(beta=0.3)
    model = make_model(loss=loss)
    assert loss.reduction == "mean"
    assert (model.loss.reduction, model.loss.beta) == ("none", 0.3)


def test_statistics_that_stay_are_named_before_a_run() -> None:
    model = make_model(module=net(pretrained(nn.BatchNorm2d(4))))
    plan = TrainingPlan(models=[model, make_model("plain")], scheme="uncoded", steps=1)
    (warning,) = plan.on(2).shortcomings()
    assert "BatchNorm2d '1' of model 'net' is in eval mode" in warning
    assert "not as batch normalisation" in warning


def test_a_batch_larger_than_its_data_set_is_refused() -> None:
    models = [make_model("all", dataset=blobs(16)), make_model("more", dataset=blobs(15))]
    TrainingPlan(models=models[:1], scheme="uncoded", steps=1)
    with pytest.raises(ParameterError, match=r"`batch_size` must be at most 15.* 'more'.*got 16"):
        TrainingPlan(models=models, scheme="uncoded", steps=1)


def test_a_loss_that_reads_the_weights_is_refused() -> None:
    """A run trains a copy of the module; the loss would always read the initial weights."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def penalised(output: Tensor, target: Tensor, *, detached: bool = False) -> Tensor:
        weight = module[1].weight.detach() if detached else module[1].weight
        return F.cross_entropy(output, target, reduction="none") + 0.1 * weight.square().sum()

    TorchWorkload(
        [make_model(module=module, loss=partial(penalised, detached=True))],
        scheme=Chunks(),
        store=MemoryStore(),
    )
    with pytest.raises(ParameterError, match=r"copy of the module.*'1\.weight'"):
        TorchWorkload(
            [make_model(module=module, loss=penalised)], scheme=Chunks(), store=MemoryStore()
        )
