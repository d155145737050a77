"""The settings of the local service, Lambda's limits, and the keys that sign requests.

Any process of this machine can connect to the service. The service answers only requests that are
signed with its key pair by AWS Signature Version 4 (see "Create a signed AWS API request" in AWS's
IAM user guide). It stores no data of other requests.
"""

from __future__ import annotations

import calendar
import hashlib
import hmac
import os
import re
import resource
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote

from seqgc.errors import ParameterError, require_int
from seqgc.local_lambda._faults import FaultPlan
from seqgc.local_lambda._http_server import Request

ACCOUNT = "123456789012"  # the example account number of AWS's documentation
MAX_REQUEST_BYTES = 6 * 1024 * 1024  # for a request whose caller waits for the response
MAX_EVENT_BYTES = 1024 * 1024  # for invocation type Event, whose caller does not wait
MAX_RESPONSE_BYTES = MAX_REQUEST_BYTES + 100
KEPT_LOG_BYTES = 1 << 20  # limit for one request, and for all requests of a version
KEY_BYTES = 16  # length of the key with which an environment proves its identity
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_METHOD = "AWS4-HMAC-SHA256"
_AUTHORIZATION = re.compile(
    rf"{_METHOD} Credential=(?P<key>[^/\s]+)/(?P<day>\d{{8}})/(?P<region>[a-z0-9-]+)/lambda/"
    r"aws4_request, ?SignedHeaders=(?P<names>[a-z0-9;-]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
_VALID_S = 300.0  # largest difference between the time of a signature and now


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedAs:
    """The name, memory and code of a deployed function.

    Parameters
    ----------
    function_name, aliases, region
        Names that requests use.
    memory_mb
        Memory size in MB. The function and its logs show it, but it is not enforced.
    snapstart
        Start environments as SnapStart does, after the hooks before the snapshot and with the same
        state of random generators; then run the hooks after the restore.
    code
        Working directory of the function, in which modules are searched first.
    path
        Directories in which modules are searched next; None means this process's import path.
    """

    function_name: str = "seqgc-worker"
    aliases: tuple[str, ...] = ("live",)
    region: str = "us-east-1"
    memory_mb: int = 1769
    snapstart: bool = False
    code: Path = Path()
    path: tuple[str, ...] | None = None

    @property
    def arn(self) -> str:
        """The function's Amazon resource name."""
        return f"arn:aws:lambda:{self.region}:{ACCOUNT}:function:{self.function_name}"

    @property
    def search(self) -> tuple[str, ...]:
        """The directories in which modules are searched, in this order."""
        path = sys.path if self.path is None else self.path
        return (str(self.code), *map(os.path.abspath, path))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """All settings of one function.

    ``environment`` are its environment variables. Requests must be signed with ``keys``.
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
            rule = "must be 1 to 64 letters, digits, hyphens and underscores"
            raise ParameterError("function_name", rule, name)
        require_int("concurrency", self.concurrency, least=1, most=10_000)
        if not 0 < self.timeout_s <= 900:
            rule = "must be in (0, 900] seconds, as for Lambda"
            raise ParameterError("timeout_s", rule, self.timeout_s)
        require_int("memory_mb", self.deployed.memory_mb, least=128, most=10_240)
        require_int("retry_after_s", self.retry_after_s, least=0)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY and most < self.descriptors:
            rule = f"needs {self.descriptors} open files, but this system allows only {most}"
            remedy = "lower it, or raise the limit with `ulimit -Hn`"
            raise ParameterError("concurrency", rule, self.concurrency, remedy)
        if not self.deployed.code.is_dir():
            raise ParameterError("code", "must be a directory", str(self.deployed.code))

    @property
    def descriptors(self) -> int:
        """The largest number of files that the service has open at the same time."""
        # For each environment: its listener, runtime, log, and connections of clients.
        return 6 * self.concurrency + 64


class KeyPair(NamedTuple):
    """The key pair that signs requests, for example in ``boto3.Session(*keys)``."""

    access_key_id: str
    secret_access_key: str

    @classmethod
    def new(cls) -> Self:
        """Return a new random pair."""
        return cls(f"LOCAL{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30))

    def is_named(self, request: Request) -> bool:
        """Return True if the head of a request names this key. The body need not be complete."""
        match = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
        return match is not None and _equal(match["key"], self.access_key_id)

    def has_signed(self, request: Request) -> bool:
        """Return True if this key pair has signed exactly this request in the last five minutes."""
        headers = request.headers
        match = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        if match is None or request.body is None or not _equal(match["key"], self.access_key_id):
            return False
        names, at = match["names"].split(";"), headers.get("x-amz-date", "")
        required = {"host", *(name for name in headers if name.startswith("x-amz-"))}
        if not required.issubset(names) or not at.startswith(match["day"]) or not _is_recent(at):
            return False
        lines = "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in names)
        path, query = quote(request.path, safe="/~"), "&".join(sorted(request.query.split("&")))
        digest = hashlib.sha256(request.body).hexdigest()
        canonical = f"{request.method}\n{path}\n{query}\n{lines}\n{match['names']}\n{digest}"
        scope = (match["day"], match["region"], "lambda", "aws4_request")
        hashed = hashlib.sha256(canonical.encode("latin-1")).hexdigest()
        key = f"AWS4{self.secret_access_key}".encode()
        for step in (*scope, f"{_METHOD}\n{at}\n{'/'.join(scope)}\n{hashed}"):
            key = hmac.digest(key, step.encode(), "sha256")
        return _equal(key.hex(), match["signature"])


def _is_recent(at: str) -> bool:
    try:
        signed_at = calendar.timegm(time.strptime(at, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        return False
    return abs(time.time() - signed_at) <= _VALID_S


def _equal(given: str, expected: str) -> bool:
    """Compare in constant time, so that timing does not reveal the key."""
    return hmac.compare_digest(given.encode(), expected.encode())
