"""A backend in which each task is one invocation of a Lambda function.

Theory of operation
-------------------
A worker is only a number: each of its tasks is one invocation, which runs in any environment that
Lambda chooses. Therefore a worker cannot be lost, and if a task of an old round is still running,
new tasks of its worker are not delayed. `Calls` keeps the unfinished invocations, each with a tag.
An invocation has these states; a reply with an unknown tag is ignored:

::

    submitted --answer, error--> settled: an Arrival or a Failure
        |  ^                        ^
     429|  |due                     |fetched, or cannot be
        v  |                        |
     throttled --too often--> settled      submitted --receipt--> fetching --> settled

If the service has *throttled* an invocation, no function has received it. This backend repeats only
throttled invocations: `Throttle` chooses the time, with jitter and a window. After every other
failure, the policy decides. A *receipt* replaces an answer that is too large for a reply. A few
threads fetch such answers from the store, so that other answers are not delayed.

The transport sends each request once, and records the time of each reply. It works during
`dispatch`, which returns when the requests have been sent, because the time of a task begins then.
It also works during `receive`; when a thread has fetched an answer, it wakes the transport. The
times of events never decrease: a reply that was read before the latest fetch ended gets the time of
this fetch.

A running function cannot be stopped. After `cancel`, a throttled invocation is not submitted again,
an answer in the store is removed without reading it, and a failure is not reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from seqgc.backends._events import EventBackend, Messaging, event_of, failure_of
from seqgc.backends.lambda_._calls import Call, Calls, ThrottlePolicy
from seqgc.backends.lambda_._messages import Invocations
from seqgc.backends.lambda_._threads import CallThreads, Ended
from seqgc.backends.lambda_._transport import Reply, Transport
from seqgc.errors import StoreError, WireError, WorkerError, require_int
from seqgc.ports import Arrival, BlobStore, Clock, Failure, Task
from seqgc.wire import (
    MESSAGE_LIMIT_BYTES,
    FailureMessage,
    ReceiptMessage,
    ResultMessage,
    StoreRef,
    TaskMessage,
    WorkloadRef,
    from_json,
)

__all__ = ["Invoking", "LambdaBackend"]

_FETCHES = 8  # at the same time; boto3's pool has 10 connections

_Outcome: TypeAlias = ResultMessage | FailureMessage | Exception | str  # a reason for a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoking:
    """Settings of a backend's invocations.

    ``throttling`` are the rules for repeating an invocation after HTTP 429. ``max_body_bytes`` is
    the size limit of an invocation and of its answer, as JSON. Before the first task, every worker
    is invoked ``warm_up_rounds`` times (see `LambdaBackend.warm_up`).
    """

    throttling: ThrottlePolicy = field(default_factory=ThrottlePolicy)
    max_body_bytes: int = MESSAGE_LIMIT_BYTES
    warm_up_rounds: int = 0


class LambdaBackend(EventBackend):
    """A backend with ``n`` workers, whose tasks are invocations of a Lambda function.

    - A task ends with a `Failure` if the computation raises an error, if the function crashes or
      runs out of time (the reason contains the last line of its log), if the connection fails, or
      if the answer is damaged or belongs to another task. The backend repeats only throttled
      invocations, as often as `ThrottlePolicy` allows. The policy decides whether another task is
      repeated.
    - An answer that is in the store arrives when it has been fetched.
    - If the code, data or package versions of a function differ from the master's, the run ends:
      the next call of a method raises `SkewError`.
    - Running invocations cannot be stopped. `cancel` removes throttled invocations. The remaining
      ones continue; their answers are late `Arrival` events, and their failures are not reported.
      A late answer in the store is removed without reading it, and its event has no results.
    - `dispatch` raises `WireError` if a task or its answer is too large for Lambda, and
      `StoreError` if weights that must be sent with a task are not in the store.

    Parameters
    ----------
    transport
        Sends the invocations. It must use the same ``clock``. `close` also closes the transport.
    workload
        The computation: the name of a factory in the function's registry, and its JSON settings.
    store
        A reference to the store of weights and large answers, for the functions.
    shared
        The same store, opened by the master. Several threads use it. It may be None if ``store``
        is of kind "inline" and no weights are sent.
    messaging, invoking, clock
        See `Messaging` (AWS bills injected delays), `Invoking` and `EventBackend`. None means the
        defaults.

    Raises
    ------
    ParameterError
        If ``n`` is not positive, or ``shared`` is missing.
    WorkerError
        If no worker answers a warm-up round.

    Examples
    --------
    >>> from seqgc.backends.lambda_ import CurlTransport, Limits, Target
    >>> from seqgc.wire import StoreRef, WorkloadRef
    >>> target = Target.invoke_api("seqgc-worker", region="eu-west-1", qualifier="live")
    >>> workload = WorkloadRef(name="least-squares", settings={"seed": 1})
    >>> def open_backend(n):
    ...     transport = CurlTransport(target, limits=Limits(timeout_s=60.0))
    ...     return LambdaBackend(n, transport, workload=workload, store=StoreRef(kind="inline"))
    """

    def __init__(
        self,
        n: int,
        transport: Transport,
        *,
        workload: WorkloadRef,
        store: StoreRef,
        shared: BlobStore | None = None,
        messaging: Messaging | None = None,
        invoking: Invoking | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(n, messaging=messaging, clock=clock)
        invoking = invoking or Invoking()
        self._invocations = Invocations(
            run_id=self._messaging.run_id,
            workload=workload,
            store=store,
            shared=shared,
            max_body_bytes=invoking.max_body_bytes,
        )
        self._transport = transport
        self._calls = Calls(invoking.throttling, per_s=self.n)
        self._fetches = CallThreads[ResultMessage](
            limit=_FETCHES, clock=self._clock, on_end=transport.wake
        )
        self._warmed: list[Arrival | Failure] = []
        self._latest = -math.inf  # the time of the latest event
        try:
            self.warm_up(invoking.warm_up_rounds)
        except BaseException:
            self.close()
            raise

    @property
    def outstanding(self) -> int:
        """The number of unfinished invocations, including late and throttled invocations."""
        return len(self._calls)

    @property
    def under_way(self) -> int:
        """The number of invocations that may be running: they were sent and have no reply."""
        return self._calls.under_way

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Submit an invocation for each task; wait until they are sent, and return their times."""
        requests = self._requests(round, tasks)
        bodies = [self._invocations.body(each) for each in requests]
        left_at = []
        for each, body in zip(requests, bodies, strict=True):
            left_at.append(self._clock.now())
            self._submit(Call(request=each), body)
        self._transport.flush()
        return left_at

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Cancel these workers' tasks of the round. Running invocations continue."""
        self._check_workers(workers)
        self._calls.cancel(round, set(workers))

    def warm_up(self, rounds: int, *, hold_s: float = 0.2, timeout_s: float = 120.0) -> None:
        """Invoke every worker ``rounds`` times with an empty task.

        In this way, environments start, import their modules and make the workload before any task
        is timed. Warm-up invocations cause no events and are not part of a profile. Each takes at
        least ``hold_s`` seconds, so that no environment serves two of them in a round. A round ends
        after ``timeout_s`` seconds, even if some workers have not answered.

        Raises
        ------
        ParameterError
            If ``rounds`` is negative.
        WorkerError
            If no worker answers. The message names the first cause.
        """
        self._check_open()
        for number in range(require_int("warm_up_rounds", rounds, least=0)):
            self._warmed.clear()
            tags = []
            for worker in range(self.n):
                task = Task(round=number, worker=worker, attempt=0, items=())
                request = TaskMessage(task=task, delay_s=hold_s)
                body = self._invocations.body(request)
                tags.append(self._submit(Call(request=request, warm_up=True), body))
            give_up_at = self._clock.now() + timeout_s
            while len(self._warmed) < self.n and (rest_s := give_up_at - self._clock.now()) > 0:
                self._collect(rest_s)
            self._calls.forget(tags)  # later answers are ignored
            if not any(isinstance(event, Arrival) for event in self._warmed):
                causes = [event.reason for event in self._warmed if isinstance(event, Failure)]
                cause = causes[0] if causes else f"no answer within {timeout_s:g} s"
                raise WorkerError(f"no worker answered in the warm-up: {cause}", worker=0)

    def _submit(self, call: Call, body: bytes) -> int:
        tag = self._calls.add(call)
        self._transport.submit(tag, body)
        return tag

    def _collect(self, timeout_s: float) -> None:
        """Submit the throttled invocations that are due, and settle invocations that have ended."""
        news: list[Reply | Ended[ResultMessage]] = []
        now = self._clock.now()
        for tag, call in self._calls.due(now=now):
            try:
                body = self._invocations.body(call.request)
            except (WireError, StoreError) as error:  # for example, the weights were removed
                news.append(Ended(tag=tag, at=now, value=error))
            else:
                self._transport.submit(tag, body)
        due_s = 0.0 if news else self._calls.wake_at - self._clock.now()
        news += self._transport.poll(max(0.0, min(timeout_s, due_s)))
        news += self._fetches.take()
        for each in sorted(news, key=lambda each: each.at):
            if isinstance(each, Reply):
                self._take(each)
            else:
                self._settle(each.tag, each.value, at=each.at)

    def _take(self, reply: Reply) -> None:
        if (call := self._calls.replied(reply)) is None:
            return
        outcome = self._outcome(call, reply)
        if isinstance(outcome, ReceiptMessage):
            call.fetching = True
            redeem = self._invocations.redeem
            fetch = partial(redeem, call.request, outcome, wanted=lambda: not call.cancelled)
            self._fetches.submit(reply.tag, fetch)
        else:
            self._settle(reply.tag, outcome, at=reply.at, died=reply.died)

    def _outcome(self, call: Call, reply: Reply) -> _Outcome | ReceiptMessage:
        if reply.throttled:
            return (
                f"{reply.error}; throttled {call.refusals} times in a row: raise the "
                "function's reserved concurrency or the account's, or use fewer workers"
            )
        if reply.body is None:
            return reply.error or "the reply is empty"
        try:
            return self._invocations.answer(call.request, from_json(reply.body))
        except WireError as error:
            return error

    def _settle(self, tag: int, outcome: _Outcome, *, at: float, died: bool = False) -> None:
        """Queue the event of an invocation's outcome."""
        if (call := self._calls.settled(tag)) is None:
            return  # the invocation belongs to a warm-up round that has ended
        self._latest = max(self._latest, at)  # replies and fetches have times of different threads
        if isinstance(outcome, ResultMessage | FailureMessage):
            event = event_of(outcome, at=self._latest)
        else:
            address, model = call.request.subject.address, "" if died else None
            event = failure_of(address, at=self._latest, reason=outcome, model=model)
        if call.warm_up:
            self._warmed.append(event)
        elif isinstance(event, Arrival) or not call.cancelled:
            self._tell(event)

    def _end(self) -> None:
        self._calls.clear()
        self._transport.close()
        self._fetches.close()
