"""The function and its published versions.

Each version has its own environments, and each request names a version or an alias. The
environments of a version are forked from its parent process. The parent of the first version is a
child process that the service forks at its start. A later version gets a new parent process,
because it may have other imports and variables. ``$LATEST``, the unpublished version, is always the
same as the newest version.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from multiprocessing.connection import Connection

from seqgc.local_lambda._environments import Environment, Environments, Invocation, InvocationAnswer
from seqgc.local_lambda._faults import RequestFault
from seqgc.local_lambda._settings import KEPT_LOG_BYTES, ServiceSettings
from seqgc.local_lambda.service import ServiceStatistics

_FLIPS = 8  # number of flipped bits in a corrupted response
_NUMBER = re.compile("[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answer to a request, and the log of the request as CloudWatch would show it."""

    request_id: str
    answer: InvocationAnswer
    log: bytes


class Function:
    """One version of the function. It answers requests within the limits, and injects faults.

    ``free`` is the semaphore that limits concurrent requests. All versions share it.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        *,
        environments: Environments,
        free: asyncio.Semaphore | None = None,
    ) -> None:
        self.settings = settings
        self.free = asyncio.Semaphore(settings.concurrency) if free is None else free
        self._logs: deque[tuple[str, bytes]] = deque()
        self._log_bytes = 0
        self._counts = Counter(requests=0, throttled=0, failed=0, timed_out=0)
        self._faults: Counter[str] = Counter()
        self.environments = environments
        self._key_of = settings.faults.reader()
        self._time_is_up = f"Task timed out after {settings.timeout_s:.2f} seconds"
        self._last: bytes | bytearray = b""  # the latest answer without an error

    def statistics(self) -> ServiceStatistics:
        """Return the counts of this version since the service started."""
        return ServiceStatistics(
            **self._counts,
            cold_starts=self.environments.cold_starts,
            environments=len(self.environments),
            faults=dict(self._faults),
        )

    def log(self, request_id: str | None) -> str:
        """Return the log of one request, or of the latest requests (at most 1 MiB)."""
        logs = (log for each, log in self._logs if request_id in (None, each))
        return b"".join(logs).decode("utf-8", "replace")

    async def invoke(
        self, body: bytes | bytearray, *, client_context: str = "", patient: bool = False
    ) -> Outcome | None:
        """Answer a request.

        If too many requests are being answered, wait if ``patient``, else return None.
        """
        index = self._counts["requests"]
        self._counts["requests"] += 1
        if patient or not self.free.locked():
            async with self.free:
                if (fault := self._fault(index, body)).kind != "throttle":
                    with self.environments.lent() as environment:
                        return await self._invoke(environment, body, client_context, fault)
        self._counts["throttled"] += 1
        return None

    def _fault(self, index: int, body: bytes | bytearray) -> RequestFault:
        number = self.environments.next_number()
        plan, key = self.settings.faults, self._key_of(body)
        fault = plan.fault(request=index, environment=number, body=key)
        if fault.kind != "none":
            self._faults[fault.kind] += 1
        return fault

    async def _invoke(
        self,
        environment: Environment,
        body: bytes | bytearray,
        client_context: str,
        fault: RequestFault,
    ) -> Outcome:
        begin, ready, init_s = time.perf_counter(), True, None
        if not environment.started:
            ready = await environment.start()
            init_s = time.perf_counter() - begin
        log = environment.log.take()  # the output of its initialization
        begin = time.perf_counter()
        invocation = Invocation(
            request_id=str(uuid.uuid4()),
            body=body,
            arn=self.settings.deployed.arn,
            deadline=time.time() + self.settings.timeout_s,
            client_context=client_context,
        )
        request_id = invocation.request_id
        if ready:
            answer = await self._compute_in_time(environment, invocation, fault)
        else:
            answer = await environment.answer(request_id)
        duration_s = time.perf_counter() - begin
        log += f"START RequestId: {request_id} Version: $LATEST\n".encode()
        log += environment.log.take()
        if answer.timed_out:
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            log += f"{now} {request_id} {self._time_is_up}\n\n".encode()
        log += self._report(request_id, duration_s, init_s, environment.memory_mb())
        self._counts["failed"] += answer.failed
        self._counts["timed_out"] += answer.timed_out
        if not answer.failed:
            self._last = answer.body
        self._logs.append((request_id, log))
        self._log_bytes += len(log)
        while self._log_bytes > KEPT_LOG_BYTES:
            self._log_bytes -= len(self._logs.popleft()[1])
        return Outcome(request_id=request_id, answer=answer, log=log)

    async def _compute_in_time(
        self, environment: Environment, invocation: Invocation, fault: RequestFault
    ) -> InvocationAnswer:
        """Return the answer; at the function's time-out, kill the environment instead."""
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                return await self._compute(environment, invocation, fault)
        except TimeoutError:
            await environment.end()
            message = f"RequestId: {invocation.request_id} Error: {self._time_is_up}"
            return InvocationAnswer.error("Sandbox.Timedout", message, timed_out=True)

    async def _compute(
        self, environment: Environment, invocation: Invocation, fault: RequestFault
    ) -> InvocationAnswer:
        """Inject the fault, and return the answer."""
        request_id = invocation.request_id
        match fault.kind:
            case "error":
                message = f"RequestId: {request_id} Error: scripted fault"
                return InvocationAnswer.error("ScriptedFault", message)
            case "duplicate" if self._last:
                return InvocationAnswer(body=self._last)
            case "hang":
                await asyncio.get_running_loop().create_future()  # until the time-out
            case "crash":
                environment.begin(invocation)
                await environment.end()
                return InvocationAnswer.exited(request_id, -signal.SIGKILL)
            case "delay":
                await asyncio.sleep(fault.delay_s)
        environment.begin(invocation)
        answer = await environment.answer(request_id)
        return _corrupted(answer, fault.seed) if fault.kind == "corrupt" else answer

    def _report(
        self, request_id: str, duration_s: float, init_s: float | None, used_mb: int
    ) -> bytes:
        """Return the last lines of the log; the billed duration includes the initialization."""
        parts = [
            f"END RequestId: {request_id}\nREPORT RequestId: {request_id}",
            f"Duration: {1e3 * duration_s:.2f} ms",
            f"Billed Duration: {math.ceil(1e3 * (duration_s + (init_s or 0.0)))} ms",
            f"Memory Size: {self.settings.deployed.memory_mb} MB",
            f"Max Memory Used: {used_mb} MB",
        ]
        if init_s is not None and self.settings.deployed.snapstart:
            parts.append(f"Restore Duration: {1e3 * init_s:.2f} ms")
            parts.append(f"Billed Restore Duration: {math.ceil(1e3 * init_s)} ms")
        elif init_s is not None:
            parts.append(f"Init Duration: {1e3 * init_s:.2f} ms")
        return ("\t".join(parts) + "\t\n").encode()


def _corrupted(answer: InvocationAnswer, seed: int) -> InvocationAnswer:
    body = bytearray(answer.body)
    draw = random.Random(seed)
    for _ in range(_FLIPS if body else 0):
        body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
    return InvocationAnswer(body=body, failed=answer.failed)


class Versions:
    """All versions of the function.

    ``channel`` leads to the parent process of the first version's environments. ``on_loss`` is
    called if the parent process of any version ends unexpectedly.
    """

    def __init__(
        self, settings: ServiceSettings, channel: socket.socket, *, on_loss: Callable[[], None]
    ) -> None:
        self._on_loss = on_loss
        self._functions: list[Function] = []
        self._parents: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []
        self._add(settings, channel)

    @property
    def newest(self) -> Function:
        """The newest version, which every alias refers to."""
        return self._functions[-1]

    @property
    def current(self) -> str:
        """The number of the newest version."""
        return str(len(self._functions))

    def named(self, qualifier: str) -> tuple[str, Function] | None:
        """Return the number and the version that a qualifier names, or None."""
        if qualifier == "$LATEST":
            return qualifier, self.newest
        if qualifier in self.newest.settings.deployed.aliases:
            return self.current, self.newest
        if _NUMBER.fullmatch(qualifier) and int(qualifier) <= len(self._functions):
            return qualifier, self._functions[int(qualifier) - 1]
        return None

    def publish(self, settings: ServiceSettings, variables: Mapping[str, str]) -> str:
        """Start another version whose environments have these variables; return its number."""
        ours, theirs = socket.socketpair()
        with theirs:
            parent = subprocess.Popen(
                [sys.executable, "-m", "seqgc.local_lambda._parent", str(theirs.fileno())],
                cwd=settings.deployed.code,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self._parents.append((ours, parent))
        with closing(Connection(os.dup(ours.fileno()))) as channel:
            channel.send(settings)
        self._add(settings, ours)
        return self.current

    def _add(self, settings: ServiceSettings, channel: socket.socket) -> None:
        environments = Environments(channel, on_loss=self._on_loss)
        free = self._functions[0].free if self._functions else None
        self._functions.append(Function(settings, environments=environments, free=free))

    def statistics(self) -> ServiceStatistics:
        """Return the counts of all versions together."""
        versions = [function.statistics() for function in self._functions]
        names = [each.name for each in fields(ServiceStatistics) if each.name != "faults"]
        faults = sum((Counter(each.faults) for each in versions), Counter[str]())
        return ServiceStatistics(
            **{name: sum(getattr(each, name) for each in versions) for name in names},
            faults=dict(faults),
        )

    def log(self, request_id: str | None) -> str:
        """Return the log of one request, or of each version's latest requests."""
        return "".join(function.log(request_id) for function in self._functions)

    def close(self) -> None:
        """Release ports and descriptors; end the parent processes of later versions, and wait."""
        for function in self._functions:
            function.environments.close()
        for channel, _ in self._parents:
            with suppress(OSError):  # the parent has already ended
                channel.shutdown(socket.SHUT_RDWR)
            channel.close()
        for _, parent in self._parents:
            parent.wait()
