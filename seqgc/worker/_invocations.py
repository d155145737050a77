"""The worker in a cloud function. Each invocation contains everything that it needs to know."""

from __future__ import annotations

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final, TypeAlias

from seqgc import wire
from seqgc.errors import StoreError, WireError, reraise_stop
from seqgc.ports import BlobStore, FloatArray, WeightRef, WeightStore
from seqgc.wire import InvokeMessage, ResultMessage, StayMessage, StoreRef, WorkloadRef
from seqgc.worker._serving import StayReport
from seqgc.worker._timing import TIMER
from seqgc.worker._workloads import Compute, Registry, failure_of, run_task

_WARM = 2  # number of computes to keep, because two runs may use a function in turn
_STORES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationReport:
    """A summary of an invocation, for logs and metrics.

    Byte counts are sizes of frames. ``compute_s``, in seconds, includes the time to fetch the
    weights. If ``warm`` is false, it also includes the time to build the model.
    """

    reply: Mapping[str, object]  # the JSON object to return
    run_id: str
    round: int
    worker: int
    attempt: int
    failure: str  # one line, empty if the task was computed
    warm: bool
    compute_s: float
    received_bytes: int
    sent_bytes: int
    stored_bytes: int  # put into the store instead of the reply


Report: TypeAlias = InvocationReport | StayReport


class FunctionWorker:
    """A worker that answers invocations one at a time.

    A compute is a function that computes gradients, with its models. The worker keeps computes and
    weights between invocations, to save time. A compute is used again only for the same run and
    workload (the factory's name and settings), and weights only for the same run and digest. Data
    of another run are therefore never used. There are no threads: if an answer has an injected
    delay, the worker sleeps.

    ``open_store`` returns the store that an invocation refers to, and raises an error for a store
    that the image must not open. All cached weights together have at most ``cached_bytes`` bytes,
    by default a quarter of the function's memory, but at most 256 MB. A frame has at most
    ``max_bytes`` bytes.

    Examples
    --------
    >>> from seqgc.ports import Task
    >>> from seqgc.wire import TaskMessage, WorkloadRef
    >>> registry = Registry()
    >>> _ = registry.register("nothing")(lambda settings, fetch_weights: None)
    >>> worker = FunctionWorker(registry, lambda ref: None)  # small results need no store
    >>> message = InvokeMessage(
    ...     request=TaskMessage(task=Task(round=4, worker=1, attempt=0, items=())),
    ...     workload=WorkloadRef(name="nothing", settings={}),
    ...     store=StoreRef(kind="inline"),
    ...     inline_limit_bytes=6_000_000,
    ... )
    >>> report = worker.serve(wire.to_mapping(wire.encode(message, run_id="r")))
    >>> wire.decode(wire.from_json(report.reply), run_id="r").subject.round
    4
    """

    def __init__(
        self,
        registry: Registry,
        open_store: Callable[[StoreRef], BlobStore],
        *,
        max_bytes: int = wire.MAX_FRAME_BYTES,
        cached_bytes: int | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._registry, self._max_bytes = registry, max_bytes
        self._now, self._sleep = now, sleep
        self.cached_bytes: Final = _cache_bytes() if cached_bytes is None else cached_bytes
        self._warm: Final[OrderedDict[tuple[str, str], tuple[Compute, _RunWeights]]] = OrderedDict()
        self._store: Final = lru_cache(maxsize=_STORES)(open_store)

    def serve(self, event: Mapping[str, object] | str | bytes) -> Report:
        """Answer an invocation and return a report with the reply.

        If the event is a `StayMessage`, first serve tasks as a resident function until the stay
        ends. If the computation raises an error, the reply is a `FailureMessage`. Raise
        `WireError` if ``event`` is not an invocation, and `WorkerError` if the master of a resident
        function cannot be reached. The service then reports that the function failed.
        """
        received = self._now()
        TIMER.begin()
        frame = wire.from_json(event, max_bytes=self._max_bytes)
        run_id, message = wire.decode_invocation(frame, max_bytes=self._max_bytes)
        if isinstance(message, StayMessage):
            return self._stay(run_id, message)
        warm = (run_id, message.workload.canonical) in self._warm
        failure, stored = "", 0
        try:
            result = self._result(message, self._compute(run_id, message.workload))
            assert result is not None, "an invocation cannot be cancelled"
            computed = self._now()
            if (wait_s := received + message.request.delay_s - self._now()) > 0:
                self._sleep(wait_s)
            reply, stored = self._fitted(run_id, message, result)
        except BaseException as error:
            reraise_stop(error)
            computed = self._now()
            why, final = failure_of(error)
            failed = message.request.failure(why, final=final)
            reply, failure = wire.encode(failed, run_id=run_id), failed.reason
        task = message.request.task
        return InvocationReport(
            reply=wire.to_mapping(reply),
            run_id=run_id,
            round=task.round,
            worker=task.worker,
            attempt=task.attempt,
            failure=failure,
            warm=warm,
            compute_s=computed - received,
            received_bytes=len(frame),
            sent_bytes=len(reply),
            stored_bytes=stored,
        )

    def _stay(self, run_id: str, message: StayMessage) -> StayReport:
        from seqgc.worker._resident import stay  # imports asyncio and ssl

        def answer(
            request: wire.TaskMessage | InvokeMessage, cancelled: Callable[[], bool]
        ) -> Iterator[tuple[float, bytes]]:
            if isinstance(request, wire.TaskMessage):
                raise WireError("a function must get an InvokeMessage; got a TaskMessage")
            made = self._compute(run_id, request.workload)
            if (result := self._result(request, made, cancelled)) is not None:
                yield request.request.delay_s, wire.encode(result, run_id=run_id)

        make = partial(self._compute, run_id, message.workload)
        return stay(run_id, message, make=make, answer=answer)

    def _result(
        self,
        message: InvokeMessage,
        made: tuple[Compute, _RunWeights],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> ResultMessage | None:
        """Return the results of a task, or None if it was cancelled."""
        compute, weights = made
        with weights.lent(dict(message.weights), lambda: self._store(message.store)):
            computed = run_task(message.request.task, compute, cancelled=cancelled)
        if computed is None:
            return None
        return message.request.result(*computed, phases=TIMER.phases())

    def _compute(self, run_id: str, workload: WorkloadRef) -> tuple[Compute, _RunWeights]:
        key = (run_id, workload.canonical)
        if key not in self._warm:
            factory = self._registry.find(workload.name)
            weights = _RunWeights(self._make_room)
            with TIMER.phase("started_s"):
                self._warm[key] = factory(workload.settings, weights.fetch), weights
            while len(self._warm) > _WARM:
                self._warm.popitem(last=False)
        self._warm.move_to_end(key)
        return self._warm[key]

    def _make_room(self, size: int) -> None:
        """Drop cached weights until there is room for ``size`` more bytes.

        The run that was used longest ago loses its weights first. Of a run's weights, the lowest
        version is dropped first, because later rounds use higher versions.
        """
        caches = [weights.cache for _, weights in self._warm.values()]
        while any(caches):
            cached_bytes = sum(params.nbytes for each in caches for params in list(each.values()))
            if cached_bytes + size <= self.cached_bytes:
                break
            oldest = next(cache for cache in caches if cache)
            oldest.pop(min(list(oldest), key=lambda ref: ref.version), None)

    def _fitted(
        self, run_id: str, message: InvokeMessage, result: ResultMessage
    ) -> tuple[bytes, int]:
        """Return the frame of a reply, and the number of bytes that were put into the store.

        The reply is ``result`` if it fits. Otherwise the result is stored, without its phases, so
        that equal results have equal bytes; and the reply is a receipt.
        """
        frame = wire.encode(result, run_id=run_id)
        if wire.envelope_bytes(len(frame)) <= message.inline_limit_bytes:
            return frame, 0
        frame = wire.encode(replace(result, phases=None), run_id=run_id)
        digest = hashlib.sha256(frame).hexdigest()
        receipt = message.request.receipt(
            digest=digest, size_bytes=len(frame), phases=result.phases
        )
        self._store(message.store).put(receipt.key, frame)
        return wire.encode(receipt, run_id=run_id), len(frame)


# ---- weights ------------------------------------------------------------------------------------

_MOST_BYTES = 256 << 20


def _cache_bytes() -> int:
    # Model, data and gradients need most of the memory.
    megabytes = os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "")
    quarter = (int(megabytes) << 20) // 4 if megabytes.isdecimal() else _MOST_BYTES
    return min(quarter, _MOST_BYTES)


class _RunWeights:
    """The cached weights of one run. The digests of all weights have been checked."""

    def __init__(self, make_room: Callable[[int], None]) -> None:
        self.cache: Final[dict[WeightRef, FloatArray]] = {}
        self._make_room = make_room
        self._inline: Mapping[WeightRef, FloatArray] = {}
        self._open: Callable[[], WeightStore] | None = None

    @contextmanager
    def lent(
        self, inline: Mapping[WeightRef, FloatArray], open_store: Callable[[], WeightStore]
    ) -> Iterator[None]:
        """In this block, let `fetch` take weights from ``inline`` or from the store."""
        self._inline, self._open = inline, open_store
        try:
            yield
        finally:
            self._inline, self._open = {}, None

    def fetch(self, ref: WeightRef) -> FloatArray:
        """Return the read-only weights (size,) that ``ref`` names, or raise `StoreError`."""
        if (cached := self.cache.get(ref)) is not None:
            return cached
        if (inline := self._inline.get(ref)) is not None:
            params = inline.copy()  # a view would keep all bytes of the invocation in memory
            params.flags.writeable = False
        elif self._open is None:
            rule = "can be fetched only while a task is computed"
            raise StoreError(f"weights of {ref.model!r}, version {ref.version} {rule}")
        else:
            with TIMER.phase("fetched_s"):
                params = self._open().fetch(ref)
        if ref not in self.cache:  # another thread may have been faster
            self._make_room(params.nbytes)
            self.cache[ref] = params
        return params


# ---- addresses for fault plans (`seqgc.local_lambda.FaultPlan`) ---------------------------------


def task_address(body: bytes | bytearray) -> tuple[int, int, int] | None:
    """Return (round, worker, attempt) of the task in a request, or None if it has no task."""
    message = _invocation(body)
    if not isinstance(message, InvokeMessage):
        return None
    task = message.request.task
    return task.round, task.worker, task.attempt


def worker_address(body: bytes | bytearray) -> tuple[int] | None:
    """Return the worker of a request as a tuple ``(worker,)``, or None if it names no worker."""
    message = _invocation(body)
    if isinstance(message, StayMessage):
        return (message.worker,)
    return None if message is None else (message.request.task.worker,)


def _invocation(body: bytes | bytearray) -> InvokeMessage | StayMessage | None:
    try:
        return wire.decode_invocation(wire.from_json(body))[1]
    except WireError:
        return None
