"""`App`, an iterative program whose state is a set of named arrays, and `TableLayout`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final, Protocol, TypeAlias

import numpy as np

from seqgc.control import Controlled
from seqgc.errors import ParameterError, refusing, require_int
from seqgc.ports import FloatArray, IntArray
from seqgc.rounds import PolicyDefence
from seqgc.schemes import Defence

__all__ = [
    "App",
    "Shapes",
    "TableLayout",
    "first_tables",
    "measured",
    "require_app",
    "require_fit",
]

Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]

_MOST: Final = 2**53  # float64 has all integers up to this one


class App(Protocol):
    """An iterative program on shared arrays, the *tables*.

    A clock is one pass over all items. In each clock, every item is processed once, by one worker.
    The workers' changes are added up. An app that writes to different numbers for different items,
    or whose changes are sums, therefore computes the same as one worker alone, apart from the
    staleness of what it reads. If two workers assign the same number, both differences are added,
    and the number is neither of the two values.

    Each worker has a copy of the app, which must be picklable by cloudpickle. ``process`` must
    depend on its arguments and the app's data only: what a call leaves on ``self`` is lost or
    belongs to another worker, and random numbers of other generators than ``rng`` differ if a task
    is computed twice.

    An app may also have these attributes:

    - ``has_item_state``: True if some numbers belong to one item, and are read again when the item
      is processed next: assignments of a sampler, or what a node has already sent. Such a number
      must contain the item's last change. Defences that do not ensure this are refused
      (`seqgc.schemes.Defence.in_order`).
    - ``rated(factor)``: a method that returns the same app with its step size multiplied by a
      factor. `seqgc.comparison` uses it to look for the best step size of each defence.

    Examples
    --------
    The mean of some numbers, by steps towards each of them:

    >>> import numpy as np
    >>> class Mean:
    ...     items = 4
    ...     numbers = np.array([1.0, 2.0, 3.0, 6.0])
    ...     def initial(self, rng):
    ...         return {"mean": np.zeros(1)}
    ...     def process(self, tables, items, rng):
    ...         tables["mean"] += 0.1 * (self.numbers[items] - tables["mean"]).sum()
    ...     def objective(self, tables):
    ...         return float(((self.numbers - tables["mean"]) ** 2).mean())
    >>> from seqgc.tables import run_app
    >>> from seqgc.profiles import ByRound
    >>> two = ByRound(latencies_s=[[1.0, 3.0]], rates=[[0.0]])  # seconds of two workers
    >>> run = run_app(Mean(), "bsp", workers=two, clocks=30)
    >>> run.tables["mean"].round(3), run.objectives[[0, -1]].round(3), run.seconds
    (array([3.]), array([12.5,  3.5]), 90.0)
    """

    @property
    def items(self) -> int:
        """The number of items, >= 1."""

    def initial(self, rng: np.random.Generator) -> Mapping[str, FloatArray]:
        """Return the tables at the beginning, by name: finite numbers. They become float64.

        Counts and labels become float64, too. To use one as an index, write ``int(table[i])`` or
        ``table.astype(int)``.
        """

    def process(
        self, tables: Mapping[str, FloatArray], items: IntArray, rng: np.random.Generator
    ) -> None:
        """Process some items (m,), and change the tables in place.

        The changes are visible to later items of the same call, and are sent to the master when it
        returns. After that, the tables of the call are read-only. ``items`` is a copy, which may be
        changed. ``rng`` depends only on the run's seed, the tables' version, the first item and the
        number of the pass.
        """

    def objective(self, tables: Mapping[str, FloatArray]) -> float:
        """Return a number that measures the progress; smaller is better.

        The master calls it before the first clock and after each one, on a copy of the tables.
        """


class TableLayout:
    """The names and shapes of tables, and the vector (size,) in which they follow each other.

    Raises
    ------
    ParameterError
        If there is no table, or if a table is empty or holds something else than finite numbers or
        an integer that float64 cannot hold.

    Examples
    --------
    >>> layout = TableLayout.of({"L": np.zeros((2, 3)), "R": np.ones(4)})
    >>> layout.size, layout.shapes
    (10, (('L', (2, 3)), ('R', (4,))))
    >>> layout.views(np.arange(10.0))["R"]
    array([6., 7., 8., 9.])
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes: Final = shapes
        self.size: Final = sum(prod(shape) for _, shape in shapes)

    @classmethod
    def of(cls, tables: Mapping[str, FloatArray]) -> TableLayout:
        """Return the layout of these tables."""
        if not isinstance(tables, Mapping) or not tables:
            raise ParameterError("initial", "must return arrays by name, at least one", tables)
        for name, table in tables.items():
            array = np.asarray(table)
            if array.dtype.kind not in "fiub" or not array.size:
                what = f"{array.dtype} of shape {array.shape}"
                raise ParameterError("initial", f"must return numbers as table {name!r}", what)
            if array.dtype.kind in "iu" and max(-int(array.min()), int(array.max())) > _MOST:
                rule = f"must return integers of at most 2**53 as table {name!r}, which is float64"
                raise ParameterError("initial", rule, f"{array.min()} to {array.max()}")
            if not np.isfinite(array).all():
                rule = f"must return finite numbers as table {name!r}"
                raise ParameterError("initial", rule, float(array[~np.isfinite(array)][0]))
        return cls(tuple((name, np.shape(table)) for name, table in tables.items()))

    def views(self, vector: FloatArray) -> dict[str, FloatArray]:
        """Return the tables as views of a vector (size,)."""
        views, start = dict[str, FloatArray](), 0
        for name, shape in self.shapes:
            end = start + prod(shape)
            views[name] = vector[start:end].reshape(shape)
            start = end
        return views

    def vector(self, tables: Mapping[str, FloatArray]) -> FloatArray:
        """Return a new vector (size,) with the numbers of these tables."""
        vector = np.empty(self.size)
        for name, view in self.views(vector).items():
            view[...] = tables[name]
        return vector


def first_tables(app: App, *, seed: int) -> tuple[TableLayout, FloatArray]:
    """Return the layout of an app's tables, and their numbers at the beginning (size,).

    Raises
    ------
    ParameterError
        If ``initial`` raises an error, or does not return tables of finite numbers.
    """
    with refusing("initial", "must return tables, not raise an error ({})", type(app).__name__):
        tables = app.initial(np.random.default_rng(seed))
    layout = TableLayout.of(tables)
    return layout, layout.vector(tables)


def measured(app: App, layout: TableLayout, vector: FloatArray) -> float:
    """Return the app's objective for the tables in a vector (size,), which it cannot change.

    Raises
    ------
    ParameterError
        If ``objective`` raises an error, or does not return a number.
    """
    with refusing("objective", "must return a number, not raise an error ({})", type(app).__name__):
        value = np.asarray(app.objective(layout.views(vector.copy())))
    if value.size != 1 or value.dtype.kind not in "fiub":
        what = f"{value.dtype} of shape {value.shape}"
        raise ParameterError("objective", "must return one number", what)
    return float(value.item())


def require_app(app: object) -> None:
    """Raise `ParameterError` if an object is not an app."""
    if isinstance(app, type):
        remedy = f"pass {app.__name__}(...)"
        raise ParameterError("app", "must be an object, not a class", app.__name__, remedy)
    names = ("items", "initial", "process", "objective")
    if missing := [name for name in names if not hasattr(app, name)]:
        rule = f"must have {', '.join(names[:-1])} and {names[-1]}"
        what = f"an object of {type(app).__name__}, which has no {missing[0]!r}"
        raise ParameterError("app", rule, what, "see docs/tables.md")


def require_fit(app: App, defence: Defence) -> int:
    """Check that a defence can run an app, and return the number of items.

    Raises
    ------
    ParameterError
        If this is no app, if it has fewer items than the defence has chunks, or if the defence
        would change its results.
    """
    require_app(app)
    items = require_int("items", app.items, least=1)
    spec, chunks = defence.spec, len(defence.chunk_fractions)
    if items < chunks:
        rule = f"must have at least as many items as {spec} has chunks, {chunks}"
        raise ParameterError("app", rule, items, "use fewer workers or pieces")
    if defence.kind == "approximate":
        rule = "must be exact or stale for an app: its changes are no estimates of a mean"
        raise ParameterError("defence", rule, spec)
    if defence.delay:
        rule = f"must finish a clock before the next one; it finishes {defence.delay} rounds later"
        remedy = "take uncoded, gc, gc-rep, bsp, ssp, flexrr or deal"
        raise ParameterError("defence", rule, spec, remedy)
    if isinstance(defence, Controlled):
        rule = "must cut the items once; it changes the workers' shares during the run"
        raise ParameterError("defence", rule, spec, "take deal or flexrr, which adapt without it")
    if isinstance(defence, PolicyDefence) and defence.most_again:
        rule = "must add each change once; it may add some again when a task fails"
        raise ParameterError("defence", rule, spec, "take resume=part")
    if isinstance(defence, PolicyDefence) and defence.jobs_per_task > 1:
        rule = "must have one clock in a task, because a task reads the tables once"
        raise ParameterError("defence", rule, spec, f"use passes={defence.jobs_per_task} instead")
    if getattr(app, "has_item_state", False) and not defence.in_order:
        rule = (
            f"must process an item again only after its last change; {type(app).__name__} has a "
            "state for each item"
        )
        remedy = "take uncoded, gc-rep, bsp, ssp, asp, flexrr or deal"
        raise ParameterError("defence", rule, spec, remedy)
    return items
