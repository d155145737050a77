"""How functions are reached, and what is injected: the tables ``[function]`` and ``[delays]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from seqgc.errors import ParameterError, did_you_mean

__all__ = ["DelaySettings", "FunctionSettings", "Settings"]


_REPLACED = {("transport", "asyncio"): "curl has taken its place"}

if TYPE_CHECKING:
    _Base = BaseModel
else:

    class _OneLine(type(BaseModel)):
        """Lets a settings class, when called, refuse with the error that all of seqgc raises."""

        def __call__(cls, *args, **values):
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise cls.refusal(error) from None

    class _Base(BaseModel, metaclass=_OneLine):
        pass


class Settings(_Base):
    """A table of a configuration: frozen, and checked when it is made.

    Raises
    ------
    ParameterError
        For the first thing that is wrong; an unknown key comes with the nearest known one.

    Examples
    --------
    >>> FunctionSettings(memory_mb=64)
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `memory_mb` should be greater than or equal to 128; got 64
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def refusal(cls, error: ValidationError) -> ParameterError:
        """Return the error in one line."""
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            key = str(first["loc"][-1])
            known = cls._keys_beside(first["loc"])
            rule = f"is not a key of the configuration: those are {', '.join(known)}"
            return ParameterError(where, rule, first["input"], did_you_mean(key, known))
        message, value = first["msg"].removeprefix("Input "), first["input"]
        remedy = _REPLACED.get((where.rpartition(".")[2], str(value)), "")
        return ParameterError(where, message[0].lower() + message[1:], value, remedy)

    @classmethod
    def _keys_beside(cls, location: tuple[int | str, ...]) -> list[str]:
        """Return the keys that are known where an unknown one was found."""
        table = cls.tables().get(str(location[0]), cls) if len(location) > 1 else cls
        return list(table.model_fields)

    @classmethod
    def tables(cls) -> dict[str, type[BaseModel]]:
        """Return the tables inside this one, by their keys."""
        return {}


class DelaySettings(Settings):
    """Stragglers to inject into workers: a profile's seconds, adjusted to the scheme's load."""

    source: str = Field(
        default="lambda-cnn", description="Inject delays: a profile's file, or lambda-cnn."
    )
    scale: float = Field(default=0.1, gt=0, description="Times the delays' seconds.")
    seed: int = Field(default=0, ge=0, description="Seed of generated delays.")
    alpha: float | None = Field(
        default=None, ge=0, description="The delays' seconds per unit of load."
    )
    base_load: float | None = Field(
        default=None, ge=0, description="The load at which the delays were recorded."
    )


class FunctionSettings(Settings):
    """How a master reaches its functions, and what these are.

    ``store`` is where weights and large answers are. ``auto`` is ``inline`` where they fit
    messages, else what costs least, of ``s3`` and, with a ``mount``, the ``directory``; on this
    machine the directory (see `seqgc.stores.choose_store`). Unless ``master`` says so, it is
    inside the functions' region where it has a ``mount``, for which it must be in the VPC, and else
    outside: then what it receives is priced as transfer to the internet.

    Deployed functions are as the file ``deployment`` says, whatever memory, time-out, processor
    and region are given here; those of this machine are priced as the ones which they stand for.
    """

    transport: Literal["boto3", "http", "curl"] = Field(
        default="boto3", description="To functions: boto3, http or curl."
    )
    store: Literal["auto", "directory", "s3", "inline"] = Field(
        default="auto", description="Of functions: auto, directory, s3 or inline."
    )
    mount: str | None = Field(
        default=None, description="Where the functions' file system is mounted here."
    )
    master: Literal["inside", "outside"] | None = Field(
        default=None, description="Whether the master is inside or outside the functions' region."
    )
    deployment: str = Field(
        default="seqgc-lambda.toml", description="What `seqgc deploy` wrote (lambda)."
    )
    environments: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Functions at once, at most (lambda-local); twice as many as workers.",
    )
    memory_mb: int = Field(default=2560, ge=128, le=10240, description="Of a function, MB.")
    timeout_s: float = Field(
        default=60.0, gt=0, le=900, description="After which a function is ended, seconds."
    )
    arch: Literal["arm64", "x86_64"] = Field(
        default="arm64", description="Processor of the functions, arm64 or x86_64."
    )
    region: str = Field(default="us-east-1", description="Region of the functions: whose prices.")
    expected_s: float | None = Field(
        default=None, ge=0, description="How long a task is expected to run; for prices only."
    )
    warm_up: int = Field(
        default=1, ge=0, description="Times each function is invoked before the first round."
    )

    @property
    def master_outside(self) -> bool:
        """Whether the master is outside the functions' region."""
        return self.mount is None if self.master is None else self.master == "outside"
