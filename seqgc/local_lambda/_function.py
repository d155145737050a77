"""The function: what becomes of one request to it."""

from __future__ import annotations

import asyncio
import math
import random
import signal
import time
import uuid
from collections import Counter, deque
from dataclasses import dataclass
from datetime import UTC, datetime

from seqgc.local_lambda._environment import Environment, Invocation, InvocationAnswer
from seqgc.local_lambda._environments import Environments
from seqgc.local_lambda._faults import Fault
from seqgc.local_lambda._function_settings import KEPT_LOG_BYTES, ServiceSettings
from seqgc.local_lambda.service import Statistics

__all__ = ["Function", "Outcome"]

_FLIPS = 8  # bits flipped in a response that a fault corrupts


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A request's answer and log, as CloudWatch would show it."""

    request_id: str
    answer: InvocationAnswer
    log: bytes


class Function:
    """Has environments answer, within the function's limits and according to its fault plan.

    ``free`` counts how many more may do so: its versions have one concurrency among them.
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
        self._environments = environments
        self._key_of = settings.faults.reader()
        self._time_is_up = f"Task timed out after {settings.timeout_s:.2f} seconds"
        self._last: bytes | bytearray = b""  # the latest answer that is no error

    def statistics(self) -> Statistics:
        """Return what has happened until now."""
        return Statistics(
            **self._counts,
            cold_starts=self._environments.cold_starts,
            environments=len(self._environments),
            faults=dict(self._faults),
        )

    def log(self, request_id: str | None) -> str:
        """Return one request's log, or those of the latest requests, 1 MiB at most."""
        logs = (log for each, log in self._logs if request_id in (None, each))
        return b"".join(logs).decode("utf-8", "replace")

    async def invoke(
        self, body: bytes | bytearray, *, client_context: str = "", patient: bool = False
    ) -> Outcome | None:
        """Have the function answer; None if it is throttled, unless ``patient``: then wait."""
        index = self._counts["requests"]
        self._counts["requests"] += 1
        if patient or not self.free.locked():
            async with self.free:
                if (fault := self._fault(index, body)).kind != "throttle":
                    with self._environments.lent() as environment:
                        return await self._invoke(environment, body, client_context, fault)
        self._counts["throttled"] += 1
        return None

    def _fault(self, index: int, body: bytes | bytearray) -> Fault:
        number = self._environments.next_number()
        plan, key = self.settings.faults, self._key_of(body)
        fault = plan.fault(request=index, environment=number, body=key)
        if fault.kind != "none":
            self._faults[fault.kind] += 1
        return fault

    async def _invoke(
        self, environment: Environment, body: bytes | bytearray, client_context: str, fault: Fault
    ) -> Outcome:
        begin, ready, init_s = time.perf_counter(), True, None
        if not environment.started:
            ready = await environment.start()
            init_s = time.perf_counter() - begin
        log = environment.log.take()  # what its initialization has said
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
            answer = await self._timely(environment, invocation, fault)
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

    async def _timely(
        self, environment: Environment, invocation: Invocation, fault: Fault
    ) -> InvocationAnswer:
        """Have the environment answer before its time-out, or end it."""
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                return await self._befall(environment, invocation, fault)
        except TimeoutError:
            await environment.end()
            message = f"RequestId: {invocation.request_id} Error: {self._time_is_up}"
            return InvocationAnswer.error("Sandbox.Timedout", message, timed_out=True)

    async def _befall(
        self, environment: Environment, invocation: Invocation, fault: Fault
    ) -> InvocationAnswer:
        """Let the environment compute, or the fault happen."""
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
        """Return the log's last lines; a cold start's initialization is billed too."""
        parts = [
            f"END RequestId: {request_id}\nREPORT RequestId: {request_id}",
            f"Duration: {1e3 * duration_s:.2f} ms",
            f"Billed Duration: {math.ceil(1e3 * (duration_s + (init_s or 0.0)))} ms",
            f"Memory Size: {self.settings.deployed.memory_mb} MB",
            f"Max Memory Used: {used_mb} MB",
        ]
        if init_s is not None:
            parts.append(f"Init Duration: {1e3 * init_s:.2f} ms")
        return ("\t".join(parts) + "\t\n").encode()


def _corrupted(answer: InvocationAnswer, seed: int) -> InvocationAnswer:
    body = bytearray(answer.body)
    draw = random.Random(seed)
    for _ in range(_FLIPS if body else 0):
        body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
    return InvocationAnswer(body=body, failed=answer.failed)
