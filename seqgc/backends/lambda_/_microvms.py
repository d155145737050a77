"""Workers on AWS Lambda MicroVMs: a fleet of them, and the transport that posts tasks to them.

Each MicroVM runs `lambda_handlers.gradient_worker.microvm_server` behind an HTTPS endpoint of its
own. Each request must carry the headers of a token. See docs/microvms.md. None of this was tried in
an AWS account.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from seqgc._aws import open_client, open_session
from seqgc.backends.lambda_._threads import RequestsTransport
from seqgc.backends.lambda_._transport import Limits, Reply
from seqgc.errors import ParameterError, WorkerError, one_line, require_int, require_number
from seqgc.ports import Clock

if TYPE_CHECKING:
    from boto3.session import Session

__all__ = ["MicrovmFleet", "MicrovmLaunch", "MicrovmTransport"]

_TOKEN_MINUTES: Final = 60  # the service's limit
_TOKEN_S: Final = 50 * 60.0  # the age at which a token is replaced
_POLL_S: Final = 0.2
_LEAST_IDLE_S: Final = 60
_LONGEST_LIFE_S: Final = 8 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrovmLaunch:
    """The settings with which MicroVMs are launched.

    Parameters
    ----------
    image
        The ARN of a MicroVM image whose program is the server of
        `lambda_handlers.gradient_worker.microvm_server`.
    version
        A version of the image; None means the newest active version.
    role
        The ARN of the role that the program has, for example to use a store in S3. None means no
        role.
    port
        The port of the server in the MicroVM.
    idle_s
        Seconds without a request after which a MicroVM is suspended, at least 60. A MicroVM that
        is computing a task gets no request, so this time must be longer than the longest task.
    suspended_s
        Seconds after which a suspended MicroVM is ended.
    life_s
        Seconds after which a MicroVM is ended in any case, at most 28,800 (8 hours).
    start_s
        Time limit of a launch, a suspension or a resumption, in seconds.

    Raises
    ------
    ParameterError
        If a value is outside its range.
    """

    image: str
    version: str | None = None
    role: str | None = None
    port: int = 8080
    idle_s: int = 900
    suspended_s: int = 1800
    life_s: int = _LONGEST_LIFE_S
    start_s: float = 120.0

    def __post_init__(self) -> None:
        require_int("port", self.port, least=1, most=65535)
        require_int("idle_s", self.idle_s, least=_LEAST_IDLE_S)
        require_int("suspended_s", self.suspended_s, least=0)
        require_int("life_s", self.life_s, least=1, most=_LONGEST_LIFE_S)
        require_number("start_s", self.start_s, above=0)

    @property
    def request(self) -> dict[str, Any]:
        """The parameters of ``RunMicrovm``."""
        idle = {
            "maxIdleDurationSeconds": self.idle_s,
            "suspendedDurationSeconds": self.suspended_s,
            "autoResumeEnabled": True,
        }
        request = {"imageIdentifier": self.image, "idlePolicy": idle}
        optional = {"imageVersion": self.version, "executionRoleArn": self.role}
        request |= {name: value for name, value in optional.items() if value is not None}
        return {**request, "maximumDurationInSeconds": self.life_s}


@dataclass(slots=True, eq=False)
class _Microvm:
    """A MicroVM that was launched, with its token and the number of its unanswered tasks."""

    identifier: str
    url: str
    tasks: int = 0
    headers: Mapping[str, str] | None = None
    headers_until: float = -math.inf
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards the headers


class MicrovmFleet:
    """Running MicroVMs of one image. Leaving the ``with`` block ends them.

    The object launches the MicroVMs when it is created. If one of them does not start, all are
    ended. Throttled calls are repeated by botocore. Several threads may use a fleet.

    ``session``, ``region`` and ``endpoint_url`` are as in boto3; ``now`` returns seconds.

    Raises
    ------
    ParameterError
        If ``count`` is not positive, if there is no region, or if boto3 is too old.
    WorkerError
        If the service refuses a launch, or a MicroVM ends or is not running in time.
    """

    def __init__(
        self,
        count: int,
        launch: MicrovmLaunch,
        *,
        session: Session | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        count = require_int("count", count, least=1)
        self.launch: Final = launch
        self._now = now
        try:
            self._client = open_client(
                session or open_session(),
                "lambda-microvms",
                config=Config(retries={"mode": "standard", "total_max_attempts": 8}),
                region_name=region,
                endpoint_url=endpoint_url,
            )
        except BotoCoreError as error:
            rule = f"must be given, and boto3 must know lambda-microvms ({one_line(error)})"
            raise ParameterError("region", rule, region, "pip install -U boto3") from None
        self._microvms: list[_Microvm] = []
        self._lock = threading.Lock()  # guards the numbers of tasks
        try:
            for _ in range(count):
                answer = self._call("run_microvm", **launch.request)
                url = answer["endpoint"]
                url = url if "://" in url else f"https://{url}"
                self._microvms.append(_Microvm(answer["microvmId"], url.rstrip("/") + "/"))
            self._wait_for("RUNNING")
        except BaseException:
            with suppress(WorkerError):  # the first error is the cause
                self.close()
            raise

    @property
    def identifiers(self) -> tuple[str, ...]:
        """The MicroVMs' identifiers, in the order of their launch."""
        return tuple(each.identifier for each in self._microvms)

    def suspend(self) -> None:
        """Suspend all MicroVMs, and wait until they are. A task resumes its MicroVM."""
        for each in self.identifiers:
            self._call("suspend_microvm", microvmIdentifier=each)
        self._wait_for("SUSPENDED")

    def resume(self) -> None:
        """Resume all MicroVMs, and wait until they are running."""
        for each in self.identifiers:
            self._call("resume_microvm", microvmIdentifier=each)
        self._wait_for("RUNNING")

    def close(self) -> None:
        """End all MicroVMs. Closing again does nothing.

        Raises
        ------
        WorkerError
            If some MicroVMs could not be ended. They may still run and cost money.
        """
        left, why = [], ""
        for each in self._microvms:
            try:
                self._call("terminate_microvm", microvmIdentifier=each.identifier)
            except WorkerError as error:
                left.append(each.identifier)
                why = str(error)
        self._microvms.clear()
        self._client.close()
        if left:
            raise WorkerError(
                f"these MicroVMs may still run and cost money: {', '.join(left)} ({why})"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def least_busy(self) -> Iterator[_Microvm]:
        """Yield the MicroVM with the fewest unanswered tasks. In the block, it has one more."""
        with self._lock:
            if not self._microvms:
                raise WorkerError("the MicroVMs have been ended: launch new ones")
            microvm = min(self._microvms, key=lambda each: each.tasks)
            microvm.tasks += 1
        try:
            yield microvm
        finally:
            with self._lock:
                microvm.tasks -= 1

    def headers(self, microvm: _Microvm) -> Mapping[str, str]:
        """Return the headers of a request, whose token is valid for at least ten minutes."""
        with microvm.lock:
            if microvm.headers is None or self._now() >= microvm.headers_until:
                until = self._now() + _TOKEN_S
                answer = self._call(
                    "create_microvm_auth_token",
                    microvmIdentifier=microvm.identifier,
                    expirationInMinutes=_TOKEN_MINUTES,
                    allowedPorts=[{"port": self.launch.port}],
                )
                port = {"X-aws-proxy-port": str(self.launch.port)}
                microvm.headers = {**answer["authToken"], **port}
                microvm.headers_until = until
            return microvm.headers

    def _wait_for(self, state: str) -> None:
        give_up_at = self._now() + self.launch.start_s
        for each in self.identifiers:
            while (answer := self._call("get_microvm", microvmIdentifier=each))["state"] != state:
                seen, reason = answer["state"], answer.get("stateReason", "no reason was given")
                if seen in ("TERMINATING", "TERMINATED"):
                    raise WorkerError(f"MicroVM {each} is {seen}: {reason}")
                if self._now() >= give_up_at:
                    limit_s = self.launch.start_s
                    raise WorkerError(f"MicroVM {each} is {seen} after {limit_s:g} s, not {state}")
                time.sleep(_POLL_S)

    def _call(self, name: str, **parameters: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

        try:
            return getattr(self._client, name)(**parameters)
        except ParamValidationError as error:
            raise ParameterError(
                "launch", f"must be valid ({one_line(error)})", parameters
            ) from None
        except (BotoCoreError, ClientError) as error:
            raise WorkerError(one_line(error)) from error


class MicrovmTransport(RequestsTransport):
    """A `Transport` that posts each task to the MicroVM with the fewest unanswered tasks.

    The transport does not end the MicroVMs of the ``fleet``. For the other arguments see
    `Boto3Transport`.

    Raises
    ------
    ParameterError
        If the idle time of the fleet is shorter than the time limit of an answer, so that a MicroVM
        could be suspended while it computes.
    """

    def __init__(
        self, fleet: MicrovmFleet, *, limits: Limits | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(limits, clock=clock)
        if (answer_s := self._limits.timeout_s) > fleet.launch.idle_s:
            rule = f"must be at least {answer_s:g} s, the time limit of a task"
            raise ParameterError("idle_s", rule, fleet.launch.idle_s)
        self._fleet = fleet

    def _send(self, tag: int, body: bytes) -> Reply:
        with self._fleet.least_busy() as microvm:
            headers = {**self._fleet.headers(microvm), "Content-Type": "application/json"}
            reply = self._post(tag, microvm.url, body, headers)
        if reply.ran is False and not reply.throttled:  # perhaps the token is not valid any more
            microvm.headers_until = -math.inf
        return (
            replace(reply, error=f"{microvm.identifier}: {reply.error}") if reply.error else reply
        )
