"""Workers as invocations of one Lambda function.

Theory of operation
-------------------
A worker of a coding scheme is a number, and nothing of it lasts: each of its tasks is one
invocation, served by whatever environment Lambda chooses. So there is no worker to lose, and one
that still computes for an old round holds up nobody. An invocation goes through these states, each
left once (`Calls` keeps them, by a tag; a reply to a tag that is unknown is nobody's):

::

    submitted --answer, error--> settled: an Arrival or a Failure
        |  ^                        ^
     429|  |due                     |fetched, or cannot be
        v  |                        |
     throttled --patience ends--> settled      submitted --receipt--> fetching --> settled

*Throttled* is the one refusal that no function has seen, hence the only one that is repeated here:
`Throttle` says when, with jitter and a window. Every other failure is the policy's to decide. A
*receipt* stands for an answer too large for a reply: it lies in the store, and is fetched by a few
threads, so that whoever waits for another answer is not held up.

What the transport must do is small: carry bytes, once, and say when a reply came. It does so inside
`dispatch` (which returns when the requests have left, since a task's time starts when it leaves)
and inside `receive`; a fetch that ends wakes it. Times of events never go back: an answer that was
read before the last one's fetch ended is stamped with the later time.

Nothing can be taken back from a function. What `cancel` says is kept: a throttled invocation is not
submitted again, an answer in the store is removed unread, and a failure is no event any more.
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

_FETCHES = 8  # at once: what boto3's usual pool of connections has room for

_Outcome: TypeAlias = ResultMessage | FailureMessage | Exception | str  # or why there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoking:
    """How a backend invokes its function.

    ``throttling`` is how HTTP 429 is met; ``max_body_bytes`` holds for an invocation and for its
    answer, as JSON. Before the backend is there, every worker is invoked ``warm_up_rounds`` times
    (see `LambdaBackend.warm_up`).
    """

    throttling: ThrottlePolicy = field(default_factory=ThrottlePolicy)
    max_body_bytes: int = MESSAGE_LIMIT_BYTES
    warm_up_rounds: int = 0


class LambdaBackend(EventBackend):
    """``n`` workers, each round's tasks as invocations; a `seqgc.ports.Backend`.

    - What fails is a `Failure`, in one line: an error in computing, a function that crashed or ran
      out of time (with the last line it logged), a refused or broken connection, a damaged answer,
      or one to something else. Nothing is repeated here, that is the policy's decision, but
      throttled invocations, which no function has seen, as long as `ThrottlePolicy` has patience.
    - An answer that lies in the store arrives when it has been fetched.
    - A function that has other code, data or versions than the master ends the run, whichever
      round asked it: whatever is called then raises `SkewError`.
    - Invocations cannot be stopped. `cancel` takes back what throttling has kept from being
      submitted; others run out, their answers are `Arrival` events, late, and their failures are
      no events. A late answer that lies in the store is removed unread: it has no results.
    - Nothing is sent that Lambda would not carry, nor anything whose answer it would not, nor a
      task whose weights must travel along and are not in the store (`StoreError`).

    Parameters
    ----------
    transport
        Carries the invocations; `close` closes it. It must have the same ``clock``.
    workload
        What the function computes: a factory's name in its registry, and JSON settings.
    store
        Where functions find weights and put large answers, as they see it.
    shared
        The same store as the master sees it, which several threads may use; may be None where
        ``store`` is of kind "inline": then no weights travel.
    messaging, invoking, clock
        See `Messaging` (what is delayed is paid for), `Invoking` and `EventBackend`; None: the
        usual.

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
        """How many invocations are no event yet, late and throttled ones among them."""
        return len(self._calls)

    @property
    def under_way(self) -> int:
        """How many invocations may be running: those that have left, and have no reply."""
        return self._calls.under_way

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Submit an invocation for each task; return once they have left."""
        requests = self._requests(round, tasks)
        bodies = [self._invocations.body(each) for each in requests]
        left_at = []
        for each, body in zip(requests, bodies, strict=True):
            left_at.append(self._clock.now())
            self._submit(Call(request=each), body)
        self._transport.flush()
        return left_at

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Take note that these workers' tasks of the round are of no more use."""
        self._check_workers(workers)
        self._calls.cancel(round, set(workers))

    def warm_up(self, rounds: int, *, hold_s: float = 0.2, timeout_s: float = 120.0) -> None:
        """Invoke every worker, ``rounds`` times, with a task that asks for nothing.

        Environments start, import what they need and make the workload before anything is timed;
        none of it is an event, or part of a profile. Each invocation takes at least ``hold_s``
        seconds, so that no environment serves two. Who has not answered ``timeout_s`` seconds after
        a round has begun is left alone.

        Raises
        ------
        ParameterError
            If ``rounds`` is negative.
        WorkerError
            If nobody answers; names the first cause.
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
            self._calls.forget(tags)  # an answer after this is nobody's
            if not any(isinstance(event, Arrival) for event in self._warmed):
                causes = [event.reason for event in self._warmed if isinstance(event, Failure)]
                cause = causes[0] if causes else f"nobody answered in {timeout_s:g} s"
                raise WorkerError(f"no worker answers in the warm-up: {cause}", worker=0)

    def _submit(self, call: Call, body: bytes) -> int:
        tag = self._calls.add(call)
        self._transport.submit(tag, body)
        return tag

    def _collect(self, timeout_s: float) -> None:
        """Submit the throttled invocations that are due; settle those that have ended."""
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
        """Make an invocation's outcome its event."""
        if (call := self._calls.settled(tag)) is None:
            return  # a warm-up that nobody waited for
        self._latest = max(self._latest, at)  # in order, whatever thread saw it first
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
        """Abandon what is on its way."""
        self._calls.clear()
        self._transport.close()
        self._fetches.close()
