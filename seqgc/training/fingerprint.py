"""The fingerprint of a run: everything that a resumed run must have in common with its beginning.

The fingerprint is a dictionary of texts and digests by name. It covers all fields of the plan, the
models and the configuration. If a new field is added to one of these classes, the fingerprint
covers it, too. `seqgc.models.provenance` explains how code and data are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Final, cast

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

# The fields of models and rule are added one by one, and a prediction changes nothing.
_APART: Final = frozenset({"models", "rule", "predicted_round_s"})

__all__ = ["changes", "fingerprint", "moved", "require_same"]


def fingerprint(
    planned: PlannedRun, *, config: str, callbacks: Sequence[object] = ()
) -> dict[str, str]:
    """Return the fingerprint of a run.

    Error messages show the names in the fingerprint to the user. ``config`` is the text of the
    run's ``config.toml``. Callbacks are included if they have a state.
    """
    plan, setting = planned.plan, planned.setting
    texts = _of_config(config) | versions() | {"numpy": np.__version__}
    texts |= {
        f.name: describe(getattr(part, f.name))
        for part in (plan, setting, setting.rule)
        for f in fields(part)
        if f.name not in _APART
    }
    texts |= {
        "workers": str(setting.scheme.n),
        "models": ", ".join(model.name for model in plan.models),
        "callbacks with a state": ", ".join(stateful(callbacks)),
    }
    data: dict[int, str] = {}  # by identity: the models of a grid share theirs
    for each in (each for model in plan.models for each in (model.dataset, model.test_dataset)):
        if each is not None and id(each) not in data:
            data[id(each)] = describe(each)
    for model in plan.models:
        texts |= {f"{model.name}: {name}": text for name, text in _of_model(model, data).items()}
    return texts


def moved(
    before: Mapping[str, str], now: Mapping[str, str], at: Callable[[int], PlannedRun]
) -> dict[str, str]:
    """Return the fingerprint ``before`` without differences that other workers alone explain.

    ``now`` is the fingerprint of the run on the present workers. ``at(n)`` returns the run of the
    same plan on ``n`` workers. Two kinds of values are replaced by the values in ``now``: values of
    the configuration that describe the workers, and fields that depend on the number of workers. A
    field of the second kind is replaced only if the plan gives the value in ``before`` for the
    number of workers in ``before``. Otherwise the plan itself has changed.
    """
    same = {"workers": now["workers"]}
    if (n := before["workers"]) != now["workers"]:
        with suppress(ParameterError):  # the scheme cannot have the earlier number of workers
            then = _of_number(at(int(n)))
            same |= {name: now[name] for name, text in then.items() if before.get(name) == text}
    kept = {name: text for name, text in before.items() if not _is_of_workers(name)}
    return kept | {name: text for name, text in now.items() if _is_of_workers(name)} | same


def _is_of_workers(name: str) -> bool:
    """Return True if a value of the configuration describes the kind of the workers."""
    return name in ("backend", "dask_scheduler") or name.startswith("function.")


def _of_number(planned: PlannedRun) -> dict[str, str]:
    """Return the fields of a fingerprint that may depend on the number of workers."""
    setting = planned.setting
    return {
        "scheme": describe(setting.scheme),
        "jobs_per_round": describe(setting.jobs_per_round),
    }


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a text for each difference between two fingerprints."""
    return differences(before, now, words=("was", "is"))


def require_same(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise `ParameterError` if two fingerprints differ. The message has all differences."""
    if texts := changes(before, now):
        rule = "must be resumed as it was begun; changed since: " + "; ".join(texts)
        remedy = "undo the changes, or try --accept-changes"
        raise ParameterError("run", rule, f"{len(texts)} changes", remedy)


def _of_config(text: str) -> dict[str, str]:
    """Return the values of a TOML text by their paths, or a digest if it is not TOML."""
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
    texts = {name: data.get(id(value)) or describe(value) for name, value in values.items()}
    return texts | {
        "initial weights": digest_tensors(model.module.state_dict().values()),
        **_settings(model),
        **_measure(model, data),
        "factories": code_digest(*factories_of(model.recipe)) if model.recipe else "",
    }


def _measure(model: Model, data: Mapping[int, str]) -> dict[str, str]:
    """Return a digest of everything that a model's validations depend on.

    If the digest changes, the values of validations cannot be compared.
    """
    if (rules := model.validation) is None:
        return {}
    points = rules.points(model)
    parts = (rules.monitor, rules.mode, rules.metrics, model.loss, model.autocast)
    texts = [data.get(id(points)) or describe(points), *map(describe, parts)]
    return {"measure": digest("\n".join(texts).encode())}


def _settings(model: Model) -> dict[str, str]:
    """Return the settings of the optimizer and scheduler that the model's factories make.

    They are read from the objects, because a closure may hide the arguments of a factory.
    """
    texts = {}
    try:
        named = [(n, p) for n, p in model.module.named_parameters() if p.requires_grad]
        optimizer = cast("Optimizer", call_optimizer_factory(model.optimizer, named))
        texts["optimizer's settings"] = _with_code(optimizer, _of_groups(optimizer))
        if model.scheduler is not None:
            scheduler = model.scheduler(optimizer)
            texts["scheduler's settings"] = _with_code(scheduler, scheduler.state_dict())
    except BaseException as error:  # from the user's code; the workload will refuse the model
        reraise_stop(error)
        texts["settings"] = type(error).__name__
    return texts


def _of_groups(optimizer: Optimizer) -> object:
    """Return an optimizer's settings, and the different settings of parameter groups if any."""
    defaults, groups = {name: plain_text(each) for name, each in optimizer.defaults.items()}, []
    for group in optimizer.param_groups:
        own = {name: plain_text(each) for name, each in group.items() if name != "params"}
        different = {name: text for name, text in own.items() if text != defaults.get(name)}
        groups.append((len(group["params"]), sorted(different.items())))
    settings = sorted(optimizer.defaults.items())
    return (settings, groups) if len(groups) > 1 or groups[0][1] else settings


def _with_code(thing: object, settings: object) -> str:
    return f"{type(thing).__qualname__} {plain_text(settings)} {code_digest(thing)}"
