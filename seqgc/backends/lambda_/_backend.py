"""Workers as invocations of one Lambda function."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from seqgc.backends._tasks import Delays, MonotonicClock, TaskMessages, check_worker
from seqgc.backends.lambda_._messages import Invocations
from seqgc.backends.lambda_._throttle import Throttle, ThrottlePolicy
from seqgc.backends.lambda_._transport import MAX_BODY_BYTES, Reply, Transport
from seqgc.errors import ParameterError, StoreError, WireError, WorkerError
from seqgc.payloads import Payload
from seqgc.ports import Arrival, BlobStore, Clock, Failure, Task
from seqgc.wire import FailureMessage, StoreRef, TaskMessage, WorkloadRef

__all__ = ["LambdaBackend"]


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    """An invocation that has not been answered."""

    asked: TaskMessage
    sent: float = -math.inf  # when its round's tasks had left
    refusals: int = 0  # in a row, by throttling
    cancelled: bool = False
    warm_up: bool = False


class LambdaBackend:
    """``n`` workers, each round's tasks as invocations; a `seqgc.ports.Backend`.

    A worker is a number: which of the function's environments serves its task is Lambda's choice,
    and one that still computes for an old round keeps nobody waiting.

    - What fails is a `Failure`, in one line: an error in computing, a function that crashed or ran
      out of time (with the last line it logged), a refused or broken connection, a damaged answer,
      or one to something else. Nothing is repeated here: that is the policy's decision.
    - But a throttled invocation, which no function has seen, is submitted again by ``throttling``,
      and a `Failure` only when its patience ends.
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
        The same store as the master sees it; may be None where ``store`` is of kind "inline": then
        no weights travel.
    run_id
        Written into every frame; frames of another run are refused. Functions keep what they make
        for a run by it: no two runs may share one.
    rounding_name
        Seeds stochastic rounding, so that a repeated run of that name rounds alike; ``run_id``
        unless given.
    code
        Names the code that the run uses, at most 100 characters; written into every frame.
    delays
        ``delays(round, worker)``, seconds: the function answers no earlier than this after it was
        invoked (and is paid for it). First attempts only. None: no delays.
    payload, stochastic_rounding
        The format in which results travel, and how they are rounded; see `LocalBackend`.
    throttling
        How HTTP 429 is met.
    max_body_bytes
        Of an invocation, and of its answer, as JSON.
    warm_up_rounds
        How often to invoke every worker before this returns (see `warm_up`).
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
    >>> from seqgc.backends.lambda_ import AsyncTransport, Target
    >>> from seqgc.wire import StoreRef, WorkloadRef
    >>> target = Target.invoke_api("seqgc-worker", region="eu-west-1", qualifier="live")
    >>> workload = WorkloadRef(name="least-squares", settings={"seed": 1})
    >>> def open_backend(n):
    ...     transport = AsyncTransport(target, timeout_s=60.0)
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
        run_id: str = "lambda",
        rounding_name: str | None = None,
        code: str = "",
        delays: Delays | None = None,
        payload: Payload | None = None,
        stochastic_rounding: bool = False,
        throttling: ThrottlePolicy | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        warm_up_rounds: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._messages = TaskMessages(
            n=n,
            run_id=run_id if rounding_name is None else rounding_name,
            delays=delays,
            payload=payload,
            stochastic_rounding=stochastic_rounding,
            code=code,
        )
        self._invocations = Invocations(
            run_id=run_id,
            workload=workload,
            store=store,
            shared=shared,
            max_body_bytes=max_body_bytes,
        )
        self._transport = transport
        self._clock: Clock = MonotonicClock() if clock is None else clock
        self._policy = ThrottlePolicy() if throttling is None else throttling
        self._throttle = Throttle(self._policy)
        self._tags = itertools.count()
        self._calls: dict[int, _Call] = {}
        self._events: deque[Arrival | Failure] = deque()
        self._warmed: list[Arrival | Failure] = []
        self._latest = -math.inf  # event's time
        self._closed = False
        try:
            self.warm_up(warm_up_rounds)
        except BaseException:
            self.close()
            raise

    @property
    def n(self) -> int:
        """Number of workers."""
        return self._messages.n

    @property
    def outstanding(self) -> int:
        """How many invocations have not been answered, late and throttled ones among them."""
        return len(self._calls)

    def dispatch(self, round: int, tasks: Sequence[Task]) -> float:
        """Submit the tasks; return the time at which they had been submitted.

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
        self._check_open()
        asked = [self._messages.message(round, task) for task in tasks]
        bodies = [self._invocations.body(each) for each in asked]
        calls = [_Call(asked=each) for each in asked]
        for call, body in zip(calls, bodies, strict=True):
            self._submit(call, body)
        self._transport.flush()
        sent = self._clock.now()
        for call in calls:
            call.sent = sent
        return sent

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Take note that these workers' tasks of the round are of no more use.

        What waits because it was throttled is not submitted any more.
        """
        self._check_open()
        for worker in workers:
            check_worker(worker, self.n)
        unwanted = {(round, worker) for worker in workers}
        for tag, call in list(self._calls.items()):
            task = call.asked.task
            if (task.round, task.worker) in unwanted and not call.warm_up:
                call.cancelled = True
                if self._throttle.forget(tag):
                    del self._calls[tag]

    def receive(self, until: float) -> Arrival | Failure | None:
        """Return the next event whose ``at`` is at most ``until``; None once ``until`` has passed.

        Raises
        ------
        WorkerError
            If the backend is closed.
        """
        self._check_open()
        self._collect(0.0)
        while not self._events and (left := until - self._clock.now()) > 0:
            self._collect(left)
        if self._events and self._events[0].at <= until:
            return self._events.popleft()
        return None

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

    def close(self) -> None:
        """Abandon what is on its way; harmless if done already."""
        self._closed = True
        self._events.clear()
        self._calls.clear()
        self._transport.close()

    def __enter__(self) -> LambdaBackend:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- invocations out ------------------------------------------------------------------------

    def _submit(self, call: _Call, body: bytes) -> int:
        tag = next(self._tags)
        self._calls[tag] = call
        self._transport.submit(tag, body)
        return tag

    def _submit_again(self) -> None:
        for tag in self._throttle.ready(now=self._clock.now()):
            self._transport.submit(tag, self._invocations.body(self._calls[tag].asked))

    def _warm_up_once(self, number: int, hold_s: float, timeout_s: float) -> None:
        self._warmed.clear()
        tags = []
        for worker in range(self.n):
            task = Task(round=number, worker=worker, attempt=0, items=())
            asked = TaskMessage(task=task, delay_s=hold_s)
            tags.append(
                self._submit(_Call(asked=asked, warm_up=True), self._invocations.body(asked))
            )
        give_up_at = self._clock.now() + timeout_s
        while len(self._warmed) < self.n and (left := give_up_at - self._clock.now()) > 0:
            self._collect(left)
        for tag in tags:  # an answer after this is nobody's
            self._throttle.forget(tag)
            self._calls.pop(tag, None)
        if not any(isinstance(event, Arrival) for event in self._warmed):
            causes = [event.reason for event in self._warmed if isinstance(event, Failure)]
            cause = causes[0] if causes else f"nobody answered in {timeout_s:g} s"
            raise WorkerError(f"no worker answers in the warm-up: {cause}", worker=0)

    # ---- replies in -----------------------------------------------------------------------------

    def _collect(self, timeout_s: float) -> None:
        """Take in what has come, waiting for it at most ``timeout_s`` seconds."""
        self._submit_again()
        due_s = self._throttle.wake_at - self._clock.now()
        for reply in self._transport.poll(max(0.0, min(timeout_s, due_s))):
            self._take(reply)

    def _take(self, reply: Reply) -> None:
        call = self._calls.get(reply.tag)
        if call is None:
            return  # nothing was asked, or it has been answered
        if reply.throttled and call.refusals < self._policy.max_resubmissions:
            self._refuse(reply, call)
            return
        del self._calls[reply.tag]
        if reply.throttled:
            self._throttle.abandoned(reply.tag)
        else:
            self._throttle.accepted(reply.tag)
        event = self._event(call, reply, at=self._stamp(call, reply))
        if call.warm_up:
            self._warmed.append(event)
        elif isinstance(event, Arrival) or not call.cancelled:
            self._events.append(event)

    def _refuse(self, reply: Reply, call: _Call) -> None:
        call.refusals += 1
        self._throttle.refused(reply.tag, refusals=call.refusals, now=reply.at)
        if call.cancelled:
            self._throttle.forget(reply.tag)
            del self._calls[reply.tag]

    def _stamp(self, call: _Call, reply: Reply) -> float:
        """Return when the reply came, but not before its round began: some outrun the last task."""
        self._latest = max(self._latest, call.sent, reply.at)
        return self._latest

    def _event(self, call: _Call, reply: Reply, *, at: float) -> Arrival | Failure:
        task = call.asked.task
        reason, results = reply.error or "the reply is empty", None
        if reply.throttled:
            reason += (
                f"; throttled {call.refusals + 1} times in a row: raise the function's reserved "
                "concurrency or the account's, or use fewer workers"
            )
        elif reply.body is not None:
            try:
                answer = self._invocations.answer(call.asked, reply.body, wanted=not call.cancelled)
            except (WireError, StoreError, ParameterError) as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                if isinstance(answer, FailureMessage):
                    reason = answer.reason
                else:
                    results = answer
        address = {"round": task.round, "worker": task.worker, "attempt": task.attempt}
        if results is None:
            return Failure(**address, at=at, reason=reason)
        return Arrival(**address, at=at, results=results)

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerError("the backend is closed: make a new one")
