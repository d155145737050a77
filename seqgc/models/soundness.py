"""Trial of each model before a run, of what must hold for several workers to compute its gradient.

A coded gradient is right if the gradient of a batch is the sum of its points' gradients, and if
every worker that computes a point gets the same numbers. Neither shows in a shape, and a breach
would train silently wrong. So a copy of each model computes a few results before a run, by the code
that workers use (`seqgc.models.trial`) and in the run's precision, and the results are compared.

Tolerance
---------
A comparison must tell a real difference from rounding, which depends on the network: up to 1e-6 of
a gradient in float32, all of it where the gradient is 0 but for rounding (a bias before a
normalisation), more in bfloat16. So rounding is measured: the same result is computed again after
each weight was changed by one rounding error (``eps``) of the coarsest dtype that the forward pass
computes in. Two values of a tensor may differ by ``_MARGIN`` times the sum of this change, of
``eps`` times the tensor's largest number, and of ``_SHARE`` times that of all tensors. In 23 sound
networks (convolutions, attention, recurrent and physics-informed ones, float32, float64 and
bfloat16) differences were at most 2.4 times this sum. In networks with batch statistics, attention
over the batch or such a backward pass they were at least 1e5 times it in float32 and float64, and
110 times for a term of weight 1e-4 in the loss that mixes points. In bfloat16 they were as little
as 2 and 0.2 times: so a model with autocast is tried without it as well.

A rounding error can also move an activation across a kink, such as that of a ReLU at 0, and change
a gradient by far more than rounding. In a transformer of 5 million parameters this happened in 8 of
104 comparisons, 4 of which exceeded the tolerance. It happens at some weights and not at others. So
a difference counts only if it is there at `_TRIES` sets of weights, each of which differs from the
one before by ``_NUDGE`` times every weight.
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
from seqgc.models.datasets import PointDataset, collate, leaves_of
from seqgc.models.evaluation import evaluate
from seqgc.models.model import Model, has_hooks
from seqgc.models.narrowing import require_distinct
from seqgc.models.precision import Precision, torch_dtype
from seqgc.models.trial import ModelTrial, TrialSum
from seqgc.ports import FloatArray, IntArray

__all__ = ["frozen_statistics", "require_sound"]

_READS, _READ_POINTS = 3, 16
_TRIES = 5
_Seen = TypeVar("_Seen")
_NOISE: Final = 0.05
_TRIAL_POINTS: Final = 3

_MARGIN: Final = 20.0
_SHARE: Final = 0.3
_NUDGE: Final = 1e-3

_DRAWING = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.MultiheadAttention, nn.RNNBase)
_NORMALISING = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_EMBEDDING = (nn.Embedding, nn.EmbeddingBag)

_CHUNKS: Final = "a worker sees some chunks of a batch only"


def require_sound(model: Model, *, precision: Precision) -> None:
    """Try ``model`` out on a few of its data points; neither it nor any random state changes.

    Raises
    ------
    ParameterError
        If its data points differ from read to read; if its module or loss raises, draws random
        numbers, remembers earlier calls, gives no gradient to any parameter, or makes a point's
        loss or gradient depend on the other points of its batch.
    """
    _require_plain_parameters(model)
    dtype = torch_dtype(precision)
    with torch.random.fork_rng(devices=[]), ExitStack() as states:
        states.callback(random.setstate, random.getstate())
        states.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 (others use it)
        states.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # workers show them, if they come again
        _require_repeatable_reads(model, dtype)
        require_distinct(model, precision)
        _require_statistics(model)
        trial = ModelTrial(model, precision)
        _try(trial)
        if model.autocast != "off":  # whose coarse rounding hides small effects
            _try_wide(model, precision)
        _require_evaluable(model, trial.module)


def _watched(call: Callable[[], _Seen]) -> tuple[_Seen, bool]:
    """Return what a call returns, and whether it draws from the global random states.

    Other threads may do so meanwhile (a notebook's, dask's), but not each time that it is called.
    """
    drew = True
    for _ in range(_TRIES):
        before = _random_state()
        seen = call()
        if not (drew := _random_state() != before):
            break
    return seen, drew


def _require_plain_parameters(model: Model) -> None:
    """Refuse what changes parameters or their gradients by the way, even if not yet."""
    for name, tensor in (*model.module.named_parameters(), *model.module.named_buffers()):
        if has_hooks(tensor):
            raise ParameterError(
                "module",
                "must have no hooks on its parameters: torch drops them when a module is copied to "
                "a worker, so they would have no effect",
                f"{name} of model {model.name!r}",
                "change the gradient in forward, by a hook on a tensor computed there or a "
                "torch.autograd.Function, or use gradient_clip_val",
            )
    for name, part in model.module.named_modules():
        if isinstance(part, _EMBEDDING) and part.max_norm is not None:
            got = f"{type(part).__name__} {name!r} of model {model.name!r}"
            raise _changing(f"{got} with max_norm={part.max_norm:g}")


def _require_repeatable_reads(model: Model, dtype: torch.dtype) -> None:
    points = np.unique(np.linspace(0, len(model.dataset) - 1, _READ_POINTS).astype(np.intp))
    try:
        reads, drew = _watched(
            lambda: [leaves_of(collate(model.dataset, points, dtype=dtype)) for _ in range(_READS)]
        )
    except ParameterError:
        raise
    except BaseException as error:
        reraise_stop(error)
        rule = f"must give points (x, y) that stack to a batch ({fault_of(error)})"
        ragged = "pad items of different lengths to one, e.g. by pad_sequence, and mask the padding"
        remedy = ragged if "equal size" in str(error) else ""
        raise ParameterError("dataset", rule, model.name, remedy) from error
    if drew or not all(_same(reads[0], read) for read in reads[1:]):
        raise ParameterError(
            "dataset",
            "must give the same item on every read: the workers that repeat a chunk must see the "
            "same data, or the decoded gradient is wrong",
            f"random items in {type(model.dataset).__name__} of model {model.name!r}",
            "augment by seqgc.training.AugmentedDataset, or once, before the run",
        )


def _require_evaluable(model: Model, module: nn.Module) -> None:
    """Refuse data to test on that would fail a run when all is trained."""
    argument = "dataset" if model.test_dataset is None else "test_dataset"
    dataset = model.dataset if model.test_dataset is None else model.test_dataset
    rule = "must have points that the module and the loss take ({})"
    with refusing(argument, rule, model.name):
        some = _some(len(dataset)).tolist()
        points: PointDataset = Subset(cast("Dataset[tuple[object, object]]", dataset), some)
        evaluate(module, loss=model.loss, dataset=points, autocast=model.autocast)


def _require_statistics(model: Model) -> None:
    """Refuse layers in eval mode that have never seen data: they would normalise nothing."""
    for name, kind in _frozen_norms(model):
        if _is_untouched(kind):
            raise ParameterError(
                "module",
                "must not normalise by statistics that no data were seen for: in eval mode they "
                "stay at mean 0 and variance 1, so the layer only scales and shifts",
                f"{type(kind).__name__} {name!r} of model {model.name!r} in eval mode",
                "use GroupNorm instead, or let the layers see data before the run: "
                "docs/training.md, Normalisation",
            )


def frozen_statistics(model: Model) -> list[str]:
    """Return what is worth a warning: layers that normalise by statistics that training keeps."""
    return [
        f"{type(kind).__name__} {name!r} of model {model.name!r} is in eval mode: it normalises by "
        "the statistics that it came with, and is trained as a fixed scaling and shift, not as "
        "batch normalisation"
        for name, kind in _frozen_norms(model)
    ]


def _frozen_norms(model: Model) -> list[tuple[str, nn.modules.batchnorm._NormBase]]:
    return [
        (name, part)
        for name, part in model.module.named_modules()
        if isinstance(part, _NORMALISING) and not part.training and part.running_mean is not None
    ]


def _is_untouched(part: nn.modules.batchnorm._NormBase) -> bool:
    mean, variance = part.running_mean, part.running_var
    if mean is None or variance is None:
        return False
    return not bool(mean.any()) and bool((variance == 1).all())


# ---- the trial -----------------------------------------------------------------------------------


def _try(trial: ModelTrial) -> None:
    """Refuse what is unsound, at a model's weights and at others.

    Weights that start at zero hide what they multiply (a zero last layer, a zero gamma).
    """
    _require_sums(trial)
    trial.shake(_NOISE)
    _require_sums(trial)


def _try_wide(model: Model, precision: Precision) -> None:
    """Try a model without its autocast, unless it cannot be computed like that."""
    trial = ModelTrial(replace(model, autocast="off"), precision)
    points = _some(len(model.dataset))
    try:
        trial.sum_of(points, np.ones(len(points)))
    except ParameterError:
        return
    _try(trial)


def _require_sums(trial: ModelTrial) -> None:
    """Refuse what is unsound at the present weights, the most telling reason first."""
    points = _some(len(trial.model.dataset))
    # Each point is there twice, so that points have what they look up or count in common.
    twice = np.concatenate([points, points])
    coefficients = 1.0 + np.arange(len(twice)) / 8
    parameters = _copies(trial.module.parameters())
    buffers = _copies(trial.module.buffers())
    together, drew = _watched(lambda: trial.sum_of(twice, coefficients))
    if drew:
        raise _unsound(
            trial,
            _is_drawing,
            "must not draw random numbers in forward: the workers that repeat a chunk would "
            "draw others, and the decoded gradient would be wrong",
            "use seqgc.training.Dropout in place of torch's dropout layers; attention and "
            "recurrent layers need dropout=0",
        )
    _require_kept(trial, parameters)
    _require_gradient(trial, together)
    trial.require_mean(points)
    remembers = _unsound(
        trial,
        _is_normalising,
        "must not change from call to call: what a worker's copy remembers (buffers, running "
        "statistics) is lost, and differs from worker to worker",
        "use GroupNorm or LayerNorm, or fixed statistics: docs/training.md, Normalisation; .eval() "
        "keeps the vectors of spectral_norm",
    )
    again = trial.sum_of(twice, coefficients)
    sizes = _all_largest(together.numbers)
    if not all(_Rounding(together, together).allows(again.numbers, together.numbers, sizes)):
        raise remembers
    del again  # which is as long as the weights
    for tries_left in reversed(range(_TRIES)):
        if (mixed := _mixed(trial, together, points, coefficients)) is None:
            break
        if tries_left == 0:
            raise mixed
        trial.nudge(_NUDGE)  # the activations at a kink are others then
        together = trial.sum_of(twice, coefficients)
    if not _same(list(trial.module.buffers()), buffers):
        raise remembers


def _alone(trial: ModelTrial, point: int) -> TrialSum:
    """Return the result of one point, a batch of its own."""
    try:
        return trial.sum_of(np.array([point]), np.ones(1))
    except ParameterError as error:
        fault = fault_of(error.__cause__ or error)
        raise _unsound(
            trial,
            _is_mixing,
            f"must take a batch of one point: a worker may have a chunk of one ({fault})",
            "use GroupNorm or LayerNorm instead of BatchNorm; keep the batch axis, which "
            "squeeze() without a number drops",
        ) from error


def _require_kept(trial: ModelTrial, parameters: Sequence[Tensor]) -> None:
    """Refuse a forward pass that changes weights."""
    for (name, now), before in zip(trial.module.named_parameters(), parameters, strict=True):
        if not _same([now], [before]):
            raise _changing(f"{name} of model {trial.model.name!r}")


def _changing(got: str) -> ParameterError:
    return ParameterError(
        "module",
        "must not change its parameters in forward: each worker would change its own copy only",
        got,
        "compute with a changed copy, e.g. torch.renorm(weight, 2, 0, 1.0) in place of "
        "Embedding(max_norm=1.0)",
    )


def _require_gradient(trial: ModelTrial, result: TrialSum) -> None:
    """Refuse a model that cannot learn: torch raises in backward then."""
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
        "must return what depends on its trainable parameters: no gradient reaches any of them",
        f"{type(trial.module).__name__} of model {name!r}",
        "call it without torch.no_grad(), detach() or numpy, and let it use its parameters",
    )


def _mixed(
    trial: ModelTrial, together: TrialSum, points: IntArray, coefficients: FloatArray
) -> ParameterError | None:
    """Return what is wrong if a result of points, each twice, is not the sum of their results."""
    moved = trial.moved(np.concatenate([points, points]), coefficients, by=together.eps)
    rounding = _Rounding(together, moved)
    del moved  # which is as long as the weights
    weights = coefficients[: len(points)] + coefficients[len(points) :]
    sums, outputs = [np.zeros_like(each) for each in together.numbers], []
    sizes = [np.zeros_like(each) for each in together.numbers]
    for point, weight in zip(points, weights.tolist(), strict=True):
        alone = _alone(trial, point)
        outputs.append(alone.outputs)
        for total, size, numbers in zip(sums, sizes, alone.numbers, strict=True):
            np.add(total, weight * numbers, out=total)
            np.add(size, weight * np.abs(numbers), out=size)
    same = rounding.allows(together.numbers, sums, _all_largest(sizes))
    if all(same):
        return None
    if not together.outputs or not _same_outputs(together.outputs, outputs, rounding):
        return _unsound(
            trial,
            _is_mixing,
            f"must compute each point on its own: {_CHUNKS}, so statistics over a batch would "
            "differ from worker to worker",
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
    """Say whether the module returns for each point what it returns for the point alone."""
    if any(len(each) != len(together) for each in alone):
        return False
    for index, output in enumerate(together):
        if output.ndim == 0 or len(output) != 2 * len(alone):
            continue  # it has no axis of points
        rows = [each[index] for each in alone]
        if any(row.shape != output[:1].shape for row in rows):
            return False
        distance = _distance(output[: len(alone)], np.concatenate(rows))
        if distance > rounding.of_outputs[index]:
            return False
    return True


class _Rounding:
    """The differences between results of a trial that may come from rounding, see "Tolerance".

    ``moved`` is the ``result`` after a change of all weights by one rounding error.
    """

    def __init__(self, result: TrialSum, moved: TrialSum) -> None:
        self._eps: Final = result.eps
        self._changes: Final = list(map(_distance, result.numbers, moved.numbers))
        outputs = zip(result.outputs, moved.outputs, strict=False)
        self.of_outputs: Final = [self._limit(_distance(*two), _largest(two[0])) for two in outputs]
        """The largest difference of the numbers of each output."""

    def allows(
        self, ones: Sequence[FloatArray], others: Sequence[FloatArray], sizes: Sequence[float]
    ) -> list[bool]:
        """Say of each number of a `TrialSum` whether two values of it may be the same.

        ``sizes`` are the largest of their numbers, before any cancel each other out.
        """
        share = _SHARE * max(sizes[:-2])
        return [
            _distance(one, other) <= self._limit(change, size + share)
            for one, other, size, change in zip(ones, others, sizes, self._changes, strict=True)
        ]

    def _limit(self, change: float, size: float) -> float:
        return _MARGIN * (change + self._eps * size)


def _all_largest(arrays: Iterable[FloatArray]) -> list[float]:
    return [_largest(each) for each in arrays]


def _largest(array: FloatArray) -> float:
    """Return the largest absolute value that is finite."""
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _distance(one: FloatArray, other: FloatArray) -> float:
    """Return the largest difference of two arrays; infinite if one is finite where other is not."""
    finite = np.isfinite(one)
    if one.shape != other.shape or not np.array_equal(finite, np.isfinite(other)):
        return np.inf
    return _largest(one[finite] - other[finite])


def _unsound(
    trial: ModelTrial, is_cause: Callable[[nn.Module], bool], rule: str, remedy: str
) -> ParameterError:
    """Return the refusal of the first part that may be the cause, or else of the whole module."""
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
    # `p` of dropout layers, `dropout` of attention and recurrent ones: 0 is harmless.
    rate = getattr(part, "p", getattr(part, "dropout", 1.0))
    return part.training and isinstance(part, _DRAWING) and rate > 0


def _some(size: int) -> IntArray:
    """Return a few data points of so many, from the first to the last."""
    return np.unique(np.linspace(0, size - 1, _TRIAL_POINTS).astype(np.intp))


def _copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [each.detach().clone() for each in tensors]


def _same(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Say whether tensors have the same shapes and numbers; NaN is NaN."""
    return len(ones) == len(others) and all(
        one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        for one, other in zip(ones, others, strict=True)
    )


def _random_state() -> bytes:
    """Return every global random state that a module or dataset may draw from, comparable."""
    numpy_state = np.random.get_state()  # noqa: NPY002 (others may use the global generator)
    return pickle.dumps((torch.get_rng_state().numpy(), numpy_state, random.getstate()))
