"""The configuration of a training run: a TOML file, with flags over it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, cast

from pydantic import Field

from seqgc._bounded import read_toml
from seqgc._grid import MOST_MODELS, grid_points
from seqgc.errors import ParameterError, no_run, require_int
from seqgc.ports import Payload
from seqgc.rounds import WaitOut
from seqgc.schemes import load_plugins
from seqgc.workers import DelaySettings, FunctionSettings, Settings

Values = dict[str, object]

MOST_WORKERS: Final = 10_000


class ValidationConfig(Settings):
    """How good a model is while it is trained: `seqgc.Validation`.

    ``data`` returns a dataset, the model's test data unless given; ``metrics`` names functions.
    """

    every_n_steps: int = Field(ge=1, le=10**9)
    data: str | None = None
    metrics: dict[str, str] = Field(default={})
    monitor: str = "loss"
    mode: Literal["min", "max"] = "min"
    patience: int | None = Field(default=None, ge=1, le=10**9)
    min_delta: float = Field(default=0.0, ge=0)


class ModelConfig(Settings):
    """One network to train; ``module``, ``data`` and ``loss`` may be the user's own functions.

    The first returns the module, and the second a pair ``(train, test)`` of datasets. For the loss,
    a function is the loss itself, and a class makes it. Their arguments are ``module_args``,
    ``data_args`` and ``loss_args``.
    """

    name: str
    module: Annotated[str, "Network: a name, or package.module:function."] = "digits-cnn"
    data: Annotated[str, "Data: digits, or package.module:function."] = "digits"
    loss: Annotated[str, "Loss: cross-entropy, mse, or package.module:function."] = "cross-entropy"
    module_args: Values = Field(default={})
    data_args: Values = Field(default={})
    loss_args: Values = Field(default={})
    optimizer: Annotated[
        str, "A class of torch.optim, in any case, or package.module:function."
    ] = "adam"
    lr: Annotated[float, Field(gt=0, le=1e6), "Learning rate."] = 0.003
    momentum: Annotated[float | None, Field(ge=0, le=1e6), "The optimizer's momentum."] = None
    weight_decay: Annotated[float | None, Field(ge=0, le=1e6), "The optimizer's weight decay."] = (
        None
    )
    optimizer_args: Values = Field(default={})  # all others that it has, by its own names
    scheduler: Annotated[
        str | None, "A class of torch.optim.lr_scheduler, in any case, or package.module:function."
    ] = None
    scheduler_args: Values = Field(default={})
    gradient_clip_val: Annotated[float | None, Field(gt=0), "Clip decoded gradients to this."] = (
        None
    )
    gradient_clip_algorithm: Annotated[
        Literal["norm", "value"], "What of them is clipped: their norm, or each value."
    ] = "norm"
    autocast: Annotated[
        Literal["off", "bfloat16"], "Compute forward and loss in bfloat16: torch's autocast."
    ] = "off"
    batch_size: Annotated[int, Field(ge=1, le=10**9), "Data points per step."] = 256
    seed: int = Field(default=0, ge=0, lt=2**63)
    save_every_n_steps: Annotated[
        int | None, Field(ge=1, le=10**9), "Keep a model's weights after every N of its steps."
    ] = None
    validation: ValidationConfig | None = None


class RunConfig(Settings):
    """Everything about a run; the fields with words beside their types are options of the verbs."""

    scheme: Annotated[
        str, "--scheme", "--defence", "Spec of a scheme or another defence, as gc-rep:s=1."
    ] = "gc-rep:s=1"
    workers: Annotated[
        int, Field(ge=1, le=MOST_WORKERS), "-n", "--workers", "Number of workers."
    ] = 16
    steps: Annotated[int, Field(ge=1, le=10**9), "Optimizer steps of each model."] = 60
    mu: Annotated[float, Field(ge=0), "Tolerance of the closing rule."] = 0.0
    wait_out: Annotated[WaitOut, "all, conform or feasible."] = "feasible"
    timeout_s: Annotated[
        float,
        Field(gt=0, le=1e6),
        "Time limit of a round, in seconds; silent workers are then asked twice more.",
    ] = 60.0
    max_attempts: Annotated[
        int, Field(ge=1), "Times a failed task is sent if its round can do without (else 20)."
    ] = 3
    max_norm: Annotated[
        float | None,
        Field(gt=0),
        "Largest norm of a model's result, beyond which it has diverged; no limit.",
    ] = None
    on_failure: Annotated[
        Literal["go-on", "stop"], "When a model diverges or raises: go-on with the others, or stop."
    ] = "go-on"
    audit: Annotated[bool, "Compare what several workers are asked for; expel liars."] = False
    jobs_per_round: Annotated[
        int, Field(ge=0), "Models a job (bundle); 0, a grid's default: as many as fit."
    ] = 1
    stale: Annotated[bool, "Fewer models than delay + 1: gradients T rounds late."] = False
    apply: Annotated[
        Literal["update", "clock"] | None,
        "Parts of a batch (ssp and the like): each as it comes, update, or as one step, clock.",
    ] = None
    refresh: Annotated[
        Literal["always", "needed", "late"] | None,
        "Weights that a part reads: newest, always; as new as needed; as old as may be, late.",
    ] = None
    aware: Annotated[
        bool,
        "--staleness-aware/--no-staleness-aware",
        "Weigh an update down that was computed on weights many clocks old.",
    ] = False
    probe: Annotated[
        int | None, Field(ge=1), "Train uncoded N rounds, then the best scheme by rounds."
    ] = None
    retune: Annotated[
        int | None, Field(ge=1), "Look for a better scheme by rounds every N rounds."
    ] = None
    alpha: Annotated[
        float | None, Field(ge=0), "Seconds per unit of load, for --probe and --retune."
    ] = None
    precision: Annotated[Literal["float32", "float64"], "float32 or float64."] = "float32"
    payload: Annotated[Payload | None, "Of results: float64, float32, float16 or bfloat16."] = None
    stochastic_rounding: Annotated[bool, "Round to the payload at random, unbiased."] = False
    backend: Annotated[
        Literal["local", "lambda-local", "lambda", "dask"],
        "Workers: local, lambda-local, lambda or dask.",
    ] = "local"
    dask_scheduler: Annotated[str | None, "Address of a running dask scheduler."] = None
    checkpoint_every_s: Annotated[float, Field(gt=0), "Seconds between checkpoints."] = 60.0
    max_usd: Annotated[float | None, Field(ge=0), "Stop before functions cost more, in USD."] = None
    callbacks: tuple[str, ...] = ()  # package.module:function, without arguments
    plugins: Annotated[
        tuple[str, ...], "--plugin", "A package.module that registers schemes or codes; repeatable."
    ] = ()
    function: FunctionSettings = Field(default_factory=FunctionSettings)
    delays: DelaySettings | None = None
    models: tuple[ModelConfig, ...] = Field(min_length=1, max_length=MOST_MODELS)

    tables: ClassVar = {
        "models": ModelConfig,
        "delays": DelaySettings,
        "function": FunctionSettings,
    }
    beside: ClassVar = ("grid",)  # of which `checked` makes models


def read_config(path: Path) -> Values:
    """Read a TOML file, or raise `ParameterError`."""
    try:
        return _read(path)
    except OSError as error:
        raise ParameterError("config", "must be a file", str(path), error.strerror or "") from None


def read_run_config(run: Path) -> Values:
    """Read the configuration of the run in a folder, or raise `ParameterError`."""
    try:
        return _read(run / "config.toml")
    except OSError as error:
        raise no_run(run, f"config.toml: {error.strerror or error}") from None


def _read(path: Path) -> Values:
    try:
        return read_toml(path)
    except ValueError as error:
        raise ParameterError("config", f"must be TOML: {error}", str(path)) from None


def with_models(values: Values, models: int | None = None) -> Values:
    """Return values that name models: those of a file, so many, or four.

    Of a grid they are its base, which flags mean; `ParameterError`: a grid says how many.
    """
    if "grid" in values:
        if models is not None:
            rule = "must be left out where the file has a [grid], whose product the models are"
            raise ParameterError("models", rule, models)
        return {"models": [{}], **values}
    if models is None and "models" in values:
        return values
    count = require_int("models", 4 if models is None else models, least=1, most=MOST_MODELS)
    return values | {"models": [{"name": f"model-{i}", "seed": i} for i in range(count)]}


def validated(values: Values) -> RunConfig:
    """Check a configuration, and import its plug-ins: before anybody reads a scheme's spec.

    The first thing that is wrong is a `ParameterError`.
    """
    config = checked(values)
    import_plugins(config.plugins)
    return config


def checked(values: Values) -> RunConfig:
    """Check a configuration, and import nothing: what it names may be anybody's.

    The first thing that is wrong is a `ParameterError`.

    Examples
    --------
    >>> checked({"scheme": "gc:s=1", "models": [{"name": "net"}]}).models[0].module
    'digits-cnn'
    """
    if values.get("probe") is not None:
        scheme = values.setdefault("scheme", "uncoded")
        if scheme != "uncoded":
            rule = "must be left out, or 'uncoded', where `probe` rounds are to find the scheme"
            remedy = "a search of the run's own looks at schemes that have rounds, not at deal"
            raise ParameterError("scheme", rule, scheme, remedy)
    axes = values.get("grid")
    if "grid" in values:
        values = _multiplied(values)
    try:
        return cast("Callable[..., RunConfig]", RunConfig)(**values)
    except ParameterError as error:
        place, _, key = error.argument.partition(".")[2].partition(".")
        if isinstance(axes, dict) and place.isdecimal() and key.partition(".")[0] in axes:
            raise ParameterError(f"grid.{key}", error.rule, error.value, error.remedy) from None
        raise


def _multiplied(values: Values) -> Values:
    """Return the values with the models of the table ``[grid]``, over one base model, if any."""
    bases = values.get("models", [{}])
    if not isinstance(bases, list) or len(bases) > 1 or not all(isinstance(b, dict) for b in bases):
        rule = "must be left out, or one table, where there is a [grid] to multiply it"
        count = f"{len(bases)} models" if isinstance(bases, list) else bases
        raise ParameterError("models", rule, count, "make what differs an axis of the grid")
    base: Values = dict(*bases)
    name = base.pop("name", None)
    axes, inside = _axes(values["grid"])
    known = [field for field in ModelConfig.model_fields if field != "name"]
    points = grid_points(axes, known=[*known, *inside])
    for axis in next(iter(points.values())):
        table, _, key = axis.rpartition(".")
        there = base.get(table) if table else base
        if isinstance(there, dict) and key in there:
            rule = "must be left out: the grid has an axis of it"
            raise ParameterError(axis, rule, there[key])
    models = []
    for point, settings in points.items():
        model: Values = {"name": point if name is None else f"{name}-{point}", **base}
        for axis, value in settings.items():
            table, _, key = axis.rpartition(".")
            if table:
                own = model.get(table, {})
                model[table] = own | {key: value} if isinstance(own, dict) else own
            else:
                model[key] = value
        models.append(model)
    rest = {key: value for key, value in values.items() if key != "grid"}
    return {"jobs_per_round": 0, **rest, "models": models}


def _axes(grid: object) -> tuple[object, list[str]]:
    """Return all axes of a grid, and the names of those in tables such as ``[grid.module_args]``.

    An axis ``width`` of that table is named ``module_args.width``.
    """
    if not isinstance(grid, dict):
        return grid, []
    axes: Values = {}
    inside: list[str] = []
    for name, values in grid.items():
        if isinstance(values, dict) and name in ModelConfig.model_fields and name.endswith("_args"):
            found = {f"{name}.{key}": each for key, each in values.items()}
            inside += found
            axes |= found
        else:
            axes[name] = values
    return axes, inside


def import_plugins(names: Iterable[str]) -> None:
    """Import modules that register schemes or codes; those of the working directory are found."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    load_plugins(names)
