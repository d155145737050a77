"""`Defence`, the base of all strategies against stragglers, and the registry of their names.

There are two kinds of defences. A `Scheme` works in rounds: it decides before each round which
tasks every worker computes, often redundantly, so that some answers may be missing. Other defences
do not work in this way; for example, `Deal` assigns work only when a worker is free. This module
holds what both kinds have in common: the cut of a batch into chunks, the load of each worker, and
the spelling of a defence on the command line.
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
# Quotas are computed as batch * (a / b), with rounding errors. They are rounded to this number of
# decimals, so that a quota that should be an integer becomes one.
_QUOTA_DECIMALS = 9


class Defence(ABC):
    """Base class of strategies against stragglers.

    A subclass is a frozen, picklable dataclass. For each object ``x``, ``eval(repr(x)) == x``.
    """

    n: int
    """The number of workers."""

    @property
    @abstractmethod
    def delay(self) -> int:
        """The delay T, in rounds: job ``t`` is decoded by the end of round ``t + T``."""

    @abstractmethod
    def jobs_in_flight(self, bundles: int) -> int:
        """Return the largest number of jobs in flight at the same time.

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
        """Return this defence with a value for each parameter that was left to seqgc (None).

        The values are chosen for a number of model ``bundles`` that take turns. ``batch`` is the
        number of data points in the smallest batch of all models, or None if it is unknown.
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

        If this is False, which is the default, a resumed run closes the rounds since its checkpoint
        with the answers of the same workers as before the interruption.
        """
        return False

    @property
    def in_order(self) -> bool:
        """True if a part of a job is computed only on weights with this part of all earlier jobs.

        An app whose items have a state of their own needs this (`seqgc.tables.App`).
        """
        return self.delay == 0

    @property
    def kind(self) -> Kind:
        """The kind of gradients. "stale" means that weights may lack earlier updates."""
        return "exact" if self.exact else "approximate"

    @property
    @abstractmethod
    def chunk_fractions(self) -> FloatArray:
        """The share of each chunk in the batch, (num_chunks,); the shares sum to 1."""

    @property
    def num_pieces(self) -> int:
        """The number of tasks of a job if each chunk is a task of its own; otherwise 0."""
        return 0

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Defence]:  # noqa: ARG003 (for overriding)
        """Yield the defences that a search should try, smaller parameters first.

        By default a search tries no defence of the class.
        """
        return ()

    @classmethod
    def further_names(cls) -> Mapping[str, Mapping[str, object]]:
        """Return names of the class in addition to the names that are given to `register`.

        The result maps each name to the values of the fields that the name fixes. A class can
        override this method if one of its fields refers to another registry, such as the registry
        of codes. Each registered code is then also the name of a defence.
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
        """Return the loads (n,) of the workers if batches of ``batch_size`` points are `cut`.

        If ``batch_size`` is None, the result is the nominal loads (`worker_loads`). If all nominal
        loads are equal, every worker has the load of the busiest worker.
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
        """The spelling of this defence on the command line, which `parse_scheme` reads.

        Raises `ParameterError` if no registered name stands for the defence.
        """
        return entry_of(self).spec(self)

    def _keep_integers(self, *arguments: str) -> None:
        """Convert the fields named ``arguments`` to Python integers, and check that ``n >= 1``.

        NumPy integers could overflow, and the `repr` would show their type.
        """
        for argument in arguments:
            object.__setattr__(self, argument, require_int(argument, getattr(self, argument)))
        if self.n < 1:
            raise ParameterError("n", "must be >= 1 (workers)", self.n)

    def _equal_loads(self, load: float) -> FloatArray:
        """Return the `worker_loads` of a defence in which all workers have the same ``load``."""
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
        """The fields that a spec may set, by name: all except ``n`` and the fixed fields."""
        fields = dataclasses.fields(self.kind)  # type: ignore[arg-type]  # `register` checked it
        omitted = {"n", *self.fixed}
        return {each.name: each for each in fields if each.init and each.name not in omitted}

    @cached_property
    def parameters(self) -> dict[str, type]:
        """The types of the parameters that a spec may set, by name, in the order of the fields."""
        hints = get_type_hints(self.kind)
        return {name: _number(hints[name]) or str for name in self._fields}

    @property
    def required(self) -> list[str]:
        """The names of the parameters that a spec must set."""
        missing = dataclasses.MISSING
        return [name for name, field in self._fields.items() if field.default is missing]

    def spec(self, scheme: Defence) -> str:
        """Return the spec of a defence of this name. Parameters with default values are omitted."""
        values = {name: getattr(scheme, name) for name in self._fields}
        chosen = [f"{k}={v}" for k, v in values.items() if v != self._fields[k].default]
        return ":".join(filter(None, [self.name, ",".join(chosen)]))


def _number(hint: object) -> type | None:
    """Return the type `int` or `float` that a hint such as ``int | None`` contains, or None."""
    kinds = {hint, *get_args(hint)} & {int, float}
    return float if float in kinds else int if kinds else None


ENTRIES: Final[dict[str, SchemeEntry]] = {}
"""The registered schemes by name; only `seqgc.schemes.register` adds to them."""


def further_entries() -> dict[str, SchemeEntry]:
    """Return the entries of `Defence.further_names`, except names that are also registered."""
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
    """The range of parameters that a search tries (`Defence.candidates`).

    Delays T are at most ``max_delay`` rounds. If ``coarse`` is True, only some values of each range
    are tried, in geometric steps, so that a search with thousands of workers does not take too
    long. If ``inexact`` is True, schemes whose gradients are approximations are tried too.

    Examples
    --------
    >>> Grid(coarse=True).values(1, 100)[-4:], Grid().divisors(12)
    ([42, 56, 75, 100], [2, 3, 4, 6, 12])
    """

    max_delay: int = 10
    coarse: bool = False
    inexact: bool = False

    def values(self, low: int, high: int) -> list[int]:
        """Return the integers from ``low`` to ``high`` to try.

        If the grid is not coarse, these are all integers. Otherwise there are about eight for each
        factor of ten, always with ``low`` and ``high``.
        """
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

    Points are distributed by largest remainder. Each chunk gets the integer part of its quota
    ``batch_size * fraction``. The chunks with the largest remainders get one more point each, until
    all points are distributed; among equal remainders the lowest index comes first. Chunks may be
    empty. Raises `ParameterError` if ``batch_size < 1``, or if ``fractions`` contains a negative
    number or does not sum to 1.

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

    ``touched(sizes)`` returns for each worker the largest number (n,) of points that it processes
    in a round. If it returns None, the result is that of `chunk_sizes`. ``least`` is the average
    load of the workers in points, so that the busiest worker processes at least ``least`` points.

    No method of rounding is best for all schemes. Therefore several methods are tried, and the best
    is used (among equals, the first). If a method reaches the bound ``least``, rounded up to whole
    points, no further method is tried. An example is `MSGC`, which has many small chunks that are
    coded (D2), and larger chunks that are not (D1). If the coded chunks are smaller than a point,
    largest remainder makes each of them a whole point, so that a coded result covers ``lam + 1``
    points. If instead the ends of chunks are rounded, D1 or D2 as a whole may get too many points.
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
    """Round the ends of chunks, so that sums of consecutive chunks stay close to their quota."""
    ends = np.round(np.cumsum(quotas), _QUOTA_DECIMALS)
    return np.diff(np.round(ends), prepend=0.0).astype(np.intp)


def _by_class(quotas: FloatArray) -> IntArray:
    """Round the total of all chunks with the same quota, and divide it evenly among the chunks."""
    _, kind = np.unique(quotas, return_inverse=True)
    sizes = np.zeros(len(quotas), dtype=np.intp)
    totals = np.bincount(kind, weights=quotas).astype(np.float64)
    for each, total in enumerate(_by_remainder(totals)):
        count = np.count_nonzero(kind == each)
        sizes[kind == each] = np.diff(np.arange(count + 1) * total // count)
    return sizes
