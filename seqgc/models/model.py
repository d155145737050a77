"""`Model`: one neural network to train, what its training needs, its parameters as a vector."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import torch
import xxhash
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from seqgc.errors import ParameterError, require_int, require_name, require_number
from seqgc.models.losses import Loss, make_loss, per_point_loss
from seqgc.models.points import PointDataset, require_points
from seqgc.models.precision import Autocast, require_autocast
from seqgc.models.results import ResultLayout
from seqgc.models.validation import Validation
from seqgc.ports import BoolArray, FloatArray
from seqgc.wire import Json

__all__ = [
    "Clipping",
    "Model",
    "Objective",
    "OptimizerFactory",
    "ParameterVector",
    "Recipe",
    "SchedulerFactory",
    "form_of",
    "has_hooks",
    "one_of_each",
    "with_shared_modules",
]

_ARGS: Final = ("module_args", "data_args", "loss_args")
OptimizerFactory: TypeAlias = Callable[..., Optimizer]
"""``(parameters) -> optimizer``, or ``(named_parameters) -> optimizer`` of pairs (name, parameter).
"""
SchedulerFactory: TypeAlias = Callable[[Optimizer], LRScheduler]
Clipping: TypeAlias = Literal["norm", "value"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Objective:
    """What a worker needs of a `Model`: its loss, point by point, as a function of the weights."""

    name: str
    module: nn.Module
    loss: Loss  # one value per point
    dataset: PointDataset
    autocast: Autocast = "off"
    seed: int = 0  # of the masks of `Dropout` layers


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Recipe:
    """The names from which functions, which are sent no code, rebuild a model.

    ``module_args``, ``data_args`` and ``loss_args`` are the arguments of the functions or classes
    that the names stand for. They are sent as JSON, and may hold text, finite numbers, booleans,
    None, lists and dicts; tuples become lists. `seqgc.training.registered_model` makes models that
    have a recipe, see `seqgc.models.factories`.

    Raises
    ------
    ParameterError
        If an argument holds any other value, or ``module_args`` has a ``seed``.

    Examples
    --------
    >>> from seqgc.training import Recipe
    >>> Recipe(module="mlp", data="digits", loss="mse", module_args={"width": 32})
    Recipe(module='mlp', data='digits', loss='mse', module_args={'width': 32})
    """

    module: str
    data: str
    loss: str
    module_args: Mapping[str, Json] = field(default_factory=dict, hash=False)
    data_args: Mapping[str, Json] = field(default_factory=dict, hash=False)
    loss_args: Mapping[str, Json] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in _ARGS:
            given: object = getattr(self, name)
            if not isinstance(given, Mapping):
                raise ParameterError(name, "must be arguments by name, in a dict", given)
            object.__setattr__(self, name, _as_json(name, given))
        if "seed" in self.module_args:
            rule = "must leave seed out: a network is given the seed of its model"
            raise ParameterError("module_args", rule, self.module_args["seed"])

    @property
    def settings(self) -> dict[str, Json]:
        """The fields by name, without empty dicts of arguments."""
        found: dict[str, Json] = {"module": self.module, "data": self.data, "loss": self.loss}
        return found | {name: args for name in _ARGS if (args := getattr(self, name))}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({shown})"


def _as_json(argument: str, value: object) -> Json:
    """Return a value in the form that it has after it was sent as JSON, or refuse it."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _as_json(argument, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(argument, each) for each in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    rule = "must hold only text, finite numbers, booleans, None, lists and tables by name"
    raise ParameterError(argument, rule, value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """One network to train; the module given is the starting point, and is never changed.

    ``module`` has trainable floating-point parameters, in the mode (``train`` or ``eval``) in which
    it is to be trained. ``loss`` is ``(output, target) -> values``, one value per data point, or
    ``(values, weights)`` for a mean of ``sum(values) / sum(weights)``; further axes are averaged. A
    loss of `torch.nn` with a mean may be given as it is (see `seqgc.training.PointLoss`). It may
    also be the name of a loss (``"cross-entropy"``, ``"mse"``) or a path, as in `registered_model`.
    ``dataset`` is map-style: ``dataset[i]`` is ``(x, y)``, the same on every read. Inputs, outputs
    and targets are tensors, or dictionaries, lists and tuples of tensors; ``module`` is called with
    ``x``, as one argument. The trained model is evaluated on ``test_dataset`` (``dataset`` unless
    given). ``optimizer`` is ``parameters -> torch.optim.Optimizer``; if it has an argument
    ``named_parameters``, it is given a list of pairs (name, parameter) instead. It may leave out
    parameters, which then keep their
    values. ``scheduler``, if there is one, is
    ``optimizer -> torch.optim.lr_scheduler.LRScheduler``, which is stepped once after each step of
    the optimizer. Before that the decoded gradient is clipped, if ``gradient_clip_val`` says so: to
    that norm over all parameters, or, by the algorithm ``"value"``, each element to that size.
    ``validation`` says how good the model is meanwhile, and when it is stopped;
    ``save_every_n_steps``, that its weights are kept after every so many steps. With ``autocast``
    ``"bfloat16"`` forward and loss are computed under ``torch.autocast``, while weights, gradients
    and the optimizer keep the run's precision, which is then float32. A step takes ``batch_size``
    data points, in an order drawn by ``seed``. ``name`` tells the run's models apart; by their
    ``recipe`` functions know them, and workers of other kinds need none.

    Raises
    ------
    ParameterError
        If an argument breaks its rule; the message says which, and what to do.

    Examples
    --------
    >>> import functools, torch
    >>> from seqgc.training import Model
    >>> points = torch.utils.data.TensorDataset(torch.ones(8, 3), torch.zeros(8, dtype=torch.long))
    >>> model = Model(
    ...     name="linear",
    ...     module=torch.nn.Linear(3, 2),
    ...     loss=torch.nn.CrossEntropyLoss(),
    ...     dataset=points,
    ...     optimizer=functools.partial(torch.optim.SGD, lr=0.1),
    ...     batch_size=4,
    ... )
    >>> model.loss.reduction
    'none'
    """

    name: str
    module: nn.Module
    loss: Any  # a Loss or the name of one; a Loss once the model is made
    dataset: PointDataset
    optimizer: OptimizerFactory
    batch_size: int
    seed: int = 0
    test_dataset: PointDataset | None = None
    recipe: Recipe | None = None
    scheduler: SchedulerFactory | None = None
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: Clipping = "norm"
    validation: Validation | None = None
    save_every_n_steps: int | None = None
    autocast: Autocast = "off"

    def __post_init__(self) -> None:
        require_name("name", self.name, most=100)  # it names files of weights
        for argument, value, least in (("batch_size", self.batch_size, 1), ("seed", self.seed, 0)):
            object.__setattr__(self, argument, require_int(argument, value, least=least))
        if self.save_every_n_steps is not None:
            require_int("save_every_n_steps", self.save_every_n_steps, least=1)
        if self.gradient_clip_val is not None:
            require_number("gradient_clip_val", self.gradient_clip_val, above=0)
        if self.gradient_clip_algorithm not in get_args(Clipping):
            rule = f"must be one of {', '.join(get_args(Clipping))}"
            raise ParameterError("gradient_clip_algorithm", rule, self.gradient_clip_algorithm)
        require_autocast(self.autocast)
        if not isinstance(self.validation, Validation | None):
            raise ParameterError("validation", "must be a seqgc.Validation", self.validation)
        require_points("dataset", self.dataset)
        if self.test_dataset is not None:
            require_points("test_dataset", self.test_dataset)
        _check_module(self.module)
        own = self.loss
        object.__setattr__(
            self, "loss", make_loss(own) if isinstance(own, str) else per_point_loss(own)
        )

    @property
    def objective(self) -> Objective:
        """The part of the model that workers are sent."""
        return Objective(
            name=self.name,
            module=self.module,
            loss=self.loss,
            dataset=self.dataset,
            autocast=self.autocast,
            seed=self.seed,
        )


def _check_module(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise ParameterError("module", "must be a torch.nn.Module", module)
    _check_kind(module)
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ParameterError(
                "module",
                "must have a shape for every parameter",
                name,
                "call it on one batch first",
            )
        if parameter.requires_grad and not parameter.is_floating_point():
            rule = "must have real floating-point parameters"
            raise ParameterError("module", rule, f"{name}: {parameter.dtype}")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ParameterError("module", "must have a parameter that requires grad", repr(module))


def _check_kind(module: nn.Module) -> None:
    """Refuse modules that cannot be copied to a worker as they are."""
    for name, part in module.named_modules():
        where = f"{name}: {type(part).__name__}" if name else type(part).__name__
        if isinstance(part, torch.jit.ScriptModule):
            rule = "must not be scripted or traced: such a module cannot be sent to a worker"
            remedy = "give the module that was scripted or traced; export the trained one"
            raise ParameterError("module", rule, where, remedy)
        for attribute, value in vars(part).items():
            if isinstance(value, Tensor) and not value.is_leaf:
                raise ParameterError(
                    "module",
                    "must not have a tensor as an attribute that was computed from its parameters: "
                    "torch cannot copy it",
                    f"{where}, attribute {attribute!r}",
                    "compute it in forward; in place of torch.nn.utils.weight_norm use "
                    "torch.nn.utils.parametrizations.weight_norm",
                )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            rule = "must have numbers in its parameters and buffers, and those on `meta` have none"
            remedy = "make it without device='meta', or call module.to_empty(device='cpu') and "
            raise ParameterError("module", rule, name, f"{remedy}initialise it")
        if tensor.is_complex():
            rule = "must have real parameters and buffers: precision float32 and float64 are real"
            remedy = "keep torch.view_as_real of it, and call torch.view_as_complex in forward"
            raise ParameterError("module", rule, f"{name}: {tensor.dtype}", remedy)


class ParameterVector:
    """The trainable parameters of a CPU module, in the order of ``module.parameters()``.

    Frozen parameters are left out; a tied parameter counts once.
    """

    def __init__(self, module: nn.Module) -> None:
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names: Final = tuple(name for name, _ in trained)
        self.tensors: Final = tuple(p for _, p in trained)
        self.size: Final = sum(p.numel() for p in self.tensors)
        self.layout: Final = ResultLayout([p.numel() for p in self.tensors])

    def read(self) -> FloatArray:
        """Return a copy of the parameters, (size,), read-only."""
        vector: FloatArray = torch.cat([p.detach().reshape(-1) for p in self.tensors]).numpy()
        vector.setflags(write=False)
        return vector

    def write(self, vector: FloatArray) -> None:
        """Overwrite the parameters with ``vector`` (size,); the one copy that this costs."""
        for p, piece in self._pieces(vector):
            # Through numpy's view: any strides, any read-only source, no temporary.
            p.detach().numpy()[...] = piece.reshape(p.shape)

    def set_gradient(self, vector: FloatArray, received: BoolArray) -> None:
        """Make ``vector`` (size,), which must be writable, the parameters' gradient, uncopied.

        Tensors for which ``received`` (K,) is False get no gradient: torch's optimizers skip them.
        """
        for (p, piece), has_gradient in zip(self._pieces(vector), received, strict=True):
            p.grad = torch.from_numpy(piece).view(p.shape) if has_gradient else None

    def read_gradient(self, out: FloatArray) -> list[bool]:
        """Write the parameters' gradient into ``out`` (size,), zeros where there is none.

        Returns a list (K,) that is True for the tensors that have a gradient.
        """
        gradients = [p.grad for p in self.tensors]
        dense = map(_dense, self.tensors, gradients)
        torch.cat([gradient.flatten() for gradient in dense], out=torch.from_numpy(out))
        return [gradient is not None for gradient in gradients]

    def clear_gradient(self) -> None:
        """Forget the parameters' gradient."""
        for p in self.tensors:
            p.grad = None

    def _pieces(self, vector: FloatArray) -> zip[tuple[nn.Parameter, FloatArray]]:
        if vector.shape != (self.size,):
            raise ParameterError("vector", f"must have shape ({self.size},)", vector.shape)
        ends = np.cumsum([p.numel() for p in self.tensors])
        return zip(self.tensors, np.split(vector, ends[:-1]), strict=True)


def _dense(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        return torch.zeros_like(parameter)
    # nn.Embedding(sparse=True) yields sparse gradients; a code combines dense vectors.
    return gradient.to_dense() if gradient.is_sparse else gradient


Contents = dict[int, tuple[Tensor, str]]  # by identity, with the tensor, so that it stays alive


def form_of(thing: object, contents: Contents | None = None) -> bytes | None:
    """Return the form of a module, or of anything else; None if it cannot be told.

    ``contents`` remembers the tensors that have been read, for things that may share them.

    Examples
    --------
    >>> make = torch.nn.Linear
    >>> form_of(make(2, 1)) == form_of(make(2, 1)), form_of(make(2, 1)) == form_of(make(3, 1))
    (True, False)
    """
    out = io.BytesIO()
    try:
        _FormPickler(out, {} if contents is None else contents).dump(thing)
    except Exception:  # whatever classes of one's own raise: then it is like no other
        return None
    return xxhash.xxh3_128_digest(out.getbuffer())


def one_of_each(models: Iterable[Model]) -> list[Model]:
    """Return the first model of each form, loss, data and autocast; all of forms untold."""
    found, contents = dict[object, Model](), Contents()
    for model in models:
        form, loss = form_of(model.module, contents), form_of(model.loss, contents)
        told = form is not None and loss is not None
        kind = form, loss, id(model.dataset), id(model.test_dataset), model.autocast
        found.setdefault(kind if told else id(model), model)
    return list(found.values())


def with_shared_modules(objectives: Iterable[Objective]) -> tuple[Objective, ...]:
    """Return the objectives, those of one form with one module: the first's, weights and all."""
    all_, contents, first = list(objectives), Contents(), dict[bytes, nn.Module]()
    modules = {id(each.module): each.module for each in all_}
    for key, module in modules.items():
        if (form := form_of(module, contents)) is not None:
            modules[key] = first.setdefault(form, module)
    return tuple(replace(each, module=modules[id(each.module)]) for each in all_)


def has_hooks(tensor: Tensor) -> bool:
    """Say whether something is called with the tensor's gradient; copies and pickles have none."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


class _FormPickler(pickle.Pickler):
    """Writes what a tensor is in place of the tensor."""

    def __init__(self, out: io.BytesIO, contents: Contents) -> None:
        super().__init__(out)
        self._contents: Final = contents
        self._seen: Final[dict[int, Tensor]] = {}  # by storage; kept, so that no number comes twice

    def persistent_id(self, obj: object) -> object:
        if not isinstance(obj, Tensor):
            return None
        if obj.__dict__ or has_hooks(obj):
            raise ValueError("a tensor with attributes or hooks of its own")
        at = obj.untyped_storage().data_ptr()
        self._seen.setdefault(at, obj)
        about = (type(obj), obj.dtype, tuple(obj.shape), obj.stride(), obj.requires_grad)
        # Tied parameters, and views of one another, are such in every module of a form.
        place = list(self._seen).index(at), obj.storage_offset()
        trainable = isinstance(obj, nn.Parameter) and obj.requires_grad
        return (*map(str, about), place, "" if trainable else self._content(obj))

    def _content(self, tensor: Tensor) -> str:
        if id(tensor) not in self._contents:
            data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest = xxhash.xxh3_128_hexdigest(data.numpy().data)
            self._contents[id(tensor)] = tensor, digest
        return self._contents[id(tensor)][1]
