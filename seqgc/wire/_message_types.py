"""What master and workers say to each other.

Master to worker: a `TaskMessage`, a `CancelMessage`. Worker to master: a `ReadyMessage`, then per
task a `ResultMessage` or a `FailureMessage`. A function that knows nothing of the run is asked by
an `InvokeMessage`, and may answer with a `ReceiptMessage`: the result is in the store. One that is
to stay is invoked by a `StayMessage`, calls its master, and is asked over that connection; either
side says by a `LeaveMessage` that it is to end.

Messages without arrays are msgspec structs: each is its own header on the wire, and msgspec checks
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

MAX_PIECES = 4096  # of one result; each costs the receiver a call, however short it is
_MAX_CODE_CHARACTERS = 100

# Beyond 2**53 a JSON number is not exact everywhere.
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Name: TypeAlias = Annotated[str, Meta(max_length=200)]
Digest: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]  # SHA-256, hexadecimal
Line: TypeAlias = Annotated[str, Meta(max_length=1000)]  # what `one_line` leaves


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object of a header: its fields, no others, of their types and ranges."""


# ---- what a task is about -----------------------------------------------------------------------


class WorkloadRef(Record, frozen=True, kw_only=True, eq=False):
    """What a worker computes: the name of a factory in its image, and the factory's settings.

    Nothing in it is code, or a path to code: a name that the image has not registered is refused.

    Examples
    --------
    >>> WorkloadRef(name="least-squares", settings={"seed": 1, "features": 3}).canonical
    '["least-squares",{"features":3,"seed":1}]'
    """

    name: Name
    settings: dict[str, Any]

    @property
    def canonical(self) -> str:
        """The same text for the same workload; `WireError` if a setting has no JSON form (NaN)."""
        try:
            return json.dumps(
                [self.name, self.settings], sort_keys=True, separators=(",", ":"), allow_nan=False
            )
        except (TypeError, ValueError, RecursionError) as error:
            rule = f"workload {self.name!r} has a setting without JSON form"
            raise WireError(f"{rule}: {one_line(error)}") from error


class StoreRef(Record, frozen=True, kw_only=True):
    """Where weights are, and where answers go that are too large for a reply.

    ``location``: of a directory its path below the mount, which each side mounts where it likes; of
    S3 ``s3://bucket/prefix``; of ``inline`` nothing.
    """

    kind: StoreKind
    location: Annotated[str, Meta(max_length=1000)] = ""

    def is_of(self, run_id: str) -> bool:
        """Whether nothing there is another run's: a location's last part is its run's id.

        Neither nothing nor a dot is a part: a path of it is that of the part before.
        """
        last = self.location.rpartition("/")[2]
        return self.kind == "inline" or (last == run_id and last not in ("", "."))


class Subject(Record, frozen=True, kw_only=True):
    """Which task a message is, or answers.

    ``code`` names the code that the round uses. ``weights_digest`` is that of all the weights that
    the task uses: their own if there is one version, else that of their digests, sorted; empty if
    there are none.
    """

    round: Count
    worker: Count
    attempt: Count
    code: Annotated[str, Meta(max_length=_MAX_CODE_CHARACTERS)] = ""
    weights_digest: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""

    @property
    def address(self) -> tuple[int, int, int]:
        """Round, worker, attempt: no two tasks of a run have the same."""
        return self.round, self.worker, self.attempt


# ---- from the master ----------------------------------------------------------------------------


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
    def subject(self) -> Subject:
        """What the task's own header and all its answers say of it; `WireError` if it cannot."""
        if len(self.code) > _MAX_CODE_CHARACTERS:
            rule = f"at most {_MAX_CODE_CHARACTERS} characters"
            raise WireError(f"a code's name has {rule}; got {len(self.code)}: shorten it")
        task, code = self.task, self.code
        digests = sorted({part.weights.digest for item in task.items for part in item.parts})
        own = "".join(digests)
        if len(digests) > 1:
            own = hashlib.sha256("\n".join(digests).encode()).hexdigest()
        round, worker, attempt = task.round, task.worker, task.attempt
        return Subject(round=round, worker=worker, attempt=attempt, code=code, weights_digest=own)

    def result(
        self, results: Mapping[int, FloatArray], flaws: Mapping[str, Flaw] = MappingProxyType({})
    ) -> ResultMessage:
        """Return the answer with these results, by slot, and their known ``flaws``, by model.

        If a result has the pieces that its parts name (`WeightedPoints.pieces`), each piece is
        rounded at a scale of its own. With one scale for all, a large loss would cost a small
        gradient its bits, and one model would cost another.

        A part that is not finite is zeros in the message, and its model is named there: it has
        diverged, or a loss of it is undefined, and the other models' parts are as good as ever.
        """
        finite, flaws = dict(results), dict(flaws)
        pieces = {}
        for item in self.task.items:
            vector = results[item.slot]
            lengths = [n for part in part_lengths(item, vector.size) for n in part]
            pieces[item.slot] = tuple(lengths) if len(lengths) <= MAX_PIECES else (vector.size,)
            finite[item.slot], wrong = without_diverged(item, vector)
            flaws = wrong | flaws
        return ResultMessage(
            subject=self.subject,
            results=finite,
            payload=self.payload,
            rounding_seed=self.rounding_seed,
            pieces=pieces,
            flaws=flaws,
        )

    def failure(self, reason: str, *, final: bool = False) -> FailureMessage:
        """Return the answer that there will be none."""
        return FailureMessage(subject=self.subject, reason=reason, final=final)

    def receipt(self, *, digest: str, size_bytes: int) -> ReceiptMessage:
        """Return the answer that the results' frame is in the store, under the key due to it."""
        key = self._key(digest)
        return ReceiptMessage(subject=self.subject, key=key, digest=digest, size_bytes=size_bytes)

    def check(self, answer: AnswerMessage) -> None:
        """Raise `WireError` unless ``answer`` is one to this task.

        It is of its round, worker, attempt, code and weights; results are its slots', in its
        format; a receipt's key is the answer's own.
        """
        subject = self.subject
        for name in Subject.__struct_fields__:
            got, due = getattr(answer.subject, name), getattr(subject, name)
            if got != due:
                raise WireError(f"answer has {name} {got!r} where {due!r} was asked for; drop it")
        if isinstance(answer, ResultMessage):
            slots, payload = sorted(item.slot for item in self.task.items), self.payload
            if (got := sorted(answer.results)) != slots:
                raise WireError(f"answer has slots {got} where {slots} were asked for; drop it")
            if (got := answer.payload) != payload:
                raise WireError(f"answer has payload {got} where {payload} was asked for; drop it")
            models = {part.model for item in self.task.items for part in item.parts}
            if strange := sorted(answer.flaws.keys() - models):
                raise WireError(f"answer is about model {strange[0]!r}, which was not asked for")
        elif isinstance(answer, ReceiptMessage) and answer.key != (due := self._key(answer.digest)):
            raise WireError(f"answer has key {answer.key!r} where {due!r} is due; drop it")

    def _key(self, digest: str) -> str:
        """Return the answer's key: with its digest, no other answer can take its place."""
        return f"result-{self.task.round}-{self.task.worker}-{self.task.attempt}-{digest[:32]}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InvokeMessage:
    """A task for a function that knows nothing of the run: everything it needs, or where it is.

    A reply of more than ``inline_limit_bytes``, as JSON, goes into the store, and its receipt is
    the answer. ``weights`` are those that travel along; others are in the store.
    """

    request: TaskMessage
    workload: WorkloadRef
    store: StoreRef
    inline_limit_bytes: int
    weights: tuple[tuple[WeightRef, FloatArray], ...] = ()


class StayMessage(Record, frozen=True, kw_only=True, tag="stay"):
    """An invocation to call the master at ``host``:``port``, and to serve as ``worker`` from there.

    ``call`` names it there and ``token`` proves it, both random, hexadecimal; ``certificate`` (PEM)
    is the master's, empty if the connection is not encrypted. What is to be computed and where
    weights are is as in an `InvokeMessage`. All times are seconds: of a heartbeat; from when the
    invocation was received until the function says that it is going to leave, until it ends
    whatever it does, and until it may be ready (0 but where a slow start is injected).
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
    """Whatever ``worker`` still does for ``round`` is of no use, every attempt of it."""

    round: Count
    worker: Count


# ---- from a worker ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResultMessage:
    """A task's results by slot: finite vectors of one dtype, float32 or float64.

    They travel in the format ``payload`` (None: their own dtype), and arrive as what that format
    made of them. With a ``rounding_seed``, 0 to 2**53, rounding is stochastic, each result's by a
    generator of its own, seeded with that, the subject's address and the slot. ``pieces`` are
    lengths, by slot, that add up to the result's: each piece is scaled on its own before it is
    rounded (not kept on arrival). ``flaws`` are what is wrong with results, by the models whose
    they are: zeros stand in their places.
    """

    subject: Subject
    results: Mapping[int, FloatArray]
    payload: Payload | None = None
    rounding_seed: int | None = None
    pieces: Mapping[int, tuple[int, ...]] | None = None
    flaws: Mapping[str, Flaw] = field(default_factory=dict)


class FailureMessage(Record, frozen=True, kw_only=True, tag="failure"):
    """A task that will not be answered; ``reason`` becomes one printable line.

    ``final``: the run is to end, as the worker has other code or data than the master.
    """

    subject: Subject
    reason: Line
    final: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "reason", one_line(self.reason))


class ReceiptMessage(Record, frozen=True, kw_only=True, tag="receipt"):
    """A task's answer is in the store: the frame of its `ResultMessage`, under ``key``.

    `TaskMessage.receipt` makes it: there is one key for a task's answer, its digest given. That is
    the SHA-256 of the frame's ``size_bytes`` bytes, hexadecimal.
    """

    subject: Subject
    key: Name
    digest: Digest
    size_bytes: Annotated[int, Meta(ge=0, le=MAX_FRAME_BYTES)]


class ReadyMessage(Record, frozen=True, kw_only=True, tag="ready"):
    """The worker takes tasks from now on; or never will, because of ``problem``, if not empty.

    ``final`` is as of a `FailureMessage`.
    """

    worker: Count
    problem: Line = ""
    final: bool = False

    def __post_init__(self) -> None:  # one printable line
        force_setattr(self, "problem", one_line(self.problem))


class LeaveMessage(Record, frozen=True, kw_only=True, tag="leave"):
    """Whoever serves as ``worker`` is going to leave, or is asked to; ``reason`` becomes one line.

    A function that was asked to hands back what it has not begun, and ``keeps`` the tasks (round,
    attempt) that it is still going to answer. None: nothing is handed back yet.
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
