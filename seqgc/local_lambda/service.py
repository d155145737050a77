"""`LocalLambda`, which starts a local Lambda service and communicates with it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Self

from seqgc.errors import ParameterError, WorkerError
from seqgc.local_lambda._faults import FaultPlan
from seqgc.local_lambda._settings import DeployedAs, KeyPair, ServiceSettings

_ANSWER_LIMIT_S = 60.0
_GRACE_S = 10.0
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "LANG")
_ONE_THREAD = (
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatistics:
    """Counts since the service started. ``environments`` is the current number of environments."""

    requests: int
    cold_starts: int
    throttled: int
    failed: int
    timed_out: int
    environments: int
    faults: Mapping[str, int]


class LocalLambda:
    """A Lambda function on this machine, in processes that run AWS's own runtime client.

    The object is a context manager. The service starts when the object is created, and `close`
    leaves no process, port or file. If this process dies, the service also ends. The service
    answers only requests that are signed with its ``keys``, which are new for each service.

    Parameters
    ----------
    handler
        The function to call, as ``"module.function"``.
    concurrency
        Largest number of requests that are answered at the same time. Further requests are
        throttled (status 429). Environments start when needed.
    timeout_s
        Time limit of a request, in seconds, at most 900. At the limit its environment is killed.
    mount
        Directory that replaces the shared file system. The variable ``SEQGC_MOUNT`` tells the
        handler its path.
    faults
        Faults to inject.
    retry_after_s
        Time, in whole seconds, that a throttled caller should wait (header Retry-After). For 0,
        this header is not sent.
    environment
        The function's environment variables. The function inherits only PATH and a few similar
        variables.
    deployed
        The name of the function and the directory of its code; None means the defaults.

    Raises
    ------
    ParameterError
        If a value is outside Lambda's limits, or a directory is missing.
    WorkerError
        If awslambdaric is not installed, or the service does not start.

    Examples
    --------
    >>> import boto3
    >>> with LocalLambda("json.dumps", concurrency=1) as service:  # doctest: +SKIP
    ...     session = boto3.Session(*service.keys, region_name="us-east-1")
    ...     client = session.client("lambda", endpoint_url=service.endpoint_url)
    ...     client.invoke(FunctionName=service.function_name, Payload=b"{}")
    """

    def __init__(
        self,
        handler: str,
        *,
        concurrency: int,
        timeout_s: float = 60.0,
        mount: Path | None = None,
        faults: FaultPlan | None = None,
        retry_after_s: int = 0,
        environment: Mapping[str, str] | None = None,
        deployed: DeployedAs | None = None,
    ) -> None:
        if mount is not None and not mount.is_dir():
            raise ParameterError("mount", "must be a directory", str(mount))
        deployed = deployed or DeployedAs()
        deployed = replace(deployed, code=deployed.code.absolute())
        self.keys = KeyPair.new()
        settings = ServiceSettings(
            keys=self.keys,
            handler=handler,
            deployed=deployed,
            concurrency=concurrency,
            timeout_s=timeout_s,
            search=deployed.search,
            environment=dict(environment or {}),
            faults=faults or FaultPlan(),
            retry_after_s=retry_after_s,
        )
        if importlib.util.find_spec("awslambdaric") is None:
            raise WorkerError(
                "the local Lambda service needs awslambdaric; run `pip install awslambdaric`"
            )
        self.function_name = deployed.function_name
        self.function_arn = deployed.arn
        self._lock = threading.Lock()
        self._settings, self._mount = settings, mount
        self._start(settings)

    def _start(self, settings: ServiceSettings) -> None:
        self._control, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "seqgc.local_lambda._service_process", str(theirs.fileno())],
                cwd=settings.deployed.code,
                env=_variables(settings, self._mount),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C must reach only this process
            )
        self.pid = self._process.pid
        try:
            api, url = self._exchange(settings)
        except (OSError, EOFError) as error:
            self.close()
            reason = str(error) or "it ended during its start; see stderr"
            raise WorkerError(f"the local Lambda service did not start: {reason}") from error
        self.endpoint_url = f"http://127.0.0.1:{api}"
        self.function_url = f"http://127.0.0.1:{url}/"

    def publish(
        self, handler: str | None = None, *, environment: Mapping[str, str] | None = None
    ) -> str:
        """Publish a new version, and return its number. All aliases refer to the new version.

        The default of ``handler`` and ``environment`` is that of the previous version. Requests may
        still name earlier versions, which do not change.
        """
        settings = self._settings
        if handler is not None:
            settings = replace(settings, handler=handler)
        if environment is not None:
            settings = replace(settings, environment=dict(environment))
        number: str = self._ask("publish", settings, _variables(settings, self._mount))
        self._settings = settings
        return number

    def log(self, request_id: str | None = None) -> str:
        """Return the log of one request, or of the latest requests (at most 1 MiB per version)."""
        text: str = self._ask("log", request_id)
        return text

    def statistics(self) -> ServiceStatistics:
        """Return the counts since the service started."""
        statistics: ServiceStatistics = self._ask("statistics")
        return statistics

    def close(self) -> None:
        """End the service and all its processes; a second call does nothing."""
        self._control.close()  # this tells the service to end
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the parent and its environments then end, too
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, question: str, *arguments: object) -> Any:
        try:
            with self._lock:
                return self._exchange((question, arguments))
        except (OSError, EOFError):
            self._control.close()  # a late answer would be read as the answer to the next question
            raise WorkerError("the local Lambda service has ended; start a new one") from None

    def _exchange(self, message: object) -> Any:
        self._control.send(message)
        if not self._control.poll(_ANSWER_LIMIT_S):
            raise TimeoutError("timed out")
        return self._control.recv()


def _variables(settings: ServiceSettings, mount: Path | None) -> dict[str, str]:
    """Return the environment variables of a function: Lambda's and the configured variables."""
    deployed = settings.deployed
    own = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    if not deployed.snapstart:  # Lambda does not set it with SnapStart
        own["AWS_LAMBDA_LOG_GROUP_NAME"] = f"/aws/lambda/{deployed.function_name}"
    own |= dict.fromkeys(_ONE_THREAD, "1")  # the default memory pays for one core
    own |= {
        "_HANDLER": settings.handler,
        "AWS_DEFAULT_REGION": deployed.region,
        "AWS_EXECUTION_ENV": f"AWS_Lambda_python{sys.version_info.major}.{sys.version_info.minor}",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(deployed.memory_mb),
        "AWS_LAMBDA_FUNCTION_NAME": deployed.function_name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_INITIALIZATION_TYPE": "snap-start" if deployed.snapstart else "on-demand",
        "AWS_REGION": deployed.region,
        "LAMBDA_TASK_ROOT": str(deployed.code),
        "PYTHONPATH": os.pathsep.join(settings.search),
        "TZ": ":UTC",
    }
    if mount is not None:
        own["SEQGC_MOUNT"] = str(mount.absolute())
    return own | settings.environment
