"""What a run was begun with, in words and digests: a resumed run must have the same."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from importlib.metadata import version

import numpy as np
import torch

from seqgc.errors import ParameterError
from seqgc.rounds import Setting
from seqgc.training._plan import TrainingPlan
from seqgc.training.model import Model, PointDataset

__all__ = ["fingerprint", "require_same"]

_POINTS = 64  # of a dataset that are looked at, unless it is tensors of at most these bytes
_WHOLE_BYTES = 1 << 26


def fingerprint(plan: TrainingPlan, setting: Setting) -> dict[str, str]:
    """Return what a run's gradients and steps depend on, by a name that a reader knows."""
    seen = {package: version(package) for package in ("seqgc", "torch", "numpy")}
    seen |= {
        "setting": repr(setting),
        "steps": str(plan.steps),
        "precision": plan.precision,
        "payload": str(plan.payload),
        "stochastic_rounding": str(plan.stochastic_rounding),
        "stale": str(plan.stale),
        "max_norm": str(plan.max_norm),
        "audit": str(plan.audit),
        "adaptation": repr(plan.adaptation),
        "models": ", ".join(model.name for model in plan.models),
    }
    for model in plan.models:
        seen |= {f"{model.name}: {name}": text for name, text in _of_model(model).items()}
    return seen


def require_same(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse to go on with something else than was begun.

    Raises
    ------
    ParameterError
        Naming all that differs, then and now.
    """
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if names:
        rule = "must be resumed with what it was begun with; changed since: " + "; ".join(
            f"{name} (was {_short(before.get(name))}, is {_short(now.get(name))})" for name in names
        )
        remedy = "undo that, or go on all the same with --accept-changes"
        raise ParameterError("run", rule, f"{len(names)} changes", remedy)


def _short(text: str | None) -> str:
    return "absent" if text is None else text if len(text) <= 60 else text[:57] + "..."


def _of_model(model: Model) -> dict[str, str]:
    return {
        "batch_size": str(model.batch_size),
        "seed": str(model.seed),
        "loss": _code(model.loss),
        "optimizer": _code(model.optimizer),
        "module": _code(model.module),
        "initial weights": _digest(*model.module.state_dict().values()),
        "data": _data(model.dataset),
    }


def _code(thing: object) -> str:
    """Return what a thing is, and a digest of the source of its class if that is anybody's own."""
    partial = getattr(thing, "func", None)
    if partial is not None:  # functools.partial
        return f"{_code(partial)} {getattr(thing, 'args', ())} {getattr(thing, 'keywords', {})}"
    kind = thing if inspect.isfunction(thing) or inspect.isclass(thing) else type(thing)
    name = f"{kind.__module__}.{kind.__qualname__}"
    text = repr(thing) if isinstance(thing, torch.nn.Module) else ""
    try:
        source = "" if kind.__module__.startswith("torch.") else inspect.getsource(kind)
    except (OSError, TypeError):
        source = ""
    return f"{name} {hashlib.sha256((text + source).encode()).hexdigest()[:12]}"


def _data(dataset: PointDataset) -> str:
    size = len(dataset)
    tensors = getattr(dataset, "tensors", None)
    if tensors is None or sum(t.nbytes for t in tensors) > _WHOLE_BYTES:
        some = np.unique(np.linspace(0, size - 1, min(size, _POINTS)).astype(int))
        tensors = [torch.as_tensor(part) for i in some for part in dataset[int(i)]]
    return f"{size} points, {_digest(*tensors)}"


def _digest(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]
