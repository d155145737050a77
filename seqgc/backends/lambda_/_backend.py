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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from seqgc.backends._events import EventBackend, Messaging, failure_of
from seqgc.backends.lambda_._calls import Call, Calls
from seqgc.backends.lambda_._messages import Invocations
from seqgc.backends.lambda_._threads import CallThreads, Ended
from seqgc.backends.lambda_._throttle import ThrottlePolicy
from seqgc.backends.lambda_._transport import Reply, Transport
from seqgc.errors import ParameterError, StoreError, WireError, WorkerError
from seqgc.ports import Arrival, BlobStore, Clock, Failure, FloatArray, Task
from seqgc.wire import (
    MESSAGE_LIMIT_BYTES,
    FailureMessage,
    ReceiptMessage,
    StoreRef,
    TaskMessage,
    WorkloadRef,
)

__all__ = ["Invoking", "LambdaBackend"]

_FETCHES = 8  # at once: what boto3's usual pool of connections has room for


_Ended: TypeAlias = Ended[Mapping[int, FloatArray]]
_Outcome: TypeAlias = Mapping[int, FloatArray] | Exception | str  # results, or why there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoking:
    """How a backend invokes its function.

    Parameters
    ----------
    throttling
        How HTTP 429 is met.
    max_body_bytes
        Of an invocation, and of its answer, as JSON.
    warm_up_rounds
        How often to invoke every worker before the backend is there (see `LambdaBackend.warm_up`).

    Raises
    ------
    ParameterError
        If there cannot be so many warm-up rounds.
    """

    throttling: ThrottlePolicy = field(default_factory=ThrottlePolicy)
    max_body_bytes: int = MESSAGE_LIMIT_BYTES
    warm_up_rounds: int = 0

    def __post_init__(self) -> None:
        if self.warm_up_rounds < 0:
            raise ParameterError("warm_up_rounds", "must be >= 0", self.warm_up_rounds)


class LambdaBackend(EventBackend):
    """``n`` workers, each round's tasks as invocations; a `seqgc.ports.Backend`.

    A worker is a number: which of the function's environments serves its task is Lambda's choice,
    and one that still computes for an old round keeps nobody waiting.

    - What fails is a `Failure`, in one line: an error in computing, a function that crashed or ran
      out of time (with the last line it logged), a refused or broken connection, a damaged answer,
      or one to something else. Nothing is repeated here: that is the policy's decision.
    - But a throttled invocation, which no function has seen, is submitted again by ``throttling``,
      and a `Failure` only when its patience ends.
    - An answer that lies in the store is fetched by a thread, several at once, and arrives when it
      is there: whoever waits for another one is not held up.
    - Invocations cannot be stopped. `cancel` takes back what throttling has kept from being
      submitted; others run out, their answers are `Arrival` events, late, and their failures are
      no events. A late answer that lies in the store is removed unread: it has no results.
    - Nothing is sent that Lambda would not carry, nor anything whose answer it would not.

    Parameters
    ----------
    n
        Number of workers.
    transport
        Carries the invocations; `close` closes it.
    workload
        What the function computes: a factory's name in its registry, and JSON settings.
    store
        Where functions find weights and put large answers, as they see it.
    shared
        The same store as the master sees it, which several threads may use; may be None where
        ``store`` is of kind "inline": then no weights travel.
    messaging
        What messages say beside their tasks, and how results travel; None: the usual. What is
        delayed is paid for.
    invoking
        Throttling, sizes, warm-up; None: the usual.
    clock
        What events are stamped with; `time.monotonic` unless given. The transport must have the
        same.

    Raises
    ------
    ParameterError
        If ``n`` is not positive, there is no such ``payload``, or ``shared`` is missing.
    WorkerError
        If no worker answers a warm-up round.

    Examples
    --------
    >>> import math
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
        self._calls = Calls(invoking.throttling)
        self._fetches = CallThreads[Mapping[int, FloatArray]](
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

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Submit the tasks; return when each of them left, in their order.

        Raises
        ------
        ParameterError
            If a task is another round's, its worker does not exist, or its delay is no time.
        WireError
            If a task cannot be sent, or its answer could not be; then none has been.
        StoreError
            If weights that must travel along are not in the store; then no task has been sent.
        WorkerError
            If the backend is closed.
        """
        requests = self._requests(round, tasks)
        bodies = [self._invocations.body(each) for each in requests]
        left_at = []
        for each, body in zip(requests, bodies, strict=True):
            left_at.append(self._clock.now())
            self._submit(Call(request=each), body)
        self._transport.flush()
        return left_at

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Take note that these workers' tasks of the round are of no more use.

        What waits because it was throttled is not submitted any more.
        """
        self._check_cancel(workers)
        self._calls.cancel(round, set(workers))

    def warm_up(self, rounds: int, *, hold_s: float = 0.2, timeout_s: float = 120.0) -> None:
        """Invoke every worker, ``rounds`` times, with a task that asks for nothing.

        Environments start, import what they need and make the workload before anything is timed;
        none of it is an event, or part of a profile.

        Parameters
        ----------
        rounds
            How often, >= 0.
        hold_s
            Each invocation takes at least this long, seconds, so that no environment serves two.
        timeout_s
            For each round, seconds; who has not answered by then is left alone.

        Raises
        ------
        ParameterError
            If ``rounds`` is negative.
        WorkerError
            If nobody answers; names the first cause. Or if the backend is closed.
        """
        self._check_open()
        if rounds < 0:
            raise ParameterError("warm_up_rounds", "must be >= 0", rounds)
        for number in range(rounds):
            self._warm_up_once(number, hold_s, timeout_s)

    # ---- invocations out ------------------------------------------------------------------------

    def _submit(self, call: Call, body: bytes) -> int:
        tag = self._calls.add(call)
        self._transport.submit(tag, body)
        return tag

    def _submit_again(self) -> list[_Ended]:
        """Submit the throttled invocations that are due; return those that cannot be any more."""
        now = self._clock.now()
        ended: list[_Ended] = []
        for tag, call in self._calls.due(now=now):
            try:
                body = self._invocations.body(call.request)
            except (WireError, StoreError) as error:  # its weights may be gone
                ended.append(Ended(tag=tag, at=now, value=error))
            else:
                self._transport.submit(tag, body)
        return ended

    def _warm_up_once(self, number: int, hold_s: float, timeout_s: float) -> None:
        self._warmed.clear()
        tags = []
        for worker in range(self.n):
            task = Task(round=number, worker=worker, attempt=0, items=())
            request = TaskMessage(task=task, delay_s=hold_s)
            tags.append(
                self._submit(Call(request=request, warm_up=True), self._invocations.body(request))
            )
        give_up_at = self._clock.now() + timeout_s
        while len(self._warmed) < self.n and (left := give_up_at - self._clock.now()) > 0:
            self._collect(left)
        self._calls.forget(tags)  # an answer after this is nobody's
        if not any(isinstance(event, Arrival) for event in self._warmed):
            causes = [event.reason for event in self._warmed if isinstance(event, Failure)]
            cause = causes[0] if causes else f"nobody answered in {timeout_s:g} s"
            raise WorkerError(f"no worker answers in the warm-up: {cause}", worker=0)

    # ---- replies in -----------------------------------------------------------------------------

    def _collect(self, timeout_s: float) -> None:
        news: list[Reply | _Ended] = [*self._submit_again()]
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
        answer = self._understood(call, reply)
        if isinstance(answer, ReceiptMessage):
            self._fetch(reply.tag, call, answer)
        else:
            self._settle(reply.tag, answer, at=reply.at)

    def _understood(self, call: Call, reply: Reply) -> _Outcome | ReceiptMessage:
        if reply.throttled:
            return (
                f"{reply.error}; throttled {call.refusals} times in a row: raise the "
                "function's reserved concurrency or the account's, or use fewer workers"
            )
        if reply.body is None:
            return reply.error or "the reply is empty"
        try:
            answer = self._invocations.answer(call.request, reply.body)
        except (WireError, StoreError) as error:
            return error
        return answer.reason if isinstance(answer, FailureMessage) else answer

    def _fetch(self, tag: int, call: Call, receipt: ReceiptMessage) -> None:
        call.fetching = True
        redeemed = partial(
            self._invocations.redeemed, call.request, receipt, wanted=lambda: not call.cancelled
        )
        self._fetches.submit(tag, redeemed)

    def _settle(self, tag: int, outcome: _Outcome, *, at: float) -> None:
        """Make an invocation's outcome its event."""
        if (call := self._calls.settled(tag)) is None:
            return  # a warm-up that nobody waited for
        self._latest = max(self._latest, at)  # in order, whatever thread saw it first
        event = _event(call.request.task, outcome, at=self._latest)
        if call.warm_up:
            self._warmed.append(event)
        elif isinstance(event, Arrival) or not call.cancelled:
            self._tell(event)

    def _end(self) -> None:
        """Abandon what is on its way."""
        self._calls.clear()
        self._transport.close()
        self._fetches.close()


def _event(task: Task, outcome: _Outcome, *, at: float) -> Arrival | Failure:
    round, worker, attempt = task.round, task.worker, task.attempt
    if isinstance(outcome, Exception):
        outcome = f"{type(outcome).__name__}: {outcome}"
    if isinstance(outcome, str):
        return failure_of((round, worker, attempt), at=at, reason=outcome)
    return Arrival(round=round, worker=worker, attempt=attempt, at=at, results=outcome)
