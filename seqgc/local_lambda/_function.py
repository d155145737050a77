"""The function: what becomes of one request to it."""

from __future__ import annotations

import asyncio
import random
import signal
import time
import uuid
from collections import Counter
from dataclasses import dataclass

from seqgc import wire
from seqgc.errors import WireError
from seqgc.local_lambda import _errors, _logs
from seqgc.local_lambda._environment import Answered, Environment, Invocation
from seqgc.local_lambda._faults import Fault, Subject
from seqgc.local_lambda._pool import Pool
from seqgc.local_lambda._settings import Settings

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

    def __init__(self, settings: Settings, *, pool: Pool) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.logs = _logs.LogBook()
        self._pool = pool
        self._last: bytes | bytearray = b""  # the latest answer that is no error

    async def invoke(
        self, body: bytes | bytearray, *, client_context: str = "", patient: bool = False
    ) -> Outcome | None:
        """Have the function answer; None if it is throttled, unless ``patient``: then wait."""
        index = self.counts["requests"]
        self.counts["requests"] += 1
        while (number := self._pool.next_number()) is None and patient:
            await self._pool.vacancy()
        fault = self._fault(index, number, body)
        if number is None or fault.kind == "throttle":
            self.counts["throttled"] += 1
            return None
        environment = self._pool.acquire()
        request_id = str(uuid.uuid4())
        try:
            return await self._invoke(environment, request_id, body, client_context, fault)
        finally:
            self._pool.release(environment)

    def _fault(self, index: int, number: int | None, body: bytes | bytearray) -> Fault:
        plan = self.settings.faults
        if number is None:
            return Fault(kind="none")  # throttled anyway
        task = _task_of(body) if plan.by in ("task", "worker") else None
        fault = plan.fault(Subject(request=index, environment=number, task=task))
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
        ready = environment.started or await self._pool.start(environment)
        log = environment.log.take()  # what its initialization has said
        begin = time.perf_counter()
        invocation = Invocation(
            request_id=request_id,
            body=body,
            arn=self.settings.arn,
            deadline=time.time() + self.settings.timeout_s,
            client_context=client_context,
        )
        answered = environment.answer(request_id)
        if ready:
            answered = await self._answered(environment, invocation, fault)
        duration_s = time.perf_counter() - begin
        log += f"START RequestId: {request_id} Version: $LATEST\n".encode()
        log += environment.log.take()
        log += self._report(environment, request_id, duration_s, answered)
        return self._outcome(request_id, answered, log)

    async def _answered(
        self, environment: Environment, invocation: Invocation, fault: Fault
    ) -> Answered:
        """Have the environment answer before its time-out, or end it."""
        limit_s = self.settings.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._befall(environment, invocation, fault)
        except TimeoutError:
            await environment.end()
            body = _errors.timed_out(invocation.request_id, limit_s)
            return Answered(body=body, failed=True, timed_out=True)

    async def _befall(
        self, environment: Environment, invocation: Invocation, fault: Fault
    ) -> Answered:
        """Let the environment compute, or the fault happen."""
        request_id = invocation.request_id
        match fault.kind:
            case "error":
                return Answered(body=_errors.scripted(request_id), failed=True)
            case "duplicate" if self._last:
                return Answered(body=self._last)
            case "hang":
                await asyncio.get_running_loop().create_future()  # until the time-out
            case "crash":
                environment.ask(invocation)
                await environment.end()
                return Answered(body=_errors.exited(request_id, -signal.SIGKILL), failed=True)
            case "delay":
                await asyncio.sleep(fault.delay_s)
        environment.ask(invocation)
        answered = await environment.settled()
        return _corrupted(answered, fault.seed) if fault.kind == "corrupt" else answered

    def _report(
        self, environment: Environment, request_id: str, duration_s: float, answered: Answered
    ) -> bytes:
        text = ""
        if answered.timed_out:
            text = f"{_logs.now()} {request_id} {_errors.time_is_up(self.settings.timeout_s)}\n\n"
        text += f"END RequestId: {request_id}\n"
        text += _logs.report(
            request_id,
            duration_s=duration_s,
            init_s=environment.take_init_s(),
            memory_mb=self.settings.memory_mb,
            used_mb=environment.memory_mb(),
        )
        return text.encode()

    def _outcome(self, request_id: str, answered: Answered, log: bytes) -> Outcome:
        self.counts["failed"] += answered.failed
        self.counts["timed_out"] += answered.timed_out
        if not answered.failed:
            self._last = answered.body
        self.logs.add(request_id, log)
        return Outcome(request_id=request_id, body=answered.body, failed=answered.failed, log=log)


def _corrupted(answered: Answered, seed: int) -> Answered:
    body = bytearray(answered.body)
    draw = random.Random(seed)
    for _ in range(_FLIPS if body else 0):
        body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
    return Answered(body=body, failed=answered.failed)


def _task_of(body: bytes | bytearray) -> tuple[int, int, int] | None:
    """Return the (round, worker, attempt) that a request is addressed to, if it is a frame."""
    try:
        task = wire.decode_invocation(wire.from_json(body))[1].request.task
    except WireError:
        return None
    return task.round, task.worker, task.attempt
