from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seqgc._tabular import Summarised, counted, number
from seqgc.errors import ParameterError, ProfileError, require_int, require_number
from seqgc.ports import BoolArray, FloatArray
from seqgc.profiles._censored import completed, drawn

__all__ = [
    "CENSORED",
    "FAILED",
    "LATE",
    "MOST_S",
    "SCHEMA",
    "DelayProfile",
    "ProfileMeta",
    "StatusArray",
]

SCHEMA = 1
# Limits of recorded times and of the cost of work, in seconds. Beyond them, sums overflow or lose
# the time of a single round.
_LEAST_S, MOST_S = 1e-9, 1e15
StatusArray: TypeAlias = npt.NDArray[np.int8]
FAILED: Final = 1
"""Status of a task that failed. Its time is the time until the failure was known."""
LATE: Final = 2
"""Status of a task without an answer within the time limit. The limit counts as its time."""
CENSORED: Final = 3
"""Status of a task that was cancelled before it answered, because its round had closed.

Its time is the time until then: the answer would have taken longer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileMeta:
    """The conditions of a recording; unknown values are None or empty.

    ``base_load`` is the normalized load of every worker in every round. ``alpha`` is the number of
    seconds per unit of normalized load (docs/mathematics.md, section 7). ``rtt_s`` is the
    round-trip time, in seconds, of a message to a running worker. ``recorded_at`` is a time in ISO
    8601, and ``schema`` is the version of the file format.

    Examples
    --------
    >>> ProfileMeta(base_load=1 / 256, alpha=1.12, provider="AWS Lambda").base_load
    0.00390625
    """

    base_load: float = 0.0
    alpha: float | None = None
    batch: int | None = None
    model: str = ""
    provider: str = ""
    region: str = ""
    recorded_at: str = ""
    source: str = ""
    rtt_s: float | None = None
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_number("base_load", self.base_load, least=0, most=MOST_S)
        if self.alpha is not None:
            require_number("alpha", self.alpha, least=0, most=MOST_S)
        if self.rtt_s is not None:
            require_number("rtt_s", self.rtt_s, least=0, most=MOST_S)
        if self.batch is not None:
            object.__setattr__(self, "batch", require_int("batch", self.batch, least=1))
        if self.schema != SCHEMA:
            raise ParameterError("schema", f"must be {SCHEMA}", self.schema, "update seqgc")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DelayProfile(Summarised):
    """The seconds from request to answer of each worker in each round, and their conditions.

    ``times`` (rounds, workers) float64 are seconds, from 1e-9 to 1e15. ``status`` (rounds, workers)
    int8 is 0 if the worker answered. If the worker did not answer, the status is `FAILED`, `LATE`,
    `CENSORED` or another number, and ``times`` holds the seconds after which this was known. Both
    arrays are read-only.

    Raises
    ------
    ProfileError
        If the matrix is ragged or empty, or a time is out of range.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[0.5, 0.7], [0.6, 2.0]], meta=ProfileMeta(alpha=1.0))
    >>> profile
    <DelayProfile: rounds 2; workers 2; median 0.65 s; longest 2 s; unanswered 0; base load 0;
    alpha 1>
    >>> profile.at_load(0.25).times.tolist(), profile.times_at(np.array([0.0, 0.5])).tolist()
    ([[0.75, 0.95], [0.85, 2.25]], [[0.5, 1.2], [0.6, 2.5]])
    """

    times: FloatArray
    status: StatusArray
    meta: ProfileMeta = field(default_factory=ProfileMeta)

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", _checked_times(self.times))
        object.__setattr__(self, "status", _checked_status(self.status, self.times.shape))

    @classmethod
    def from_times(cls, times: npt.ArrayLike, *, meta: ProfileMeta | None = None) -> DelayProfile:
        """Return the profile of a matrix (rounds, workers) of seconds; all workers answered."""
        matrix = _checked_times(times)
        status = np.zeros(matrix.shape, dtype=np.int8)
        return cls(times=matrix, status=status, meta=meta or ProfileMeta())

    def summary(self) -> dict[str, object]:
        seconds = self.times[self.answered]
        known = {"model": self.meta.model, "provider": self.meta.provider}
        return {
            "rounds": self.num_rounds,
            "workers": self.num_workers,
            "median": f"{number(np.median(seconds))} s" if seconds.size else "–",
            "longest": f"{number(seconds.max())} s" if seconds.size else "–",
            "unanswered": self.times.size - seconds.size,
            "base load": self.meta.base_load,
            **({} if self.meta.alpha is None else {"alpha": self.meta.alpha}),
            **{name: value for name, value in known.items() if value},
        }

    @property
    def dimensions(self) -> str:
        """The number of rounds and of workers in words, such as "8 rounds of 16 workers"."""
        return f"{counted(self.num_rounds, 'round')} of {counted(self.num_workers, 'worker')}"

    @property
    def num_rounds(self) -> int:
        """The number of recorded rounds."""
        return int(self.times.shape[0])

    @property
    def num_workers(self) -> int:
        """The number of recorded workers."""
        return int(self.times.shape[1])

    def at_load(self, load: float, *, alpha: float | None = None) -> DelayProfile:
        """Return the profile at another normalized load: ``times + alpha * (load - base_load)``.

        Source: docs/mathematics.md, section 7. If ``alpha`` is None, it is the profile's own.

        Raises
        ------
        ParameterError
            If ``load`` is not a number >= 0, or no ``alpha`` is known.
        ProfileError
            If a time would not be above 0.
        """
        meta = replace(self.meta, base_load=load, alpha=self.slope(alpha))
        return replace(self, times=self.times_at(load, alpha=alpha), meta=meta)

    def times_at(
        self, loads: float | FloatArray, *, alpha: float | None = None, round: int | None = None
    ) -> FloatArray:
        """Return the seconds (rounds, n) at other normalized loads.

        ``loads`` is one load for all workers, or one for each worker (n,). If ``round`` is given,
        the result is the seconds (n,) of this round only. Raises the same exceptions as `at_load`.
        """
        least, slope = require_number("load", float(np.min(loads)), least=0), self.slope(alpha)
        first, recorded = 0, self.times
        if round is not None:
            first, recorded = round, self.times[round : round + 1]
        times = recorded + slope * (loads - self.meta.base_load)
        if times.min() <= 0:
            row, column = np.unravel_index(times.argmin(), times.shape)
            row += first
            line = f"alpha={slope:g} from base load {self.meta.base_load:g} to load {least:g}"
            raise ProfileError(
                f"{line} leaves {times.min():.6g} s for row {row}, column {column} (round, worker; "
                "from 0), which must be > 0: check the base load and alpha"
            )
        return times if round is None else times[0]

    def slope(self, alpha: float | None = None) -> float:
        """Return ``alpha``, or the profile's own if it is None, in seconds per unit of load.

        Raises
        ------
        ParameterError
            If both are None, or if the result is not a number >= 0.
        """
        slope = self.meta.alpha if alpha is None else alpha
        if slope is None:
            rule = "must be given, because the profile has none (seconds per unit of load)"
            remedy = "0 if a task takes as long at every load"
            if (load := self.meta.base_load) > 0:
                proportional = float(np.median(self.times)) / load
                remedy = f"between 0 and {proportional:.4g} (median / base load)"
            remedy = f"give alpha= or --alpha, {remedy}, or record at several loads"
            raise ParameterError("alpha", rule, None, remedy)
        return require_number("alpha", slope, least=0, most=MOST_S)

    @property
    def answered(self) -> BoolArray:
        """A mask of the answers, bool (rounds, workers)."""
        answered: BoolArray = self.status == 0
        return answered

    @property
    def censored(self) -> BoolArray:
        """A mask of the tasks that were cancelled before they answered, bool (rounds, workers)."""
        censored: BoolArray = self.status == CENSORED
        return censored

    def awaited(self, *, rng: np.random.Generator | None = None) -> DelayProfile:
        """Return the profile of a master that awaits every worker.

        A failure takes at least as long as the slowest answer of its round. It may be known early,
        but it is not an answer. Waiting for a worker that fails therefore takes at least as long as
        waiting for all other workers.

        Of a `CENSORED` time, it is only known that the answer would have taken longer. It becomes
        the median of the longer answers of the same worker, else of all workers. If there is no
        longer answer, it stays as it is. With ``rng``, each censored time becomes a random one of
        these answers instead of their median, so that several draws show what is not known.

        Raises
        ------
        ProfileError
            If no worker answered in some round.

        Examples
        --------
        >>> status = np.zeros((4, 2), dtype=np.int8)
        >>> status[3] = FAILED, 0
        >>> status[2, 0] = CENSORED
        >>> times = np.array([[1.0, 2.0], [5.0, 2.0], [3.0, 2.0], [0.5, 2.0]])
        >>> DelayProfile(times=times, status=status).awaited().times[:, 0].tolist()
        [1.0, 5.0, 5.0, 2.0]
        """
        if self.answered.all():
            return self
        silent = ~self.answered.any(axis=1)
        if silent.any():
            rule = "nobody answered in this round; leave the round out"
            raise ProfileError(f"row {int(silent.argmax())}: {rule}")
        times = self.times
        if (censored := self.censored).any():
            fill = completed if rng is None else partial(drawn, rng=rng)
            times = fill(times, self.answered, where=censored, rests=times)
        slowest = np.where(self.answered, self.times, 0.0).max(axis=1, keepdims=True)
        failed = ~(self.answered | censored)
        times = np.where(failed, np.maximum(times, slowest), times)
        return replace(self, times=times)

    def scaled(self, factor: float) -> DelayProfile:
        """Return the profile with all times, and ``alpha``, multiplied by ``factor`` > 0."""
        require_number("factor", factor, above=0)
        alpha = None if self.meta.alpha is None else self.meta.alpha * factor
        return replace(self, times=self.times * factor, meta=replace(self.meta, alpha=alpha))

    def select_rounds(self, start: int, *, stop: int) -> DelayProfile:
        """Return the rounds ``start <= round < stop`` as a profile.

        Raises
        ------
        ParameterError
            If the range is empty, or not within the recorded rounds.
        """
        start, stop = require_int("start", start), require_int("stop", stop)
        if not 0 <= start < stop <= self.num_rounds:
            rule = f"must satisfy 0 <= start < stop <= {self.num_rounds}"
            raise ParameterError("start, stop", rule, (start, stop))
        return replace(self, times=self.times[start:stop], status=self.status[start:stop])


def _checked_times(times: npt.ArrayLike) -> FloatArray:
    try:
        matrix = np.array(times, dtype=np.float64)
    except (TypeError, ValueError) as error:
        rule = "`times` must be a matrix of seconds with rows of one length"
        raise ProfileError(f"{rule}; {error}") from None
    if matrix.ndim != 2 or matrix.size == 0:
        rule = "`times` must be a matrix (rounds, workers) with at least one of each"
        raise ProfileError(f"{rule}; got shape {matrix.shape}")
    wrong = ~((matrix >= _LEAST_S) & (matrix <= MOST_S))
    if wrong.any():
        row, column = np.unravel_index(wrong.argmax(), wrong.shape)
        where = f"row {row}, column {column} (round, worker; from 0)"
        rule = f"a time must be {_LEAST_S:g} to {MOST_S:g} s"
        raise ProfileError(f"{where}: {rule}; got {float(matrix[row, column])!r}")
    matrix.flags.writeable = False
    return matrix


def _checked_status(status: npt.ArrayLike, shape: tuple[int, ...]) -> StatusArray:
    codes = np.array(status)
    if codes.shape != shape or codes.dtype.kind not in "iu":
        rule = f"`status` must be integers of the shape of `times`, {shape}"
        raise ProfileError(f"{rule}; got {codes.dtype} of shape {codes.shape}")
    bounds = (int(codes.min()), int(codes.max()))
    if bounds[0] < 0 or bounds[1] > np.iinfo(np.int8).max:
        raise ProfileError(f"`status` must lie in 0 ... 127; got values in {bounds}")
    narrow = codes.astype(np.int8)
    narrow.flags.writeable = False
    return narrow
