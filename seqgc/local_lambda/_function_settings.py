"""What the local service is asked for, and Lambda's own numbers."""

from __future__ import annotations

import os
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from seqgc.errors import ParameterError, require_int
from seqgc.local_lambda._faults import FaultPlan
from seqgc.local_lambda._signatures import KeyPair

__all__ = [
    "ACCOUNT",
    "KEPT_LOG_BYTES",
    "KEY_BYTES",
    "MAX_EVENT_BYTES",
    "MAX_REQUEST_BYTES",
    "MAX_RESPONSE_BYTES",
    "DeployedAs",
    "ServiceSettings",
]

ACCOUNT = "123456789012"  # the account number that AWS's own documentation uses
MAX_REQUEST_BYTES = 6 * 1024 * 1024  # of a request that is waited for
MAX_EVENT_BYTES = 1024 * 1024  # of one that is not (invocation type Event)
MAX_RESPONSE_BYTES = MAX_REQUEST_BYTES + 100
KEPT_LOG_BYTES = 1 << 20  # of one request's log, and of all that there are
KEY_BYTES = 16  # of what an environment proves to its Runtime API that it is the one
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedAs:
    """A function as its service knows it.

    Parameters
    ----------
    function_name, aliases, region
        As requests name them.
    memory_mb
        What the function sees and logs show, in MB; not enforced.
    code
        Directory that modules are imported from first, and the working directory.
    path
        Where modules are looked for after that; None: on this process's import path.
    """

    function_name: str = "seqgc-worker"
    aliases: tuple[str, ...] = ("live",)
    region: str = "us-east-1"
    memory_mb: int = 1769
    code: Path = Path()
    path: tuple[str, ...] | None = None

    @property
    def arn(self) -> str:
        """The function's Amazon resource name."""
        return f"arn:aws:lambda:{self.region}:{ACCOUNT}:function:{self.function_name}"

    @property
    def search(self) -> tuple[str, ...]:
        """Where the function's modules are looked for."""
        path = sys.path if self.path is None else self.path
        return (str(self.code), *map(os.path.abspath, path))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """One function: its code, limits and faults; ``environment`` are variables it is given.

    Whoever calls it signs with ``keys``.
    """

    keys: KeyPair
    handler: str
    deployed: DeployedAs
    concurrency: int
    timeout_s: float
    search: tuple[str, ...]
    environment: dict[str, str]
    faults: FaultPlan
    retry_after_s: int

    def __post_init__(self) -> None:
        module, _, function = self.handler.rpartition(".")
        if not (module and function.isidentifier()):
            raise ParameterError("handler", "must be 'module.function'", self.handler)
        name = self.deployed.function_name
        if not _NAME.fullmatch(name):
            rule = "must be at most 64 letters, digits, - and _"
            raise ParameterError("function_name", rule, name)
        require_int("concurrency", self.concurrency, least=1, most=10_000)
        if not 0 < self.timeout_s <= 900:
            rule = "must be in (0, 900] seconds (Lambda)"
            raise ParameterError("timeout_s", rule, self.timeout_s)
        require_int("memory_mb", self.deployed.memory_mb, least=128, most=10_240)
        require_int("retry_after_s", self.retry_after_s, least=0)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY and most < self.descriptors:
            rule = f"needs {self.descriptors} open files, of which this system allows {most}"
            raise ParameterError("concurrency", rule, self.concurrency, "raise `ulimit -Hn`")
        if not self.deployed.code.is_dir():
            raise ParameterError("code", "must be a directory", str(self.deployed.code))

    @property
    def descriptors(self) -> int:
        """How many files the service has open at once: by environment, and for itself."""
        return 6 * self.concurrency + 64  # listener, runtime, log, and connections of clients
