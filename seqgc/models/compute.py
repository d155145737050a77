"""Computation of mini-tasks by PyTorch: one forward and one backward pass for each part of a task.

`TorchCompute` is a worker's compute function. It computes models of one form one after the other,
or several at once (`GroupSizes`). `TorchComputeFactory` carries it to another process as a pickle.

If `torch.nn.utils.parametrize` is used, torch gives the module a class that is created at run time
and cannot be pickled. Therefore `picklable` gives such a module its original class, and `restore`
creates the special class again on the worker.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.storage import TypedStorage

from seqgc._by_value import APART_BYTES, Parcel, PicklingError, dumps
from seqgc._fault import fault_of, is_own_interrupt
from seqgc.errors import ParameterError, reraise_stop
from seqgc.models.model import Model, Objective, with_shared_modules
from seqgc.models.objectives import LocalModule, LocalObjective, ObjectiveGroup, forms_of
from seqgc.models.precision import Precision, torch_dtype
from seqgc.ports import Flaw, FlawedResult, FloatArray, WeightedPoints, WeightRef, WeightStore
from seqgc.worker import PROGRESS, TIMER, FetchWeights

__all__ = [
    "ALONE",
    "FetchingStore",
    "GroupSizes",
    "TorchCompute",
    "TorchComputeFactory",
    "picklable",
    "restore",
]

DEFAULT_CACHED_WEIGHTS = 8

GroupSizes: TypeAlias = Mapping[str, int]
"""The number of models of the same form that are computed at once, by model; the default is 1."""

ALONE: Final[GroupSizes] = MappingProxyType({})


class FetchingStore(Protocol):
    """The part of a store that a worker uses."""

    def fetch(self, ref: WeightRef, /) -> FloatArray:
        """Return the weights (size,) that a reference names."""


class TorchCompute:
    """A worker's compute function: it fetches weights, and returns the result of a mini-task.

    For every part, in order, the result holds ``sum_p coefficients[p] * grad loss(points[p])`` for
    the trainable parameters (P,), then ``sum_p coefficients[p] * loss(points[p])``, and a few more
    numbers (`seqgc.training.ResultLayout`). The loss is a sum over points, as the gradient is;
    therefore the decoded result also contains the loss of the batch.

    ``objectives`` are the models that a part may name. Their modules are copied, and a module that
    several objectives share is copied once. ``precision`` is the format of the weights, the
    floating-point inputs, the computation and the results. ``cached_weights`` is the number of
    weight versions to cache; it may be 0 if the store has a cache.

    ``group_sizes`` are the largest numbers of models that are computed together
    (`ObjectiveGroup`). A group consists of parts of a mini-task with the same form and number of
    points. Groups depend only on the mini-task, so that all workers, and a resumed run, compute the
    same bits. If a group raises an error, its parts are computed one after the other, and only the
    model at fault has a flaw. A group with a single part contains the part twice: torch may round
    differently for a single model, and the bits of a model must not depend on other parts.

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
        group_sizes: GroupSizes = ALONE,
    ) -> None:
        self._precision: Final = precision
        dtype = torch_dtype(precision)
        local = cache(lambda module: LocalModule(module, dtype))  # by identity
        self._local: Final = {o.name: LocalObjective(o, local(o.module)) for o in objectives}
        # A reference always names the same weights, so the cache is never stale.
        self._fetch: Final = lru_cache(maxsize=cached_weights)(_timed(store.fetch))
        self._groups: Final = dict[str, ObjectiveGroup]()
        for form in forms_of(o for o in objectives if group_sizes.get(o.name, 1) > 1):
            of_size = cache(partial(ObjectiveGroup, self._local[form[0].name]))
            self._groups.update({each.name: of_size(group_sizes[each.name]) for each in form})

    def __call__(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        """Return the concatenated results of the parts as a new array.

        Raises
        ------
        ParameterError
            If a part names an unknown model, or weights of another size.
        StoreError
            If the store no longer has the weights.
        FlawedResult
            If a model's code raises an error; the results of the other models are complete.
        """
        for part in parts:
            if part.model not in self._local:
                rule = f"must be one of {', '.join(self._local)}"
                raise ParameterError("model", rule, part.model)
        flaws: dict[str, Flaw] = {}
        sizes = [self._local[part.model].parameters.layout.size for part in parts]
        starts = [0, *itertools.accumulate(sizes)]
        result = np.empty(starts[-1], dtype=self._precision)
        for group, places in self._grouped(parts):
            if group is not None and self._compute_together(group, parts, places, result, starts):
                continue
            for place in places:
                out = result[starts[place] : starts[place + 1]]
                if (flaw := self._compute(parts[place], out=out)) is not None:
                    flaws[parts[place].model] = flaw
        if flaws:
            raise FlawedResult(result, flaws)
        return result

    def _grouped(
        self, parts: Sequence[WeightedPoints]
    ) -> list[tuple[ObjectiveGroup | None, list[int]]]:
        """Return pairs of a group and the indices of its parts; None stands for no group."""
        grouped = list[tuple[ObjectiveGroup | None, list[int]]]()
        alike = defaultdict[tuple[ObjectiveGroup, int], list[int]](list)
        for place, part in enumerate(parts):
            group, points = self._groups.get(part.model), len(part.points)
            if group is None or not points:
                grouped.append((None, [place]))
            else:
                alike[group, points].append(place)
        for (group, _), places in alike.items():
            count = len(places)
            pieces = -(-count // group.most)
            cuts = [count * i // pieces for i in range(pieces + 1)]
            grouped += [(group, places[begin:end]) for begin, end in itertools.pairwise(cuts)]
        return grouped

    def _compute(self, part: WeightedPoints, *, out: FloatArray) -> Flaw | None:
        """Write the result of a part into ``out`` (size,); return a flaw if its code raises."""
        if len(part.points) == 0:
            out[:] = 0
            return None
        objective = self._local[part.model]
        objective.module.load(part, self._fetch)
        PROGRESS.enter(part.model)
        try:
            objective.compute(part, out=out)
        except BaseException as error:  # from one model's code; other parts are not affected
            if not is_own_interrupt(error):
                reraise_stop(error)
            out[:] = 0
            return Flaw(kind="raised", why=fault_of(error))
        return None

    def _compute_together(
        self,
        group: ObjectiveGroup,
        parts: Sequence[WeightedPoints],
        places: Sequence[int],
        result: FloatArray,
        starts: Sequence[int],
    ) -> bool:
        """Compute the parts with the indices ``places`` together; return False if the code raises.

        The result of part ``i`` begins at ``result[starts[i]]``.
        """
        first, last, some = places[0], places[-1], [parts[place] for place in places]
        if len(some) == 1:
            some *= 2
        shape = len(some), starts[first + 1] - starts[first]
        rows = result[starts[first] : starts[last + 1]]
        are_neighbours = rows.size == math.prod(shape)
        out = rows.reshape(shape) if are_neighbours else np.empty(shape, dtype=self._precision)
        group.load(some, self._fetch)
        try:
            group.compute([(self._local[part.model], part) for part in some], out=out)
        except BaseException as error:
            if not is_own_interrupt(error):
                reraise_stop(error)
            return False
        if not are_neighbours:
            for place, row in zip(places, out, strict=False):
                result[starts[place] : starts[place + 1]] = row
        return True


class TorchComputeFactory:
    """A factory that makes a `TorchCompute` in another process; its content is pickled once.

    The content is pickled here, because torch's own pickling for multiprocessing would move every
    tensor to shared memory. The master's optimizer would then change the workers' weights, and each
    tensor would need one file descriptor in each process. Workers fetch weights from ``store``,
    which must give access to the same weights in another process.

    Large tensors and arrays, mostly of datasets, are not copied here. The local backend writes them
    to shared memory once, and each worker maps that memory. A pickle of the factory contains them.
    They must not change before the workers have started.

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
        group_sizes: GroupSizes = ALONE,
    ) -> None:
        torch_dtype(precision)
        objectives = with_shared_modules(model.objective for model in models)
        modules = {id(o.module): picklable(o.module) for o in objectives}
        objectives = tuple(replace(o, module=modules[id(o.module)]) for o in objectives)
        content = (objectives, store, precision, cached_weights, dict(group_sizes))
        try:
            # Pickled together, so that a dataset that models share is also shared in the worker.
            self._content: Final = Parcel.of(content, reducers=_Storages().reducers)
        except PicklingError as error:
            raise _culprit(objectives, store) from error

    def __call__(self) -> TorchCompute:
        """Return the worker's compute function; this process then uses one torch thread."""
        torch.set_num_threads(1)  # more threads than cores are far slower
        content = cast(
            "tuple[Sequence[Objective], WeightStore, Precision, int, GroupSizes]",
            self._content.open(),
        )
        objectives, store, precision, cached, group_sizes = content
        for module in {id(o.module): o.module for o in objectives}.values():
            restore(module)
        return TorchCompute(
            objectives,
            store=store,
            precision=precision,
            cached_weights=cached,
            group_sizes=group_sizes,
        )


def _timed(fetch: FetchWeights) -> FetchWeights:
    def timed_fetch(ref: WeightRef) -> FloatArray:
        with TIMER.phase("fetched_s"):
            return fetch(ref)

    return timed_fetch


class _Storages:
    """The reducers by which a `Parcel` keeps large tensors and memory maps out of the pickle.

    Tensors that are views of the same memory stay views of the same memory.
    """

    def __init__(self) -> None:
        self._arrays: Final = dict[int, NDArray[np.uint8]]()  # by address

    @property
    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        return {TypedStorage: self._reduce, np.memmap: _reduce_mapped}

    def _reduce(self, storage: TypedStorage) -> Any:
        memory = storage._untyped_storage
        if memory.device.type != "cpu" or memory.nbytes() < APART_BYTES:
            return storage.__reduce__()  # type: ignore[no-untyped-call]
        if (array := self._arrays.get(memory.data_ptr())) is None:
            array = torch.empty(0, dtype=torch.uint8).set_(memory).numpy()
            self._arrays[memory.data_ptr()] = array
        return _storage_in, (array, storage.dtype)


def _storage_in(array: NDArray[np.uint8], dtype: torch.dtype) -> TypedStorage:
    memory = torch.from_numpy(array).untyped_storage()
    return TypedStorage(  # type: ignore[no-untyped-call]
        wrap_storage=memory, dtype=dtype, _internal=True
    )


def _reduce_mapped(array: np.memmap[Any, Any]) -> Any:
    return np.asarray(array).__reduce_ex__(5)  # a plain array in the worker: other subclasses copy


def _culprit(objectives: Sequence[Objective], store: WeightStore) -> ParameterError:
    rule = "must be picklable, to be sent to the workers"
    named = [("models", objective.name, objective) for objective in objectives]
    for argument, name, value in (*named, ("store", type(store).__name__, store)):
        try:
            dumps(value)
        except PicklingError as error:
            remedy = "open files, connections and locks at their first use, not before"
            return ParameterError(argument, f"{rule} ({error})", name, remedy)
    return ParameterError("models", rule, [name for _, name, _ in named])


def picklable(module: nn.Module) -> nn.Module:
    """Return the module, or a copy that can be pickled if a submodule is parametrized.

    Before the copy is used, `restore` must be called with it.
    """
    if not any(map(is_parametrized, module.modules())):
        return module
    module = copy.deepcopy(module)
    for part in filter(is_parametrized, module.modules()):
        part.__class__ = type(part).__bases__[0]
    return module


def restore(module: nn.Module) -> None:
    """Make a copy from `picklable` usable, before or after it was pickled."""
    for part in filter(is_parametrized, module.modules()):
        base, names = type(part), list(part.parametrizations)  # type: ignore[arg-type]
        properties = {name: property(partial(_parametrized, name=name)) for name in names}
        part.__class__ = type(f"Parametrized{base.__name__}", (base,), properties)


def _parametrized(part: Any, *, name: str) -> object:
    return part.parametrizations[name]()
