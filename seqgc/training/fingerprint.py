"""What a run was begun with, in words and digests: a resumed run must have the same.

Whatever a plan, a model or the configuration has is in it, since their fields are walked: one that
is added later cannot be forgotten. What is looked at of code and data is said in
`seqgc.models.provenance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import cast

import numpy as np
from torch.optim import Optimizer

from seqgc._bounded import parse_toml
from seqgc.errors import ParameterError, reraise_stop
from seqgc.models.factories import factories_of
from seqgc.models.model import Model
from seqgc.models.optimizers import call_optimizer_factory
from seqgc.models.provenance import (
    code_digest,
    describe,
    differences,
    digest,
    digest_tensors,
    plain_text,
    versions,
)
from seqgc.training.callbacks import stateful
from seqgc.training.plan import PlannedRun

__all__ = ["changes", "completed", "fingerprint", "require_same"]

_MEASURED = "validation", "test_dataset", "dataset", "loss", "autocast"


def fingerprint(
    planned: PlannedRun, *, config: str, callbacks: Sequence[object] = ()
) -> dict[str, str]:
    """Return what a run depends on, by a name that a reader knows.

    ``config`` is the text of its ``config.toml``. Of ``callbacks`` those count that have a state.
    """
    plan, setting = planned.plan, planned.setting
    seen = _of_config(config)
    seen |= versions() | {"numpy": np.__version__}
    parts = (plan, setting, setting.rule)
    seen |= {
        f.name: describe(getattr(part, f.name))
        for part in parts
        for f in fields(part)
        if f.name not in {"models", "rule"}  # which are walked themselves
    }
    seen |= {
        "workers": str(setting.scheme.n),
        "models": ", ".join(model.name for model in plan.models),
        "callbacks with a state": ", ".join(stateful(callbacks)),
    }
    data: dict[int, str] = {}  # by identity: the models of a grid share theirs
    for each in (each for model in plan.models for each in (model.dataset, model.test_dataset)):
        if each is not None and id(each) not in data:
            data[id(each)] = describe(each)
    for model in plan.models:
        seen |= {f"{model.name}: {name}": text for name, text in _of_model(model, data).items()}
    return seen


def completed(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return a fingerprint with what an earlier version of seqgc did not write, as far as known.

    What validations measure is as it was if all that it depends on is.
    """
    found = dict(before)
    for name, text in now.items():
        model, _, field = name.rpartition(": ")
        parts = [f"{model}: {each}" for each in _MEASURED]
        if field == "measure" and all(before.get(each) == now[each] for each in parts):
            found.setdefault(name, text)
    return found


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what is not as it was, each in words."""
    return differences(before, now, words=("was", "is"))


def require_same(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse to go on with something else than was begun.

    Raises
    ------
    ParameterError
        Naming all that differs, then and now.
    """
    if found := changes(before, now):
        rule = "must be resumed with what it was begun with; changed since: " + "; ".join(found)
        remedy = "undo that, or see if --accept-changes can go on with it"
        raise ParameterError("run", rule, f"{len(found)} changes", remedy)


def _of_config(text: str) -> dict[str, str]:
    """Return the values of a TOML text by their paths; a digest of what is none."""
    try:
        return dict(_flat(parse_toml(text.encode())))
    except ValueError:
        return {"config.toml": digest(text.encode())}


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
    seen = {name: data.get(id(value)) or describe(value) for name, value in values.items()}
    return seen | {
        "initial weights": digest_tensors(model.module.state_dict().values()),
        **_settings(model),
        **_measure(model, data),
        "factories": code_digest(*factories_of(model.recipe)) if model.recipe else "",
    }


def _measure(model: Model, data: Mapping[int, str]) -> dict[str, str]:
    """Return what its validations go by: of two that differ the values cannot be compared."""
    if (rules := model.validation) is None:
        return {}
    points = rules.points(model)
    parts = (rules.monitor, rules.mode, rules.metrics, model.loss, model.autocast)
    texts = [data.get(id(points)) or describe(points), *map(describe, parts)]
    return {"measure": digest("\n".join(texts).encode())}


def _settings(model: Model) -> dict[str, str]:
    """Return what its factories make of all that they know, which may be hidden in a closure."""
    seen = {}
    try:
        named = [(n, p) for n, p in model.module.named_parameters() if p.requires_grad]
        made = cast("Optimizer", call_optimizer_factory(model.optimizer, named))
        seen["optimizer's settings"] = _with_code(made, _of_groups(made))
        if model.scheduler is not None:
            scheduler = model.scheduler(made)
            seen["scheduler's settings"] = _with_code(scheduler, scheduler.state_dict())
    except BaseException as error:  # anybody's code; who makes the workload refuses it
        reraise_stop(error)
        seen["settings"] = type(error).__name__
    return seen


def _of_groups(optimizer: Optimizer) -> object:
    """Return an optimizer's settings, and those of its groups where they have others."""
    known, groups = {name: plain_text(each) for name, each in optimizer.defaults.items()}, []
    for group in optimizer.param_groups:
        own = {name: plain_text(each) for name, each in group.items() if name != "params"}
        others = {name: text for name, text in own.items() if text != known.get(name)}
        groups.append((len(group["params"]), sorted(others.items())))
    settings = sorted(optimizer.defaults.items())
    return (settings, groups) if len(groups) > 1 or groups[0][1] else settings


def _with_code(thing: object, settings: object) -> str:
    return f"{type(thing).__qualname__} {plain_text(settings)} {code_digest(thing)}"
