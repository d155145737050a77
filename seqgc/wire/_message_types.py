"""The messages between a master and its workers.

=================  ===================  ============================================================
from master        `TaskMessage`        compute this task
                   `CancelMessage`      drop the tasks of a round
                   `InvokeMessage`      compute this task, for a function that does not know the run
                   `StayMessage`        call the master and serve it, for a function that stays
from worker        `ReadyMessage`       tasks are welcome
                   `ResultMessage`      the results of a task
                   `FailureMessage`     the task cannot be computed
                   `ReceiptMessage`     the results are in the store
from either        `LeaveMessage`       the function is going to leave, or is asked to leave
=================  ===================  ============================================================

A message without arrays is a msgspec struct, which is its own header on the wire. msgspec checks
its fields while it reads them from a frame.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from seqgc.errors import WireError, one_line
from seqgc.ports import Flaw, FloatArray, Payload, Task, WeightRef, part_lengths, without_diverged
from seqgc.wire._frame import MAX_FRAME_BYTES

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
StoreKind: TypeAlias = Literal["directory", "s3", "inline"]
STORE_KINDS: Final[tuple[StoreKind, ...]] = get_args(StoreKind)

MAX_PIECES = 4096  # of one result; each costs the receiver a call
_MAX_CODE_CHARACTERS = 100

# Beyond 2**53 a JSON number is not exact everywhere.
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Name: TypeAlias = Annotated[str, Meta(max_length=200)]
Digest: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]  # SHA-256, hexadecimal
Line: TypeAlias = Annotated[str, Meta(max_length=1000)]  # `one_line` cuts a text to this length


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object in a header, with no fields but the declared ones."""


# ---- parts of messages --------------------------------------------------------------------------


class WorkloadRef(Record, frozen=True, kw_only=True, eq=False):
    """The name of a factory in the worker's image, and the factory's settings.

    It contains no code and no path to code. A worker refuses a name that its image does not
    register.

    Examples
    --------
    >>> WorkloadRef(name="least-squares", settings={"seed": 1, "features": 3}).canonical
    '["least-squares",{"features":3,"seed":1}]'
    """

    name: Name
    settings: dict[str, Any]

    @property
    def canonical(self) -> str:
        """The workload as JSON text; equal workloads have equal texts.

        Raise `WireError` if a setting has no JSON form, such as NaN.
        """
        try:
            return json.dumps(
                [self.name, self.settings], sort_keys=True, separators=(",", ":"), allow_nan=False
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise WireError(
                f"workload {self.name!r} has a setting without JSON form: {one_line(error)}"
            ) from error


class StoreRef(Record, frozen=True, kw_only=True):
    """A reference to the store of weights, and of answers that are too large for a reply.

    ``location`` is the directory's path below the mount (each side chooses its mount point),
    ``s3://bucket/prefix``, or empty for ``inline``.
    """

    kind: StoreKind
    location: Annotated[str, Meta(max_length=1000)] = ""

    def is_of(self, run_id: str) -> bool:
        """Check that the location belongs to the run: its last path component is the run's id.

        An empty component or a dot does not count, since such a path is that of its parent.
        """
        last = self.location.rpartition("/")[2]
        return self.kind == "inline" or (last == run_id and last not in ("", "."))


class Subject(Record, frozen=True, kw_only=True):
    """The identity of a task, which the task and all its answers carry.

    ``code`` names the round's gradient code. ``weights_digest`` covers all weights that the task
    uses. It is empty if the task uses no weights, the digest of the weights if there is one
    version, and otherwise the SHA-256 of the sorted digests.
    """

    round: Count
    worker: Count
    attempt: Count
    code: Annotated[str, Meta(max_length=_MAX_CODE_CHARACTERS)] = ""
    weights_digest: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""

    @property
    def address(self) -> tuple[int, int, int]:
        """Round, worker and attempt, which are unique in a run."""
        return self.round, self.worker, self.attempt


# ---- from the master ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskMessage:
    """A task for a worker.

    The worker answers no earlier than ``delay_s`` seconds after it received the task. ``payload``
    and ``rounding_seed`` are passed on to the `ResultMessage`. ``code`` (at most 100 characters)
    names the round's gradient code.
    """

    task: Task
    delay_s: float = 0.0
    payload: Payload | None = None
    rounding_seed: int | None = None
    code: str = ""

    @property
    def subject(self) -> Subject:
        """The task's identity; raise `WireError` if the code's name is too long."""
        if len(self.code) > _MAX_CODE_CHARACTERS:
            rule = f"at most {_MAX_CODE_CHARACTERS} characters"
            raise WireError(f"a code's name must have {rule}; got {len(self.code)}: shorten it")
        task = self.task
        digests = sorted({part.weights.digest for item in task.items for part in item.parts})
        digest = "".join(digests)
        if len(digests) > 1:
            digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()
        return Subject(
            round=task.round,
            worker=task.worker,
            attempt=task.attempt,
            code=self.code,
            weights_digest=digest,
        )

    def result(
        self, results: Mapping[int, FloatArray], flaws: Mapping[str, Flaw] = MappingProxyType({})
    ) -> ResultMessage:
        """Return the answer with these results, by slot, and their known ``flaws``, by model.

        Each piece of a result (`WeightedPoints.pieces`) is rounded at its own scale. With a common
        scale, a large loss would cost a small gradient its bits, within a model and between models.

        If a model's part is not finite, the model has diverged, or one of its losses is undefined.
        The message then holds zeros for the part and names the model among the flaws. The parts of
        the other models are not affected.
        """
        finite, flaws = dict(results), dict(flaws)
        pieces = {}
        for item in self.task.items:
            vector = results[item.slot]
            lengths = [n for part in part_lengths(item, vector.size) for n in part]
            pieces[item.slot] = tuple(lengths) if len(lengths) <= MAX_PIECES else (vector.size,)
            finite[item.slot], diverged = without_diverged(item, vector)
            flaws = diverged | flaws
        return ResultMessage(
            subject=self.subject,
            results=finite,
            payload=self.payload,
            rounding_seed=self.rounding_seed,
            pieces=pieces,
            flaws=flaws,
        )

    def failure(self, reason: str, *, final: bool = False) -> FailureMessage:
        """Return the message that the task will not be computed."""
        return FailureMessage(subject=self.subject, reason=reason, final=final)

    def receipt(self, *, digest: str, size_bytes: int) -> ReceiptMessage:
        """Return the message that the results' frame is in the store."""
        key = self._key(digest)
        return ReceiptMessage(subject=self.subject, key=key, digest=digest, size_bytes=size_bytes)

    def check(self, answer: AnswerMessage) -> None:
        """Raise `WireError` unless ``answer`` belongs to this task.

        It must have the task's subject, slots and payload; a receipt must have the key that
        follows from its digest.
        """
        subject = self.subject
        for name in Subject.__struct_fields__:
            _require_equal(name, getattr(answer.subject, name), getattr(subject, name))
        if isinstance(answer, ResultMessage):
            slots = sorted(item.slot for item in self.task.items)
            _require_equal("slots", sorted(answer.results), slots)
            _require_equal("payload", answer.payload, self.payload)
            models = {part.model for item in self.task.items for part in item.parts}
            if unknown := sorted(answer.flaws.keys() - models):
                raise WireError(f"answer names model {unknown[0]!r}, which its task does not")
        elif isinstance(answer, ReceiptMessage):
            _require_equal("key", answer.key, self._key(answer.digest))

    def _key(self, digest: str) -> str:
        # The digest in it keeps another answer from taking this one's place.
        return f"result-{self.task.round}-{self.task.worker}-{self.task.attempt}-{digest[:32]}"


def _require_equal(name: str, got: object, expected: object) -> None:
    if got != expected:
        raise WireError(f"answer has {name} {got!r}, its task has {expected!r}; drop it")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InvokeMessage:
    """A task for a function that knows nothing of the run, with everything that it needs.

    If the reply would have more than ``inline_limit_bytes`` as JSON, it goes into the store, and
    the function answers with a receipt. ``weights`` travel with the message; the task's other
    weights are in the store.
    """

    request: TaskMessage
    workload: WorkloadRef
    store: StoreRef
    inline_limit_bytes: int
    weights: tuple[tuple[WeightRef, FloatArray], ...] = ()


class StayMessage(Record, frozen=True, kw_only=True, tag="stay"):
    """An invocation that asks a function to call the master at ``host``:``port`` and to serve it.

    The function serves as ``worker``. ``call`` identifies the call and ``token`` proves it; both
    are random and hexadecimal. ``certificate`` (PEM) is the master's, and empty if the connection
    is not encrypted. ``workload`` and ``store`` are as in an `InvokeMessage`.

    A heartbeat is sent every ``beat_s`` seconds. The other times are seconds since the invocation
    was received: at ``leave_s`` the function says that it is going to leave, at ``end_s`` it ends
    even if it is busy, and before ``start_s`` it does not report that it is ready (this injects a
    slow start).
    """

    worker: Count
    workload: WorkloadRef
    store: StoreRef
    host: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    certificate: Annotated[str, Meta(max_length=10_000)] = ""
    call: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    token: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    beat_s: Annotated[float, Meta(gt=0, le=60)]
    leave_s: Annotated[float, Meta(gt=0, le=900)]
    end_s: Annotated[float, Meta(gt=0, le=900)]
    start_s: Annotated[float, Meta(ge=0, le=900)] = 0.0

    def __repr__(self) -> str:  # without the token
        return f"StayMessage(worker={self.worker}, host={self.host!r}, port={self.port})"


class CancelMessage(Record, frozen=True, kw_only=True, tag="cancel"):
    """A request to drop all remaining work of ``worker`` for ``round``, in every attempt."""

    round: Count
    worker: Count


# ---- from a worker ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResultMessage:
    """A task's results by slot: finite vectors of one dtype, float32 or float64.

    They travel in the format ``payload`` (None: their own dtype) and arrive rounded to it. With a
    ``rounding_seed``, 0 to 2**53, rounding is stochastic: each piece has its own generator, seeded
    with this seed, the subject's address, the slot and the piece. ``pieces`` are lengths, by slot,
    whose sum is the result's length: each piece is scaled separately before it is rounded.
    ``pieces`` are not kept on arrival. ``flaws`` describe failed parts by model; the results hold
    zeros in their place.
    """

    subject: Subject
    results: Mapping[int, FloatArray]
    payload: Payload | None = None
    rounding_seed: int | None = None
    pieces: Mapping[int, tuple[int, ...]] | None = None
    flaws: Mapping[str, Flaw] = field(default_factory=dict)


class FailureMessage(Record, frozen=True, kw_only=True, tag="failure"):
    """The message that a task will not be computed; ``reason`` is cut to one printable line.

    If it is ``final``, the worker has other code or data than the master, and the run must end.
    """

    subject: Subject
    reason: Line
    final: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "reason", one_line(self.reason))


class ReceiptMessage(Record, frozen=True, kw_only=True, tag="receipt"):
    """The message that the frame of a `ResultMessage` is in the store, under ``key``.

    `TaskMessage.receipt` makes it. ``digest`` is the SHA-256 of the frame, hexadecimal, and
    ``size_bytes`` the frame's size.
    """

    subject: Subject
    key: Name
    digest: Digest
    size_bytes: Annotated[int, Meta(ge=0, le=MAX_FRAME_BYTES)]


class ReadyMessage(Record, frozen=True, kw_only=True, tag="ready"):
    """The message that a worker accepts tasks or, if ``problem`` is not empty, never will.

    ``final`` is as in a `FailureMessage`.
    """

    worker: Count
    problem: Line = ""
    final: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "problem", one_line(self.problem))


class LeaveMessage(Record, frozen=True, kw_only=True, tag="leave"):
    """The message that the function serving as ``worker`` is going to leave, or is to leave.

    A function that is asked to leave hands back the tasks it has not begun, and lists in ``keeps``
    the tasks (round, attempt) that it will still answer. If ``keeps`` is None, nothing is handed
    back yet.
    """

    worker: Count
    reason: Line = ""
    keeps: Annotated[list[tuple[Count, Count]], Meta(max_length=10_000)] | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "reason", one_line(self.reason))


AnswerMessage: TypeAlias = ResultMessage | FailureMessage | ReceiptMessage
PlainMessage: TypeAlias = (
    CancelMessage | FailureMessage | ReceiptMessage | ReadyMessage | StayMessage | LeaveMessage
)
Message: TypeAlias = TaskMessage | InvokeMessage | ResultMessage | PlainMessage
