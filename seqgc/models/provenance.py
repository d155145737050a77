"""What models and their data are made of, in words and digests: what two sides must have alike.

One rule for two questions: is a run resumed with what it was begun with (`_fingerprint`), and has a
function, which is sent names and no code, what its master has (`made_of`)?

*Code.* All files are looked at that define the classes and functions which a thing is made of, and
those from which these files have something, as long as they lie beside them: in the same package,
or, of modules that are in none, in the same folder. Of PyTorch, numpy and Python the version must
do. Of a script that is being run the definitions alone, as another may well resume the run. A
submodule that a package has only because somebody imported it is not looked at: who did may be the
master's own business.

*Data.* Of data that are tensors every byte, up to 64 MiB, and of more so much in 64 pieces that are
spread over all of it: some 20 ms in memory, a second from a file system, however large they are. Of
other data 64 points. The number of points always.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import numpy as np
import torch
import xxhash
from torch import nn

from seqgc.errors import ParameterError, SkewError, refusing
from seqgc.models.model import Objective, Recipe
from seqgc.models.points import PointDataset
from seqgc.models.stored_points import StoredPoints
from seqgc.models.validation import Validation

__all__ = [
    "code",
    "described",
    "differences",
    "digest",
    "digest_tensors",
    "in_script",
    "made_of",
    "plain",
    "require_masters",
    "two_sides",
    "versions",
]

_POINTS = 64  # of a dataset that are looked at, unless it is tensors; pieces of those, if large
_MOST_BYTES = 64 << 20
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_KNOWN = {*sys.stdlib_module_names, "numpy", "torch"}  # whose versions say all
_SHOWN = 60
_MOST_NAMED = 6  # differences: a message is one line
_PLAIN = (str, int, float, tuple, list, type(None))

_Code: TypeAlias = type | Callable[..., object]


def versions() -> dict[str, str]:
    """Return the versions of seqgc and torch; builds of one version (``+cpu``) are alike."""
    found = {name: sys.modules[name].__version__ for name in ("seqgc", "torch")}
    return {name: str(version).partition("+")[0] for name, version in found.items()}


def made_of(
    objectives: Sequence[Objective], recipes: Sequence[Recipe], *, code_of: Iterable[object]
) -> dict[str, str]:
    """Return what must be alike where objectives are computed, by a name that a reader knows.

    They were made by ``recipes``, whose names tell them apart, with all that is in ``code_of``.
    Their trainable weights, which travel, are not in it; all others are.
    """
    parts, found = list(code_of), dict[str, dict[str, None]]()  # texts, each once, in order
    modules = {id(each.module): each.module for each in objectives}  # models share them
    datasets = {id(each.dataset): each.dataset for each in objectives}
    networks = {key: _network(module) for key, module in modules.items()}
    points = {key: _data(dataset) for key, dataset in datasets.items()}
    for objective, recipe in zip(objectives, recipes, strict=True):
        for name, text in (
            (f"network {recipe.module}", networks[id(objective.module)]),
            (f"loss {recipe.loss}", described(objective.loss)),
            (f"data {recipe.data}", points[id(objective.dataset)]),
        ):
            found.setdefault(name, {})[text] = None
        parts.append(objective.loss)
    parts += [*datasets.values(), *(kind for each in modules.values() for kind in _kinds(each))]
    return {
        **versions(),
        **{f"code of {name}": digest(text.encode()) for name, text in _sources(parts).items()},
        **{name: " ".join(texts) for name, texts in found.items()},
    }


def _network(module: nn.Module) -> str:
    """Return a digest of a network without its code and its trainable weights."""
    fixed = [p for p in module.parameters() if not p.requires_grad]
    state = digest_tensors([*fixed, *module.buffers()])
    return digest(f"{plain(module)}{_attributes_of(module)}{state}".encode())


def require_masters(masters: object, own: Mapping[str, str]) -> None:
    """Refuse to compute for a master that has something else: `SkewError` names it."""
    if not isinstance(masters, Mapping) or not all(isinstance(v, str) for v in masters.values()):
        raise ParameterError("fingerprint", "must map names to texts", masters)
    if found := differences(masters, own, words=("master", "function")):
        more = f"; {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        what = "the function has something else than its master: " + "; ".join(found[:_MOST_NAMED])
        raise SkewError(f"{what}{more}: deploy what the master has, or undo what changed there")


def differences(
    one: Mapping[str, str], other: Mapping[str, str], *, words: tuple[str, str]
) -> list[str]:
    """Return what differs, each with what either side has; ``words`` say which side is which.

    What is the same of several models (``m1: loss``) is said once.
    """
    found: dict[tuple[str, str | None, str | None], list[str]] = {}
    for name in {**one, **other}:
        two = one.get(name), other.get(name)
        if two[0] != two[1]:
            found.setdefault((name.rpartition(": ")[2], *two), []).append(name)
    return [f"{_named(names)} ({_both(a, b, words)})" for (_, a, b), names in found.items()]


def _named(names: list[str]) -> str:
    return names[0] + (f" and of {len(names) - 1} more" if len(names) > 1 else "")


def _both(one: str | None, other: str | None, words: tuple[str, str]) -> str:
    first, second = two_sides(one, other)
    return f"{words[0]} {first}, {words[1]} {second}"


def two_sides(one: str | None, other: str | None) -> tuple[str, str]:
    """Return what either side has, from where they differ if they are long."""
    same = 0
    if one is not None and other is not None and max(len(one), len(other)) > _SHOWN:
        same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return _short(one, same), _short(other, same)


def _short(text: str | None, same: int) -> str:
    if text is None:
        return "absent"
    begin = max(0, same - _SHOWN // 3)
    shown = ("..." if begin else "") + text[begin:]
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."


def described(value: object) -> str:
    """Return what a value is: its text and a digest of what the text does not say."""
    if isinstance(value, partial):
        return f"{described(value.func)} {plain(value.args)} {plain(value.keywords)}"
    if isinstance(value, nn.Module):
        text = f"{plain(value)}{_attributes_of(value)}"
        return f"{type(value).__name__} {digest(text.encode())} {code(value)}"
    if isinstance(value, Validation):
        return plain({f.name: described(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, Mapping):
        return plain({key: described(each) for key, each in value.items()})
    if isinstance(value, str | tuple):
        return plain(value)
    if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        return _data(value)
    if callable(value):
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return f"{name} {digest(_attributes(value).encode())} {code(value)}"
    return plain(value)


def _attributes_of(module: nn.Module) -> str:
    return "".join(map(_attributes, module.modules()))


def _attributes(value: object) -> str:
    """Return an object's public attributes, as far as they are plain."""
    found = getattr(value, "__dict__", {}).items()
    return plain({k: v for k, v in found if k[0] != "_" and isinstance(v, _PLAIN)})


def plain(value: object) -> str:
    """Return a value's text, without addresses."""
    return _ADDRESS.sub("", str(value))


# ---- code ----------------------------------------------------------------------------------------


def code(*things: object) -> str:
    """Return a digest of the code that defines things, their parts included if they are modules."""
    parts = [
        part
        for thing in things
        for part in (_kinds(thing) if isinstance(thing, nn.Module) else (thing,))
    ]
    return digest("".join(_sources(parts).values()).encode())


def _kinds(module: nn.Module) -> tuple[type, ...]:
    """Return the classes of a network's parts, each once."""
    return tuple({type(part): None for part in module.modules()})


def in_script(thing: object) -> bool:
    """Say if a function, or the class of an object or of its parts, is of ``__main__``."""
    parts = thing.modules() if isinstance(thing, nn.Module) else (thing,)
    kinds = (part if hasattr(part, "__qualname__") else type(part) for part in parts)
    return any(kind.__module__ == "__main__" for kind in kinds)


def _sources(things: Iterable[object]) -> dict[str, str]:
    """Return the texts that define these things, by module."""
    sources = dict[str, str]()
    for thing in things:
        kind = thing if inspect.isfunction(thing) or inspect.isclass(thing) else type(thing)
        for base in kind.__mro__ if inspect.isclass(kind) else (kind,):
            name = base.__module__
            if name.partition(".")[0] in _KNOWN:
                continue
            if (text := _source(base)) not in sources.get(name, ""):
                sources[name] = sources.get(name, "") + text
    todo = [name for name in sources if name != "__main__"]
    while todo:
        for name in _beside(todo.pop()):
            if name not in sources:
                sources[name] = _file_text(name) or name
                todo.append(name)
    return dict(sorted(sources.items()))


def _source(kind: _Code) -> str:
    """Return the text of the file that defines this; of a script that is run, the definition."""
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
    """Return the text of a module's file; None if it has none, or one that is no text."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or not file.endswith(".py"):
        return None
    state = Path(file).stat()
    return _text(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=256)
def _text(file: str, changed_ns: int, size: int) -> str:  # noqa: ARG001 (tell files apart)
    return Path(file).read_text("latin-1")


def _beside(name: str) -> list[str]:
    """Return the modules beside a module that it has something from."""
    module = sys.modules.get(name)
    if module is None or name.partition(".")[0] == "seqgc":  # whose version says the rest
        return []
    found = dict[str, None]()
    for value in list(vars(module).values()):
        is_module = isinstance(value, ModuleType)
        with suppress(Exception):  # anybody's object
            found[value.__name__ if is_module else value.__module__] = None
            if is_module and value.__name__.startswith(f"{name}."):
                del found[value.__name__]
    return sorted(other for other in found if other != name and _lies_beside(other, name))


def _lies_beside(other: str, name: str) -> bool:
    if not isinstance(other, str) or other not in sys.modules:
        return False
    if (top := other.partition(".")[0]) == name.partition(".")[0]:
        return True
    if top in _KNOWN or (folder := _folder(name)) is None:
        return False
    return _folder(other) == folder and not _is_package(top)


def _folder(name: str) -> Path | None:
    """Return the folder of a module that is in no package, and is none."""
    module = sys.modules[name]
    file = getattr(module, "__file__", None)
    return None if "." in name or file is None or hasattr(module, "__path__") else Path(file).parent


def _is_package(name: str) -> bool:
    """Whether a module was installed under its name, and is not one's own."""
    try:
        distribution(name)
    except (PackageNotFoundError, ValueError):
        return False
    return True


# ---- data ----------------------------------------------------------------------------------------


def _data(dataset: PointDataset) -> str:
    size = len(dataset)
    if isinstance(dataset, StoredPoints):  # digested when it was stored
        return f"{size} points {dataset.digest}"
    tensors = getattr(dataset, "tensors", None)
    if tensors is None:
        some = np.unique(np.linspace(0, size - 1, min(size, _POINTS)).astype(int))
        with refusing("dataset", "must have points that can be read ({})", type(dataset).__name__):
            tensors = [each for i in some for part in dataset[int(i)] for each in _numbers(part)]
    return f"{size} points {digest_tensors(tensors, most_bytes=_MOST_BYTES)} {code(dataset)}"


def _numbers(part: object) -> Iterable[object]:
    """Return the tensors of a data point's part, the names that they have, and what is neither."""
    try:
        yield torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError):  # not all of one shape, or no numbers
        if isinstance(part, Mapping):
            for key, each in part.items():
                yield key
                yield from _numbers(each)
        elif isinstance(part, tuple | list):
            for each in part:
                yield from _numbers(each)
        else:
            yield part


def digest_tensors(tensors: Iterable[object], *, most_bytes: float = math.inf) -> str:
    """Return a digest of tensors, and of other state as far as it is plain.

    Of tensors that are more than ``most_bytes`` together so much is looked at.
    """
    found = xxhash.xxh3_128()
    all_ = list(tensors)
    total = sum(each.nbytes for each in all_ if isinstance(each, torch.Tensor))
    for tensor in all_:
        if not isinstance(tensor, torch.Tensor):  # a module may have other state as well
            found.update(plain(tensor).encode())
            continue
        found.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        for piece in _pieces(tensor.detach(), share=min(1.0, most_bytes / max(1, total))):
            data = piece.cpu().contiguous().reshape(-1).view(torch.uint8)
            found.update(data.numpy().data)
    return found.hexdigest()[:12]


def _pieces(tensor: torch.Tensor, *, share: float) -> Iterable[torch.Tensor]:
    """Return a tensor, or so much of it, in pieces that are spread over all of it."""
    if share == 1.0 or tensor.ndim == 0:
        return [tensor]
    numbers = tensor.view(-1) if tensor.is_contiguous() else tensor  # else a copy: take rows
    size = max(1, int(share * len(numbers) / _POINTS))
    begins = np.linspace(0, len(numbers) - size, _POINTS).astype(int).tolist()
    return [numbers[begin : begin + size] for begin in begins]


def digest(data: bytes) -> str:
    """Return a short digest: of what changes by accident, not against anybody."""
    return xxhash.xxh3_128_hexdigest(data)[:12]
