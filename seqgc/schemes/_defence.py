"""`Defence`, the base of all strategies against stragglers, and the registry of their names.

There are two kinds of defences. A `Scheme` decides before each round which tasks every worker
computes, and codes the work so that some answers may be missing. Other defences, such as `Deal`,
assign work only when a worker is free. This module holds the parts that both kinds have in common:
the cut of a batch into chunks, the load of each worker, and the spelling of a defence on the
command line.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Literal, TypeAlias, get_args, get_type_hints

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray, IntArray

Kind: TypeAlias = Literal["exact", "approximate", "stale"]
# Quotas are rounded to this many decimals, because they were computed as batch * (a / b): a quota
# that should be an integer then becomes one.
_QUOTA_DECIMALS = 9


class Defence(ABC):
    """A strategy against stragglers: a frozen, picklable dataclass with ``eval(repr(x)) == x``."""

    n: int
    """The number of workers."""

    @property
    @abstractmethod
    def delay(self) -> int:
        """The delay T, in rounds: job ``t`` is decoded by the end of round ``t + T``."""

    @abstractmethod
    def jobs_in_flight(self, bundles: int) -> int:
        """Return the number of jobs in flight at the same time.

        ``bundles`` is the number of bundles of models that take turns. If the result is m, all jobs
        up to ``t - m`` have been decoded when job ``t`` begins.
        """

    def jobs_read(self, bundles: int) -> int:
        """Return the number of most recent jobs whose weights a task may still read.

        These are the jobs in flight. If late answers are used, some earlier jobs are added, because
        the task of a late answer may contain mini-tasks of earlier jobs.
        """
        return self.jobs_in_flight(bundles)

    @abstractmethod
    def fitted(self, bundles: int, *, batch: int | None = None) -> Defence:
        """Return this defence with its open parameters chosen for a number of model bundles.

        ``batch`` is the number of data points in the smallest batch of a model, if it is known.
        """

    @property
    @abstractmethod
    def worker_loads(self) -> FloatArray:
        """The largest fraction of a batch that each worker computes in a round, (n,)."""

    @property
    @abstractmethod
    def exact(self) -> bool:
        """True if all decoded gradients are exact; False if some are approximations."""

    @property
    def same_bits(self) -> bool:
        """True if the bits of a gradient do not depend on which workers answered.

        If it is False, which is the default, a resumed run closes the rounds since its checkpoint
        with the answers of the same workers as before.
        """
        return False

    @property
    def kind(self) -> Kind:
        """The kind of gradients; "stale" ones are computed on weights that lack earlier updates."""
        return "exact" if self.exact else "approximate"

    @property
    @abstractmethod
    def chunk_fractions(self) -> FloatArray:
        """The share of each chunk in the batch, (num_chunks,); the shares sum to 1."""

    @property
    def num_pieces(self) -> int:
        """The number of tasks of a job if each chunk is a task of its own, else 0."""
        return 0

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Defence]:  # noqa: ARG003 (for overriding)
        """Yield the defences that a search should try, smaller parameters first.

        By default a search tries no defence of the class.
        """
        return ()

    @classmethod
    def further_names(cls) -> Mapping[str, Mapping[str, object]]:
        """Return further names of the class, each with the field values that the name fixes.

        A class can override this method if one of its fields refers to another registry, such as
        the registry of codes. Each registered code is then also the name of a defence.
        """
        return {}

    def points_touched(self, sizes: IntArray) -> IntArray | None:  # noqa: ARG002 (for overriding)
        """Return the largest number of data points that each worker processes in a round, (n,).

        ``sizes`` (num_chunks,) are the numbers of points in the chunks. A class that does not
        support this returns None: batches are then cut by largest remainder, and loads are nominal.
        """
        return None

    def cut(self, batch_size: int) -> IntArray:
        """Return the number of data points in each chunk of a batch, (num_chunks,), read-only.

        The numbers sum to the batch size, and are chosen so that the busiest worker processes few
        points. Chunks may be empty. Raises `ParameterError` if ``batch_size < 1``.

        Examples
        --------
        >>> from seqgc.schemes import MSGC
        >>> scheme = MSGC(n=256, B=1, W=2, lam=27)
        >>> int(scheme.points_touched(scheme.cut(4096)).max()), 4096 * scheme.normalized_load
        (32, 30.89655172413793)
        """
        return _cut(self, batch_size)

    def loads_of(self, batch_size: int | None) -> FloatArray:
        """Return the workers' loads (n,) for batches of a size, which are cut into whole points.

        If ``batch_size`` is None, the result is the nominal loads (`worker_loads`). If all nominal
        loads are equal, each worker gets the load of the busiest worker.
        """
        return self.worker_loads if batch_size is None else _cut_loads(self, batch_size)

    @property
    def normalized_load(self) -> float:
        """The largest fraction of a batch that any worker processes in a round."""
        return float(self.worker_loads.max())

    @property
    @abstractmethod
    def load_lower_bound(self) -> float:
        """A lower bound on the load of any exact defence with the same promise and delay."""

    @property
    def spec(self) -> str:
        """The spelling of this defence on the command line, which `parse_scheme` reads."""
        return entry_of(self).spec(self)

    def _keep_integers(self, *arguments: str) -> None:
        """Convert the fields named ``arguments`` to Python integers, and check that ``n >= 1``.

        NumPy integers would overflow, and would appear as such in the `repr`.
        """
        for argument in arguments:
            object.__setattr__(self, argument, require_int(argument, getattr(self, argument)))
        if self.n < 1:
            raise ParameterError("n", "must be >= 1 (workers)", self.n)

    def _equal_loads(self, load: float) -> FloatArray:
        """Return `worker_loads` of a scheme in which all workers have the same load."""
        return _equal_loads(self.n, load)


@lru_cache(maxsize=4096)
def _equal_loads(n: int, load: float) -> FloatArray:
    return np.broadcast_to(np.float64(load), (n,))


@lru_cache(maxsize=256)
def _cut(scheme: Defence, batch_size: int) -> IntArray:
    fractions, least = scheme.chunk_fractions, batch_size * float(scheme.worker_loads.mean())
    return even_cut(batch_size, fractions, touched=scheme.points_touched, least=least)


@lru_cache(maxsize=2**15)  # a search calls this once for every closing rule
def _cut_loads(scheme: Defence, batch_size: int) -> FloatArray:
    nominal, touched = scheme.worker_loads, scheme.points_touched(_cut(scheme, batch_size))
    if touched is None:
        return nominal
    loads: FloatArray = touched / batch_size
    if (nominal == nominal[0]).all():
        return np.broadcast_to(loads.max(), loads.shape)
    loads.setflags(write=False)
    return loads


@dataclass(frozen=True, kw_only=True, eq=False)
class SchemeEntry:
    """A registered name of a defence: the class ``kind`` and the values of its ``fixed`` fields."""

    name: str
    kind: type[Defence]
    fixed: Mapping[str, object]

    @cached_property
    def _fields(self) -> dict[str, dataclasses.Field[object]]:
        """The fields that a spec may set: all except ``n`` and the fixed fields."""
        fields = dataclasses.fields(self.kind)  # type: ignore[arg-type]  # `register` checked it
        omitted = {"n", *self.fixed}
        return {each.name: each for each in fields if each.init and each.name not in omitted}

    @cached_property
    def parameters(self) -> dict[str, type]:
        """The parameters of the spec and their types, in the order of the fields."""
        hints = get_type_hints(self.kind)
        return {name: _number(hints[name]) or str for name in self._fields}

    @property
    def required(self) -> list[str]:
        """The parameters that a spec must give."""
        missing = dataclasses.MISSING
        return [name for name, field in self._fields.items() if field.default is missing]

    def spec(self, scheme: Defence) -> str:
        """Return the spec of a scheme of this name; parameters with their default are omitted."""
        values = {name: getattr(scheme, name) for name in self._fields}
        chosen = [f"{k}={v}" for k, v in values.items() if v != self._fields[k].default]
        return ":".join(filter(None, [self.name, ",".join(chosen)]))


def _number(hint: object) -> type | None:
    """Return `int` or `float` if a type hint such as ``int | None`` contains it, else None."""
    kinds = {hint, *get_args(hint)} & {int, float}
    return float if float in kinds else int if kinds else None


ENTRIES: Final[dict[str, SchemeEntry]] = {}
"""The registered schemes by name; only `seqgc.schemes.register` adds to them."""


def further_entries() -> dict[str, SchemeEntry]:
    """Return the entries of `Defence.further_names` whose names are not registered themselves."""
    return {
        name: SchemeEntry(name=name, kind=kind, fixed=fixed)
        for kind in dict.fromkeys(entry.kind for entry in ENTRIES.values())
        for name, fixed in kind.further_names().items()
        if name not in ENTRIES
    }


def entry_of(scheme: Defence) -> SchemeEntry:
    """Return the registered entry whose class and fixed fields match a scheme.

    If several entries match, the entry with the most fixed fields is returned. Raises
    `ParameterError` if no entry matches.
    """

    def names_it(entry: SchemeEntry) -> bool:
        return type(scheme) is entry.kind and all(
            getattr(scheme, key) == value for key, value in entry.fixed.items()
        )

    matches = [entry for entry in ENTRIES.values() if names_it(entry)]
    matches = matches or [entry for entry in further_entries().values() if names_it(entry)]
    if matches:
        return max(matches, key=lambda entry: len(entry.fixed))  # the most specific name
    rule = "must be registered to have a spec: decorate its class with @register(name)"
    raise ParameterError("scheme", rule, scheme)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The part of the parameter space that `Defence.candidates` covers.

    Delays T are at most ``max_delay`` rounds. If ``coarse`` is True, only some values of each range
    are tried, in geometric steps, which suits thousands of workers. If ``inexact`` is True, schemes
    whose gradients are approximations are tried too.

    Examples
    --------
    >>> Grid(coarse=True).values(1, 100)[-4:], Grid().divisors(12)
    ([42, 56, 75, 100], [2, 3, 4, 6, 12])
    """

    max_delay: int = 10
    coarse: bool = False
    inexact: bool = False

    def values(self, low: int, high: int) -> list[int]:
        """Return the integers low … high; a coarse grid has about eight for each factor of ten."""
        if high < low:
            return []
        if not self.coarse:
            return list(range(low, high + 1))
        first = max(low, 1)
        steps = max(2, int(8 * np.log10(max(high, first) / first)) + 1)
        spread = np.rint(np.geomspace(first, max(high, first), steps)).astype(int).tolist()
        return sorted({low, *(value for value in spread if value <= high)})

    def divisors(self, n: int) -> list[int]:
        """Return the group sizes from 2 to ``n`` that divide ``n`` workers into equal groups."""
        return [size for size in range(2, n + 1) if n % size == 0]


def chunk_sizes(batch_size: int, fractions: FloatArray) -> IntArray:
    """Return the number of data points in each chunk, (num_chunks,), read-only.

    Points are shared out by largest remainder: each chunk gets the integer part of its quota
    ``batch_size * fraction``. Each of the remaining points goes to one of the chunks with the
    largest remainders; among equal remainders the lowest index comes first. Chunks may be empty.
    Raises `ParameterError` if ``batch_size < 1``, or if ``fractions`` are not non-negative numbers
    that sum to 1.

    Examples
    --------
    >>> import numpy as np
    >>> chunk_sizes(7, np.array([0.25, 0.25, 0.5])).tolist()
    [2, 2, 3]
    """
    sizes = _by_remainder(_quotas(batch_size, fractions))
    sizes.setflags(write=False)
    return sizes


def even_cut(
    batch_size: int,
    fractions: FloatArray,
    *,
    touched: Callable[[IntArray], IntArray | None],
    least: float,
) -> IntArray:
    """Return chunk sizes (num_chunks,), read-only, that give the busiest worker few points.

    No single rounding method is best for all schemes. Largest remainder is bad for M-SGC if the
    chunks of D2 are smaller than a point: their remainders are all equal and larger than those of
    D1, so that each chunk of D2 becomes a whole point, and a coded result covers ``lam + 1``
    points. Rounding the cuts between chunks is bad if D1 and D2 happen to share the points
    unevenly. Therefore several methods are tried, and the best is used (among equals, the first).

    ``touched(sizes)`` returns the largest number of points that each worker processes in a round,
    (n,). If it returns None, the result is that of `chunk_sizes`. The busiest worker processes at
    least ``least`` points, the average over the workers. If a method reaches this bound, rounded up
    to whole points, no other method is tried.
    """
    quotas = _quotas(batch_size, fractions)
    best, most = np.zeros(0, dtype=np.intp), math.inf
    for method in (_by_class, _by_cuts, _by_remainder):
        sizes = method(quotas)
        points = touched(sizes)
        if points is None:
            return chunk_sizes(batch_size, fractions)
        if points.max() < most:
            best, most = sizes, int(points.max())
        if most <= math.ceil(round(least, _QUOTA_DECIMALS)):
            break
    best.setflags(write=False)
    return best


def _quotas(batch_size: int, fractions: FloatArray) -> FloatArray:
    if batch_size < 1:
        raise ParameterError("batch_size", "must be >= 1", batch_size)
    shares = np.asarray(fractions, dtype=np.float64)
    if shares.ndim != 1 or not np.all(shares >= 0) or not abs(shares.sum() - 1) <= 1e-9:
        raise ParameterError("fractions", "must be non-negative and sum to 1", fractions)
    quotas: FloatArray = np.round(batch_size * shares, _QUOTA_DECIMALS)
    return quotas


def _by_remainder(quotas: FloatArray) -> IntArray:
    """Round the quotas to integers by largest remainder, without changing their sum."""
    quotas = np.round(quotas, _QUOTA_DECIMALS)
    sizes = np.floor(quotas).astype(np.intp)
    remainders = np.round(quotas - sizes, _QUOTA_DECIMALS)
    by_remainder = np.argsort(-remainders, kind="stable")
    sizes[by_remainder[: round(quotas.sum()) - int(sizes.sum())]] += 1
    return sizes


def _by_cuts(quotas: FloatArray) -> IntArray:
    """Round the cuts between chunks, so that sums of consecutive chunks stay close to quota."""
    ends = np.round(np.cumsum(quotas), _QUOTA_DECIMALS)
    return np.diff(np.round(ends), prepend=0.0).astype(np.intp)


def _by_class(quotas: FloatArray) -> IntArray:
    """Round the total of all chunks of the same size, and spread it evenly over them."""
    _, kind = np.unique(quotas, return_inverse=True)
    sizes = np.zeros(len(quotas), dtype=np.intp)
    totals = np.bincount(kind, weights=quotas).astype(np.float64)
    for each, total in enumerate(_by_remainder(totals)):
        count = np.count_nonzero(kind == each)
        sizes[kind == each] = np.diff(np.arange(count + 1) * total // count)
    return sizes
