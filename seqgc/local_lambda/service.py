"""The local Lambda service, as whoever starts it sees it."""

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
from seqgc.local_lambda._function_settings import DeployedAs, ServiceSettings
from seqgc.local_lambda._signatures import KeyPair

__all__ = ["LocalLambda", "Statistics"]

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
class Statistics:
    """What a service has seen until now; ``environments`` are those that there are."""

    requests: int
    cold_starts: int
    throttled: int
    failed: int
    timed_out: int
    environments: int
    faults: Mapping[str, int]


class LocalLambda:
    """One Lambda function on this machine, in processes that run AWS's own runtime client.

    A context manager: it starts when it is made, and `close` leaves no process, port or file.
    Should this process die, the service ends by itself. It answers those who sign with its
    ``keys``, a pair of its own, and nobody else on this machine.

    Parameters
    ----------
    handler
        ``"module.function"``.
    concurrency
        Environments, at most; a request beyond is throttled (429). They start when needed.
    timeout_s
        After which a request's environment is killed, in seconds, at most 900.
    mount
        Directory that stands for the shared file system; the handler finds its path in the
        variable ``SEQGC_MOUNT``.
    faults
        What goes wrong on purpose.
    retry_after_s
        How long a throttled request is to wait (header Retry-After), whole seconds; 0: nothing.
    environment
        The function's variables. Of this process's it sees but PATH and a few like it.
    deployed
        How requests name the function, and where its code is; None: the usual.

    Raises
    ------
    ParameterError
        If a value is none that Lambda takes, or a directory is missing.
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
                "the local Lambda service runs awslambdaric: pip install awslambdaric"
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
                [sys.executable, "-m", "seqgc.local_lambda._service", str(theirs.fileno())],
                cwd=settings.deployed.code,
                env=_variables(settings, self._mount),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for whoever started this, who will close it
            )
        self.pid = self._process.pid
        try:
            api, url = self._exchange(settings)
        except (OSError, EOFError) as error:
            self.close()
            reason = str(error) or "it ended while it started; see its stderr"
            raise WorkerError(f"the local Lambda service did not start: {reason}") from error
        self.endpoint_url = f"http://127.0.0.1:{api}"
        self.function_url = f"http://127.0.0.1:{url}/"

    def publish(
        self, handler: str | None = None, *, environment: Mapping[str, str] | None = None
    ) -> str:
        """Publish another version, which its aliases mean from now on; return its number.

        What is not given stays as it is. Earlier versions stay too: whoever names one gets what it
        was published with, by environments that are started later as well.
        """
        before = self._settings
        settings = replace(
            before,
            handler=before.handler if handler is None else handler,
            environment=before.environment if environment is None else dict(environment),
        )
        number: str = self._ask("publish", settings, _variables(settings, self._mount))
        self._settings = settings
        return number

    def log(self, request_id: str | None = None) -> str:
        """Return what a request has logged, or all of the latest, 1 MiB of a version at most."""
        text: str = self._ask("log", request_id)
        return text

    def statistics(self) -> Statistics:
        """Return what has happened until now."""
        statistics: Statistics = self._ask("statistics")
        return statistics

    def close(self) -> None:
        """End the service and everything it has started; a second call does nothing."""
        self._control.close()  # what the service ends by
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # environments end with their parent, and that when it is alone
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
            self._control.close()  # or a late answer would be taken for the next question's
            raise WorkerError("the local Lambda service has ended; start another") from None

    def _exchange(self, message: object) -> Any:
        """Send one message to the service, and return its answer."""
        self._control.send(message)
        if not self._control.poll(_ANSWER_LIMIT_S):
            raise TimeoutError("timed out")
        return self._control.recv()


def _variables(settings: ServiceSettings, mount: Path | None) -> dict[str, str]:
    """Return the environment's variables: Lambda's own, and the function's."""
    deployed = settings.deployed
    own = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    own |= dict.fromkeys(_ONE_THREAD, "1")  # an environment has one core's worth of memory
    own |= {
        "_HANDLER": settings.handler,
        "AWS_DEFAULT_REGION": deployed.region,
        "AWS_EXECUTION_ENV": f"AWS_Lambda_python{sys.version_info.major}.{sys.version_info.minor}",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(deployed.memory_mb),
        "AWS_LAMBDA_FUNCTION_NAME": deployed.function_name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{deployed.function_name}",
        "AWS_REGION": deployed.region,
        "LAMBDA_TASK_ROOT": str(deployed.code),
        "PYTHONPATH": os.pathsep.join(settings.search),
        "TZ": ":UTC",
    }
    if mount is not None:
        own["SEQGC_MOUNT"] = str(mount.absolute())
    return own | settings.environment
