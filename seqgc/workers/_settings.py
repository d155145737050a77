"""Settings of functions and of injected delays: the tables ``[function]`` and ``[delays]``.

A configuration file has these tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, TypeAlias, get_args

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from seqgc._aws import environment_region
from seqgc.costs import FunctionSetup
from seqgc.errors import ParameterError, did_you_mean
from seqgc.ports import FloatArray
from seqgc.profiles import GENERATORS, DelayProfile, read_profile

LoadDelays: TypeAlias = Callable[[int, int, float], float]
"""``delays(round, worker, load)`` returns the smallest response time of a task, in seconds.

All attempts of a task have the same delay. With `deal`, every piece of a batch has a delay. A
worker that stays begins the delay of a task after it has answered the previous task.
"""

_MOST_GENERATED = 1000  # rounds; later rounds repeat them
_REGION = "us-east-1"  # if neither an option, a file nor AWS_REGION names a region
_REPLACED = {("transport", "asyncio"): "use curl instead"}

if TYPE_CHECKING:
    _Base = BaseModel
else:

    class _OneLine(type(BaseModel)):
        """Metaclass that converts pydantic's error on construction to a `ParameterError`."""

        def __call__(cls, *args, **values):
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise cls.refusal(error) from None

    class _Base(BaseModel, metaclass=_OneLine):
        pass


class Settings(_Base):
    """A table of a configuration. It is frozen, and construction checks its values.

    Raises
    ------
    ParameterError
        For the first wrong value or unknown key. For a key, the message suggests a similar one.

    Examples
    --------
    >>> FunctionSettings(memory_mb=64)
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `memory_mb` should be greater than or equal to 128; got 64
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    tables: ClassVar[dict[str, type[BaseModel]]] = {}  # the inner tables, by key
    beside: ClassVar[tuple[str, ...]] = ()  # allowed keys that are not fields

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_for_number(cls, value: object, info: ValidationInfo) -> object:
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)}:
            raise PydanticCustomError("truth", "Input should be a number, not true or false")
        return value

    @classmethod
    def refusal(cls, error: ValidationError) -> ParameterError:
        """Convert pydantic's error to a `ParameterError`, whose message is one line."""
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            key, *outer = reversed([str(part) for part in first["loc"]])
            table = cls.tables.get(outer[-1], cls) if outer else cls
            known = [*table.model_fields, *getattr(table, "beside", ())]
            rule = f"is not a key of the configuration; the keys are {', '.join(known)}"
            return ParameterError(where, rule, first["input"], did_you_mean(key, known))
        message, value = first["msg"].removeprefix("Input "), first["input"]
        remedy = _REPLACED.get((where.rpartition(".")[2], str(value)), "")
        return ParameterError(where, message[0].lower() + message[1:], value, remedy)


class DelaySettings(Settings):
    """Settings of the delays that are injected into workers.

    The seconds come from a profile and are adjusted to the load of each task.
    """

    source: Annotated[
        str, "--delays", "Delays to inject: the file of a profile, or lambda-cnn (generated)."
    ] = "lambda-cnn"
    scale: Annotated[
        float, Field(gt=0), "--delay-scale", "Factor by which injected delays are multiplied."
    ] = 0.1
    seed: Annotated[int, Field(ge=0), "--delay-seed", "Seed of the generated delays."] = 0
    alpha: Annotated[
        float | None,
        Field(ge=0),
        "--delay-alpha",
        "Seconds per unit of load in the delays. By default the profile's.",
    ] = None
    base_load: Annotated[
        float | None,
        Field(ge=0),
        "--delay-base-load",
        "Load at which the delays were recorded. By default read from the profile.",
    ] = None


class FunctionSettings(Settings):
    """Settings of functions, and of the communication between the master and its functions.

    ``store`` is the place of weights and large answers. The value ``auto`` means ``inline`` if
    weights and answers fit into messages. Otherwise it means the cheaper of ``s3`` and, with a
    ``mount``, ``directory`` (see `seqgc.stores.choose_store`). With backend lambda-local it means
    ``directory``.

    ``master`` says whether the master is inside the functions' region. The default is "inside" with
    a ``mount``, because a mount requires the VPC, and "outside" without. The bytes that an outside
    master receives are priced as transfer to the internet.

    ``resident`` functions keep running from round to round. They open connections to this machine
    at ``master_address``, which must be in the functions' VPC. With a ``mount``, the default is
    this machine's address in the VPC. A function runs for at most ``timeout_s``, and is replaced
    before this time ends.

    With backend lambda-local, functions run the same code as the master, or the code in the folder
    ``code``, which is a build context of `seqgc deploy --context` or an unpacked zip.

    ``snapstart`` functions start from a snapshot of an initialized process (`seqgc deploy
    --snapstart`), which excludes a file system.

    With backend lambda, the file ``deployment`` determines the memory, time-out, processor, region
    and starts of the functions. The values in this table are then ignored. With backend
    lambda-local, costs are computed from these values.
    """

    transport: Annotated[
        Literal["boto3", "http", "curl"] | None,
        "Library that calls functions: curl (default if installed), boto3 or http.",
    ] = None
    store: Annotated[
        Literal["auto", "directory", "s3", "inline"],
        "Where weights and large results are stored: auto, directory, s3 or inline (in messages).",
    ] = "auto"
    resident: Annotated[bool, "Keep functions running from round to round."] = False
    master_address: Annotated[
        str | None, "IP address of this machine that resident functions can reach."
    ] = None
    mount: Annotated[str | None, "Folder where the file system of the functions is mounted."] = None
    master: Annotated[
        Literal["inside", "outside"] | None,
        "Where the master runs: inside or outside the region of the functions.",
    ] = None
    deployment: Annotated[str, "File that `seqgc deploy` wrote (backend lambda)."] = (
        "seqgc-lambda.toml"
    )
    code: Annotated[
        str | None,
        "Folder with the code of functions: a build context or unpacked zip (lambda-local).",
    ] = None
    environments: Annotated[
        int | None,
        Field(ge=1, le=10_000),
        "Largest number of functions at once (lambda-local). By default twice the workers.",
    ] = None
    memory_mb: Annotated[int, Field(ge=128, le=10240), "Memory of a function, in MB."] = 2560
    timeout_s: Annotated[
        float,
        Field(gt=0, le=900),
        "--function-timeout-s",
        "Time limit of a function, in seconds.",
    ] = 60.0
    arch: Annotated[Literal["arm64", "x86_64"], "Processor of the functions: arm64 or x86_64."] = (
        "arm64"
    )
    region: Annotated[str, "AWS region of the prices. By default AWS_REGION."] = Field(
        default_factory=lambda: environment_region() or _REGION
    )
    expected_s: Annotated[
        float | None,
        Field(ge=0),
        "Expected time of a task, or of a piece (deal, flexrr), in seconds, to forecast the price.",
    ] = None
    warm_up: Annotated[int, Field(ge=0), "Invocations of each function before round 0."] = 1
    snapstart: Annotated[
        bool, "Start functions from a snapshot (SnapStart), in costs and with lambda-local."
    ] = False

    @property
    def setup(self) -> FunctionSetup:
        """The memory and time-out, which bound the cost of an invocation."""
        return FunctionSetup(
            memory_mb=self.memory_mb, timeout_s=self.timeout_s, snapstart=self.snapstart
        )

    @field_validator("snapstart")
    @classmethod
    def _refuse_file_system(cls, value: bool, info: ValidationInfo) -> bool:
        """Refuse SnapStart with settings that need a file system (EFS), which excludes it.

        The store "directory" is not refused, because lambda-local keeps it in a local folder.
        """
        for name in ("resident", "mount"):
            if value and info.data.get(name):
                rule = f"must be false with `{name}`: SnapStart does not work with a file system"
                raise PydanticCustomError("snapstart", rule)
        return value

    @property
    def master_outside(self) -> bool:
        """True if the master is outside the functions' region."""
        return self.mount is None if self.master is None else self.master == "outside"


class InjectedDelays:
    """A function that returns the delay in seconds for a round, a worker and a load.

    The delays come from a profile. After the last round of the profile they begin again with its
    first round.

    Raises
    ------
    ParameterError
        If the profile has no alpha, the number of seconds per unit of load.

    Examples
    --------
    >>> from seqgc.profiles import ProfileMeta
    >>> meta = ProfileMeta(alpha=2.0, base_load=0.5)
    >>> delays = InjectedDelays(DelayProfile.from_times([[1.0, 3.0]], meta=meta))
    >>> delays(7, 1, 1.0)
    4.0
    """

    def __init__(self, profile: DelayProfile) -> None:
        if profile.meta.alpha is None:
            rule = "must be given: the profile does not contain it"
            remedy = "0 injects the same seconds at every load; `seqgc profile fit` estimates it"
            raise ParameterError("delays.alpha", rule, None, remedy)
        self.profile: Final = profile
        self.alpha: Final = profile.meta.alpha
        self._at_load = lru_cache(maxsize=1)(profile.at_load)
        self._seconds = lru_cache(maxsize=None)(self._column)  # a worker has few distinct loads

    @classmethod
    def of(cls, settings: DelaySettings, *, workers: int, num_rounds: int) -> InjectedDelays:
        """Return the configured delays for ``workers`` workers, or raise `ParameterError`."""
        source = settings.source
        if source in GENERATORS:
            rng, rounds = np.random.default_rng(settings.seed), min(num_rounds, _MOST_GENERATED)
            profile = GENERATORS[source].profile(rounds, workers=workers, rng=rng)
        elif Path(source).suffix:
            profile = read_profile(source)
        else:
            rule = f"must be {', '.join(GENERATORS)} or a profile's .npz or .csv file"
            raise ParameterError("delays.source", rule, source, did_you_mean(source, GENERATORS))
        if profile.num_workers < workers:
            rule = f"must have a column for each of the {workers} workers"
            raise ParameterError("delays.source", rule, f"{source}: {profile.num_workers}")
        changes = settings.model_dump(include={"alpha", "base_load"}, exclude_none=True)
        meta = replace(profile.meta, **changes)
        return cls(replace(profile, meta=meta).scaled(settings.scale))

    def __call__(self, round: int, worker: int, load: float) -> float:
        seconds = self._seconds(worker, load)
        return float(seconds[round % len(seconds)])

    def _column(self, worker: int, load: float) -> FloatArray:
        return self._at_load(load).times[:, worker].copy()
