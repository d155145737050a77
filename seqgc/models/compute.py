"""Computation of mini-tasks by PyTorch: one forward and one backward pass for each part of a task.

`TorchCompute` is a worker's compute function. `TorchComputeFactory` carries it to another process
as a pickle. A module with `torch.nn.utils.parametrize` gets a class that torch makes at run time,
and that no pickle can name. So `picklable` gives such a module its plain class, and `restore` makes
the special class again on the worker.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Any, Final, Protocol, cast

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from seqgc._by_value import PicklingError, dumps, loads
from seqgc._fault import fault_of, is_own_interrupt
from seqgc.errors import ParameterError, reraise_stop
from seqgc.models.datasets import collate, items_of
from seqgc.models.dropout import dropout_layers, masks_of
from seqgc.models.losses import loss_in, point_losses
from seqgc.models.model import Model, Objective, ParameterVector, with_shared_modules
from seqgc.models.precision import Precision, autocasting, require_autocast, torch_dtype
from seqgc.ports import Flaw, FlawedResult, FloatArray, WeightedPoints, WeightRef, WeightStore
from seqgc.worker import PROGRESS

__all__ = [
    "FetchingStore",
    "LocalModule",
    "LocalObjective",
    "TorchCompute",
    "TorchComputeFactory",
    "picklable",
    "restore",
]

DEFAULT_CACHED_WEIGHTS = 8


class FetchingStore(Protocol):
    """The part of a store that a worker uses."""

    def fetch(self, ref: WeightRef, /) -> FloatArray: ...


class TorchCompute:
    """A worker's compute function: it fetches weights, and returns the result of a mini-task.

    For every part, in order, the result holds ``sum_p coefficients[p] * grad loss(points[p])`` over
    the trainable parameters (P,), then ``sum_p coefficients[p] * loss(points[p])``, and a few more
    numbers (`seqgc.training.ResultLayout`). The loss is a sum over points like the gradient, so the
    decoded result also has the loss of the batch.

    ``objectives`` are the models that a part may name. Their modules are copied, and a module that
    several objectives share is copied once. ``precision`` is the format of the weights, the
    floating-point inputs, the computation and the results. ``cached_weights`` is the number of
    weight versions to cache; it may be 0 if the store has a cache.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from seqgc.ports import WeightedPoints, WeightRef
    >>> from seqgc.training import Objective, TorchCompute
    >>> class Ones:
    ...     def fetch(self, ref): return np.ones(ref.size)
    >>> line = Objective(
    ...     name="line",
    ...     module=torch.nn.Linear(1, 1, bias=False),
    ...     loss=torch.nn.MSELoss(reduction="none"),
    ...     dataset=torch.utils.data.TensorDataset(torch.tensor([[3.0]]), torch.tensor([[1.0]])),
    ... )
    >>> compute = TorchCompute([line], store=Ones(), precision="float64")
    >>> ref = WeightRef(model="line", version=0, digest="", dtype="float64", size=1)
    >>> part = WeightedPoints(
    ...     model="line", weights=ref, points=np.array([0]), coefficients=np.array([0.5])
    ... )
    >>> compute((part,))[:2]  # 0.5 * [2 * 3 * (3 - 1), (3 - 1)**2]
    array([6., 2.])
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        *,
        store: FetchingStore,
        precision: Precision = "float32",
        cached_weights: int = DEFAULT_CACHED_WEIGHTS,
    ) -> None:
        self._precision: Final = precision
        dtype = torch_dtype(precision)
        local = cache(lambda module: LocalModule(module, dtype))  # by identity
        self._local: Final = {o.name: LocalObjective(o, local(o.module)) for o in objectives}
        # A reference always names the same weights, so the cache is never stale.
        self._fetch: Final = lru_cache(maxsize=cached_weights)(store.fetch)

    def __call__(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        """Return the results of the parts, one after the other, as a new array.

        Raises
        ------
        ParameterError
            If a part names an unknown model, or weights of another size.
        StoreError
            If the store no longer has the weights.
        FlawedResult
            If a model's code raises. The results of the other models are complete.
        """
        for part in parts:
            if part.model not in self._local:
                rule = f"must be one of {', '.join(self._local)}"
                raise ParameterError("model", rule, part.model)
        flaws: dict[str, Flaw] = {}
        sizes = [self._local[part.model].parameters.layout.size for part in parts]
        result, end = np.empty(sum(sizes), dtype=self._precision), 0
        for part, size in zip(parts, sizes, strict=True):
            start, end = end, end + size
            out = result[start:end]
            if len(part.points) == 0:
                out[:] = 0
                continue
            objective = self._local[part.model]
            objective.module.load(part.weights, self._fetch)
            PROGRESS.enter(part.model)
            try:
                objective.compute(part, out=out)
            except BaseException as error:  # from one model's code; other parts are not affected
                if not is_own_interrupt(error):
                    reraise_stop(error)
                out[:] = 0
                flaws[part.model] = Flaw(kind="raised", why=fault_of(error))
        if flaws:
            raise FlawedResult(result, flaws)
        return result


class LocalModule:
    """A worker's copy of a module, with one version of the weights at a time."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.dtype: Final = dtype
        self.call: Final = copy.deepcopy(module).to(device="cpu", dtype=dtype)
        self.parameters: Final = ParameterVector(self.call)
        self.dropouts: Final = dropout_layers(self.call)
        self._loaded: WeightRef | None = None

    def load(self, ref: WeightRef, fetch: Callable[[WeightRef], FloatArray]) -> None:
        """Load the weights of this version into the module, unless they are there already."""
        if ref != self._loaded:
            self._loaded = None  # weights may stay half-written if this raises
            self.parameters.write(fetch(ref))
            self._loaded = ref


class LocalObjective:
    """An objective on a worker, with a module that other objectives may share."""

    def __init__(self, objective: Objective, module: LocalModule) -> None:
        require_autocast(objective.autocast)  # the master's machine may support more
        self._objective, self.module = objective, module
        self._loss: Final = loss_in(objective.loss, module.dtype)
        self.parameters: Final = module.parameters

    def compute(self, part: WeightedPoints, *, out: FloatArray) -> None:
        """Fill ``out`` (size,) with one forward and one backward pass at the loaded weights."""
        objective, module, dtype = self._objective, self.module, self.module.dtype
        # If there are dropout layers, the points count on from epoch to epoch.
        items = items_of(objective.dataset, part.points) if module.dropouts else part.points
        x, y = collate(objective.dataset, items, dtype=dtype)
        # Copied, because the coefficients are read-only and torch warns of such arrays.
        coefficients = torch.from_numpy(part.coefficients.copy()).to(dtype)
        with masks_of(module.dropouts, part.points, seed=objective.seed):
            with autocasting(objective.autocast):
                losses = point_losses(self._loss, module.call(x), y, count=len(part.points))
            values = losses.values.to(dtype)
            self.parameters.clear_gradient()
            if values.requires_grad:  # False if the output uses no trainable parameter
                torch.autograd.backward(values, coefficients)  # the gradient of their weighted sum
        points = float(np.add.reduce(part.coefficients))
        received = self.parameters.read_gradient(out[: self.parameters.size])
        self.parameters.layout.write(
            out,
            loss=torch.dot(coefficients, values.detach()).item(),
            weight=losses.weight(part.coefficients, points),
            points=points,
            received=received,
        )


class TorchComputeFactory:
    """A factory that makes a `TorchCompute` in another process; its content is pickled once.

    The content is pickled here, because torch's own pickling for multiprocessing would move every
    tensor to shared memory. The master's optimizer would then change the workers' weights, and each
    tensor would cost one file descriptor in each process. Workers fetch weights from ``store``,
    which must reach the same weights in another process.

    Raises
    ------
    ParameterError
        If a model or the store cannot be pickled.
    """

    def __init__(
        self,
        *,
        models: Sequence[Model],
        store: WeightStore,
        precision: Precision = "float32",
        cached_weights: int = DEFAULT_CACHED_WEIGHTS,
    ) -> None:
        torch_dtype(precision)
        objectives = with_shared_modules(model.objective for model in models)
        modules = {id(o.module): picklable(o.module) for o in objectives}
        objectives = tuple(replace(o, module=modules[id(o.module)]) for o in objectives)
        content = (objectives, store, precision, cached_weights)
        try:
            # In one piece, so that models that share a dataset share it in the worker as well.
            self._payload: Final = dumps(content)
        except PicklingError as error:
            raise _culprit(objectives, store) from error

    def __call__(self) -> TorchCompute:
        """Return the worker's compute function; this process then uses one torch thread."""
        torch.set_num_threads(1)  # more threads than cores are far slower
        content = cast(
            "tuple[Sequence[Objective], WeightStore, Precision, int]", loads(self._payload)
        )
        objectives, store, precision, cached = content
        for module in {id(o.module): o.module for o in objectives}.values():
            restore(module)
        return TorchCompute(objectives, store=store, precision=precision, cached_weights=cached)


def _culprit(objectives: Sequence[Objective], store: WeightStore) -> ParameterError:
    rule = "must pickle, to be sent to the workers"
    named = [("models", objective.name, objective) for objective in objectives]
    for argument, name, value in (*named, ("store", type(store).__name__, store)):
        try:
            dumps(value)
        except PicklingError as error:
            remedy = "open files, connections and locks at their first use, not before"
            return ParameterError(argument, f"{rule} ({error})", name, remedy)
    return ParameterError("models", rule, [name for _, name, _ in named])


def picklable(module: nn.Module) -> nn.Module:
    """Return the module, or, if any part is parametrized, a copy of it that can be pickled.

    The copy cannot compute before `restore` is called with it.
    """
    if not any(map(is_parametrized, module.modules())):
        return module
    module = copy.deepcopy(module)
    for part in filter(is_parametrized, module.modules()):
        part.__class__ = type(part).__bases__[0]
    return module


def restore(module: nn.Module) -> None:
    """Make a copy that `picklable` returned compute again, before or after it was pickled."""
    for part in filter(is_parametrized, module.modules()):
        base, names = type(part), list(part.parametrizations)  # type: ignore[arg-type]
        properties = {name: property(partial(_parametrized, name=name)) for name in names}
        part.__class__ = type(f"Parametrized{base.__name__}", (base,), properties)


def _parametrized(part: Any, *, name: str) -> object:
    return part.parametrizations[name]()
