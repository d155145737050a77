"""Checks before a run that several workers can compute a model's gradient together.

A coded gradient is correct under two conditions: the gradient of a batch is the sum of its points'
gradients, and all workers that compute a point get the same numbers. A model that violates a
condition would be trained wrongly without an error. Therefore a copy of each model computes a few
results before the run, with the workers' code (`seqgc.models.trial`) and in the run's precision,
and the results are compared.

Tolerance
---------
A comparison must tell a real difference from a rounding error. Rounding errors depend on the
network: up to 1e-6 of a gradient in float32, more in bfloat16, and 100 % if the exact gradient is 0
(as for a bias before a normalisation). Therefore rounding is measured: the same result is
computed again after each weight was changed by one rounding error (``eps``) of the coarsest dtype
in the forward pass. Two values of a tensor may differ by ``_MARGIN`` times the sum of this change,
of ``eps`` times the largest number of the tensor, and of ``eps * _SHARE`` times the largest number
of all tensors. In 23 sound networks (convolutions, attention, recurrent and physics-informed ones,
in float32, float64 and bfloat16) differences were at most 2.4 times this sum. In networks that mix
points (by batch statistics, attention over the batch, or their backward pass) they were at least
1e5 times the sum in float32 and float64, and 110 times for a loss with a mixing term of weight
1e-4. In bfloat16 they were only 2 and 0.2 times the sum, so a model with autocast is also tried
without it.

A rounding error can also move an activation across a kink, such as the kink of a ReLU at 0, and
change a gradient by far more than rounding. In a transformer of 5 million parameters this happened
in 8 of 104 comparisons, and exceeded the tolerance in 4. This depends on the weights. Therefore a
difference counts only if it occurs for `_TRIES` sets of weights. From one set to the next, every
weight changes by a fraction ``_NUDGE`` of its value.
"""

from __future__ import annotations

import pickle
import random
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from seqgc._fault import fault_of
from seqgc.errors import ParameterError, refusing, reraise_stop
from seqgc.models.datasets import PointDataset, collate, leaves_of, sample_points
from seqgc.models.evaluation import evaluate
from seqgc.models.losses import loss_in, point_losses
from seqgc.models.model import Model, has_hooks
from seqgc.models.narrowing import require_distinct
from seqgc.models.precision import Precision, autocasting, torch_dtype
from seqgc.models.trial import ModelTrial, TrialSum
from seqgc.ports import FloatArray, IntArray

__all__ = ["frozen_statistics", "require_sound"]

_READS, _READ_POINTS = 3, 16
_TRIES = 5
_Result = TypeVar("_Result")
_NOISE: Final = 0.05
_TRIAL_POINTS: Final = 3

_MARGIN: Final = 20.0
_SHARE: Final = 0.3
_NUDGE: Final = 1e-3

_DRAWING = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.MultiheadAttention, nn.RNNBase)
_NORMALISING = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_EMBEDDING = (nn.Embedding, nn.EmbeddingBag)

_CHUNKS: Final = "a worker sees only some chunks of a batch"


def require_sound(model: Model, *, precision: Precision) -> None:
    """Try ``model`` on a few of its data points, without changing it or any random state.

    Raises
    ------
    ParameterError
        If a data point differs from read to read, or if points that differ become equal in the
        run's precision. If the module or the loss raises an error, draws random numbers, changes
        its state, gives no gradient to any parameter, or makes a point's loss or gradient depend on
        the other points of its batch. If the loss reads weights of the module.
    """
    _require_plain_parameters(model)
    dtype = torch_dtype(precision)
    with torch.random.fork_rng(devices=[]), ExitStack() as states:
        states.callback(random.setstate, random.getstate())
        states.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 (others use it)
        states.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # workers repeat them
        _require_repeatable_reads(model, dtype)
        require_distinct(model, precision)
        _require_statistics(model)
        trial = ModelTrial(model, precision)
        _try(trial)
        if model.autocast != "off":  # the coarse rounding of autocast hides small effects
            _try_without_autocast(model, precision)
        _require_independent_loss(model, trial.module, dtype)
        _require_evaluable(model, trial.module)


# ---- parameters, data and statistics -------------------------------------------------------------


def _require_plain_parameters(model: Model) -> None:
    """Raise `ParameterError` if parameters have hooks, or an embedding limits its norms."""
    for name, tensor in (*model.module.named_parameters(), *model.module.named_buffers()):
        if has_hooks(tensor):
            raise ParameterError(
                "module",
                "must have no hooks on its parameters: torch drops hooks when a module is copied "
                "to a worker, so they would have no effect",
                f"{name} of model {model.name!r}",
                "change the gradient in forward, by a torch.autograd.Function or a hook on a "
                "tensor computed there, or use gradient_clip_val",
            )
    for name, part in model.module.named_modules():
        if isinstance(part, _EMBEDDING) and part.max_norm is not None:
            got = f"{type(part).__name__} {name!r} of model {model.name!r}"
            raise _changing(f"{got} with max_norm={part.max_norm:g}")


def _require_repeatable_reads(model: Model, dtype: torch.dtype) -> None:
    points = sample_points(model.dataset, _READ_POINTS)
    try:
        reads, drew = _detect_draws(
            lambda: [leaves_of(collate(model.dataset, points, dtype=dtype)) for _ in range(_READS)]
        )
    except ParameterError:
        raise
    except BaseException as error:
        reraise_stop(error)
        rule = f"must give points (x, y) that stack to a batch ({fault_of(error)})"
        ragged = "pad items to the same length, e.g. by pad_sequence, and mask the padding"
        remedy = ragged if "equal size" in str(error) else ""
        raise ParameterError("dataset", rule, model.name, remedy) from error
    if drew or not all(_same(reads[0], read) for read in reads[1:]):
        raise ParameterError(
            "dataset",
            "must give the same item on every read: all workers that compute a chunk must see the "
            "same data, or the decoded gradient is wrong",
            f"random items in {type(model.dataset).__name__} of model {model.name!r}",
            "augment with seqgc.training.AugmentedDataset, or once, before the run",
        )


def _require_evaluable(model: Model, module: nn.Module) -> None:
    """Raise `ParameterError` if the evaluation at the end of the run would fail."""
    argument = "dataset" if model.test_dataset is None else "test_dataset"
    dataset = model.dataset if model.test_dataset is None else model.test_dataset
    rule = "must have points that the module and the loss take ({})"
    with refusing(argument, rule, model.name):
        indices = sample_points(dataset, _TRIAL_POINTS).tolist()
        points: PointDataset = Subset(cast("Dataset[tuple[object, object]]", dataset), indices)
        evaluate(module, loss=model.loss, dataset=points, autocast=model.autocast)


def _require_statistics(model: Model) -> None:
    """Raise `ParameterError` if a layer in eval mode has its initial statistics."""
    for name, kind in _frozen_norms(model):
        mean, variance = kind.running_mean, kind.running_var
        if mean is not None and variance is not None and not mean.any() and (variance == 1).all():
            raise ParameterError(
                "module",
                "must not normalise by initial statistics: in eval mode they stay at mean 0 and "
                "variance 1, so the layer only scales and shifts",
                f"{type(kind).__name__} {name!r} of model {model.name!r} in eval mode",
                "use GroupNorm instead, or compute the statistics from data before the run: "
                "docs/training.md, Normalisation",
            )


def frozen_statistics(model: Model) -> list[str]:
    """Return a warning for each layer that normalises by statistics without updating them."""
    return [
        f"{type(kind).__name__} {name!r} of model {model.name!r} is in eval mode: it normalises by "
        "the statistics that it already has, as a fixed scaling and shift, not as batch "
        "normalisation"
        for name, kind in _frozen_norms(model)
    ]


def _frozen_norms(model: Model) -> list[tuple[str, nn.modules.batchnorm._NormBase]]:
    return [
        (name, part)
        for name, part in model.module.named_modules()
        if isinstance(part, _NORMALISING) and not part.training and part.running_mean is not None
    ]


# ---- the trial -----------------------------------------------------------------------------------


def _require_independent_loss(model: Model, module: nn.Module, dtype: torch.dtype) -> None:
    """Raise `ParameterError` if the loss reads weights of the model's module.

    ``module`` is a copy, as in a run. The loss would always read the weights of the original
    module, and their gradient would be lost.
    """
    x, y = collate(model.dataset, sample_points(model.dataset, 1), dtype=dtype)
    loss = loss_in(model.loss, dtype)
    with autocasting(model.autocast):
        values = point_losses(loss, module(x), y, count=1).values
    named = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
    if not values.requires_grad:
        return
    gradients = torch.autograd.grad(values.sum(), [p for _, p in named], allow_unused=True)
    read = [
        name for (name, _), gradient in zip(named, gradients, strict=True) if gradient is not None
    ]
    if read:
        raise ParameterError(
            "loss",
            "must not read weights of the module: a run trains a copy of the module, so that the "
            "loss would read the initial weights",
            f"a loss of model {model.name!r} that reads {read[0]!r}",
            "return what the loss needs from the module's forward, or use the optimizer's "
            "weight_decay",
        )


def _try(trial: ModelTrial) -> None:
    """Raise `ParameterError` if the model is unsound at its initial weights or close to them.

    Weights close to the initial weights are also tried, because initial weights of zero (of a last
    layer, or a gamma) hide the effects of everything that they multiply.
    """
    _require_sums(trial)
    trial.shake(_NOISE)
    _require_sums(trial)


def _try_without_autocast(model: Model, precision: Precision) -> None:
    """Try a model without autocast, if it can be computed without autocast."""
    trial = ModelTrial(replace(model, autocast="off"), precision)
    points = sample_points(model.dataset, _TRIAL_POINTS)
    try:
        trial.sum_of(points, np.ones(len(points)))
    except ParameterError:
        return
    _try(trial)


def _require_sums(trial: ModelTrial) -> None:
    """Raise `ParameterError` if the model is unsound at its present weights.

    The order of the checks puts the most specific reason first.
    """
    points = sample_points(trial.model.dataset, _TRIAL_POINTS)
    # Each point appears twice, so that points share the rows of an embedding that they look up.
    twice = np.concatenate([points, points])
    coefficients = 1.0 + np.arange(len(twice)) / 8
    parameters = _copies(trial.module.parameters())
    buffers = _copies(trial.module.buffers())
    together, drew = _detect_draws(lambda: trial.sum_of(twice, coefficients))
    if drew:
        raise _unsound(
            trial,
            _is_drawing,
            "must not draw random numbers in forward: each worker that computes a chunk would draw "
            "different numbers, and the decoded gradient would be wrong",
            "use seqgc.training.Dropout instead of torch's dropout layers; attention and "
            "recurrent layers need dropout=0",
        )
    for (name, now), old in zip(trial.module.named_parameters(), parameters, strict=True):
        if not _same([now], [old]):
            raise _changing(f"{name} of model {trial.model.name!r}")
    _require_gradient(trial, together)
    trial.require_mean(points)
    remembers = _unsound(
        trial,
        _is_normalising,
        "must not change from call to call: buffers and running statistics in a worker's copy "
        "are lost, and differ from worker to worker",
        "use GroupNorm or LayerNorm, or fixed statistics: docs/training.md, Normalisation; .eval() "
        "keeps the vectors of spectral_norm",
    )
    again = trial.sum_of(twice, coefficients)
    sizes = [_largest(each) for each in together.numbers]
    if not all(_Rounding(together, together).allows(again.numbers, together.numbers, sizes)):
        raise remembers
    del again  # frees memory of the size of the weights
    for more_tries in reversed(range(_TRIES)):
        if (error := _mixing_error(trial, together, points, coefficients)) is None:
            break
        if not more_tries:
            raise error
        trial.nudge(_NUDGE)  # moves the activations away from a kink
        together = trial.sum_of(twice, coefficients)
    if not _same(list(trial.module.buffers()), buffers):
        raise remembers


def _result_alone(trial: ModelTrial, point: int) -> TrialSum:
    try:
        return trial.sum_of(np.array([point]), np.ones(1))
    except ParameterError as error:
        fault = fault_of(error.__cause__ or error)
        raise _unsound(
            trial,
            _is_mixing,
            f"must take a batch of one point: a chunk may consist of one point ({fault})",
            "use GroupNorm or LayerNorm instead of BatchNorm; keep the batch axis, which "
            "squeeze() without a number drops",
        ) from error


def _changing(got: str) -> ParameterError:
    return ParameterError(
        "module",
        "must not change its parameters in forward: each worker would change only its copy",
        got,
        "compute with a changed copy, e.g. torch.renorm(weight, 2, 0, 1.0) instead of "
        "Embedding(max_norm=1.0)",
    )


def _require_gradient(trial: ModelTrial, result: TrialSum) -> None:
    if trial.receives_gradient:
        return
    name = trial.model.name
    if result.differentiable:
        raise ParameterError(
            "loss",
            "must be differentiable: no gradient reaches the module's output",
            f"the loss of model {name!r}",
            "compute it by torch's functions, without argmax, rounding, detach() or numpy",
        )
    raise ParameterError(
        "module",
        "must return values that depend on its trainable parameters: no gradient reaches any",
        f"{type(trial.module).__name__} of model {name!r}",
        "call it without torch.no_grad(), detach() or numpy, and let it use its parameters",
    )


def _mixing_error(
    trial: ModelTrial, together: TrialSum, points: IntArray, coefficients: FloatArray
) -> ParameterError | None:
    """Return an error if the result of several points is not the sum of the points' results.

    ``together`` is the result of the points, each used twice, with ``coefficients``.
    """
    moved = trial.moved(np.concatenate([points, points]), coefficients, by=together.eps)
    rounding = _Rounding(together, moved)
    del moved  # frees memory of the size of the weights
    weights = coefficients[: len(points)] + coefficients[len(points) :]
    sums, outputs = [np.zeros_like(each) for each in together.numbers], []
    sizes = [np.zeros_like(each) for each in together.numbers]
    for point, weight in zip(points, weights.tolist(), strict=True):
        alone = _result_alone(trial, point)
        outputs.append(alone.outputs)
        for total, size, numbers in zip(sums, sizes, alone.numbers, strict=True):
            np.add(total, weight * numbers, out=total)
            np.add(size, weight * np.abs(numbers), out=size)
    same = rounding.allows(together.numbers, sums, [_largest(each) for each in sizes])
    if all(same):
        return None
    if not together.outputs or not _same_outputs(together.outputs, outputs, rounding):
        return _unsound(
            trial,
            _is_mixing,
            f"must compute each point on its own: {_CHUNKS}, so statistics over a batch would "
            "differ between workers",
            "use GroupNorm or fixed statistics instead of BatchNorm (docs/training.md, "
            "Normalisation); check that the batch is the first axis (batch_first=True)",
        )
    if not all(same[-2:]):
        return ParameterError(
            "loss",
            f"must not compare the points of a batch: {_CHUNKS}",
            f"a loss that mixes points in model {trial.model.name!r}",
            "use a loss that is a sum over data points",
        )
    return _unsound(
        trial,
        lambda part: isinstance(part, _EMBEDDING) and part.scale_grad_by_freq,
        "must have a gradient that is the sum of its points' gradients: the backward pass of the "
        "module or of the loss mixes or scales the points of a batch",
        "use Embedding without scale_grad_by_freq, and no autograd.Function whose backward "
        "normalises",
    )


def _same_outputs(
    together: Sequence[FloatArray], alone: Sequence[Sequence[FloatArray]], rounding: _Rounding
) -> bool:
    """Return True if the module's outputs for a point do not depend on the other points."""
    if any(len(each) != len(together) for each in alone):
        return False
    for index, output in enumerate(together):
        if output.ndim == 0 or len(output) != 2 * len(alone):
            continue  # the first axis is not the axis of the points
        rows = [each[index] for each in alone]
        if any(row.shape != output[:1].shape for row in rows):
            return False
        distance = _distance(output[: len(alone)], np.concatenate(rows))
        if distance > rounding.of_outputs[index]:
            return False
    return True


class _Rounding:
    """The differences between two results that rounding may cause (see "Tolerance" above).

    ``moved`` is the ``result`` after all weights were changed by one rounding error.
    """

    def __init__(self, result: TrialSum, moved: TrialSum) -> None:
        self._eps: Final = result.eps
        self._changes: Final = list(map(_distance, result.numbers, moved.numbers))
        outputs = zip(result.outputs, moved.outputs, strict=False)
        self.of_outputs: Final = [self._limit(_distance(*two), _largest(two[0])) for two in outputs]
        """The largest acceptable difference of the numbers of each output."""

    def allows(
        self, ones: Sequence[FloatArray], others: Sequence[FloatArray], sizes: Sequence[float]
    ) -> list[bool]:
        """Return, for each array of `TrialSum.numbers`, True if both values agree up to rounding.

        ``sizes`` are the largest absolute numbers of each array, before terms of a sum cancel.
        """
        share = _SHARE * max(sizes[:-2])
        return [
            _distance(one, other) <= self._limit(change, size + share)
            for one, other, size, change in zip(ones, others, sizes, self._changes, strict=True)
        ]

    def _limit(self, change: float, size: float) -> float:
        return _MARGIN * (change + self._eps * size)


def _largest(array: FloatArray) -> float:
    """Return the largest finite absolute value, or 0."""
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _distance(one: FloatArray, other: FloatArray) -> float:
    """Return the largest difference of two arrays; infinite if shape or finiteness differ."""
    finite = np.isfinite(one)
    if one.shape != other.shape or not np.array_equal(finite, np.isfinite(other)):
        return np.inf
    return _largest(one[finite] - other[finite])


def _unsound(
    trial: ModelTrial, is_cause: Callable[[nn.Module], bool], rule: str, remedy: str
) -> ParameterError:
    """Return an error that names the first submodule that may be the cause, or the module."""
    of = f"of model {trial.model.name!r}"
    for name, part in trial.module.named_modules():
        if is_cause(part):
            return ParameterError("module", rule, f"{type(part).__name__} {name!r} {of}", remedy)
    return ParameterError("module", rule, f"{type(trial.module).__name__} {of}", remedy)


def _is_mixing(part: nn.Module) -> bool:
    return part.training and isinstance(part, nn.modules.batchnorm._BatchNorm)


def _is_normalising(part: nn.Module) -> bool:
    return part.training and isinstance(part, _NORMALISING)


def _is_drawing(part: nn.Module) -> bool:
    # The rate is `p` in dropout layers, and `dropout` in attention and recurrent layers.
    rate = getattr(part, "p", getattr(part, "dropout", 1.0))
    return part.training and isinstance(part, _DRAWING) and rate > 0


def _copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [each.detach().clone() for each in tensors]


def _same(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return True if the tensors have the same shapes and numbers, where NaN equals NaN."""
    return len(ones) == len(others) and all(
        one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        for one, other in zip(ones, others, strict=True)
    )


def _detect_draws(call: Callable[[], _Result]) -> tuple[_Result, bool]:
    """Return the result of a call, and True if the call draws from a global random state.

    Other threads (of a notebook, or of dask) may draw during a call, but hardly during every call;
    therefore the call is repeated a few times.
    """
    for _ in range(_TRIES):
        state = _random_state()
        result = call()
        if _random_state() == state:
            return result, False
    return result, True


def _random_state() -> bytes:
    """Return all global random states that a module or a dataset may use, as bytes."""
    numpy_state = np.random.get_state()  # noqa: NPY002 (others may use the global generator)
    return pickle.dumps((torch.get_rng_state().numpy(), numpy_state, random.getstate()))
