"""`Scheme` (frozen parameters), the `Entry` that names it, and `Schedule` (one run's state)."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Final, get_type_hints

import numpy as np

from seqgc.codes import GradientCode
from seqgc.errors import (
    IllConditionedError,
    NotDecodableError,
    ParameterError,
    ScheduleError,
    require_int,
)
from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, Payload
from seqgc.schemes._assignment import Assignment
from seqgc.schemes._cut import even_cut
from seqgc.schemes._grid import Grid
from seqgc.stragglers import StragglerModel


class Scheme(ABC):
    """How redundancy is spread over workers and rounds; frozen, picklable, ``eval(repr(x)) == x``.

    A scheme of your own is a frozen dataclass with the field ``n``, registered under a name
    (`seqgc.schemes.register`); `seqgc.testing.check_scheme` says whether it keeps this contract.
    """

    n: int
    """Workers."""

    @property
    @abstractmethod
    def delay(self) -> int:
        """T: job ``t`` is decoded by the end of round ``t + T``."""

    @property
    @abstractmethod
    def worker_loads(self) -> FloatArray:
        """(n,) the most of a batch that each worker touches in a round, as a fraction of it."""

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether every decoded gradient is the gradient, and none an approximation."""

    @property
    @abstractmethod
    def tolerated(self) -> int:
        """Stragglers that the scheme's inner gradient code tolerates (``s``, or lam for M-SGC)."""

    @property
    @abstractmethod
    def chunk_fractions(self) -> FloatArray:
        """(num_chunks,) share of the batch of each chunk; sums to 1."""

    @property
    @abstractmethod
    def promise(self) -> StragglerModel:
        """The straggler patterns under which no job is ever late."""

    @abstractmethod
    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        """Begin a run of ``num_jobs`` jobs, which takes ``num_jobs + delay`` rounds.

        ``conformity`` is what `Schedule.conforms` judges by, instead of the scheme's own promise.
        """

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:  # noqa: ARG003 (for overriding)
        """Yield what a search should look at, smaller parameters first; nothing by default."""
        return ()

    def points_touched(self, sizes: IntArray) -> IntArray | None:  # noqa: ARG002 (for overriding)
        """Return how many of the chunks' data points each worker touches in a round at most, (n,).

        None: it has not been worked out; then batches are cut by largest remainder, and loads are
        nominal.
        """
        return None

    def begin(
        self,
        num_jobs: int,
        *,
        conformity: StragglerModel | None = None,
        batches: Iterable[int] = (),
    ) -> Schedule:
        """Return `start`'s schedule, without what batches of these sizes put no point into."""
        schedule = self.start(num_jobs, conformity=conformity)
        if cuts := [self.cut(batch) for batch in batches]:
            schedule.leave_out(np.max(cuts, axis=0) == 0)
        return schedule

    def cut(self, batch_size: int) -> IntArray:
        """Return how many of a batch's data points each chunk takes, (num_chunks,), read-only.

        They sum to the batch, and the busiest worker touches as few as may be; chunks may be empty.
        `ParameterError`: ``batch_size < 1``.

        Examples
        --------
        >>> from seqgc.schemes import MSGC
        >>> scheme = MSGC(n=256, B=1, W=2, lam=27)
        >>> int(scheme.points_touched(scheme.cut(4096)).max()), 4096 * scheme.normalized_load
        (32, 30.89655172413793)
        """
        return _cut(self, batch_size)

    def loads_of(self, batch_size: int | None) -> FloatArray:
        """Return the loads (n,) where batches of a size are cut to whole points; None: the nominal.

        Workers that have equal loads but for that are all charged what the busiest one touches.
        """
        return self.worker_loads if batch_size is None else _cut_loads(self, batch_size)

    @property
    def normalized_load(self) -> float:
        """Largest fraction of a batch that a worker touches in a round."""
        return float(self.worker_loads.max())

    @property
    def load_lower_bound(self) -> float:
        """Lower bound on the load of any exact scheme with this one's promise and delay."""
        return self.promise.load_lower_bound(self.n, delay=self.delay)

    @property
    def spec(self) -> str:
        """The scheme as the command line spells it, for `parse_scheme`; see `entry_of`."""
        return entry_of(self).spec(self)

    def _keep_integers(self, *arguments: str) -> None:
        """Have these fields be Python's integers (numpy's overflow, and stay in `repr`); n >= 1."""
        for argument in arguments:
            object.__setattr__(self, argument, require_int(argument, getattr(self, argument)))
        if self.n < 1:
            raise ParameterError("n", "must be >= 1 (workers)", self.n)

    def _equal_loads(self, load: float) -> FloatArray:
        """Return `worker_loads` of a scheme in which every worker has the same load."""
        return _equal_loads(self.n, load)


@lru_cache(maxsize=4096)
def _equal_loads(n: int, load: float) -> FloatArray:
    return np.broadcast_to(np.float64(load), (n,))


@lru_cache(maxsize=256)
def _cut(scheme: Scheme, batch_size: int) -> IntArray:
    fractions, least = scheme.chunk_fractions, batch_size * scheme.normalized_load
    return even_cut(batch_size, fractions, touched=scheme.points_touched, least=least)


@lru_cache(maxsize=2**15)  # a search asks again for every closing rule
def _cut_loads(scheme: Scheme, batch_size: int) -> FloatArray:
    nominal, touched = scheme.worker_loads, scheme.points_touched(_cut(scheme, batch_size))
    if touched is None:
        return nominal
    loads: FloatArray = touched / batch_size
    if (nominal == nominal[0]).all():
        return np.broadcast_to(loads.max(), loads.shape)
    loads.setflags(write=False)
    return loads


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """A name that specs begin with: a scheme's class, and the fields that the name fixes."""

    name: str
    kind: type[Scheme]
    fixed: Mapping[str, object]

    @cached_property
    def _fields(self) -> dict[str, dataclasses.Field[object]]:
        """What a spec names: the other fields, but for ``n``."""
        fields = dataclasses.fields(self.kind)  # type: ignore[arg-type]  # `register` saw to it
        left_out = {"n", *self.fixed}
        return {each.name: each for each in fields if each.init and each.name not in left_out}

    @cached_property
    def parameters(self) -> dict[str, type]:
        """The parameters of the spec and their types, in the order of the fields."""
        hints = get_type_hints(self.kind)
        return {name: hints[name] if hints[name] in (int, float) else str for name in self._fields}

    @property
    def required(self) -> list[str]:
        """The parameters that a spec must give."""
        missing = dataclasses.MISSING
        return [name for name, field in self._fields.items() if field.default is missing]

    def spec(self, scheme: Scheme) -> str:
        """Spell a scheme of this name; what is left at its default is left out."""
        values = {name: getattr(scheme, name) for name in self._fields}
        chosen = [f"{k}={v}" for k, v in values.items() if v != self._fields[k].default]
        return ":".join(filter(None, [self.name, ",".join(chosen)]))


ENTRIES: Final[dict[str, Entry]] = {}
"""What is registered, by name: `seqgc.schemes.register` alone adds to it."""


def entry_of(scheme: Scheme) -> Entry:
    """Return the entry that names a scheme.

    `ParameterError`: its class, or its choice of fixed fields, is not registered.
    """
    fitting = [
        entry
        for entry in ENTRIES.values()
        if type(scheme) is entry.kind
        and all(getattr(scheme, key) == value for key, value in entry.fixed.items())
    ]
    if fitting:
        return max(fitting, key=lambda entry: len(entry.fixed))  # the name that says most
    rule = "must be registered to have a spec: decorate its class with @register(name)"
    raise ParameterError("scheme", rule, scheme)


class Schedule(ABC):
    """One run of a scheme: assigns each round's tasks, and knows when a job can be decoded.

    `close_round` is the only mutator once a run is under way. It replaces state and never edits it
    in place, so that ``copy.copy(schedule)`` is a snapshot, and a refused transition changes
    nothing.
    """

    _reach: int | None = None
    """How many of the latest rounds decide everything that follows, and what they finished.

    None: all of them may. Whoever sets it (>= 1) sees to it that `_begin_at` is enough.
    """

    def __init__(
        self, scheme: Scheme, num_jobs: int, *, conformity: StragglerModel | None = None
    ) -> None:
        self.num_jobs: Final = require_int("num_jobs", num_jobs, least=1)
        self.num_rounds: Final = self.num_jobs + scheme.delay
        self.n: Final = scheme.n
        self._model = scheme.promise if conformity is None else conformity
        self._allow_error = 0.0
        self._round = 0
        self._past: BoolArray = np.zeros((0, scheme.n), dtype=np.bool_)  # stragglers, latest last
        self._excused: BoolArray = np.zeros(scheme.n, dtype=np.bool_)
        self._leaves_out = False

    @property
    def round(self) -> int:
        """The round that is open, 0-based; ``num_rounds`` once all are closed."""
        return self._round

    @property
    def excused(self) -> BoolArray:
        """(n,) who has no data point at all: asked for nothing, and never a straggler."""
        return self._excused

    @property
    def leaves_out(self) -> bool:
        """Whether some mini-task is never sent because it has no data point."""
        return self._leaves_out

    def leave_out(self, empty: BoolArray) -> None:
        """Say which chunks hold no data point, (num_chunks,), before the first round closes.

        A mini-task with nothing but such chunks is never sent, and counts as received: the partial
        gradient is zero. (A schedule that does not do so sends it, and waits for the zeros.)
        `ScheduleError`: a round is closed already.
        """
        if self._round:
            raise ScheduleError("chunks are left out before the first round, or not at all")
        self._leaves_out = bool(empty.any()) and self._leave_out(empty)

    def assignment(self) -> Assignment:
        """Who does what in the open round (trivial mini-tasks left out); idempotent."""
        self._require_open()
        return self._assign()

    def conforms(self, responded: BoolArray) -> bool:
        """Whether the pattern so far, this round included, fits the scheme's straggler model.

        More answers never hurt. Only windows that end with this round are judged: the earlier ones
        were, when they closed.
        """
        responded = self._checked(responded)
        return self._model.admits(np.concatenate([self._past, ~responded[None]]))

    def feasible(self, responded: BoolArray) -> bool:
        """Whether closing the round with these answers loses no job; more answers never hurt.

        That is, if nobody straggled from then on, every job in flight would be decoded by its
        deadline, and the job due now can be decoded (docs/mathematics.md, section 6).
        """
        return self._feasible(self._checked(responded))

    def decodes_well(self, responded: BoolArray, payload: Payload = "float64") -> bool:
        """Whether what closing the round would settle, for good, decodes to a useful precision."""
        try:
            for code, answers in self._settles(self._checked(responded)):
                code.usable_vector(answers, payload, allow_error=self._allow_error)
        except (IllConditionedError, NotDecodableError):
            return False
        return True

    def close_round(self, responded: BoolArray) -> tuple[int, ...]:
        """Close the open round with the answers (n,) to be used; return the jobs that it finished.

        `NotDecodableError`: the job due now cannot be decoded, and nothing has changed;
        `ScheduleError`: every round is closed already.
        """
        responded = self._checked(responded)
        finished = self._advance(responded)
        past = np.concatenate([self._past, ~responded[None]])
        self._past = past[max(0, len(past) + 1 - self._model.window) :]
        self._round += 1
        return finished

    def repeat(self, answers: Sequence[BoolArray]) -> None:
        """Close the first rounds as they were closed before, on these answers (n,) each.

        It takes time for those rounds alone on which something still depends, and these raise what
        `close_round` does. `ScheduleError`: a round is closed already.
        """
        if self._round:
            raise ScheduleError("rounds are repeated before any other closes, or not at all")
        first = 0 if self._reach is None else max(0, len(answers) - self._reach)
        window = answers[max(0, len(answers) + 1 - self._model.window) : first]
        past = [~self._checked(responded) for responded in window]
        self._past = np.array(past, dtype=np.bool_).reshape(-1, self.n)
        self._round = first
        self._begin_at(first)
        for number in range(first, len(answers)):
            self.close_round(answers[number])

    @abstractmethod
    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:
        """Return the gradient of a job that the latest `close_round` finished, as a sum.

        ``payload``, the format in which results travel, says how much amplification is bearable.
        `ScheduleError`: the latest `close_round` did not finish ``job``; `IllConditionedError`: the
        answers determine the gradient, but not to a useful precision.
        """

    def _leave_out(self, empty: BoolArray) -> bool:  # noqa: ARG002 (for overriding)
        """Take note of chunks without data points; say whether a mini-task has no others."""
        return False

    def _begin_at(self, round: int) -> None:  # noqa: B027 (for overriding)
        """Begin at a round instead of the first, as if no earlier job had been: see `_reach`."""

    @abstractmethod
    def _assign(self) -> Assignment: ...

    @abstractmethod
    def _feasible(self, responded: BoolArray) -> bool: ...

    @abstractmethod
    def _settles(self, responded: BoolArray) -> list[tuple[GradientCode, BoolArray]]:
        """Return codes and answers (n,) that suffice, and that no later round adds to."""

    @abstractmethod
    def _advance(self, responded: BoolArray) -> tuple[int, ...]: ...

    def _require_open(self) -> None:
        if self._round >= self.num_rounds:
            raise ScheduleError(f"all {self.num_rounds} rounds are closed: start a new schedule")

    def _checked(self, responded: BoolArray) -> BoolArray:
        self._require_open()
        is_mask = isinstance(responded, np.ndarray) and responded.dtype == np.bool_
        if not is_mask or responded.shape != (self.n,):
            value = (getattr(responded, "dtype", type(responded).__name__), np.shape(responded))
            raise ParameterError("responded", f"must be a boolean array ({self.n},)", value)
        return responded | self._excused

    def _late(self, job: int) -> NotDecodableError:
        what = f"job {job} is due in round {self._round} and cannot be decoded"
        return NotDecodableError(f"{what}: wait for more answers", job=job, round=self._round)

    def _not_finished(self, job: int) -> ScheduleError:
        return ScheduleError(f"job {job} was not finished by the round closed last: decode it then")
