"""The configuration of a training run: a TOML file, with flags over it."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, cast

import tomli_w
from pydantic import BaseModel, Field

from seqgc.errors import ParameterError
from seqgc.ports import Payload
from seqgc.schemes import load_plugins
from seqgc.workers import DelaySettings, FunctionSettings, Settings

__all__ = ["ModelConfig", "RunConfig", "Values", "dump", "import_plugins", "read_toml", "validated"]

Values = dict[str, object]


class ModelConfig(Settings):
    """One network to train; ``module`` and ``data`` may be the user's own functions.

    These return the module, or a pair ``(train, test)`` of datasets.
    """

    name: str
    module: str = Field(
        default="digits-cnn", description="Network: a name, or package.module:function."
    )
    data: str = Field(default="digits", description="Data: digits, or package.module:function.")
    loss: Literal["cross-entropy", "mse"] = Field(
        default="cross-entropy", description="cross-entropy or mse."
    )
    optimizer: str = Field(default="adam", description="A class of torch.optim, in any case.")
    lr: float = Field(default=0.003, gt=0, description="Learning rate.")
    momentum: float | None = Field(default=None, ge=0, description="The optimizer's momentum.")
    weight_decay: float | None = Field(
        default=None, ge=0, description="The optimizer's weight decay."
    )
    batch_size: int = Field(default=256, ge=1, description="Data points per step.")
    seed: int = Field(default=0, ge=0)


class RunConfig(Settings):
    """Everything about a run; the fields that are described are options of the verbs."""

    scheme: str = Field(default="gc-rep:s=1", description="Scheme spec, for example gc-rep:s=1.")
    workers: int = Field(default=16, ge=1, le=10_000, description="Number of workers.")
    steps: int = Field(default=60, ge=1, le=10**9, description="Optimizer steps of each model.")
    mu: float = Field(default=0.0, ge=0, description="Tolerance of the closing rule.")
    wait_out: Literal["all", "conform", "feasible"] = Field(
        default="feasible", description="all, conform or feasible."
    )
    timeout_s: float = Field(default=60.0, gt=0, description="Hard limit of a round, seconds.")
    max_attempts: int = Field(
        default=3, ge=1, description="Times a worker's failed task is sent in one round."
    )
    jobs_per_round: int = Field(default=1, ge=1, description="Models a job (bundle).")
    stale: bool = Field(
        default=False, description="Fewer models than delay + 1: gradients T rounds late."
    )
    probe: int | None = Field(
        default=None, ge=1, description="Train uncoded for N rounds, then find the best scheme."
    )
    retune: int | None = Field(
        default=None, ge=1, description="Look for a better scheme every N rounds."
    )
    alpha: float | None = Field(
        default=None, ge=0, description="Seconds per unit of load, for --probe and --retune."
    )
    precision: Literal["float32", "float64"] = Field(
        default="float32", description="float32 or float64."
    )
    payload: Payload | None = Field(
        default=None, description="Results travel in float64, float32, float16 or bfloat16."
    )
    stochastic_rounding: bool = Field(
        default=False, description="Round results to the payload at random, unbiased."
    )
    backend: Literal["local", "lambda-local", "lambda", "dask"] = Field(
        default="local", description="Workers: local, lambda-local, lambda or dask."
    )
    dask_scheduler: str | None = Field(
        default=None, description="Address of a running dask scheduler."
    )
    max_usd: float | None = Field(
        default=None, ge=0, description="Stop before functions cost more, US dollars."
    )
    plugins: tuple[str, ...] = Field(
        default=(), description="A package.module that registers schemes or codes; repeatable."
    )
    function: FunctionSettings = FunctionSettings()
    delays: DelaySettings | None = None
    models: tuple[ModelConfig, ...] = Field(min_length=1)

    @classmethod
    def tables(cls) -> dict[str, type[BaseModel]]:
        return {"models": ModelConfig, "delays": DelaySettings, "function": FunctionSettings}


def read_toml(path: Path) -> Values:
    """Read a TOML file, or raise `ParameterError`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError("config", "must be a file", str(path), error.strerror or "") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ParameterError("config", f"must be TOML: {error}", str(path)) from None


def validated(values: Values) -> RunConfig:
    """Check a configuration, and import its plug-ins: before anybody reads a scheme's spec.

    The first thing that is wrong is a `ParameterError`.
    """
    if values.get("probe") is not None:
        scheme = values.setdefault("scheme", "uncoded")
        if scheme != "uncoded":
            rule = "must be left out, or 'uncoded', where `probe` rounds are to find the scheme"
            raise ParameterError("scheme", rule, scheme)
    config = cast("Callable[..., RunConfig]", RunConfig)(**values)
    import_plugins(config.plugins)
    return config


def import_plugins(names: Iterable[str]) -> None:
    """Import modules that register schemes or codes; those of the working directory are found."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    load_plugins(names)


def dump(config: RunConfig) -> str:
    """Return the configuration as TOML, defaults included."""
    return tomli_w.dumps(config.model_dump(exclude_none=True, mode="json"))
