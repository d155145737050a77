"""The messages between a master and its workers.

=================  ===================  ============================================================
from master        `TaskMessage`        compute this task
                   `CancelMessage`      drop the tasks of a round
                   `InvokeMessage`      to a function that does not know the run: compute this task
                   `StayMessage`        to a function: connect to the master and become resident
from worker        `ReadyMessage`       the worker accepts tasks
                   `ResultMessage`      the results of a task, or of one of its mini-tasks
                   `FailureMessage`     the task cannot be computed
                   `ReceiptMessage`     the results are in the store
from either        `LeaveMessage`       the function is going to leave, or is told to leave
=================  ===================  ============================================================

A message without arrays is a msgspec struct, and also the header of its frame. While msgspec parses
a frame, it checks the fields.
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
from seqgc.ports import (
    Flaw,
    FloatArray,
    Payload,
    Task,
    TaskPhases,
    WeightRef,
    part_lengths,
    without_diverged,
)
from seqgc.wire._frame import MAX_FRAME_BYTES

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
StoreKind: TypeAlias = Literal["directory", "s3", "inline"]
STORE_KINDS: Final[tuple[StoreKind, ...]] = get_args(StoreKind)

MAX_PIECES = 4096  # of one result; the receiver calls a function for each piece
_MAX_CODE_CHARACTERS = 100

# Some JSON parsers cannot represent integers above 2**53 exactly.
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Name: TypeAlias = Annotated[str, Meta(max_length=200)]
Digest: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]  # SHA-256, hexadecimal
_Seconds: TypeAlias = Annotated[float, Meta(ge=0, lt=1e9)]
Phases: TypeAlias = tuple[_Seconds, _Seconds, _Seconds, _Seconds]  # see `TaskPhases`
Line: TypeAlias = Annotated[str, Meta(max_length=1000)]  # `one_line` cuts a text to this length


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object in a header. Undeclared fields cause an error."""


# ---- parts of messages --------------------------------------------------------------------------


class WorkloadRef(Record, frozen=True, kw_only=True, eq=False):
    """The name of a factory in the worker's image, and the factory's settings.

    The factory makes the function that computes gradients. A reference contains no code and no path
    to code. A worker rejects a name that its image does not register.

    Examples
    --------
    >>> WorkloadRef(name="least-squares", settings={"seed": 1, "features": 3}).canonical
    '["least-squares",{"features":3,"seed":1}]'
    """

    name: Name
    settings: dict[str, Any]

    @property
    def canonical(self) -> str:
        """The reference as JSON text. Equal references have equal texts.

        Raises `WireError` if a setting cannot be written as JSON, for example NaN.
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
    """A reference to the store of weights and of answers that are too large for a reply.

    ``location`` depends on ``kind``. For ``directory`` it is a path below the mount point of the
    shared file system, which may differ between master and workers. For ``s3`` it is
    ``s3://bucket/prefix``, and for ``inline`` it is empty.
    """

    kind: StoreKind
    location: Annotated[str, Meta(max_length=1000)] = ""

    def is_of(self, run_id: str) -> bool:
        """Return True if the location belongs to the run: its last component is the run's id.

        An id that is empty or a dot does not count, because the path would be the parent's path.
        """
        last = self.location.rpartition("/")[2]
        return self.kind == "inline" or (last == run_id and last not in ("", "."))


class Subject(Record, frozen=True, kw_only=True):
    """The identity of a task. The task and all its answers contain it.

    ``code`` names the round's gradient code. ``weights_digest`` identifies all weights that the
    task uses. If the task uses no weights, it is empty. If it uses one version of weights, it is
    their digest. Otherwise it is the SHA-256 of the sorted digests.
    """

    round: Count
    worker: Count
    attempt: Count
    code: Annotated[str, Meta(max_length=_MAX_CODE_CHARACTERS)] = ""
    weights_digest: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""

    @property
    def address(self) -> tuple[int, int, int]:
        """The tuple (round, worker, attempt), which is unique in a run."""
        return self.round, self.worker, self.attempt


# ---- from the master ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskMessage:
    """A task for a worker.

    The worker answers no earlier than ``delay_s`` seconds after it has received the task. The
    `ResultMessage` gets the same ``payload`` and ``rounding_seed``. ``code`` (at most 100
    characters) names the round's gradient code.

    If ``part_delays_s`` has a number for each item of the task, the worker answers each item by
    itself, no earlier than these seconds after it has received the task. The last number is
    ``delay_s``.
    """

    task: Task
    delay_s: float = 0.0
    part_delays_s: tuple[float, ...] = ()
    payload: Payload | None = None
    rounding_seed: int | None = None
    code: str = ""

    @property
    def subject(self) -> Subject:
        """The identity of the task. Raises `WireError` if the name of the code is too long."""
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
        self,
        results: Mapping[int, FloatArray],
        flaws: Mapping[str, Flaw] = MappingProxyType({}),
        *,
        is_last: bool = True,
        phases: TaskPhases | None = None,
    ) -> ResultMessage:
        """Return the answer with these results (by slot), known ``flaws`` (by model) and phases.

        If ``is_last`` is False, another answer to the task follows.

        Each piece of a result (`WeightedPoints.pieces`) is rounded at its own scale. With a common
        scale, a small gradient would lose precision next to a large loss.

        If the part of a model is not finite, the model has diverged, or its loss is undefined. The
        message then has zeros for this part, and a flaw for the model. The parts of other models
        are unchanged.
        """
        finite, flaws = dict(results), dict(flaws)
        pieces = {}
        for item in self.task.items:
            if item.slot not in results and self.part_delays_s:
                continue  # another answer has it
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
            is_last=is_last,
            phases=phases,
        )

    def delay_of(self, answer: ResultMessage) -> float:
        """Return the least seconds between the arrival of the task and one of its answers."""
        if answer.is_last:
            return self.delay_s
        slots = [item.slot for item in self.task.items]
        return max(self.part_delays_s[slots.index(slot)] for slot in answer.results)

    def failure(self, reason: str, *, final: bool = False) -> FailureMessage:
        """Return the message that reports that this task will not be computed."""
        return FailureMessage(subject=self.subject, reason=reason, final=final)

    def receipt(
        self, *, digest: str, size_bytes: int, phases: TaskPhases | None = None
    ) -> ReceiptMessage:
        """Return the message that reports that the frame of the results is in the store."""
        return ReceiptMessage(
            subject=self.subject,
            key=self._key(digest),
            digest=digest,
            size_bytes=size_bytes,
            phases=phases,
        )

    def check(self, answer: AnswerMessage) -> None:
        """Raise `WireError` unless ``answer`` is the only answer to this task.

        The answer must have the subject, slots and payload of the task. The key of a receipt must
        follow from the receipt's digest.
        """
        subject = self.subject
        for name in Subject.__struct_fields__:
            _require_equal(name, getattr(answer.subject, name), getattr(subject, name))
        if isinstance(answer, ResultMessage):
            slots = sorted(item.slot for item in self.task.items)
            _require_equal("is_last", answer.is_last, True)
            _require_equal("slots", sorted(answer.results), slots)
            _require_equal("payload", answer.payload, self.payload)
            models = {part.model for item in self.task.items for part in item.parts}
            if unknown := sorted(answer.flaws.keys() - models):
                raise WireError(f"answer names model {unknown[0]!r}, which its task does not")
        elif isinstance(answer, ReceiptMessage):
            _require_equal("key", answer.key, self._key(answer.digest))

    def _key(self, digest: str) -> str:
        # The key contains the digest, so that another answer cannot replace the stored one.
        return f"result-{self.task.round}-{self.task.worker}-{self.task.attempt}-{digest[:32]}"


def _require_equal(name: str, got: object, expected: object) -> None:
    if got != expected:
        raise WireError(f"answer has {name} {got!r}, its task has {expected!r}; drop it")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InvokeMessage:
    """A task for a cloud function, with all information that the function needs about the run.

    If the reply would have more than ``inline_limit_bytes`` as JSON, the function puts the results
    into the store and answers with a receipt. ``weights`` are sent in the message; all other
    weights of the task are in the store.
    """

    request: TaskMessage
    workload: WorkloadRef
    store: StoreRef
    inline_limit_bytes: int
    weights: tuple[tuple[WeightRef, FloatArray], ...] = ()


class StayMessage(Record, frozen=True, kw_only=True, tag="stay"):
    """An invocation that makes a function resident.

    The function connects to the master at ``host``:``port`` and computes the tasks of worker
    ``worker``. ``call`` identifies the connection, and ``token`` is a secret with which both sides
    prove themselves; both are random and hexadecimal. ``certificate`` (PEM) is the master's
    certificate; it is empty if the connection is not encrypted. ``workload`` and ``store`` are as
    in an `InvokeMessage`.

    A heartbeat is sent every ``beat_s`` seconds. The other times are in seconds since the function
    received the invocation. At ``leave_s`` the function announces that it is going to leave. At
    ``end_s`` it ends even if it is busy. Before ``start_s`` it does not report that it is ready,
    which imitates a slow start.
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

    def __repr__(self) -> str:  # the token must not appear in logs
        return f"StayMessage(worker={self.worker}, host={self.host!r}, port={self.port})"


class CancelMessage(Record, frozen=True, kw_only=True, tag="cancel"):
    """A request to ``worker`` to drop all its tasks of ``round``."""

    round: Count
    worker: Count


# ---- from a worker ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResultMessage:
    """The results of a task: for each slot a finite vector; all have dtype float32 or float64.

    The results are rounded to the number format ``payload``; None means that they are sent
    unchanged. If ``rounding_seed`` (0 to 2**53) is given, rounding is stochastic. Each piece of a
    result has its own generator, which is seeded with ``rounding_seed``, the subject's address, the
    slot and the number of the piece. ``pieces`` gives the lengths of the pieces of each result.
    Each piece is scaled separately before it is rounded. A message that was received has no
    ``pieces``. ``flaws`` describes, by model, the parts that failed; the results have zeros there.

    If ``is_last`` is False, the message has the only result of one mini-task, without flaws, and
    the worker continues with the task (`TaskMessage.part_delays_s`).
    ``phases`` is the worker's account of its time.
    """

    subject: Subject
    results: Mapping[int, FloatArray]
    payload: Payload | None = None
    rounding_seed: int | None = None
    pieces: Mapping[int, tuple[int, ...]] | None = None
    flaws: Mapping[str, Flaw] = field(default_factory=dict)
    is_last: bool = True
    phases: TaskPhases | None = None


class FailureMessage(Record, frozen=True, kw_only=True, tag="failure"):
    """The message that reports that a task will not be computed.

    ``reason`` is shortened to one printable line. If ``final``, the worker's code or data differ
    from the master's, and the run must end.
    """

    subject: Subject
    reason: Line
    final: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "reason", one_line(self.reason))


class ReceiptMessage(Record, frozen=True, kw_only=True, tag="receipt"):
    """The message that reports that the frame of a `ResultMessage` is in the store, under ``key``.

    ``digest`` is the SHA-256 of the frame, in hexadecimal, and ``size_bytes`` is the frame's size.
    ``phases`` is the worker's account of its time. It is not in the frame, so that equal results
    have the same key.
    """

    subject: Subject
    key: Name
    digest: Digest
    size_bytes: Annotated[int, Meta(ge=0, le=MAX_FRAME_BYTES)]
    phases: Phases | None = None


class ReadyMessage(Record, frozen=True, kw_only=True, tag="ready"):
    """The message that reports that a worker accepts tasks.

    If ``problem`` is not empty, the worker cannot accept any task, and ``problem`` is the reason.
    ``final`` is as in a `FailureMessage`.
    """

    worker: Count
    problem: Line = ""
    final: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "problem", one_line(self.problem))


class LeaveMessage(Record, frozen=True, kw_only=True, tag="leave"):
    """The message with which a resident function leaves, or the master tells it to leave.

    The function serves as ``worker``. When the master tells it to leave, the function hands back
    the tasks that it has not begun. Its answer lists in ``keeps`` the tasks (round, attempt) that
    it will still compute. In other messages ``keeps`` is None.
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
