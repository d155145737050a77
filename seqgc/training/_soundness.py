"""What must hold for a sum over chunks to be the batch's gradient, tested by behaviour.

A coded gradient is right only if every worker that repeats a chunk computes the same thing, and if
a point's loss does not depend on which points it is computed with. Neither shows in a shape, and a
breach would train silently wrong; so each model is tried out once, on a copy, before a run starts.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from seqgc._fault import fault_of
from seqgc.errors import ParameterError, refusing, reraise_stop
from seqgc.ports import IntArray
from seqgc.training._autocast import autocasting
from seqgc.training._points import collate, loss_in, map_tensors, point_losses, require_mean
from seqgc.training.dropout import dropout_masks
from seqgc.training.model import Model

__all__ = ["frozen_statistics", "require_sound"]

_READS, _READ_POINTS = 3, 16
_TRIES = 5
_Seen = TypeVar("_Seen")
_DTYPE = torch.float64  # so that rounding is far below any effect worth refusing
_NOISE = 0.05

_MIXING = (nn.modules.batchnorm._BatchNorm,)
_DRAWING = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.MultiheadAttention, nn.RNNBase)
_NORMALISING = (*_MIXING, nn.modules.instancenorm._InstanceNorm)


def require_sound(model: Model) -> None:
    """Try ``model`` out on a few of its data points; neither it nor any random state changes.

    Refused is a model whose data points differ from read to read; whose module or loss draws random
    numbers, remembers earlier calls, or makes a point's result depend on others of its batch.
    """
    with torch.random.fork_rng(devices=[]), ExitStack() as states:
        states.callback(random.setstate, random.getstate())
        states.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 (others use it)
        _require_repeatable_reads(model)
        _require_statistics(model)
        trial = _Trial(model=model, module=copy.deepcopy(model.module).to(_DTYPE))
        trial.run()
        # Weights that start at zero hide what they multiply (a zero last layer, a zero gamma).
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in trial.module.parameters():
                p.add_(torch.randn(p.shape, generator=generator, dtype=_DTYPE), alpha=_NOISE)
        trial.run()
        _require_test_points(model, trial.module)
        if model.autocast != "off":  # which leaves what is as wide as in the trials as it is
            narrow = copy.deepcopy(model.module).to(torch.float32)
            points, _ = _overlapping_batches(len(model.dataset))
            _Trial(model=model, module=narrow, dtype=torch.float32).call(points)


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


def _require_repeatable_reads(model: Model) -> None:
    points = np.unique(np.linspace(0, len(model.dataset) - 1, _READ_POINTS).astype(np.intp))
    with refusing("dataset", "must give points (x, y) that stack to a batch ({})", model.name):
        reads, drew = _watched(
            lambda: [_leaves(collate(model.dataset, points, dtype=_DTYPE)) for _ in range(_READS)]
        )
    if drew or not all(_equal(reads[0], read) for read in reads[1:]):
        raise ParameterError(
            "dataset",
            "must give the same item on every read: the workers that repeat a chunk must see the "
            "same data, or the decoded gradient is wrong",
            f"random items in {type(model.dataset).__name__} of model {model.name!r}",
            "augment by seqgc.training.AugmentedDataset, or once, before the run",
        )


def _require_test_points(model: Model, module: nn.Module) -> None:
    """Refuse data to test on that would fail a run when all is trained."""
    if model.test_dataset is None:
        return
    points, _ = _overlapping_batches(len(model.test_dataset))
    rule = "must have points that the module and the loss take ({})"
    with refusing("test_dataset", rule, model.name), torch.no_grad():
        x, y = collate(model.test_dataset, points, dtype=_DTYPE)
        point_losses(loss_in(model.loss, _DTYPE), module(x), y, count=len(points))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One module, called a few times at one set of weights."""

    model: Model
    module: nn.Module
    dtype: torch.dtype = _DTYPE

    def run(self) -> None:
        """Refuse what is unsound, the most telling reason first."""
        buffers = {name: b.clone() for name, b in self.module.named_buffers()}
        first, second = _overlapping_batches(len(self.model.dataset))
        original, drew = _watched(lambda: self.call(first))
        if drew:
            raise self._unsound(
                _DRAWING,
                "must not draw random numbers in forward: the workers that repeat a chunk would "
                "draw others, and the decoded gradient would be wrong",
                "use seqgc.training.Dropout in place of torch's dropout layers; attention and "
                "recurrent layers need dropout=0",
            )
        remembers = self._unsound(
            _NORMALISING,
            "must not change from call to call: what a worker's copy remembers (buffers, running "
            "statistics) is lost, and differs from worker to worker",
            "use GroupNorm or LayerNorm, or fixed statistics: docs/training.md, Normalisation",
        )
        if not _equal(original, self.call(first)):
            raise remembers
        self._require_separate(original, self.call(second))
        if any(not _close(b, buffers[name]) for name, b in self.module.named_buffers()):
            raise remembers

    def call(self, points: IntArray) -> tuple[Tensor, ...]:
        """Return the points' losses (m,), then the module's output if it is one tensor."""
        x, y = collate(self.model.dataset, points, dtype=self.dtype)
        try:
            masks = dropout_masks(self.module, points, seed=self.model.seed)
            with torch.no_grad(), autocasting(self.model.autocast), masks:
                output = self.module(x)
                loss = loss_in(self.model.loss, self.dtype)
                losses = point_losses(loss, output, y, count=len(points))
                require_mean(loss, losses, output, y)
        except ParameterError:
            raise
        except BaseException as error:  # the user's own code: whatever it raises
            reraise_stop(error)
            rule = "must take the dataset's points, and the loss its outputs"
            raise ParameterError("module", rule, self._blame(()), fault_of(error)) from error
        return (losses.values, output) if isinstance(output, Tensor) else (losses.values,)

    def _require_separate(self, one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> None:
        """Compare the one point that two batches share; refuse if the others matter to it."""
        same = [_close(mine[0], theirs[0]) for mine, theirs in zip(one, other, strict=False)]
        if len(same) > 1 and same[-1] and not same[0]:  # the output is the same, the loss is not
            raise ParameterError(
                "loss",
                "must not compare the points of a batch: a worker sees some chunks of it only",
                f"a loss that mixes points in model {self.model.name!r}",
                "use a loss that is a sum over data points",
            )
        if not all(same):
            raise self._unsound(
                _MIXING,
                "must compute each point on its own: a worker sees some chunks of a batch only, so "
                "statistics over a batch would differ from worker to worker",
                "use GroupNorm or fixed statistics instead of BatchNorm (docs/training.md, "
                "Normalisation); check that the batch is the first axis (batch_first=True)",
            )

    def _unsound(
        self, kinds: tuple[type[nn.Module], ...], rule: str, remedy: str
    ) -> ParameterError:
        return ParameterError("module", rule, self._blame(kinds), remedy)

    def _blame(self, kinds: tuple[type[nn.Module], ...]) -> str:
        """Name the part of one of these kinds, or the whole module."""
        for name, module in self.module.named_modules():
            # `p` of dropout layers, `dropout` of attention and recurrent ones: 0 is harmless.
            rate = getattr(module, "p", getattr(module, "dropout", 1.0))
            if module.training and isinstance(module, kinds) and rate > 0:
                return f"{type(module).__name__} {name!r} of model {self.model.name!r}"
        return f"{type(self.module).__name__} of model {self.model.name!r}"


def _overlapping_batches(size: int) -> tuple[IntArray, IntArray]:
    """Return two batches of one length that have nothing but their first point in common."""
    points = np.unique(np.linspace(0, size - 1, 7).astype(np.intp))
    rest = points[1:] if size > 1 else points
    half = max(len(rest) // 2, 1)
    others = rest[-half:] if len(rest) > 1 else points[:1]
    return np.append(points[:1], rest[:half]), np.append(points[:1], others)


def _leaves(value: object) -> list[Tensor]:
    """Return every tensor of a collated value."""
    leaves: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        leaves.append(tensor)
        return tensor

    map_tensors(value, note)
    return leaves


def _equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(_close, one, other))


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(
        one.to(_DTYPE), other.to(_DTYPE), rtol=1e-7, atol=1e-10, equal_nan=True
    )


def _random_state() -> bytes:
    """Return every global random state that a module or dataset may draw from, comparable."""
    numpy_state = np.random.get_state()  # noqa: NPY002 (others may use the global generator)
    return pickle.dumps((torch.get_rng_state().numpy(), numpy_state, random.getstate()))
