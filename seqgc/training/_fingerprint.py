"""What a run was begun with, in words and digests: a resumed run must have the same.

Whatever a plan, a model or the configuration has is in it, since their fields are walked: one that
is added later cannot be forgotten. Of code, all of the files are looked at that define the classes
and functions which a model is made of, but for PyTorch's and seqgc's own, whose versions tell; of a
script that is being run, the definitions alone, as it may well be what resumes the run. Of data
that are tensors every byte is looked at, of others some points.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import xxhash
from torch import nn

from seqgc._bounded import parse_toml
from seqgc.errors import ParameterError
from seqgc.rounds import Setting
from seqgc.training._plan import TrainingPlan
from seqgc.training._stepper import without_compiler
from seqgc.training.factories import factories_of
from seqgc.training.model import Model, PointDataset
from seqgc.training.stored import StoredPoints
from seqgc.training.validation import Validation

__all__ = ["differences", "fingerprint", "require_same"]

_POINTS = 64  # of a dataset that are looked at, unless it is tensors
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_KNOWN = ("builtins", "functools", "seqgc", "torch")  # packages whose versions say all
_SHOWN = 60
_PLAIN = (str, int, float, tuple, list, type(None))


def fingerprint(plan: TrainingPlan, setting: Setting, *, config: str) -> dict[str, str]:
    """Return what a run depends on, by a name that a reader knows.

    ``config`` is the text of its ``config.toml``.
    """
    seen = _of_config(config)
    seen |= {package: version(package) for package in ("seqgc", "torch", "numpy")}
    parts = (plan, setting, setting.rule)
    seen |= {
        f.name: _described(getattr(part, f.name))
        for part in parts
        for f in fields(part)
        if f.name not in {"models", "rule"}  # which are walked themselves
    }
    seen |= {
        "workers": str(setting.scheme.n),
        "models": ", ".join(model.name for model in plan.models),
    }
    data: dict[int, str] = {}  # by identity: the models of a grid share theirs
    for each in (each for model in plan.models for each in (model.dataset, model.test_dataset)):
        if each is not None and id(each) not in data:
            data[id(each)] = _data(each)
    for model in plan.models:
        seen |= {f"{model.name}: {name}": text for name, text in _of_model(model, data).items()}
    return seen


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what is not as it was, each in words; what is the same of several models once."""
    found: dict[object, list[str]] = {}
    for name in {**before, **now}:
        change = before.get(name), now.get(name)
        if change[0] != change[1]:
            found.setdefault((name.rpartition(": ")[2], *change), []).append(name)
    return [
        f"{_named(names)} ({_changed(before.get(names[0]), now.get(names[0]))})"
        for names in found.values()
    ]


def _named(names: list[str]) -> str:
    return names[0] + (f" and of {len(names) - 1} more" if len(names) > 1 else "")


def require_same(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse to go on with something else than was begun.

    Raises
    ------
    ParameterError
        Naming all that differs, then and now.
    """
    if changes := differences(before, now):
        rule = "must be resumed with what it was begun with; changed since: " + "; ".join(changes)
        remedy = "undo that, or go on all the same with --accept-changes"
        raise ParameterError("run", rule, f"{len(changes)} changes", remedy)


def _changed(before: str | None, now: str | None) -> str:
    """Return what was and what is, from where they differ if they are long."""
    same = 0
    if before is not None and now is not None and max(len(before), len(now)) > _SHOWN:
        same = next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), 0)
    return f"was {_short(before, same)}, is {_short(now, same)}"


def _short(text: str | None, same: int) -> str:
    if text is None:
        return "absent"
    begin = max(0, same - _SHOWN // 3)
    shown = ("..." if begin else "") + text[begin:]
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."


def _of_config(text: str) -> dict[str, str]:
    """Return the values of a TOML text by their paths; a digest of what is none."""
    try:
        return dict(_flat(parse_toml(text.encode())))
    except ValueError:
        return {"config.toml": _digest(text.encode())}


def _flat(values: Mapping[str, object], path: str = "") -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        tables = value
        if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
            tables = {str(number): entry for number, entry in enumerate(value)}
        if isinstance(tables, dict):
            yield from _flat(tables, f"{path}{key}.")
        else:
            yield f"{path}{key}", repr(value)


def _of_model(model: Model, data: Mapping[int, str]) -> dict[str, str]:
    values = {f.name: getattr(model, f.name) for f in fields(model)}
    seen = {name: data.get(id(value)) or _described(value) for name, value in values.items()}
    return seen | {
        "initial weights": _digest_tensors(model.module.state_dict().values()),
        **_settings(model),
        "factories": _code_of(() if model.recipe is None else factories_of(model.recipe)),
    }


def _settings(model: Model) -> dict[str, str]:
    """Return what its factories make of all that they know, which may be hidden in a closure."""
    seen = {}
    try:
        with without_compiler():
            made = model.optimizer([p for p in model.module.parameters() if p.requires_grad])
            seen["optimizer's settings"] = _with_code(made, sorted(made.defaults.items()))
            if model.scheduler is not None:
                scheduler = model.scheduler(made)
                seen["scheduler's settings"] = _with_code(scheduler, scheduler.state_dict())
    except Exception as error:  # anybody's code; who makes the workload refuses it
        seen["settings"] = type(error).__name__
    return seen


def _with_code(thing: object, settings: object) -> str:
    return f"{type(thing).__qualname__} {_plain(settings)} {_code(thing)}"


def _described(value: object) -> str:
    """Return what a field's value is."""
    if isinstance(value, partial):
        return f"{_described(value.func)} {_plain(value.args)} {_plain(value.keywords)}"
    if isinstance(value, nn.Module):
        parts = "".join(map(_attributes, value.modules()))
        return (
            f"{type(value).__name__} {_digest(f'{_plain(value)}{parts}'.encode())} {_code(value)}"
        )
    if isinstance(value, Validation):
        return _plain({f.name: _described(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, Mapping):
        return _plain({key: _described(each) for key, each in value.items()})
    if isinstance(value, str | tuple):
        return _plain(value)
    if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        return _data(value)
    if callable(value):
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return f"{name} {_digest(_attributes(value).encode())} {_code(value)}"
    return _plain(value)


def _attributes(value: object) -> str:
    """Return an object's public attributes, as far as they are plain."""
    found = getattr(value, "__dict__", {}).items()
    return _plain({k: v for k, v in found if k[0] != "_" and isinstance(v, _PLAIN)})


def _plain(value: object) -> str:
    return _ADDRESS.sub("", str(value))


# ---- code ----------------------------------------------------------------------------------------


def _code(thing: object) -> str:
    """Return a digest of the code that defines a thing, its parts included if it is a module."""
    if isinstance(thing, nn.Module):
        return _code_of({type(part): None for part in thing.modules()})
    return _code_of([thing])


def _code_of(things: Iterable[object]) -> str:
    sources = dict[str, None]()  # each once, in order
    for thing in things:
        kind = thing if inspect.isfunction(thing) or inspect.isclass(thing) else type(thing)
        for base in kind.__mro__ if inspect.isclass(kind) else (kind,):
            if base.__module__.partition(".")[0] not in _KNOWN:
                sources[_source(base)] = None
    return _digest("".join(sources).encode())


def _source(kind: type | Callable[..., object]) -> str:
    """Return the text of the file that defines this; of a script that is run, the definition."""
    with suppress(OSError, TypeError):
        if kind.__module__ == "__main__":
            return inspect.getsource(kind)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        return inspect.getsource(kind) if file is None else Path(file).read_text("latin-1")
    texts = [f"{kind.__module__}.{kind.__qualname__}"]
    for part in filter(inspect.isfunction, vars(kind).values()):  # a notebook's class has no file
        with suppress(OSError):
            texts.append(inspect.getsource(part))
    return "\n".join(texts)


# ---- data ----------------------------------------------------------------------------------------


def _data(dataset: PointDataset) -> str:
    size = len(dataset)
    if isinstance(dataset, StoredPoints):  # digested when it was stored
        return f"{size} points {dataset.digest}"
    tensors = getattr(dataset, "tensors", None)
    if tensors is None:
        some = np.unique(np.linspace(0, size - 1, min(size, _POINTS)).astype(int))
        tensors = [torch.as_tensor(part) for i in some for part in dataset[int(i)]]
    return f"{size} points {_digest_tensors(tensors)} {_code(dataset)}"


def _digest_tensors(tensors: Iterable[object]) -> str:
    digest = xxhash.xxh3_128()
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):  # a module may have other state as well
            digest.update(_plain(tensor).encode())
            continue
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(data.numpy().data)
    return digest.hexdigest()[:12]


def _digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)[:12]
