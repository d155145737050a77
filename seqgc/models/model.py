"""`Model`: a neural network with its data, loss and optimizer; its parameters as a vector.

The end of the file compares modules by their structure, so that a run checks and copies a single
module for all models that differ only in their weights.
"""

from __future__ import annotations

import io
import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import torch
import xxhash
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from seqgc.errors import ParameterError, require_int, require_name, require_number
from seqgc.models.datasets import PointDataset, require_points
from seqgc.models.evaluation import Validation
from seqgc.models.losses import Loss, make_loss, per_point_loss
from seqgc.models.precision import Autocast, require_autocast
from seqgc.models.results import ResultLayout
from seqgc.ports import BoolArray, FloatArray
from seqgc.wire import Json

__all__ = [
    "Clipping",
    "Digests",
    "Model",
    "Objective",
    "OptimizerFactory",
    "ParameterVector",
    "Recipe",
    "SchedulerFactory",
    "distinct_models",
    "has_hooks",
    "structure_of",
    "with_shared_modules",
]

_ARGS: Final = ("module_args", "data_args", "loss_args")
OptimizerFactory: TypeAlias = Callable[..., Optimizer]
"""``parameters -> optimizer``, or ``named_parameters -> optimizer`` for pairs (name, parameter)."""
SchedulerFactory: TypeAlias = Callable[[Optimizer], LRScheduler]
Clipping: TypeAlias = Literal["norm", "value"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Objective:
    """The part of a `Model` that a worker needs to compute losses and gradients."""

    name: str
    module: nn.Module
    loss: Loss  # one value per point
    dataset: PointDataset
    autocast: Autocast = "off"
    seed: int = 0  # the seed of the masks of `Dropout` layers


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Recipe:
    """The names from which a cloud function rebuilds a model, because no code is sent to it.

    ``module``, ``data`` and ``loss`` are names of functions or classes; ``module_args``,
    ``data_args`` and ``loss_args`` are their arguments. The arguments are sent as JSON: they may
    contain text, finite numbers, booleans, None, lists and dicts; tuples become lists.
    `seqgc.training.registered_model` makes models with a recipe.

    Raises
    ------
    ParameterError
        If an argument contains another type of value, or ``module_args`` has a ``seed``.

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
            args: object = getattr(self, name)
            if not isinstance(args, Mapping):
                raise ParameterError(name, "must be a dict of arguments by name", args)
            object.__setattr__(self, name, _as_json(name, args))
        if "seed" in self.module_args:
            rule = "must not have a seed: a network is drawn with the seed of its model"
            raise ParameterError("module_args", rule, self.module_args["seed"])

    @property
    def settings(self) -> dict[str, Json]:
        """The fields by name, without empty dicts of arguments."""
        names: dict[str, Json] = {"module": self.module, "data": self.data, "loss": self.loss}
        return names | {name: args for name in _ARGS if (args := getattr(self, name))}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({shown})"


def _as_json(argument: str, value: object) -> Json:
    """Return the value that results from sending a value as JSON, or raise `ParameterError`."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _as_json(argument, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(argument, each) for each in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    rule = "must hold only text, finite numbers, booleans, None, lists and dicts with text keys"
    raise ParameterError(argument, rule, value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """One network to train; the given module has the initial weights, and is never changed.

    Parameters
    ----------
    name
        Name of the model, unique in the run.
    module
        Network with trainable floating-point parameters, in the mode (``train`` or ``eval``) in
        which it must be trained. It is called with ``x`` as its only argument.
    loss
        Function ``(output, target) -> values`` with one value for each data point, or
        ``(output, target) -> (values, weights)`` for the mean ``sum(values) / sum(weights)``. All
        axes except the first are averaged. A `torch.nn` loss that computes a mean is converted to a
        `seqgc.training.PointLoss`. It can also be a name or a path, as in `registered_model`.
    dataset
        Map-style dataset: ``dataset[i]`` is ``(x, y)``, the same on every read. Inputs, outputs and
        targets are tensors, or dictionaries, lists and tuples of tensors.
    optimizer
        Function ``parameters -> torch.optim.Optimizer``. If it has an argument
        ``named_parameters``, it gets a list of pairs (name, parameter). Parameters that it does not
        use are not changed.
    batch_size
        Number of data points in a step.
    seed
        Seed of the order of the data points.
    test_dataset
        Dataset on which the trained model is evaluated. Default: ``dataset``.
    recipe
        Names from which cloud functions rebuild the model. Other workers do not need a recipe.
    scheduler
        Function ``optimizer -> torch.optim.lr_scheduler.LRScheduler``; stepped once in each step.
    gradient_clip_val, gradient_clip_algorithm
        Limit to which the decoded gradient is clipped before each step: by ``"norm"``, the norm
        over all parameters; by ``"value"``, each element.
    validation
        Rules for measuring the model during the run and for stopping it early.
    save_every_n_steps
        Number of steps between two times at which the weights are saved.
    autocast
        With ``"bfloat16"``, forward pass and loss are computed under ``torch.autocast``. Weights,
        gradients and the optimizer keep the run's precision, which must be float32.

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
    loss: Any  # a Loss, or the name of a loss, which is replaced by the Loss
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
        loss = make_loss(self.loss) if isinstance(self.loss, str) else per_point_loss(self.loss)
        object.__setattr__(self, "loss", loss)

    @property
    def objective(self) -> Objective:
        """The part of the model that is sent to workers."""
        return Objective(**{each.name: getattr(self, each.name) for each in fields(Objective)})


def _check_module(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise ParameterError("module", "must be a torch.nn.Module", module)
    _require_copyable(module)
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ParameterError(
                "module", "must have a shape for every parameter", name, "call it on a batch first"
            )
        if parameter.requires_grad and not parameter.is_floating_point():
            rule = "must have real floating-point parameters"
            raise ParameterError("module", rule, f"{name}: {parameter.dtype}")
    _require_no_shared_memory(module)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ParameterError("module", "must have a parameter that requires grad", repr(module))


def _require_copyable(module: nn.Module) -> None:
    """Raise `ParameterError` if the module cannot be copied to a worker unchanged."""
    for name, part in module.named_modules():
        where = f"{name}: {type(part).__name__}" if name else type(part).__name__
        if isinstance(part, torch.jit.ScriptModule):
            rule = "must not be scripted or traced: such a module cannot be sent to a worker"
            remedy = "train the original module, and script or trace it after the run"
            raise ParameterError("module", rule, where, remedy)
        for attribute, value in vars(part).items():
            if isinstance(value, Tensor) and not value.is_leaf:
                raise ParameterError(
                    "module",
                    "must not have an attribute that is a tensor computed from its parameters: "
                    "torch cannot copy it",
                    f"{where}, attribute {attribute!r}",
                    "compute it in forward; instead of torch.nn.utils.weight_norm use "
                    "torch.nn.utils.parametrizations.weight_norm",
                )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            rule = "must not have parameters or buffers on the device `meta`, which holds no values"
            remedy = "make it without device='meta', or call module.to_empty(device='cpu') and "
            raise ParameterError("module", rule, name, f"{remedy}initialise it")
        if tensor.is_complex():
            rule = "must have real parameters and buffers: precision float32 and float64 are real"
            remedy = "store torch.view_as_real of it, and call torch.view_as_complex in forward"
            raise ParameterError("module", rule, f"{name}: {tensor.dtype}", remedy)


def _require_no_shared_memory(module: nn.Module) -> None:
    memories: dict[int, str] = {}
    for name, parameter in module.named_parameters():
        if parameter.numel() and not parameter.is_meta and parameter.requires_grad:
            other = memories.setdefault(parameter.data_ptr(), name)
            if other != name:
                rule = "must not have two parameters in the same memory: torch copies them apart"
                remedy = "to tie them, assign the same nn.Parameter to both attributes"
                raise ParameterError("module", rule, f"{other} and {name}", remedy)


class ParameterVector:
    """The trainable parameters of a CPU module, in the order of ``module.parameters()``.

    Frozen parameters are omitted, and a tied parameter is contained once.
    """

    def __init__(self, module: nn.Module) -> None:
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.names: Final = tuple(name for name, _ in trainable)
        self.tensors: Final = tuple(p for _, p in trainable)
        self.size: Final = sum(p.numel() for p in self.tensors)
        self.layout: Final = ResultLayout([p.numel() for p in self.tensors])

    def read(self) -> FloatArray:
        """Return a copy of the parameters, (size,), read-only."""
        with torch.no_grad():
            vector: FloatArray = torch.cat([p.flatten() for p in self.tensors]).numpy()
        vector.setflags(write=False)
        return vector

    def write(self, vector: FloatArray) -> None:
        """Overwrite the parameters with ``vector`` (size,)."""
        for p, piece in self._pieces(vector):
            # A numpy view accepts any strides and a read-only source, without a temporary array.
            p.detach().numpy()[...] = piece.reshape(p.shape)

    def move_to(self, vector: Tensor) -> None:
        """Make the parameters views of ``vector`` (size,), which takes their values."""
        pieces = vector.split_with_sizes([p.numel() for p in self.tensors])
        for p, piece in zip(self.tensors, pieces, strict=True):
            piece.copy_(p.detach().flatten())
            p.data = piece.view(p.shape)

    def move_out(self) -> None:
        """Give each parameter memory of its own again."""
        for p in self.tensors:
            p.data = p.detach().clone()

    def set_gradient(self, vector: FloatArray, received: BoolArray) -> None:
        """Make the writable ``vector`` (size,) the parameters' gradient, without a copy.

        Tensors for which ``received`` (K,) is False get no gradient, so that optimizers skip them.
        """
        self._check(vector)
        pieces = torch.split_with_sizes(torch.from_numpy(vector), [p.numel() for p in self.tensors])
        for p, piece, has_gradient in zip(self.tensors, pieces, received.tolist(), strict=True):
            p.grad = piece.view(p.shape) if has_gradient else None

    def read_gradient(self, out: FloatArray) -> list[bool]:
        """Write the parameters' gradient into ``out`` (size,); a missing gradient becomes zeros.

        Return a list (K,) that is True for the tensors that have a gradient.
        """
        gradients = [p.grad for p in self.tensors]
        dense = map(_dense, self.tensors, gradients)
        torch.cat([gradient.flatten() for gradient in dense], out=torch.from_numpy(out))
        return [gradient is not None for gradient in gradients]

    def clear_gradient(self) -> None:
        for p in self.tensors:
            p.grad = None

    def _pieces(self, vector: FloatArray) -> zip[tuple[nn.Parameter, FloatArray]]:
        self._check(vector)
        ends = np.cumsum([p.numel() for p in self.tensors])
        return zip(self.tensors, np.split(vector, ends[:-1]), strict=True)

    def _check(self, vector: FloatArray) -> None:
        if vector.shape != (self.size,):
            raise ParameterError("vector", f"must have shape ({self.size},)", vector.shape)


def are_in(tensors: Sequence[Tensor], vector: Tensor) -> bool:
    """Return True if ``vector`` is the memory of these tensors, one after the other.

    An assignment to ``.data`` of a parameter, which some optimizers make, gives it other memory.
    """
    address = vector.data_ptr()
    for each in tensors:
        if each.numel() and not (each.data_ptr() == address and each.is_contiguous()):
            return False
        address += each.nbytes
    return True


def has_own_memory(module: nn.Module) -> bool:
    """Return True if no trainable parameter shares its memory with another tensor of the module.

    Return False, too, if a parameter is not contiguous.
    """
    parts = [vars(part).values() for part in module.modules()]
    plain = [value for values in parts for value in values if isinstance(value, Tensor)]
    tensors = {id(t): t for t in (*module.parameters(), *module.buffers(), *plain)}
    users = Counter(t.untyped_storage().data_ptr() for t in tensors.values())
    return all(
        p.is_contiguous()
        and p.nbytes == p.untyped_storage().nbytes()
        and users[p.untyped_storage().data_ptr()] == 1
        for p in module.parameters()
        if p.requires_grad
    )


def _dense(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        return torch.zeros_like(parameter)
    # nn.Embedding(sparse=True) yields sparse gradients; a code combines dense vectors.
    return gradient.to_dense() if gradient.is_sparse else gradient


Digests = dict[int, tuple[Tensor, str]]  # by id; stores the tensor, so that its id is not reused


def structure_of(value: object, digests: Digests | None = None) -> bytes | None:
    """Return a digest of a module, or of any other object, without its trainable weights.

    Modules with the same digest differ at most in their trainable weights. Parameters that
    ``module.parameters()`` does not contain, for example of a teacher in a list or in a loss, are
    not trained, and must also be equal. If the object cannot be pickled, it cannot be compared, and
    the result is None. ``digests`` caches the digests of tensors that several objects share.
    """
    out = io.BytesIO()
    trained = ParameterVector(value).tensors if isinstance(value, nn.Module) else ()
    try:
        _StructurePickler(out, {} if digests is None else digests, trained=trained).dump(value)
    except Exception:  # the user's classes may raise anything
        return None
    return xxhash.xxh3_128_digest(out.getbuffer())


def distinct_models(models: Iterable[Model]) -> list[Model]:
    """Return one model for each combination of structure, loss, dataset and autocast.

    All models whose module or loss cannot be compared are returned.
    """
    distinct, digests = dict[object, Model](), Digests()
    for model in models:
        structure, loss = structure_of(model.module, digests), structure_of(model.loss, digests)
        key = structure, loss, id(model.dataset), id(model.test_dataset), model.autocast
        distinct.setdefault(id(model) if None in key else key, model)
    return list(distinct.values())


def with_shared_modules(objectives: Iterable[Objective]) -> tuple[Objective, ...]:
    """Return the objectives; of modules with the same structure, all share the first one."""
    all_, digests, first = list(objectives), Digests(), dict[bytes, nn.Module]()
    modules = {id(each.module): each.module for each in all_}
    for key, module in modules.items():
        if (structure := structure_of(module, digests)) is not None:
            modules[key] = first.setdefault(structure, module)
    return tuple(replace(each, module=modules[id(each.module)]) for each in all_)


def has_hooks(tensor: Tensor) -> bool:
    """Return True if the tensor's gradient has hooks, which its copies and pickles lose."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


class _StructurePickler(pickle.Pickler):
    """A pickler that writes a description of each tensor instead of its values."""

    def __init__(self, out: io.BytesIO, digests: Digests, *, trained: Sequence[Tensor]) -> None:
        super().__init__(out)
        self._digests: Final = digests
        self._trained: Final = set(map(id, trained))
        self._tensors: Final[dict[int, Tensor]] = {}  # by address, which stored tensors keep in use

    def persistent_id(self, obj: object) -> object:
        if not isinstance(obj, Tensor):
            return None
        if obj.__dict__ or has_hooks(obj):
            raise ValueError("a tensor with attributes or hooks")
        address = obj.untyped_storage().data_ptr()
        self._tensors.setdefault(address, obj)
        kind = (type(obj), obj.dtype, tuple(obj.shape), obj.stride(), obj.requires_grad)
        # Tied parameters and views of one tensor have the same number of a storage.
        place = list(self._tensors).index(address), obj.storage_offset()
        return (*map(str, kind), place, "" if id(obj) in self._trained else self._digest(obj))

    def _digest(self, tensor: Tensor) -> str:
        if id(tensor) not in self._digests:
            data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest = xxhash.xxh3_128_hexdigest(data.numpy().data)
            self._digests[id(tensor)] = tensor, digest
        return self._digests[id(tensor)][1]
