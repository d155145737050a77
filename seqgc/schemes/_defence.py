"""`Defence`: how work is shared out so that slow workers do not hold it up; the `Entry` of a name.

There are two kinds. A `Scheme` decides before a round who computes what in it, and codes so that
it can do without some; `Deal` decides nothing before a worker is there to do it. What is the same
for both stands here: how a batch is cut, what a worker has to do, how the command line spells it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Final, Literal, TypeAlias, get_args, get_type_hints

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray, IntArray
from seqgc.schemes._cut import even_cut
from seqgc.schemes._grid import Grid

Kind: TypeAlias = Literal["exact", "approximate", "stale"]


class Defence(ABC):
    """How work is shared out; frozen, picklable, ``eval(repr(x)) == x``, with a name (`Entry`)."""

    n: int
    """Workers."""

    @property
    @abstractmethod
    def delay(self) -> int:
        """T: job ``t`` is decoded by the end of round ``t + T``."""

    @abstractmethod
    def jobs_in_flight(self, bundles: int) -> int:
        """Return how many jobs are under way at once, where so many bundles of models take turns.

        When job ``t`` begins, all jobs up to ``t`` minus this have been decoded.
        """

    def jobs_read(self, bundles: int) -> int:
        """Return of how many jobs, the latest included, some task of use may read the weights.

        These are those under way, and where late answers are taken, jobs that tasks of theirs are
        of beside the job whose result is awaited.
        """
        return self.jobs_in_flight(bundles)

    @abstractmethod
    def fitted(self, bundles: int) -> Defence:
        """Return this defence with what it leaves open decided for so many bundles of models."""

    @property
    @abstractmethod
    def worker_loads(self) -> FloatArray:
        """(n,) the most of a batch that each worker touches in a round, as a fraction of it."""

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether every decoded gradient is the gradient, and none an approximation."""

    @property
    def kind(self) -> Kind:
        """What gradients are; "stale" ones are computed on weights that lack earlier updates."""
        return "exact" if self.exact else "approximate"

    @property
    @abstractmethod
    def chunk_fractions(self) -> FloatArray:
        """(num_chunks,) share of the batch of each chunk; sums to 1."""

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Defence]:  # noqa: ARG003 (for overriding)
        """Yield what a search should look at, smaller parameters first; nothing by default."""
        return ()

    @classmethod
    def further_names(cls) -> Mapping[str, Mapping[str, object]]:
        """Return names beyond those registered, each with the fields that it fixes.

        For a class that takes a part which others register, such as a kind of code: each part is
        known by a name of its own at once.
        """
        return {}

    def points_touched(self, sizes: IntArray) -> IntArray | None:  # noqa: ARG002 (for overriding)
        """Return how many of the chunks' data points each worker touches in a round at most, (n,).

        None: it has not been worked out; then batches are cut by largest remainder, and loads are
        nominal.
        """
        return None

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
    @abstractmethod
    def load_lower_bound(self) -> float:
        """Lower bound on the load of anything exact that promises as much, and is as quick."""

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
def _cut(scheme: Defence, batch_size: int) -> IntArray:
    fractions, least = scheme.chunk_fractions, batch_size * float(scheme.worker_loads.mean())
    return even_cut(batch_size, fractions, touched=scheme.points_touched, least=least)


@lru_cache(maxsize=2**15)  # a search asks again for every closing rule
def _cut_loads(scheme: Defence, batch_size: int) -> FloatArray:
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
    kind: type[Defence]
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
        return {name: _number(hints[name]) or str for name in self._fields}

    @property
    def required(self) -> list[str]:
        """The parameters that a spec must give."""
        missing = dataclasses.MISSING
        return [name for name, field in self._fields.items() if field.default is missing]

    def spec(self, scheme: Defence) -> str:
        """Spell a scheme of this name; what is left at its default is left out."""
        values = {name: getattr(scheme, name) for name in self._fields}
        chosen = [f"{k}={v}" for k, v in values.items() if v != self._fields[k].default]
        return ":".join(filter(None, [self.name, ",".join(chosen)]))


def _number(hint: object) -> type | None:
    """Return which number a hint is of, ``int | None`` and the like included, if any."""
    kinds = {hint, *get_args(hint)} & {int, float}
    return float if float in kinds else int if kinds else None


ENTRIES: Final[dict[str, Entry]] = {}
"""What is registered, by name: `seqgc.schemes.register` alone adds to it."""


def further_entries() -> dict[str, Entry]:
    """Return the entries of `Defence.further_names`, but for names that are registered."""
    return {
        name: Entry(name=name, kind=kind, fixed=fixed)
        for kind in dict.fromkeys(entry.kind for entry in ENTRIES.values())
        for name, fixed in kind.further_names().items()
        if name not in ENTRIES
    }


def entry_of(scheme: Defence) -> Entry:
    """Return the entry that names a scheme.

    `ParameterError`: its class, or its choice of fixed fields, is not registered.
    """

    def names_it(entry: Entry) -> bool:
        return type(scheme) is entry.kind and all(
            getattr(scheme, key) == value for key, value in entry.fixed.items()
        )

    fitting = [entry for entry in ENTRIES.values() if names_it(entry)]
    fitting = fitting or [entry for entry in further_entries().values() if names_it(entry)]
    if fitting:
        return max(fitting, key=lambda entry: len(entry.fixed))  # the name that says most
    rule = "must be registered to have a spec: decorate its class with @register(name)"
    raise ParameterError("scheme", rule, scheme)
