"""The choice, before a run, of the number of models that a worker computes at once.

One pass for several models (`ObjectiveGroup`) may take less or more time than a pass for each; this
depends on the network, on the number of points, and on the processor. Therefore both ways are
measured, with the number of points of a part in the run. Groups are used if they take clearly less
processor time, and if their results equal the results of single models up to rounding.

The choice affects the last bits of the results. Therefore it is made once, by the master, and
recorded in the run.

With the same trial, `seconds_of_parts` measures how long a worker computes before there is a run.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from seqgc._fault import fault_of
from seqgc.errors import refusing, reraise_stop
from seqgc.models.datasets import PointDataset, has_tensors, sample_points
from seqgc.models.model import Model, ParameterVector, with_shared_modules
from seqgc.models.objectives import LocalModule, LocalObjective, ObjectiveGroup, forms_of
from seqgc.models.precision import Precision, torch_dtype
from seqgc.models.trial import try_first
from seqgc.ports import FloatArray, WeightedPoints, WeightRef

__all__ = ["GroupChoice", "choose_group_sizes", "seconds_of_parts"]

_FORM_S: Final = 0.3  # limit of the processor time for a form
_ALL_S: Final = 1.0  # limit of the processor time for all forms
_SLOW_S: Final = 0.02  # a pass of one model that takes longer gains nothing in a group
_REPEATS: Final = 4
_FEWEST: Final = 4  # smallest group; fewer models hardly ever save time
_WORTHWHILE: Final = 0.85  # largest acceptable time, relative to single models
_BETTER: Final = 0.9  # largest acceptable time, relative to a smaller group
_WORSE: Final = 1.2  # time, relative to a smaller group, at which no larger group is tried
MEASURED_POINTS: Final = 128
_ITEMS: Final = 8  # number of items that are read from a dataset of the user's own class
_NOISE: Final = 0.05  # added to the weights, because weights of 0 hide errors
_TOLERANCE: Final = {"float32": 1e-3, "float64": 1e-9, "bfloat16": 5e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChoice:
    """The number of models to compute at once, by the name of each model in a group.

    ``notes`` are lines about the forms whose models cannot be computed together.
    """

    sizes: Mapping[str, int]
    notes: Sequence[str] = ()


def choose_group_sizes(
    bundles: Sequence[Sequence[Model]],
    *,
    points: Callable[[Model], int],
    precision: Precision,
    size: int | None = None,
) -> GroupChoice:
    """Choose the number of models of each form that are computed at once, for a run's bundles.

    If `torch.vmap` cannot map the models of a form, they are computed one by one. Otherwise the
    number is ``size``, or the fastest number if ``size`` is None. ``points(model)`` is the largest
    number of points in a part of a mini-task. The models must have been checked one by one before
    (`seqgc.models.soundness`). The choice takes at most about a second, and hardly any time if no
    bundle has two models of a form.
    """
    sizes, notes = dict[str, int](), list[str]()
    if size == 1 or all(len(bundle) < 2 for bundle in bundles):
        return GroupChoice(sizes=sizes)
    until = time.thread_time() + _ALL_S
    models = [model for bundle in bundles for model in bundle]
    for form in _forms(models, points):
        names = {model.name for model in form}
        most = max(sum(model.name in names for model in bundle) for bundle in bundles)
        limit_s = min(_FORM_S, until - time.thread_time())
        if most < 2 or (size is None and limit_s < 0):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # workers repeat them
                trial = _Trial(form[:most], points=points(form[0]), precision=precision)
                if size is None:
                    best = trial.best_size(limit_s=limit_s)
                else:
                    trial.require_same()
                    best = min(size, most)
        except BaseException as error:  # from the user's code, or from torch.vmap
            reraise_stop(error)
            who = f"{len(form)} models like {form[0].name} ({type(form[0].module).__name__})"
            notes.append(f"{who} are computed one by one, not several at once ({fault_of(error)})")
            continue
        if best > 1:
            sizes |= {model.name: best for model in form}
    return GroupChoice(sizes=sizes, notes=notes)


def seconds_of_parts(
    models: Sequence[Model], *, points: Callable[[Model], int], precision: Precision
) -> float:
    """Measure the processor time, in seconds, of one part of every model, computed one by one.

    ``points(model)`` is the number of points in a part. Models of one form are measured once. Of a
    large part, at most `MEASURED_POINTS` points are computed, and the time is taken to be
    proportional to the points. One thread computes; reading the data points is not included.

    Raises
    ------
    ParameterError
        If the model's code raises an error, or ends the process that computes it.
    """
    total_s, threads = 0.0, torch.get_num_threads()
    for form in _forms(models, points):
        model, wanted = form[0], points(form[0])
        measured, seconds = min(wanted, MEASURED_POINTS), list[float]()

        def measure(model: Model, *, into: list[float], measured: int) -> None:
            with refusing("module", "must compute a part of a batch ({})", model.name):
                into.append(_Trial([model], points=measured, precision=precision).seconds())

        trial = partial(measure, into=seconds, measured=measured)
        torch.set_num_threads(1)
        try:
            try_first(model, trial)
            if not seconds:  # it was tried in a child process
                trial(model)
        finally:
            torch.set_num_threads(threads)
        total_s += len(form) * seconds[0] * wanted / measured
    return total_s


def _forms(models: Sequence[Model], points: Callable[[Model], int]) -> list[list[Model]]:
    """Group the models by their form and their number of points."""
    by_name, forms = {model.name: model for model in models}, list[list[Model]]()
    for form in forms_of(with_shared_modules(model.objective for model in models)):
        by_points = defaultdict[int, list[Model]](list)
        for objective in form:
            model = by_name[objective.name]
            by_points[points(model)].append(model)
        forms += by_points.values()
    return forms


class _Trial:
    """A trial that computes parts of several models of one form, separately and together."""

    def __init__(self, models: Sequence[Model], *, points: int, precision: Precision) -> None:
        self._models, self._points, self._precision = models, points, precision
        self._module: Final = LocalModule(models[0].module, torch_dtype(precision))
        self._datasets: Final = dict[int, PointDataset]()  # by identity of the models' datasets
        self._random: Final = np.random.default_rng(0)
        self._weights: Final = dict[str, FloatArray]()
        self._parts: Final = list[tuple[LocalObjective, WeightedPoints]]()
        shape = len(models), self._module.parameters.layout.size
        self._out: Final = np.empty(shape, dtype=precision)
        autocast = models[0].autocast
        self._tolerance: Final = _TOLERANCE[precision if autocast == "off" else autocast]

    @cached_property
    def _group(self) -> ObjectiveGroup:
        return ObjectiveGroup(self._part(0)[0], len(self._models))

    def seconds(self) -> float:
        """Return the processor time of a part of one model; a part of 0.3 s is repeated once."""
        if (first_s := self._seconds(self._compute_alone, 1)) > _FORM_S:
            return min(first_s, self._seconds(self._compute_alone, 1))
        return self._least_seconds(self._compute_alone, 1)

    def best_size(self, *, limit_s: float) -> int:
        """Measure for about ``limit_s``; return the fastest number of models computed at once.

        Raises the same exceptions as `require_same`.
        """
        # The first pass of a process takes longer.
        if all(self._seconds(self._compute_alone, 1) > _SLOW_S for _ in range(2)):
            return 1
        self.require_same()
        until, most = time.thread_time() + limit_s, len(self._models)
        alone_s = self._least_seconds(self._compute_alone, 2) / 2
        best, best_s = 1, math.inf
        halves = (-(-most // 2**k) for k in range(most.bit_length()))  # a bundle is cut evenly
        for size in sorted(each for each in halves if each >= min(_FEWEST, most)):
            each_s = self._least_seconds(self._compute_together, size) / size
            if each_s > _WORSE * best_s:
                break
            if each_s < _BETTER * best_s:
                best, best_s = size, each_s
            next_s = _REPEATS * 2 * size * each_s
            if next_s > until - time.thread_time():
                break
        # Measured again, as other processes may have slowed down the first passes.
        alone_s = min(alone_s, self._least_seconds(self._compute_alone, 2) / 2)
        return best if best_s < _WORTHWHILE * alone_s else 1

    def require_same(self) -> None:
        """Raise an exception if a group may have other results than single models."""
        self._compute_alone(2)
        alone = self._out[:2].copy()
        with _NoPaddedEmbeddings():
            self._compute_together(2)
        for one, other in zip(alone, self._out, strict=False):
            limit = self._tolerance * np.abs(one[np.isfinite(one)]).max(initial=0.0)
            if not np.allclose(one, other, rtol=0, atol=limit, equal_nan=True):
                raise ValueError("the results of a group differ from the results of single models")

    def _least_seconds(self, compute: Callable[[int], None], models: int) -> float:
        """Return the least processor time of a few repetitions after the first."""
        return min([self._seconds(compute, models) for _ in range(_REPEATS)][1:])

    def _seconds(self, compute: Callable[[int], None], models: int) -> float:
        while len(self._parts) < models:
            self._part(len(self._parts))
        began = time.thread_time()
        compute(models)
        return time.thread_time() - began

    def _compute_alone(self, models: int) -> None:
        for index in range(models):
            local, part = self._part(index)
            self._module.load(part, self._weights_of)
            local.compute(part, out=self._out[index])

    def _compute_together(self, models: int) -> None:
        parts = [self._part(index) for index in range(models)]
        self._group.load([part for _, part in parts], self._weights_of)
        self._group.compute(parts, out=self._out[:models])

    def _part(self, index: int) -> tuple[LocalObjective, WeightedPoints]:
        """Return a part of a model, with noise added to the initial weights."""
        if index == len(self._parts):
            model, random, points = self._models[index], self._random, self._points
            vector = ParameterVector(model.module).read().astype(self._precision)
            vector += _NOISE * random.standard_normal(vector.size, dtype=vector.dtype)
            name, size = model.name, vector.size
            self._weights[name] = vector
            if id(model.dataset) not in self._datasets:
                self._datasets[id(model.dataset)] = _with_few_items(model.dataset)
            objective = replace(model.objective, dataset=self._datasets[id(model.dataset)])
            part = WeightedPoints(
                model=name,
                weights=WeightRef(
                    model=name, version=0, digest="", dtype=self._precision, size=size
                ),
                points=random.integers(len(model.dataset), size=points),
                coefficients=random.uniform(0.5, 1.5, points) / points,
            )
            self._parts.append((LocalObjective(objective, self._module), part))
        return self._parts[index]

    def _weights_of(self, ref: WeightRef) -> FloatArray:
        return self._weights[ref.model]


class _NoPaddedEmbeddings(TorchFunctionMode):
    """A context in which an embedding with a ``padding_idx`` raises `NotImplementedError`.

    In a group, `torch.vmap` skips the gradient of the padding row only for the first model. The
    results of a trial show the error only if its points contain the padding.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is functional.embedding or func is torch.embedding:
            none = None if func is functional.embedding else -1
            if kwargs.get("padding_idx", args[2] if len(args) > 2 else none) != none:
                raise NotImplementedError("torch.vmap does not support padding_idx of embeddings")
        return func(*args, **kwargs)


class _FewItems:
    """A dataset with the length of another dataset, but only a few of its items."""

    def __init__(self, dataset: PointDataset) -> None:
        self._size: Final = len(dataset)
        self._items = [dataset[int(point)] for point in sample_points(dataset, _ITEMS)]

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[object, object]:
        return self._items[index % len(self._items)]


def _with_few_items(dataset: PointDataset) -> PointDataset:
    """Return a dataset with only a few of the items, unless all items are in tensors.

    The time to read items is the same for groups and single models, and may be long.
    """
    return dataset if has_tensors(dataset) else _FewItems(dataset)
