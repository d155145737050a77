"""What the local service is asked for, and Lambda's own numbers."""

from __future__ import annotations

import json
import math
import re
import resource
from dataclasses import asdict, dataclass
from pathlib import Path

from seqgc.errors import ParameterError, require_int
from seqgc.local_lambda._faults import FaultPlan

__all__ = [
    "ACCOUNT",
    "MAX_EVENT_BYTES",
    "MAX_REQUEST_BYTES",
    "MAX_RESPONSE_BYTES",
    "MAX_TIMEOUT_S",
    "ServiceSettings",
    "is_name",
]

ACCOUNT = "123456789012"  # the account number that AWS's own documentation uses
MAX_REQUEST_BYTES = 6 * 1024 * 1024  # of a request that is waited for
MAX_EVENT_BYTES = 1024 * 1024  # of one that is not (invocation type Event)
MAX_RESPONSE_BYTES = MAX_REQUEST_BYTES + 100
MAX_TIMEOUT_S = 900.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """One function: its code, limits and faults; ``environment`` are variables it is given."""

    handler: str
    name: str
    concurrency: int
    timeout_s: float
    memory_mb: int
    region: str
    aliases: tuple[str, ...]
    code: str
    search: tuple[str, ...]
    environment: dict[str, str]
    faults: FaultPlan
    retry_after_s: int = 0

    def __post_init__(self) -> None:
        module, dot, function = self.handler.rpartition(".")
        if not (module and dot and function.isidentifier()):
            raise ParameterError("handler", "must be 'module.function'", self.handler)
        if not is_name(self.name):
            raise ParameterError(
                "function_name", "must be at most 64 letters, digits, - and _", self.name
            )
        require_int("concurrency", self.concurrency, least=1, most=10_000)
        if not (math.isfinite(self.timeout_s) and 0 < self.timeout_s <= MAX_TIMEOUT_S):
            raise ParameterError(
                "timeout_s", "must be in (0, 900] seconds (Lambda)", self.timeout_s
            )
        require_int("memory_mb", self.memory_mb, least=128, most=10_240)
        require_int("retry_after_s", self.retry_after_s, least=0)
        _check_descriptors(self.concurrency, self.descriptors)
        if not Path(self.code).is_dir():
            raise ParameterError("code", "must be a directory", self.code)

    @property
    def arn(self) -> str:
        """The function's Amazon resource name."""
        return f"arn:aws:lambda:{self.region}:{ACCOUNT}:function:{self.name}"

    @property
    def descriptors(self) -> int:
        """How many files the service has open at once: by environment, and for itself."""
        return 6 * self.concurrency + 64  # listener, runtime, log, and connections of clients

    def to_json(self) -> str:
        """Return what `from_json` reads."""
        fields = asdict(self)
        fields["faults"]["script"] = [[list(key), kind] for key, kind in self.faults.script.items()]
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> ServiceSettings:
        """Return the settings that `to_json` wrote."""
        fields = json.loads(text)
        faults = fields["faults"]
        script = {tuple(key): kind for key, kind in faults.pop("script")}
        plan = FaultPlan(script=script, **faults)
        lists = {name: tuple(fields.pop(name)) for name in ("aliases", "search")}
        return cls(**(fields | lists | {"faults": plan}))


def _check_descriptors(concurrency: int, needed: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < needed:
        rule = f"needs {needed} open files, of which this system allows {most}"
        raise ParameterError("concurrency", rule, concurrency, "raise `ulimit -Hn`")


def is_name(text: str) -> bool:
    """Whether ``text`` can be a function's name."""
    return _NAME.match(text) is not None
