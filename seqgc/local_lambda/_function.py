"""The function: what becomes of one request to it."""

from __future__ import annotations

import asyncio
import random
import signal
import time
import uuid
from collections import Counter
from dataclasses import dataclass

from seqgc.local_lambda import _error_bodies, _logs
from seqgc.local_lambda._environment import Environment, Invocation, InvocationAnswer
from seqgc.local_lambda._environments import Environments
from seqgc.local_lambda._faults import Fault, FaultSubject
from seqgc.local_lambda._function_settings import ServiceSettings

__all__ = ["Function", "Outcome"]

_FLIPS = 8  # bits flipped in a response that a fault corrupts


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A request's answer and log; ``failed`` if the answer is a function error."""

    request_id: str
    body: bytes | bytearray
    failed: bool
    log: bytes


class Function:
    """Has environments answer, within the function's limits and according to its fault plan."""

    def __init__(self, settings: ServiceSettings, *, environments: Environments) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.logs = _logs.LogBook()
        self._environments = environments
        self._key_of = settings.faults.reader()
        self._last: bytes | bytearray = b""  # the latest answer that is no error

    async def invoke(
        self, body: bytes | bytearray, *, client_context: str = "", patient: bool = False
    ) -> Outcome | None:
        """Have the function answer; None if it is throttled, unless ``patient``: then wait."""
        index = self.counts["requests"]
        self.counts["requests"] += 1
        while (number := self._environments.next_number()) is None and patient:
            await self._environments.vacancy()
        fault = self._fault(index, number, body)
        if number is None or fault.kind == "throttle":
            self.counts["throttled"] += 1
            return None
        environment = self._environments.acquire()
        request_id = str(uuid.uuid4())
        try:
            return await self._invoke(environment, request_id, body, client_context, fault)
        finally:
            self._environments.release(environment)

    def _fault(self, index: int, number: int | None, body: bytes | bytearray) -> Fault:
        if number is None:
            return Fault(kind="none")  # throttled anyway
        subject = FaultSubject(request=index, environment=number, body=self._key_of(body))
        fault = self.settings.faults.fault(subject)
        if fault.kind != "none":
            self.faults[fault.kind] += 1
        return fault

    async def _invoke(
        self,
        environment: Environment,
        request_id: str,
        body: bytes | bytearray,
        client_context: str,
        fault: Fault,
    ) -> Outcome:
        ready = environment.started or await self._environments.start(environment)
        log = environment.log.take()  # what its initialization has said
        begin = time.perf_counter()
        invocation = Invocation(
            request_id=request_id,
            body=body,
            arn=self.settings.arn,
            deadline=time.time() + self.settings.timeout_s,
            client_context=client_context,
        )
        if ready:
            answer = await self._timely(environment, invocation, fault)
        else:
            answer = environment.take_answer(request_id)
        duration_s = time.perf_counter() - begin
        log += f"START RequestId: {request_id} Version: $LATEST\n".encode()
        log += environment.log.take()
        log += self._report(environment, request_id, duration_s, answer)
        return self._outcome(request_id, answer, log)

    async def _timely(
        self, environment: Environment, invocation: Invocation, fault: Fault
    ) -> InvocationAnswer:
        """Have the environment answer before its time-out, or end it."""
        limit_s = self.settings.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._befall(environment, invocation, fault)
        except TimeoutError:
            await environment.end()
            body = _error_bodies.timed_out(invocation.request_id, limit_s)
            return InvocationAnswer(body=body, failed=True, timed_out=True)

    async def _befall(
        self, environment: Environment, invocation: Invocation, fault: Fault
    ) -> InvocationAnswer:
        """Let the environment compute, or the fault happen."""
        request_id = invocation.request_id
        match fault.kind:
            case "error":
                return InvocationAnswer(body=_error_bodies.scripted(request_id), failed=True)
            case "duplicate" if self._last:
                return InvocationAnswer(body=self._last)
            case "hang":
                await asyncio.get_running_loop().create_future()  # until the time-out
            case "crash":
                environment.begin(invocation)
                await environment.end()
                return InvocationAnswer(
                    body=_error_bodies.exited(request_id, -signal.SIGKILL), failed=True
                )
            case "delay":
                await asyncio.sleep(fault.delay_s)
        environment.begin(invocation)
        answer = await environment.settled(request_id)
        return _corrupted(answer, fault.seed) if fault.kind == "corrupt" else answer

    def _report(
        self, environment: Environment, request_id: str, duration_s: float, answer: InvocationAnswer
    ) -> bytes:
        text = ""
        if answer.timed_out:
            late = _error_bodies.time_is_up(self.settings.timeout_s)
            text = f"{_logs.now()} {request_id} {late}\n\n"
        text += f"END RequestId: {request_id}\n"
        text += _logs.report(
            request_id,
            duration_s=duration_s,
            init_s=environment.take_init_s(),
            memory_mb=self.settings.memory_mb,
            used_mb=environment.memory_mb(),
        )
        return text.encode()

    def _outcome(self, request_id: str, answer: InvocationAnswer, log: bytes) -> Outcome:
        self.counts["failed"] += answer.failed
        self.counts["timed_out"] += answer.timed_out
        if not answer.failed:
            self._last = answer.body
        self.logs.add(request_id, log)
        return Outcome(request_id=request_id, body=answer.body, failed=answer.failed, log=log)


def _corrupted(answer: InvocationAnswer, seed: int) -> InvocationAnswer:
    body = bytearray(answer.body)
    draw = random.Random(seed)
    for _ in range(_FLIPS if body else 0):
        body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
    return InvocationAnswer(body=body, failed=answer.failed)
