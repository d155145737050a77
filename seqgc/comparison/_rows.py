"""The inputs and the results of a comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from seqgc._tabular import Summarised, columns
from seqgc.costs import Architecture, FunctionSetup, Prices, read_prices
from seqgc.errors import ParameterError, require_int, require_number
from seqgc.schemes import Kind
from seqgc.search import ProfileReading
from seqgc.tables import App
from seqgc.virtual import WorkerKind

if TYPE_CHECKING:  # torch takes seconds
    from seqgc.training import TrainingPlan

__all__ = ["Comparison", "Metering", "Row", "Trial"]

_FEW = 3  # most names in a text
_MOST_SEEDS, _MOST_CLOCKS = 1000, 10**7


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The training to the ``target`` (mean loss), by default softmax regression on digits.

    The training is repeated for each learning rate in ``lrs``, with ``seeds`` seeds (at most
    1,000; by default ten). Results are medians over the seeds. Each model takes at most ``most``
    steps on batches of ``batch`` points. If ``lrs`` is None, the rate is searched: the rate 4 is
    doubled and halved, at most by a factor of 64, until the best rate is neither the smallest nor
    the largest that was tried.

    If a ``plan`` is given, its models are trained as `seqgc.train` would train them. Then ``lrs``
    are factors of the models' own learning rates, by default only 1; there are three seeds by
    default; the target is a loss on the models' test data, or on their training data if there are
    no test data; and ``batch`` has no effect. The models, precision and updates of the plan are
    used. Its scheme and steps are not used: the comparison sets them.

    If an ``app`` is given, it is run instead, and the target is an objective
    (`seqgc.tables.App`). ``lrs`` are factors of its step size, by default only 1, there are three
    seeds by default, and ``batch`` has no effect.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.
    """

    target: float = 0.25
    lrs: tuple[float, ...] | None = None
    batch: int = 1024
    seeds: int | None = None
    most: int = 300
    plan: TrainingPlan | None = field(default=None, repr=False)
    app: App | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.plan is not None and self.app is not None:
            raise ParameterError("app", "must be left out with a plan", type(self.app).__name__)
        require_number("target", self.target, above=0)
        if self.lrs is not None and (not isinstance(self.lrs, tuple | list) or not self.lrs):
            raise ParameterError("lr", "must name at least one learning rate", self.lrs)
        for lr in self.lrs or ():
            require_number("lr", lr, above=0)
        for name, limit in (("seeds", _MOST_SEEDS), ("most", _MOST_CLOCKS)):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, require_int(name, value, least=1, most=limit))

    @property
    def what(self) -> str:
        """The name of the trained models, for messages."""
        if self.app is not None:
            return type(self.app).__name__
        if self.plan is None:
            return "softmax regression on 1,797 handwritten digits"
        names = [model.name for model in self.plan.models]
        more = f", … ({len(names)} models)" if len(names) > _FEW else ""
        return f"{', '.join(names[:_FEW])}{more}"

    def rate(self, *lrs: float) -> str:
        """Return the learning rates as a text."""
        rates = ", ".join(f"{lr:g}" for lr in lrs)
        return f"{rates} times the models' own" if self.is_own else rates

    @property
    def is_own(self) -> bool:
        """True if the trained models or the app are not the usual softmax regression."""
        return self.plan is not None or self.app is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of one defence; a time, cost or rate is None if the target was not reached.

    ``jobs_per_round`` is the number of models whose gradients are one job. ``rule`` is the closing
    rule, empty for the default rule. ``failed`` is a model that failed in training, with the
    reason; it is empty if no model failed. ``over_bound`` is the seconds per clock divided by the
    lower bound. ``clocks_to_target`` of each model, ``seconds_to_target`` of all models, and
    ``usd`` are medians over the seeds at the common learning rate.

    ``seconds_between`` is a confidence interval for the median time over random batches. For ten
    seeds it reaches from the second best to the second worst time, with 95 % confidence. For fewer
    than six seeds it reaches from the best to the worst time, with less confidence. If the seed at
    an end did not reach the target, this end is infinite.

    ``seeds_seconds`` are the seconds to the target of each seed, in the order of the seeds, at the
    common learning rate; a seed that did not reach the target has infinity.

    ``best_lr`` and ``best_seconds`` are the defence's own best rate, and the seconds at this rate.
    If ``best_is_edge`` is True, this rate is the smallest or the largest that was tried, and a rate
    beyond may be better. ``staleness_mean`` and ``staleness_max`` are the numbers of clocks whose
    updates the weights of a task lack. ``wasted`` is the work of the workers beyond one batch per
    clock, in batches. ``received`` and ``sent`` are the numbers of vectors, each as long as a
    model, that the workers receive (weights) and send (results) per clock (Cui et al. 2014, Table
    2, in bytes).
    """

    defence: str
    rule: str
    kind: Kind
    jobs_per_round: int
    seconds_per_clock: float
    over_bound: float
    clocks_to_target: float | None
    seconds_to_target: float | None
    seconds_between: tuple[float, float] | None
    usd: float | None
    best_lr: float | None
    best_seconds: float | None
    staleness_mean: float
    staleness_max: float
    wasted: float
    received: float = 0.0
    sent: float = 0.0
    failed: str = ""
    best_is_edge: bool = False
    seeds_seconds: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        """The defence, with its closing rule unless it is the default rule."""
        return f"{self.defence}, {self.rule}" if self.rule else self.defence


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Summarised):
    """The ``rows``, sorted by the time to the target, and the conditions of the comparison.

    ``lr`` is the common learning rate, the best rate for exact gradients. If ``lr_is_edge`` is
    True, ``lr`` is the smallest or the largest rate that was tried. ``trial`` has the rates that
    were tried for exact gradients, and the number of seeds. ``chosen_on`` is the number of rounds
    at the beginning of the recording on which the defences were chosen; they were evaluated on the
    other rounds. It is 0 if the recording has only one round, and None if the defences were named.
    ``alpha``, in seconds per unit of load, is None if delays are read as speeds.
    """

    rows: tuple[Row, ...]
    reading: ProfileReading
    workers: WorkerKind
    n: int
    models: int
    clocks: int
    alpha: float | None
    lr: float
    trial: Trial
    bound_s: float  # per clock
    lr_is_edge: bool = False
    chosen_on: int | None = None

    def summary(self) -> dict[str, object]:
        return {
            "defences": len(self.rows),
            "workers": self.n,
            "target": self.trial.target,
            "advice": self.advice,
        }

    def summary_table(self) -> dict[str, npt.NDArray[Any]]:
        return columns(
            {
                "defence": row.label,
                "kind": row.kind,
                "seconds": row.seconds_to_target,
                "$": row.usd,
                "times the bound": row.over_bound,
                "staleness": row.staleness_mean,
            }
            for row in self.rows
        )

    @property
    def premise(self) -> str:
        """A sentence with the conditions of the comparison."""
        slope = "" if self.alpha is None else f", {self.alpha:g} s per unit of load"
        stay = self.workers == "resident"
        who = "resident workers" if stay else "functions, each task an invocation"
        return (
            f"Delays read as {self.reading}{slope}; {self.n} {who}; "
            f"{self.clocks} clocks timed, {self.models} model(s), loss {self.trial.target:g}, "
            f"{self.trial.seeds} seed(s).{self._chosen}"
        )

    @property
    def _chosen(self) -> str:
        if self.chosen_on is None:
            return ""
        if self.chosen_on == 0:
            return " The code was chosen on the same single round on which it is judged."
        first = f" The code was chosen on the first {self.chosen_on} round(s)"
        return f"{first}; all are judged on the rest."

    @property
    def advice(self) -> str:
        """A sentence that recommends a defence."""
        if (best := self.rows[0]).seconds_to_target is None:
            target, most = self.trial.target, self.trial.most
            if failed := next((row.failed for row in self.rows if row.failed), ""):
                return f"No defence reaches a loss of {target:g}: {failed}."
            missed = f"No defence reaches a loss of {target:g} in {most} clocks"
            return f"{missed}: raise the target or `most`."
        others = [row for row in self.rows[1:] if row.kind != best.kind and row.seconds_to_target]
        how = {"exact": "exactly", "approximate": "approximately", "stale": "with stale gradients"}
        words = f"{best.label} reaches {self.trial.target:g} in {best.seconds_to_target:.1f} s, "
        words += f"{how[best.kind]}, for ${best.usd:.4f}"
        for row in others[:1]:
            words += f"; {row.label} in {row.seconds_to_target:.1f} s, {how[row.kind]}"
            if _overlap(best, row):
                words += " (their intervals overlap, so neither is known to be faster)"
        return f"{words}."


def _overlap(one: Row, other: Row) -> bool:
    if one.seconds_between is None or other.seconds_between is None:
        return False
    (low, high), (least, most) = one.seconds_between, other.seconds_between
    return low < most and least < high


@dataclass(frozen=True, slots=True, kw_only=True)
class Metering:
    """The price of a worker's time, from the function's memory and processor, and ``prices``.

    Resident workers are also paid per second, like functions with this memory.
    """

    memory_mb: int = 2048
    arch: Architecture = "x86_64"
    prices: Prices = field(default_factory=read_prices)

    def __post_init__(self) -> None:
        self.usd(worker_s=0.0, requests=0)  # raises if there is no price

    def usd(self, *, worker_s: float, requests: int) -> float:
        """Return the price of worker-seconds and invocations, in US dollars.

        Examples
        --------
        >>> round(Metering().usd(worker_s=3600.0, requests=1000), 4)
        0.1202
        """
        function = FunctionSetup(memory_mb=self.memory_mb, timeout_s=900)
        usage = function.usage(invocations=requests, ms=worker_s * 1e3)
        return self.prices.bill(usage, architecture=self.arch).usd
