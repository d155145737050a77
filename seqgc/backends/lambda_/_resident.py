"""A backend with resident functions, which are invoked once and then get tasks over a connection.

Theory of operation
-------------------
With `LambdaBackend`, every round takes the time of invocations. Here a worker is served by one
resident function at a time, and then by its successors. `ResidentWorker` is the state of a worker,
and `Stay` is the state of one function. The transport sends the invocation of a function like any
other; the invocation lasts until the function has ended. A function has these states::

    invoked --connected, ready--> serving --announces--> leaving --successor ready--> asked
       |                             |                      |                           |
       +------------------+----------+-----------+----------+---------------------------+--> ended

- *invoked*: with a `StayMessage`, one function at a time for each worker. After HTTP 429 the
  invocation is repeated as in `LambdaBackend`.
- *serving*: frames for the worker go to this function. If a worker has no serving function, its
  tasks wait for the next function.
- *leaving*: the lease of the function ends soon. It continues to serve while its successor starts.
- *asked*: the successor is ready, and the function has been told to leave. New frames, and the
  tasks that the old function hands back, go to the successor. The old function answers the task
  that it has begun, and is disconnected.

A function is lost if its connection ends, after five silent heartbeats, or if its frames are
invalid. Each of its unanswered tasks becomes a `Failure`, and the policy decides whether to send it
again. The next function is invoked in the background: the first time at once, and then after a wait
that doubles with each failed start. After three failed starts in a row, the worker's tasks fail
until a start succeeds. There are similar waits after functions that become ready but end before
their first answer, because each of them costs money. If a lease ends during a computation, only
this task is lost.

*Times.* The switchboard's thread records the times of frames, and the master's thread makes the
decisions. The master's thread sleeps in the transport's `poll`, and the switchboard's thread wakes
it. In this way, replies of invocations and frames form one stream of events, in order of time.

*Two connections.* The function's own connection shows that the function is running. The connection
of its invocation reports its end (`Reply`), but a NAT or a proxy may break this connection. If it
breaks, a function that is ready is kept. A function that is not ready is given up.

*Access.* Each invocation contains a random call and token, and each call is accepted once
(`seqgc.worker._resident`). The frames of resident functions are checked like all other frames;
nothing is unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from seqgc._bounded import require_files
from seqgc.backends._events import EventBackend, Messaging, TaskKey, event_of, failure_of
from seqgc.backends.lambda_._messages import Invocations
from seqgc.backends.lambda_._stays import ResidentWorker, Starts, Stay, Staying, task_key
from seqgc.backends.lambda_._switchboard import Heard, Switchboard, tls_server
from seqgc.backends.lambda_._transport import Reply, Transport
from seqgc.errors import SkewError, StoreError, WireError, WorkerError
from seqgc.ports import Arrival, BlobStore, Clock, Failure, Task
from seqgc.wire import (
    MAX_FRAME_BYTES,
    CancelMessage,
    FailureMessage,
    LeaveMessage,
    ReadyMessage,
    ResultMessage,
    StayMessage,
    StoreRef,
    TaskMessage,
    WorkloadRef,
    decode,
    encode,
    envelope_bytes,
)

__all__ = ["ResidentBackend"]

_LOST_BEATS = 5
_FILES_EACH = 4  # two connections of each function, and two of its successor
_FILES = 512  # strangers and all other files


class ResidentBackend(EventBackend):
    """A backend with ``n`` workers that are resident functions. It can restart workers.

    - The constructor returns when each worker is ready, has failed to start three times, or has
      taken too long. Workers that become ready later also get tasks.
    - If a function ends, each of its unanswered tasks becomes a `Failure`, and the function is
      replaced.
    - If the code, data or package versions of a function differ from the master's, `SkewError` ends
      the run.
    - Weights are in the store, or are sent with the task. Answers of any size are sent over the
      connection.
    - A task that is cancelled before it has begun is not computed. A late answer is an `Arrival`.

    Parameters
    ----------
    transport
        Sends the invocations. Its time-out must be that of the functions, because an invocation
        lasts as long as its function. It must use the same ``clock``. `close` also closes it.
    workload, store, shared, messaging, clock
        As in `LambdaBackend`.
    staying
        See `Staying`; None means the defaults.

    Raises
    ------
    ParameterError
        If ``n`` is not positive or too large for the system's limit of open files, ``shared`` is
        missing, or the master cannot listen at the address.
    WorkerError
        If no function becomes ready. The message names the first cause.
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
        staying: Staying | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(n, messaging=messaging, clock=clock)
        self._staying = staying or Staying()
        self._invocations = Invocations(
            run_id=self._messaging.run_id,
            workload=workload,
            store=store,
            shared=shared,
            max_body_bytes=envelope_bytes(MAX_FRAME_BYTES),
        )
        self._transport = transport
        self._stays: dict[int, Stay] = {}
        self._places: Final = [ResidentWorker() for _ in range(self.n)]
        self._latest = -math.inf  # the time of the latest event
        require_files(self.n, each=_FILES_EACH, beside=_FILES)
        address = self._staying.address
        tls, certificate = (None, "") if address.plain else tls_server()
        self._switchboard = Switchboard(
            address.listener(),
            tls=tls,
            beat_s=self._staying.beat_s,
            patience=_LOST_BEATS,
            clock=self._clock,
            on_news=transport.wake,
        )
        self._starts = Starts(
            transport,
            self._switchboard,
            staying=self._staying,
            message=partial(
                StayMessage,
                workload=workload,
                store=store,
                host=self._switchboard.host,
                port=self._switchboard.port,
                certificate=certificate,
            ),
            run_id=self._messaging.run_id,
            per_s=self.n,
            clock=self._clock,
        )
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def ready(self) -> tuple[bool, ...]:
        """For each worker, True if it has a serving function."""
        return tuple(place.serving is not None for place in self._places)

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Send the tasks to the serving functions, and keep the tasks of all other workers."""
        requests = self._requests(round, tasks)
        frames = [self._invocations.frame(each) for each in requests]
        left_at = []
        for request, frame in zip(requests, frames, strict=True):
            left_at.append(self._clock.now())
            place, key = self._places[request.task.worker], task_key(request)
            if place.serving is not None:
                self._send(place.serving, request, frame)
            elif place.hopeless:
                self._fail(request.task.worker, [key], place.cause, at=left_at[-1])
            else:
                place.held[key] = request
        return left_at

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Tell these workers to drop their tasks of the round, without waiting."""
        self._check_workers(workers)
        for worker in workers:
            place = self._places[worker]
            for key in [key for key in place.held if key[0] == round]:
                del place.held[key]
            message = CancelMessage(round=round, worker=worker)
            for stay in place.stays():
                if stay.cancel(round):
                    self._switchboard.send(stay.tag, self._frame(message))
                self._release(stay)

    def restart(self, worker: int) -> None:
        """Replace a worker's function at once."""
        self._check_workers([worker])
        place = self._places[worker]
        lost = list(place.held)
        place.held.clear()
        for stay in place.stays():
            lost += stay.owed.lose()
            self._forget(stay)
        self._fail(worker, sorted(lost), "the worker was restarted")
        place.failed_starts, place.vain, place.start_at = 0, 0, -math.inf
        self._invoke_missing()

    # ---- invocations ----------------------------------------------------------------------------

    def _start(self) -> None:
        """Invoke a function for each worker; wait until each is ready or has failed."""
        give_up_at = self._clock.now() + self._staying.start_timeout_s
        self._invoke_missing()
        self._transport.flush()
        while (rest_s := give_up_at - self._clock.now()) > 0:
            if all(place.serving is not None or place.hopeless for place in self._places):
                break
            self._collect(rest_s)
        if not any(self.ready):
            causes = [place.cause for place in self._places if place.cause]
            within = f"none was ready within {self._staying.start_timeout_s:g} s"
            raise WorkerError(
                f"no function became resident: {causes[0] if causes else within}", worker=0
            )

    def _invoke_missing(self) -> None:
        """Give up functions that are too late, and invoke functions for workers without one."""
        now = self._clock.now()
        for worker, place in enumerate(self._places):
            if (
                place.coming is not None
                and now >= place.coming.began + self._staying.start_timeout_s
            ):
                took = f"was not ready within {self._staying.start_timeout_s:g} s"
                if trouble := self._switchboard.trouble:
                    took += f" (connections cannot be accepted: {trouble})"
                self._lose(place.coming, took, at=now)
            if place.lacks and place.start_at <= now:
                place.coming = stay = self._starts.invoke(worker, place.invocations)
                place.invocations += 1
                self._stays[stay.tag] = stay

    def _wake_at(self) -> float:
        """Return the next time at which the backend must act without an event."""
        patience_s = self._staying.start_timeout_s
        return min(self._starts.wake_at, *(p.due_at(patience_s) for p in self._places))

    # ---- events ---------------------------------------------------------------------------------

    def _collect(self, timeout_s: float) -> None:
        self._starts.again()
        due_s = self._wake_at() - self._clock.now()
        replies = self._transport.poll(max(0.0, min(timeout_s, due_s)))
        news: list[Reply | Heard] = [*replies, *self._switchboard.take()]
        for each in sorted(news, key=lambda each: each.at):
            if isinstance(each, Reply):
                self._replied(each)
            else:
                self._heard(each)
        self._invoke_missing()

    def _replied(self, reply: Reply) -> None:
        """Record the end of an invocation, or the end of its connection."""
        stay = self._stays.get(reply.tag)
        if self._starts.replied(stay, reply) or stay is None:
            return
        if reply.ran or not stay.ready:  # otherwise the function's own connection decides
            self._lose(stay, reply.error or "the function ended", at=reply.at)

    def _heard(self, heard: Heard) -> None:
        if (stay := self._stays.get(heard.tag)) is None:
            return  # the function has been disconnected
        if heard.frame is None:
            self._lose(stay, f"the function is lost: {heard.why}", at=heard.at)
            return
        try:
            for event in self._events_of(stay, heard):
                self._latest = max(self._latest, heard.at)
                self._tell(replace(event, at=self._latest))
        except WireError as error:
            # After an invalid frame, later data of this connection cannot be trusted.
            self._lose(stay, f"{type(error).__name__}: {error}", at=heard.at)

    def _events_of(self, stay: Stay, heard: Heard) -> Iterator[Arrival | Failure]:
        """Process the frame of a function; if it is the answer of a task, yield the event."""
        assert heard.frame is not None
        match decode(heard.frame, run_id=self._messaging.run_id):
            case ResultMessage() | FailureMessage() as answer if (
                answer.subject.worker == stay.worker
            ):
                event = event_of(answer, at=heard.at)
                request = stay.requests.pop((event.round, event.attempt), None)
                if request is None:
                    return  # the task has been answered already, or was never sent
                request.check(answer)
                stay.answered, self._places[stay.worker].vain = True, 0
                if stay.owed.settle(event):
                    yield event
                self._release(stay)
            case ReadyMessage(worker=stay.worker, final=True, problem=problem):
                raise SkewError(problem, worker=stay.worker)
            case ReadyMessage(worker=stay.worker, problem=problem) if not stay.ready:
                if problem:
                    self._lose(stay, problem, at=heard.at)
                else:
                    self._welcome(stay)
            case LeaveMessage(worker=stay.worker, keeps=None) if not stay.asked:
                stay.leaving = True
            case LeaveMessage(worker=stay.worker, keeps=keeps) if stay.asked and keeps is not None:
                self._take_back(stay, keeps)
            case message:
                kind = type(message).__name__
                raise WireError(f"worker {stay.worker} sent an unexpected {kind}")

    def _welcome(self, stay: Stay) -> None:
        """Let a function that has become ready serve, and tell its predecessor to leave."""
        place = self._places[stay.worker]
        predecessor, place.serving, place.coming = place.serving, stay, None
        stay.ready, place.failed_starts, place.cause = True, 0, ""
        if predecessor is not None:
            predecessor.asked = True
            place.asked.append(predecessor)
            leave = LeaveMessage(worker=stay.worker, reason="its successor is ready")
            self._switchboard.send(predecessor.tag, self._frame(leave))
        self._feed(place)

    def _feed(self, place: ResidentWorker) -> None:
        """Send the waiting tasks to the serving function, if there is one."""
        if place.serving is None:
            return
        held, place.held = place.held, {}
        for key, request in held.items():
            try:
                frame = self._invocations.frame(request)
            except (WireError, StoreError) as error:  # for example, the weights were removed
                self._fail(request.task.worker, [key], str(error), at=self._clock.now())
            else:
                self._send(place.serving, request, frame)

    def _send(self, stay: Stay, request: TaskMessage, frame: bytes) -> None:
        stay.owe(request)
        self._switchboard.send(stay.tag, frame)

    def _take_back(self, stay: Stay, keeps: Sequence[TaskKey]) -> None:
        """Send the tasks that a function has not begun to its successor."""
        place = self._places[stay.worker]
        place.held |= stay.hand_back(keeps)
        self._feed(place)
        self._release(stay)

    def _release(self, stay: Stay) -> None:
        """Disconnect a function that was told to leave and has answered all its tasks."""
        if stay.asked and stay.handed_back and not stay.owed.tasks:
            self._forget(stay)

    def _lose(self, stay: Stay, why: str, *, at: float) -> None:
        """Remove a function that has ended, and report its unanswered tasks as failed."""
        place, lost = self._places[stay.worker], stay.owed.lose()
        if place.coming is stay:
            place.start_failed(why, at=at)
        elif place.serving is stay and not stay.answered:
            place.served_nobody(at=at)
        self._forget(stay)
        self._fail(stay.worker, lost, why, at=at)
        if place.hopeless:
            held, place.held = place.held, {}
            self._fail(stay.worker, sorted(held), place.cause, at=at)

    def _forget(self, stay: Stay) -> None:
        place = self._places[stay.worker]
        place.coming = None if place.coming is stay else place.coming
        place.serving = None if place.serving is stay else place.serving
        place.asked = [each for each in place.asked if each is not stay]
        self._starts.hang_up(stay)
        del self._stays[stay.tag]

    def _fail(self, worker: int, keys: list[TaskKey], why: str, at: float | None = None) -> None:
        self._latest = max(self._latest, self._clock.now() if at is None else at)
        for key in keys:  # without ``at``, this backend itself is the cause, and the time is now
            failure = failure_of((key[0], worker, key[1]), at=self._latest, reason=why)
            self._tell(failure, is_own=at is None)

    def _frame(self, message: CancelMessage | LeaveMessage) -> bytes:
        return encode(message, run_id=self._messaging.run_id)

    def _end(self) -> None:
        stays, self._stays = self._stays, {}
        self._starts.close(stays.values())
