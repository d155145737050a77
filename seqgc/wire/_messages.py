"""What master and workers say to each other.

Master to worker: a `TaskMessage`, a `CancelMessage`. Worker to master: a `ReadyMessage`, then per
task a `ResultMessage` or a `FailureMessage`. A function that knows nothing of the run is asked by
an `InvokeMessage`, and may answer with a `ReceiptMessage`: the result is in the store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from seqgc.errors import WireError
from seqgc.ports import FloatArray, Payload, Task, WeightRef, WorkItem
from seqgc.wire._results import MAX_PIECES
from seqgc.wire._task import weights_digest

__all__ = [
    "STORE_KINDS",
    "Answer",
    "CancelMessage",
    "FailureMessage",
    "InvokeMessage",
    "Json",
    "Message",
    "ReadyMessage",
    "ReceiptMessage",
    "ResultMessage",
    "StoreKind",
    "StoreRef",
    "TaskMessage",
    "WorkloadRef",
]

Json: TypeAlias = (
    "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"  # what JSON can say
)
StoreKind: TypeAlias = Literal["directory", "s3", "inline"]
STORE_KINDS: Final[tuple[StoreKind, ...]] = get_args(StoreKind)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkloadRef:
    """What a worker computes: the name of a factory in its image, and the factory's settings.

    Nothing in it is code, or a path to code: a name that the image has not registered is refused.

    Examples
    --------
    >>> WorkloadRef(name="least-squares", settings={"seed": 1, "features": 3}).canonical
    '["least-squares",{"features":3,"seed":1}]'
    """

    name: str
    settings: Mapping[str, Json]

    @property
    def canonical(self) -> str:
        """The same text for the same workload, whatever the order of the settings.

        Raises
        ------
        WireError
            If a setting has no JSON form, as NaN.
        """
        try:
            return json.dumps(
                [self.name, dict(self.settings)],
                sort_keys=True,
                separators=(",", ":"),
                allow_nan=False,
            )
        except (TypeError, ValueError) as error:
            raise WireError(
                f"workload {self.name!r} has a setting without JSON form: {error}"
            ) from (error)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRef:
    """Where weights are, and where answers go that are too large for a reply.

    ``location``: of a directory its path below the mount, which each side mounts where it likes; of
    S3 ``s3://bucket/prefix``; of ``inline`` nothing.
    """

    kind: StoreKind
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskMessage:
    """A task; it is to be answered no earlier than ``delay_s`` seconds after it was received.

    ``payload`` and ``rounding_seed`` are what its `ResultMessage` is to have; ``code`` (at most 100
    characters) names the code that the round uses.
    """

    task: Task
    delay_s: float = 0.0
    payload: Payload | None = None
    rounding_seed: int | None = None
    code: str = ""

    @property
    def weights(self) -> str:
        """The digest of the weights that the task uses, all of them; empty if none."""
        return weights_digest(self.task)

    def answered(self, results: Mapping[int, FloatArray]) -> ResultMessage:
        """Return the answer with these results, by slot.

        Where a result is its parts' gradients, each with one more number behind it (a loss), the
        gradients and these numbers are pieces of their own: a large loss would take a small
        gradient's bits, and one model another's.
        """
        return ResultMessage(
            round=self.task.round,
            worker=self.task.worker,
            attempt=self.task.attempt,
            results=results,
            payload=self.payload,
            rounding_seed=self.rounding_seed,
            code=self.code,
            weights=self.weights,
            pieces={i.slot: _pieces(i, results[i.slot].size) for i in self.task.items},
        )

    def failed(self, reason: str) -> FailureMessage:
        """Return the answer that there will be none."""
        return FailureMessage(
            round=self.task.round,
            worker=self.task.worker,
            attempt=self.task.attempt,
            reason=reason,
            code=self.code,
            weights=self.weights,
        )

    def stored(self, *, digest: str, size_bytes: int) -> ReceiptMessage:
        """Return the answer that the results' frame is in the store, under the key due to it."""
        return ReceiptMessage(
            round=self.task.round,
            worker=self.task.worker,
            attempt=self.task.attempt,
            key=self._key(digest),
            digest=digest,
            size_bytes=size_bytes,
            code=self.code,
            weights=self.weights,
        )

    def require(self, answer: Answer) -> None:
        """Insist that ``answer`` is one to this task.

        Raises
        ------
        WireError
            If it is of another round, worker, attempt or code, was computed on other weights, its
            results are other slots', or in another format, or it lies under another answer's key.
        """
        task = self.task
        for name, due, got in (
            ("round", task.round, answer.round),
            ("worker", task.worker, answer.worker),
            ("attempt", task.attempt, answer.attempt),
            ("code", self.code, answer.code),
            ("weights", self.weights, answer.weights),
        ):
            if got != due:
                raise WireError(f"answer has {name} {got!r} where {due!r} was asked for; drop it")
        if isinstance(answer, ResultMessage):
            self._require_results(answer)
        elif isinstance(answer, ReceiptMessage) and answer.key != (due := self._key(answer.digest)):
            raise WireError(f"answer has key {answer.key!r} where {due!r} is due; drop it")

    def _key(self, digest: str) -> str:
        """Return where in the store the answer with this digest lies.

        With the digest, a repeated invocation's other answer does not take this one's place.
        """
        return f"result-{self.task.round}-{self.task.worker}-{self.task.attempt}-{digest[:32]}"

    def _require_results(self, answer: ResultMessage) -> None:
        slots = sorted(item.slot for item in self.task.items)
        if sorted(answer.results) != slots:
            got = sorted(answer.results)
            raise WireError(f"answer has slots {got} where {slots} were asked for; drop it")
        if answer.payload != self.payload:
            raise WireError(
                f"answer has payload {answer.payload} where {self.payload} was asked for; drop it"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InvokeMessage:
    """A task for a function that knows nothing of the run: everything it needs, or where it is.

    A reply of more than ``inline_limit_bytes``, as JSON, goes into the store, and its receipt is
    the answer. ``weights`` are those that travel along; others are in the store.
    """

    asked: TaskMessage
    workload: WorkloadRef
    store: StoreRef
    inline_limit_bytes: int
    weights: tuple[tuple[WeightRef, FloatArray], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResultMessage:
    """A task's results by slot: finite vectors of one dtype, float32 or float64.

    They travel in the format ``payload`` (None: their own dtype), and arrive as what that format
    made of them. With a ``rounding_seed``, 0 to 2**53, rounding is stochastic, each result's by a
    generator of its own, seeded with that, round, worker, attempt and slot. ``code`` and
    ``weights`` are the task's. ``pieces`` are lengths, by slot, that add up to the result's: each
    piece is scaled on its own before it is rounded (not kept on arrival).
    """

    round: int
    worker: int
    attempt: int
    results: Mapping[int, FloatArray]
    payload: Payload | None = None
    rounding_seed: int | None = None
    code: str = ""
    weights: str = ""
    pieces: Mapping[int, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureMessage:
    """A task that will not be answered; ``reason`` is one line."""

    round: int
    worker: int
    attempt: int
    reason: str
    code: str = ""
    weights: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptMessage:
    """A task's answer is in the store: the frame of its `ResultMessage`, under ``key``.

    `TaskMessage.stored` makes it: there is one key for a task's answer, its digest given.

    ``digest`` is the SHA-256 of the frame's ``size_bytes`` bytes, hexadecimal.
    """

    round: int
    worker: int
    attempt: int
    key: str
    digest: str
    size_bytes: int
    code: str = ""
    weights: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelMessage:
    """Whatever ``worker`` still does for ``round`` is of no use, every attempt of it."""

    round: int
    worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyMessage:
    """The worker takes tasks from now on; or never will, because of ``problem``, if not empty."""

    worker: int
    problem: str = ""


Answer: TypeAlias = ResultMessage | FailureMessage | ReceiptMessage
Message: TypeAlias = TaskMessage | InvokeMessage | Answer | CancelMessage | ReadyMessage


def _pieces(item: WorkItem, length: int) -> tuple[int, ...]:
    """Return the lengths of what a result of this length consists of: gradients, numbers behind."""
    sizes = [part.weights.size for part in item.parts]
    for pieces in ([n for size in sizes for n in (size, 1)], sizes):
        if sum(pieces) == length and 0 < len(pieces) <= MAX_PIECES:
            return tuple(pieces)
    return (length,)
