"""The configuration of a training run: a TOML file, with flags over it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from seqgc.errors import ParameterError, did_you_mean
from seqgc.ports import Payload

__all__ = [
    "DelaysConfig",
    "FunctionConfig",
    "ModelConfig",
    "RunConfig",
    "dump",
    "read_toml",
    "validated",
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(_Strict):
    """One network to train.

    ``module`` and ``data`` are names (`seqgc.training.MODULES`; ``digits``) or the user's own
    ``package.module:function``, which returns the module, or a pair ``(train, test)`` of datasets.
    ``optimizer`` is a class of `torch.optim`, in any case.
    """

    name: str
    module: str = "digits-cnn"
    data: str = "digits"
    loss: Literal["cross-entropy", "mse"] = "cross-entropy"
    optimizer: str = "adam"
    lr: float = Field(default=0.003, gt=0)
    momentum: float | None = Field(default=None, ge=0)
    weight_decay: float | None = Field(default=None, ge=0)
    batch_size: int = Field(default=256, ge=1)
    seed: int = Field(default=0, ge=0)


class DelaysConfig(_Strict):
    """Stragglers to inject into local workers.

    ``source`` is a profile's file or ``lambda-cnn``, the generator fitted to recorded rounds on
    Lambda; its seconds, adjusted to the scheme's load, are multiplied by ``scale``. ``alpha``
    (seconds per unit of load) and ``base_load`` are the profile's own unless given.
    """

    source: str = "lambda-cnn"
    scale: float = Field(default=0.1, gt=0)
    seed: int = Field(default=0, ge=0)
    alpha: float | None = Field(default=None, ge=0)
    base_load: float | None = Field(default=None, ge=0)


_REPLACED = {("function.transport", "asyncio"): "curl has taken its place"}


class FunctionConfig(_Strict):
    """How a master reaches its functions, and what these are.

    ``transport`` carries invocations; ``http`` and ``curl`` sign them themselves. ``store``
    is where weights and large answers are. ``auto`` is ``inline`` where they fit messages, else
    what costs least, of ``s3`` and, with a ``mount``, the ``directory``; on this machine the
    directory (see `seqgc.stores.choose_store`). A run writes down which it was. ``mount`` is where
    the master has the functions' file system. ``master`` says whether it is ``inside`` the
    functions' region, or ``outside``: then what it receives is priced as transfer to the internet.
    Unless given, it is inside where it has a ``mount``, for which it must be in the VPC, and else
    outside.

    With backend ``lambda`` the rest is as deployed, by the file ``deployment``. With
    ``lambda-local`` there are at most ``environments`` functions at once (as many again as workers,
    unless given: stragglers hold theirs), ended after ``timeout_s`` seconds; it is priced as the
    one of that memory (MB), architecture and region which it stands for. ``expected_s`` is how
    long a task is thought to run, seconds; used for prices only. Before the first round every
    function is invoked ``warm_up`` times, which is paid for, as are the functions' starts.
    """

    transport: Literal["boto3", "http", "curl"] = "boto3"
    store: Literal["auto", "directory", "s3", "inline"] = "auto"
    mount: str | None = None
    master: Literal["inside", "outside"] | None = None
    deployment: str = "seqgc-lambda.toml"
    environments: int | None = Field(default=None, ge=1, le=10_000)
    memory_mb: int = Field(default=2560, ge=128, le=10240)
    timeout_s: float = Field(default=60.0, gt=0, le=900)
    arch: Literal["arm64", "x86_64"] = "arm64"
    region: str = "us-east-1"
    expected_s: float | None = Field(default=None, ge=0)
    warm_up: int = Field(default=1, ge=0)

    @property
    def master_outside(self) -> bool:
        """Whether the master is outside the functions' region."""
        return self.mount is None if self.master is None else self.master == "outside"


class RunConfig(_Strict):
    """Everything about a run.

    With ``probe`` it trains uncoded for so many rounds, then looks for the best scheme on what was
    seen; with ``retune`` it looks (again) every so many rounds. Either needs ``alpha``, seconds per
    unit of load, unless delays are injected, which have their own. Results travel in the format
    ``payload``: ``precision`` unless given; rounding is stochastic to a narrower one only.
    It stops before it costs more than ``max_usd`` US dollars (``local`` and ``dask`` cost nothing);
    not with ``probe`` or ``retune``, since schemes that are not known yet have no price.
    ``dask_scheduler`` is the address of a scheduler; without one dask starts on this machine.
    """

    scheme: str = "gc-rep:s=1"
    workers: int = Field(default=16, ge=1, le=10_000)
    steps: int = Field(default=60, ge=1, le=10**9)
    mu: float = Field(default=0.0, ge=0)
    wait_out: Literal["all", "conform", "feasible"] = "feasible"
    timeout_s: float = Field(default=60.0, gt=0)
    max_attempts: int = Field(default=3, ge=1)
    jobs_per_round: int = Field(default=1, ge=1)
    stale: bool = False
    probe: int | None = Field(default=None, ge=1)
    retune: int | None = Field(default=None, ge=1)
    alpha: float | None = Field(default=None, ge=0)
    precision: Literal["float32", "float64"] = "float32"
    payload: Payload | None = None
    stochastic_rounding: bool = False
    backend: Literal["local", "lambda-local", "lambda", "dask"] = "local"
    dask_scheduler: str | None = None
    max_usd: float | None = Field(default=None, ge=0)
    function: FunctionConfig = FunctionConfig()
    delays: DelaysConfig | None = None
    models: tuple[ModelConfig, ...] = Field(min_length=1)


def read_toml(path: Path) -> dict[str, object]:
    """Read a TOML file.

    Raises
    ------
    ParameterError
        If it is missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError("config", "must be a file", str(path), error.strerror or "") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ParameterError("config", f"must be TOML: {error}", str(path)) from None


def validated(values: dict[str, object]) -> RunConfig:
    """Check a configuration.

    Raises
    ------
    ParameterError
        For the first thing that is wrong; an unknown key comes with the nearest known one.
    """
    if values.get("probe") is not None:
        given = values.setdefault("scheme", "uncoded")
        if given != "uncoded":
            rule = "must be left out, or 'uncoded', where `probe` rounds are to find the scheme"
            raise ParameterError("scheme", rule, given)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            key = str(first["loc"][-1])
            known = _keys_beside(first["loc"])
            rule = f"is not a key of the configuration: those are {', '.join(known)}"
            raise ParameterError(where, rule, first["input"], did_you_mean(key, known)) from None
        message, value = first["msg"].removeprefix("Input "), first["input"]
        remedy = _REPLACED.get((where, str(value)), "")
        raise ParameterError(where, message[0].lower() + message[1:], value, remedy) from None


def dump(config: RunConfig) -> str:
    """Return the configuration as TOML, defaults included."""
    return tomli_w.dumps(config.model_dump(exclude_none=True, mode="json"))


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are known where an unknown one was found."""
    tables: dict[str, type[BaseModel]] = {
        "models": ModelConfig,
        "delays": DelaysConfig,
        "function": FunctionConfig,
    }
    table = tables.get(str(location[0]), RunConfig) if len(location) > 1 else RunConfig
    return list(table.model_fields)
