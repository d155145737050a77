"""Descriptions of models and their data, as texts and digests that can be compared.

There are two comparisons. A resumed run must have the same models and data as at its beginning
(`seqgc.training.fingerprint`). A cloud function, which receives names but no code, must have the
same models and data as its master (`objectives_fingerprint`).

*Code.* The description covers each file that defines a class or function of the object. It also
covers each module from which such a file imports functions or constants, if the module is in the
same package, or in the same folder as this package. Imports inside functions are not covered. For
PyTorch, numpy and Python, the version represents the code. From the script that is being run, only
the definitions count, because another script may resume the run. A submodule does not count if it
is an attribute of its package only because another module imported it.

*Data.* Tensors of up to 64 MiB are compared completely. For larger tensors, 64 pieces of together
64 MiB, spread over all data, are compared: this takes about 20 ms in memory, and 1 s from a file
system, for any size. For other data, 64 points are compared. The number of points is always
compared.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from importlib.util import resolve_name
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TypeAlias

import numpy as np
import torch
import xxhash
from torch import nn

from seqgc.errors import SkewError, refusing
from seqgc.models.datasets import PointDataset, StoredPoints, sample_points
from seqgc.models.evaluation import Validation
from seqgc.models.model import Objective, Recipe

__all__ = [
    "code_digest",
    "describe",
    "describe_data",
    "differences",
    "digest",
    "digest_tensors",
    "excerpts",
    "in_script",
    "objectives_fingerprint",
    "plain_text",
    "require_masters",
    "versions",
]

_POINTS = 64  # points of a dataset, or pieces of its tensors
_MOST_BYTES = 64 << 20
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_VERSIONED = {*sys.stdlib_module_names, "numpy", "torch"}  # their version represents their code
_KNOWS_HOME = ModuleType, type, FunctionType  # types of values that name their module
_SHOWN = 60  # characters of each side in a message
_MOST_NAMED = 6  # most differences in a message
_PLAIN = (str, int, float, tuple, list, type(None))

_Code: TypeAlias = type | Callable[..., object]


def versions() -> dict[str, str]:
    """Return the versions of seqgc and torch, without the build (``+cpu``)."""
    names = {name: sys.modules[name].__version__ for name in ("seqgc", "torch")}
    return {name: str(version).partition("+")[0] for name, version in names.items()}


def objectives_fingerprint(
    objectives: Sequence[Objective], recipes: Sequence[Recipe], *, code_of: Iterable[object]
) -> dict[str, str]:
    """Return texts, by name, that must be equal on the master and on a worker.

    The names come from ``recipes``, one for each objective. ``code_of`` are further objects whose
    code must be the same. Trainable weights are not included, because the master sends them.
    """
    parts, texts = list(code_of), dict[str, dict[str, None]]()  # each text once, in order
    modules = {id(each.module): each.module for each in objectives}  # models share them
    datasets = {id(each.dataset): each.dataset for each in objectives}
    networks = {key: _network_digest(module) for key, module in modules.items()}
    points = {key: describe_data(dataset) for key, dataset in datasets.items()}
    for objective, recipe in zip(objectives, recipes, strict=True):
        for name, text in (
            (f"network {recipe.module}", networks[id(objective.module)]),
            (f"loss {recipe.loss}", describe(objective.loss)),
            (f"data {recipe.data}", points[id(objective.dataset)]),
        ):
            texts.setdefault(name, {})[text] = None
        parts.append(objective.loss)
    parts += [*datasets.values(), *(kind for each in modules.values() for kind in _classes(each))]
    return {
        **versions(),
        **{f"code of {name}": digest(text.encode()) for name, text in _sources(parts).items()},
        **{name: " ".join(each) for name, each in texts.items()},
    }


def _network_digest(module: nn.Module) -> str:
    """Return a digest of a network without its code and its trainable weights."""
    fixed = [p for p in module.parameters() if not p.requires_grad]
    state = digest_tensors([*fixed, *module.buffers()])
    return digest(f"{plain_text(module)}{_module_attributes(module)}{state}".encode())


def require_masters(masters: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Raise `SkewError` if the fingerprint of this function differs from its master's."""
    if skew := differences(masters, own, words=("master", "function")):
        more = f"; {len(skew) - _MOST_NAMED} more" if len(skew) > _MOST_NAMED else ""
        named = "; ".join(skew[:_MOST_NAMED])
        raise SkewError(
            f"the function differs from its master: {named}{more}: deploy the master's code and "
            "data again, or undo the master's changes"
        )


def differences(
    one: Mapping[str, str], other: Mapping[str, str], *, words: tuple[str, str]
) -> list[str]:
    """Return one text for each difference, with the values of both sides.

    ``words`` are the names of the two sides. If several models have the same difference (``m1:
    loss``), there is one text for all of them.
    """
    names_of: dict[tuple[str, str | None, str | None], list[str]] = {}
    for name in {**one, **other}:
        values = one.get(name), other.get(name)
        if values[0] != values[1]:
            names_of.setdefault((name.rpartition(": ")[2], *values), []).append(name)
    texts = []
    for (_, left, right), names in names_of.items():
        first, second = excerpts(left, right)
        more = f" and of {len(names) - 1} more" if len(names) > 1 else ""
        texts.append(f"{names[0]}{more} ({words[0]} {first}, {words[1]} {second})")
    return texts


def excerpts(one: str | None, other: str | None) -> tuple[str, str]:
    """Return both texts, shortened to the part where they first differ."""
    same = 0
    if one is not None and other is not None and max(len(one), len(other)) > _SHOWN:
        same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return _excerpt(one, same), _excerpt(other, same)


def _excerpt(text: str | None, same: int) -> str:
    if text is None:
        return "absent"
    begin = max(0, same - _SHOWN // 3)
    shown = ("..." if begin else "") + text[begin:]
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."


def describe(value: object) -> str:
    """Return a text that describes a value, with digests of its attributes, code and data."""
    if isinstance(value, partial):
        return f"{describe(value.func)} {plain_text(value.args)} {plain_text(value.keywords)}"
    if isinstance(value, nn.Module):
        text = f"{plain_text(value)}{_module_attributes(value)}"
        return f"{type(value).__name__} {digest(text.encode())} {code_digest(value)}"
    if isinstance(value, Validation):
        return plain_text({f.name: describe(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, Mapping):
        return plain_text({key: describe(each) for key, each in value.items()})
    if isinstance(value, str | tuple):
        return plain_text(value)
    if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        return describe_data(value)
    if callable(value):
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return f"{name} {digest(_attributes(value).encode())} {code_digest(value)}"
    return plain_text(value)


def _module_attributes(module: nn.Module) -> str:
    return "".join(map(_attributes, module.modules()))


def _attributes(value: object) -> str:
    """Return the text of those public attributes of an object that have plain types."""
    items = getattr(value, "__dict__", {}).items()
    return plain_text({k: v for k, v in items if k[0] != "_" and isinstance(v, _PLAIN)})


def plain_text(value: object) -> str:
    """Return the text of a value, without memory addresses."""
    return _ADDRESS.sub("", str(value))


# ---- code ----------------------------------------------------------------------------------------


def code_digest(*things: object) -> str:
    """Return a digest of the code that defines objects, functions, classes or modules."""
    parts = [
        part
        for thing in things
        for part in (_classes(thing) if isinstance(thing, nn.Module) else (thing,))
    ]
    return digest("".join(_sources(parts).values()).encode())


def _classes(module: nn.Module) -> tuple[type, ...]:
    return tuple({type(part): None for part in module.modules()})


def in_script(thing: object) -> bool:
    """Return True if a function, or an object's class, is defined in ``__main__``.

    For a network, the classes of its submodules are checked, too.
    """
    parts = thing.modules() if isinstance(thing, nn.Module) else (thing,)
    kinds = (part if hasattr(part, "__qualname__") else type(part) for part in parts)
    return any(kind.__module__ == "__main__" for kind in kinds)


def _sources(things: Iterable[object]) -> dict[str, str]:
    """Return the source texts that define these objects, by module."""
    sources = dict[str, str]()
    for thing in things:
        kind = thing if inspect.isfunction(thing) or inspect.isclass(thing) else type(thing)
        for base in kind.__mro__ if inspect.isclass(kind) else (kind,):
            name = base.__module__
            if name.partition(".")[0] in _VERSIONED:
                continue
            if (text := _source(base)) not in sources.get(name, ""):
                sources[name] = sources.get(name, "") + text
    todo = [name for name in sources if name != "__main__"]
    while todo:
        for name in _neighbours(todo.pop()):
            if name not in sources:
                sources[name] = _file_text(name) or name
                todo.append(name)
    return dict(sorted(sources.items()))


def _source(kind: _Code) -> str:
    """Return the text of the file that defines ``kind``; in a script, only its definition."""
    name = kind.__module__
    with suppress(OSError, TypeError):
        if name == "__main__":
            return inspect.getsource(kind)
        return inspect.getsource(kind) if (text := _file_text(name)) is None else text
    texts = [f"{name}.{kind.__qualname__}"]
    for part in filter(inspect.isfunction, vars(kind).values()):  # a notebook's class has no file
        with suppress(OSError):
            texts.append(inspect.getsource(part))
    return "\n".join(texts)


def _file_text(name: str) -> str | None:
    """Return the source text of a module, or None if the module has no Python file."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or not file.endswith(".py"):
        return None
    state = Path(file).stat()
    return _text(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=256)
def _text(file: str, changed_ns: int, size: int) -> str:  # noqa: ARG001 (part of the cache's key)
    return Path(file).read_text("latin-1")


def _neighbours(name: str) -> list[str]:
    """Return the modules in the same package or folder from which a module imports."""
    module = sys.modules.get(name)
    if module is None or name.partition(".")[0] == "seqgc":  # the version stands for the rest
        return []
    imported = dict.fromkeys(_homes_of_constants(module))
    for value in list(vars(module).values()):
        is_module = isinstance(value, ModuleType)
        with suppress(Exception):  # the user's objects may raise anything
            imported[value.__name__ if is_module else value.__module__] = None
            if is_module and value.__name__.startswith(f"{name}."):
                del imported[value.__name__]
    return sorted(other for other in imported if other != name and _is_neighbour(other, name))


def _homes_of_constants(module: ModuleType) -> list[str]:
    """Return the modules from which a module imports constants."""
    names, homes = vars(module), list[str]()
    for level, source, imported in _imports(_file_text(module.__name__) or ""):
        values = [names[name] for name in imported if name in names]
        if any(not isinstance(value, _KNOWS_HOME) for value in values):
            with suppress(ImportError):
                homes.append(resolve_name("." * level + source, module.__package__))
    return homes


@lru_cache(maxsize=256)
def _imports(text: str) -> list[tuple[int, str, list[str]]]:
    """Return the level, the module and the names of each ``from ... import`` in a source text."""
    try:
        nodes = list(ast.walk(ast.parse(text.encode("latin-1"))))
    except (SyntaxError, ValueError):  # changed since it was imported
        return []
    return [
        (node.level, node.module or "", [name.asname or name.name for name in node.names])
        for node in nodes
        if isinstance(node, ast.ImportFrom)
    ]


def _is_neighbour(other: str, name: str) -> bool:
    if not isinstance(other, str) or other not in sys.modules:
        return False
    if (top := other.partition(".")[0]) == (own := name.partition(".")[0]):
        return True
    if top in _VERSIONED or top == "seqgc" or (folder := _folder(own)) is None:
        return False
    return _folder(top) == folder and not _is_installed(top, folder)


def _folder(top: str) -> Path | None:
    """Return the folder in which a top-level module or package lies, or None if it has no file."""
    module = sys.modules.get(top)
    if paths := list(getattr(module, "__path__", ())):
        return Path(paths[0]).parent
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).parent


@lru_cache(maxsize=256)
def _is_installed(top: str, folder: Path) -> bool:
    """Return True if the module was installed by a distribution, and is not the user's code."""
    try:
        distribution(top)
    except (PackageNotFoundError, ValueError):
        if not any(folder.glob("*.dist-info")):
            return False
        names = packages_distributions().get(top, ())  # `PIL` is of the distribution pillow
        homes = (Path(str(distribution(each).locate_file(""))) for each in names)
        return any(home.resolve() == folder.resolve() for home in homes)
    return True


# ---- data ----------------------------------------------------------------------------------------


def describe_data(dataset: PointDataset) -> str:
    """Return the number of points, a digest of the data, and a digest of the dataset's code."""
    size = len(dataset)
    if isinstance(dataset, StoredPoints):  # it was digested when it was stored
        return f"{size} points {dataset.digest}"
    tensors = getattr(dataset, "tensors", None)
    if tensors is None:
        with refusing("dataset", "must have points that can be read ({})", type(dataset).__name__):
            items = (dataset[int(point)] for point in sample_points(dataset, _POINTS))
            tensors = [each for item in items for part in item for each in _flatten(part)]
    data = digest_tensors(tensors, most_bytes=_MOST_BYTES)
    return f"{size} points {data} {code_digest(dataset)}"


def _flatten(part: object) -> Iterable[object]:
    """Yield all tensors, keys and other values in nested dictionaries, tuples and lists."""
    try:
        yield torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError):  # different shapes, or no numbers
        if isinstance(part, Mapping):
            for key, each in part.items():
                yield key
                yield from _flatten(each)
        elif isinstance(part, tuple | list):
            for each in part:
                yield from _flatten(each)
        else:
            yield part


def digest_tensors(tensors: Iterable[object], *, most_bytes: float = math.inf) -> str:
    """Return a digest of tensors, and of the texts of other values.

    If the tensors have more than ``most_bytes`` together, only about that many bytes are read.
    """
    result = xxhash.xxh3_128()
    all_ = list(tensors)
    total = sum(each.nbytes for each in all_ if isinstance(each, torch.Tensor))
    for tensor in all_:
        if not isinstance(tensor, torch.Tensor):  # a module may also have other state
            result.update(plain_text(tensor).encode())
            continue
        result.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        for piece in _pieces(tensor.detach(), share=min(1.0, most_bytes / max(1, total))):
            data = piece.cpu().contiguous().reshape(-1).view(torch.uint8)
            result.update(data.numpy().data)
    return result.hexdigest()[:12]


def _pieces(tensor: torch.Tensor, *, share: float) -> Iterable[torch.Tensor]:
    """Return a fraction ``share`` of a tensor, in pieces that are spread evenly."""
    if share == 1.0 or tensor.ndim == 0:
        return [tensor]
    numbers = tensor.view(-1) if tensor.is_contiguous() else tensor  # rows, to avoid a copy
    size = max(1, int(share * len(numbers) / _POINTS))
    begins = np.linspace(0, len(numbers) - size, _POINTS).astype(int).tolist()
    return [numbers[begin : begin + size] for begin in begins]


def digest(data: bytes) -> str:
    """Return a short digest that detects accidental changes, but not attacks."""
    return xxhash.xxh3_128_hexdigest(data)[:12]
