"""Workers as invocations of one Lambda function.

Theory of operation
-------------------
A worker of a coding scheme is a number, and nothing of it lasts: each of its tasks is one
invocation, served by whatever environment Lambda chooses. So there is no worker to lose, and a
worker that still computes for an old round delays nothing. `Calls` keeps the invocations, by a tag.
An invocation goes through these states, each at most once; a reply to an unknown tag is ignored:

::

    submitted --answer, error--> settled: an Arrival or a Failure
        |  ^                        ^
     429|  |due                     |fetched, or cannot be
        v  |                        |
     throttled --patience ends--> settled      submitted --receipt--> fetching --> settled

No function has seen a *throttled* invocation, so it is the only kind that is repeated here:
`Throttle` chooses the time, with jitter and a window. After every other failure, the policy
decides. A *receipt* stands for an answer that is too large for a reply: a few threads fetch it from
the store, so that other answers are not delayed.

The transport carries bytes, once, and stamps replies. It does so during `dispatch`, which returns
when the requests have been sent, since a task's time starts then, and during `receive`; a fetch
that ends wakes it. Times of events never decrease: an answer that was read before the latest fetch
ended is stamped with the later time.

A function that runs cannot be stopped. After `cancel`, a throttled invocation is not submitted
again, an answer in the store is removed unread, and a failure is not reported.
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

_FETCHES = 8  # at once; boto3's pool keeps 10 connections

_Outcome: TypeAlias = ResultMessage | FailureMessage | Exception | str  # a string is a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoking:
    """Settings of a backend's invocations.

    ``throttling`` is the response to HTTP 429. ``max_body_bytes`` limits an invocation and its
    answer, as JSON. Before the first task, every worker is invoked ``warm_up_rounds`` times (see
    `LambdaBackend.warm_up`).
    """

    throttling: ThrottlePolicy = field(default_factory=ThrottlePolicy)
    max_body_bytes: int = MESSAGE_LIMIT_BYTES
    warm_up_rounds: int = 0


class LambdaBackend(EventBackend):
    """``n`` workers whose tasks are invocations of a function; a `seqgc.ports.Backend`.

    - A task fails with a `Failure` of one line if computing raises, if the function crashes or runs
      out of time (the line contains the last line of its log), if a connection is refused or
      breaks, or if the answer is damaged or answers another task. Only throttled invocations,
      which no function has seen, are repeated here, as often as `ThrottlePolicy` allows. Whether
      other tasks are repeated is the policy's decision.
    - An answer in the store arrives when it has been fetched.
    - A function with other code, data or versions than the master ends the run: the method that is
      called next raises `SkewError`.
    - Running invocations cannot be stopped. `cancel` removes throttled ones; the others continue,
      and their answers are late `Arrival` events, but their failures are no events. A late answer
      in the store is removed unread and has no results.
    - A task is refused if it, or its answer, is too large for Lambda (`WireError`), or if weights
      that must be sent with it are not in the store (`StoreError`).

    Parameters
    ----------
    transport
        Carries the invocations; `close` closes it. It must have the same ``clock``.
    workload
        The computation: the name of a factory in the function's registry, and its JSON settings.
    store
        The store of weights and large answers, as functions see it.
    shared
        The same store as the master sees it; several threads use it. It may be None if ``store``
        is of kind "inline" and no weights are sent.
    messaging, invoking, clock
        See `Messaging` (injected delays are billed), `Invoking` and `EventBackend`; None: the
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
        self._latest = -math.inf  # event's time
        try:
            self.warm_up(invoking.warm_up_rounds)
        except BaseException:
            self.close()
            raise

    @property
    def outstanding(self) -> int:
        """Number of unfinished invocations, late and throttled ones included."""
        return len(self._calls)

    @property
    def under_way(self) -> int:
        """Number of invocations that may be running: they were sent and have no reply."""
        return self._calls.under_way

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Submit an invocation for each task; return when they have been sent."""
        requests = self._requests(round, tasks)
        bodies = [self._invocations.body(each) for each in requests]
        left_at = []
        for each, body in zip(requests, bodies, strict=True):
            left_at.append(self._clock.now())
            self._submit(Call(request=each), body)
        self._transport.flush()
        return left_at

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Mark these workers' tasks of the round as useless from now on."""
        self._check_workers(workers)
        self._calls.cancel(round, set(workers))

    def warm_up(self, rounds: int, *, hold_s: float = 0.2, timeout_s: float = 120.0) -> None:
        """Invoke every worker ``rounds`` times with an empty task.

        Environments start, import their modules and make the workload before any task is timed.
        Warm-up invocations are neither events nor part of a profile. Each takes at least ``hold_s``
        seconds, so that no environment serves two of them. A worker that has not answered
        ``timeout_s`` seconds after the beginning of a round is not waited for.

        Raises
        ------
        ParameterError
            If ``rounds`` is negative.
        WorkerError
            If no worker answers; names the first cause.
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
            while len(self._warmed) < self.n and (left := give_up_at - self._clock.now()) > 0:
                self._collect(left)
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
            except (WireError, StoreError) as error:  # its weights may be gone
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
            return  # of a warm-up that was given up
        self._latest = max(self._latest, at)  # two threads stamp replies and fetches
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
        """Abandon all invocations and fetches."""
        self._calls.clear()
        self._transport.close()
        self._fetches.close()
