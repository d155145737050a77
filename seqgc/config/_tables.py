"""The configuration of a run. Each table of the TOML file has a class that checks its values."""

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
from seqgc.workers import DelaySettings, FunctionSettings, Settings, usable_cores

Values = dict[str, object]

MOST_WORKERS: Final = 10_000
_OF_ROUNDS: Final = {"mu", "wait_out", "audit", "probe", "retune", "stale"}
_ELSEWHERE: Final = {"scheme", "delays", *_OF_ROUNDS}
"""The keys with which a run on local processes gets the defaults of other workers."""


class ValidationConfig(Settings):
    """Settings of the validation of a model during training (`seqgc.Validation`).

    ``data`` is the path, ``package.module:function``, of a function that returns a dataset; by
    default the model's test data are used. ``metrics`` maps names to the paths of functions.
    """

    every_n_steps: int = Field(ge=1, le=10**9)
    data: str | None = None
    metrics: dict[str, str] = Field(default={})
    monitor: str = "loss"
    mode: Literal["min", "max"] = "min"
    patience: int | None = Field(default=None, ge=1, le=10**9)
    min_delta: float = Field(default=0.0, ge=0)


class ModelConfig(Settings):
    """Settings of one model to train.

    ``module``, ``data`` and ``loss`` may be names that seqgc defines, or paths of the user's own
    functions. The function for ``module`` returns the network. The function for ``data`` returns a
    pair of datasets ``(train, test)``. The path for ``loss`` names a function that computes the
    loss, or a class whose instances compute it. ``module_args``, ``data_args`` and ``loss_args``
    are the arguments of the functions.
    """

    name: str
    module: Annotated[str, "Network: a name, or your function as package.module:function."] = (
        "digits-cnn"
    )
    data: Annotated[str, "Data: digits, or your function as package.module:function."] = "digits"
    loss: Annotated[
        str, "Loss: cross-entropy, mse, or your function as package.module:function."
    ] = "cross-entropy"
    module_args: Values = Field(default={})
    data_args: Values = Field(default={})
    loss_args: Values = Field(default={})
    optimizer: Annotated[
        str, "Optimizer: a class of torch.optim, or your function as package.module:function."
    ] = "adam"
    lr: Annotated[float, Field(gt=0, le=1e6), "Learning rate."] = 0.003
    momentum: Annotated[float | None, Field(ge=0, le=1e6), "Momentum of the optimizer."] = None
    weight_decay: Annotated[float | None, Field(ge=0, le=1e6), "Weight decay of the optimizer."] = (
        None
    )
    optimizer_args: Values = Field(default={})  # further arguments of the optimizer
    scheduler: Annotated[
        str | None, "Scheduler: a class of torch.optim.lr_scheduler, or package.module:function."
    ] = None
    scheduler_args: Values = Field(default={})
    gradient_clip_val: Annotated[
        float | None, Field(gt=0), "Clip decoded gradients to this value."
    ] = None
    gradient_clip_algorithm: Annotated[
        Literal["norm", "value"],
        "Clip the norm of a gradient (norm), or each of its values (value).",
    ] = "norm"
    autocast: Annotated[
        Literal["off", "bfloat16"],
        "Compute the forward pass and the loss in bfloat16 (torch.autocast), or off.",
    ] = "off"
    batch_size: Annotated[int, Field(ge=1, le=10**9), "Data points in a batch."] = 256
    seed: int = Field(default=0, ge=0, lt=2**63)
    save_every_n_steps: Annotated[
        int | None, Field(ge=1, le=10**9), "Save the weights of a model after every N steps."
    ] = None
    validation: ValidationConfig | None = None


class RunConfig(Settings):
    """The complete configuration of a run.

    A field whose type is annotated with text is also an option of the command line. The text is the
    option's help; flags before the text replace the usual flag. `checked` gives runs on local
    processes other defaults for ``scheme`` and ``workers``.
    """

    scheme: Annotated[
        str, "--scheme", "--defence", "Spec of a scheme or another defence, for example gc-rep:s=1."
    ] = "gc-rep:s=1"
    workers: Annotated[
        int, Field(ge=1, le=MOST_WORKERS), "-n", "--workers", "Number of workers."
    ] = 16
    steps: Annotated[int, Field(ge=1, le=10**9), "Optimizer steps of each model."] = 60
    mu: Annotated[
        float,
        Field(ge=0),
        "Tolerance of the closing rule: a worker is late after (1 + mu) times the fastest time.",
    ] = 0.0
    wait_out: Annotated[
        WaitOut,
        "Close a round when no job is lost (feasible), or the scheme's model holds (conform, all).",
    ] = "feasible"
    timeout_s: Annotated[
        float,
        Field(gt=0, le=1e6),
        "Time limit of a round, in seconds. Silent workers are then asked again, twice.",
    ] = 60.0
    max_attempts: Annotated[
        int,
        Field(ge=1),
        "Attempts of a task that fails, if its round can end without it (otherwise 20).",
    ] = 3
    max_norm: Annotated[
        float | None,
        Field(gt=0),
        "Largest norm of a result. A model with a larger one has diverged. By default no limit.",
    ] = None
    on_failure: Annotated[
        Literal["go-on", "stop"],
        "If a model diverges or raises: continue with the other models (go-on), or stop the run.",
    ] = "go-on"
    audit: Annotated[
        bool, "Compare results that several workers computed; exclude workers with wrong results."
    ] = False
    jobs_per_round: Annotated[
        int,
        Field(ge=0),
        "Most models in a job (a bundle). 0: the most that the delay and 10^6 parameters allow.",
    ] = 0
    vectorize: Annotated[
        int | None,
        Field(ge=1),
        "Most models of one form computed at once; 1: one by one. By default the fastest.",
    ] = None
    stale: Annotated[
        bool, "Allow fewer than T + 1 models for a delay of T: gradients are then T rounds late."
    ] = False
    apply: Annotated[
        Literal["update", "clock"] | None,
        "Apply each part of a batch when it arrives (update), or all parts as one step (clock).",
    ] = None
    refresh: Annotated[
        Literal["always", "needed", "late"] | None,
        "Weights for a part: the newest (always), as new as needed (needed), or as old as allowed "
        "(late).",
    ] = None
    aware: Annotated[
        bool,
        "--staleness-aware/--no-staleness-aware",
        "Scale an update down by the age of its weights, in clocks.",
    ] = False
    probe: Annotated[
        int | None,
        Field(ge=1),
        "Train uncoded for N rounds, then with the scheme that is best for the measured delays.",
    ] = None
    retune: Annotated[int | None, Field(ge=1), "Search for a better scheme every N rounds."] = None
    alpha: Annotated[
        float | None, Field(ge=0), "Seconds per unit of load, for --probe and --retune."
    ] = None
    predicted_round_s: Annotated[
        float | None,
        Field(gt=0),
        "Predicted seconds of a round, for example by `seqgc tune`. The result shows the predicted "
        "time beside the time that the run took.",
    ] = None
    precision: Annotated[
        Literal["float32", "float64"], "Number format of weights and gradients: float32 or float64."
    ] = "float32"
    payload: Annotated[
        Payload | None, "Number format of results: float64, float32, float16 or bfloat16."
    ] = None
    stochastic_rounding: Annotated[
        bool, "Round results to the payload at random, without bias."
    ] = False
    backend: Annotated[
        Literal["local", "lambda-local", "lambda", "dask"],
        "Workers: local, lambda-local, lambda or dask.",
    ] = "local"
    dask_scheduler: Annotated[str | None, "Address of a running dask scheduler."] = None
    checkpoint_every_s: Annotated[float, Field(gt=0), "Seconds between checkpoints."] = 60.0
    max_usd: Annotated[
        float | None,
        Field(ge=0),
        "Budget for functions, in USD. The run stops before it is exceeded.",
    ] = None
    callbacks: tuple[str, ...] = ()  # package.module:function, without arguments
    plugins: Annotated[
        tuple[str, ...],
        "--plugin",
        "Module (package.module) that registers schemes or codes. Repeatable.",
    ] = ()
    function: FunctionSettings = Field(default_factory=FunctionSettings)
    delays: DelaySettings | None = None
    models: tuple[ModelConfig, ...] = Field(min_length=1, max_length=MOST_MODELS)

    tables: ClassVar = {
        "models": ModelConfig,
        "delays": DelaySettings,
        "function": FunctionSettings,
    }
    beside: ClassVar = ("grid",)  # `checked` converts this table to models


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
    """Return the values of a file, completed with models.

    If ``models`` is given, replace the models of the file by this number of default models, or
    raise if the file has a grid. Otherwise, a file without models gets four default models, and a
    file with a grid but no model gets an empty base model.

    Raises
    ------
    ParameterError
        If ``models`` is given and the file has a grid, which determines the number of models.
    """
    if "grid" in values:
        if models is not None:
            rule = "must be left out: the file has a [grid], whose axes determine the models"
            raise ParameterError("models", rule, models)
        return {"models": [{}], **values}
    if models is None and "models" in values:
        return values
    count = require_int("models", 4 if models is None else models, least=1, most=MOST_MODELS)
    return values | {"models": [{"name": f"model-{i}", "seed": i} for i in range(count)]}


def validated(values: Values) -> RunConfig:
    """Check a configuration, import its plug-ins, and return it.

    Raises
    ------
    ParameterError
        At the first error in the configuration, or if a plug-in cannot be imported.
    """
    config = checked(values)
    import_plugins(config.plugins)
    return config


def checked(values: Values) -> RunConfig:
    """Check a configuration and return it, without importing the modules that it names.

    A run on local processes that names no scheme gets `deal`, with one worker for each usable core
    unless it names their number. This does not hold if it injects delays, or if it has an option
    of schemes that have rounds, such as ``audit``.

    Raises
    ------
    ParameterError
        At the first error.

    Examples
    --------
    >>> checked({"scheme": "gc:s=1", "models": [{"name": "net"}]}).models[0].module
    'digits-cnn'
    >>> checked({"models": [{"name": "net"}]}).scheme
    'deal'
    """
    values = _with_local_defaults(values)
    if values.get("probe") is not None:
        scheme = values.setdefault("scheme", "uncoded")
        if scheme != "uncoded":
            rule = "must be left out, or 'uncoded', if `probe` is given: probing finds the scheme"
            remedy = "the search considers only schemes that have rounds, not deal"
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


def _with_local_defaults(values: Values) -> Values:
    given = {key for key, value in values.items() if _is_given(value)}
    if values.get("backend", "local") != "local" or given & _ELSEWHERE:
        return values
    return {"scheme": "deal", "workers": usable_cores(), **values}


def _is_given(value: object) -> bool:
    return not (value is None or value is False or value == {})


def _multiplied(values: Values) -> Values:
    """Replace ``[grid]`` and the base model by one model for each point of the grid."""
    bases = values.get("models", [{}])
    if not isinstance(bases, list) or len(bases) > 1 or not all(isinstance(b, dict) for b in bases):
        rule = "must be left out, or one table, if the file has a [grid]"
        count = f"{len(bases)} models" if isinstance(bases, list) else bases
        raise ParameterError(
            "models", rule, count, "make each setting in which models differ an axis of the grid"
        )
    base: Values = dict(*bases)
    name = base.pop("name", None)
    axes, inside = _axes(values["grid"])
    known = [field for field in ModelConfig.model_fields if field != "name"]
    points = grid_points(axes, known=[*known, *inside])
    for axis in next(iter(points.values())):
        table, _, key = axis.rpartition(".")
        there = base.get(table) if table else base
        if isinstance(there, dict) and key in there:
            rule = "must be left out: it is an axis of the grid"
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
    return {**rest, "models": models}


def _axes(grid: object) -> tuple[object, list[str]]:
    """Return all axes of a grid, and the names of the axes in inner tables.

    The axis ``width`` of the inner table ``[grid.module_args]`` is named ``module_args.width``.
    """
    if not isinstance(grid, dict):
        return grid, []
    axes: Values = {}
    inside: list[str] = []
    for name, values in grid.items():
        if isinstance(values, dict) and name in ModelConfig.model_fields and name.endswith("_args"):
            inner = {f"{name}.{key}": each for key, each in values.items()}
            inside += inner
            axes |= inner
        else:
            axes[name] = values
    return axes, inside


def import_plugins(names: Iterable[str]) -> None:
    """Import modules that register schemes or codes. Modules in the working directory are found."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    load_plugins(names)
