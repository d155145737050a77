"""The tables that the command line prints: schemes, replays, rankings, bills, and more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from seqgc._tabular import columns
from seqgc.comparison import Comparison
from seqgc.costs import Architecture, Prices, Usage
from seqgc.explanation import Explanation
from seqgc.pipeline import Chain, Plan
from seqgc.ports import Table
from seqgc.profiles import Finding
from seqgc.rounds import PolicyDefence
from seqgc.runs import read_run
from seqgc.schemes import Deal, Defence, Scheme
from seqgc.search import Ranked, Replay, Tuning
from seqgc.stragglers import StragglerStats, over_bound

if TYPE_CHECKING:  # torch takes seconds
    from seqgc.training import TrainResult


def schemes(defences: Iterable[Defence]) -> Table:
    """Return a row for each scheme or other defence.

    The columns are ``scheme``, its spec; ``workers``; ``kind``, the kind of its gradients;
    ``delay_rounds``; ``pieces``, the number of tasks of a job if work is dealt, otherwise 0;
    ``normalized_load``, the largest fraction of a batch that a worker computes;
    ``load_lower_bound``, the least load that tolerates the same; ``stragglers``, the number of
    missing workers that its code tolerates; ``staleness``, the largest number of jobs that the
    weights of a task lack; and ``tolerates``, a text. A number is None if it is unknown.

    Examples
    --------
    >>> from seqgc import parse_scheme
    >>> table = schemes([parse_scheme("gc:s=1", n=4), parse_scheme("ssp:slack=2", n=4)])
    >>> table["normalized_load"].tolist(), table["stragglers"].tolist()
    ([0.5, 0.25], [1, None])
    """
    return columns(
        {
            "scheme": each.spec,
            "workers": each.n,
            "kind": each.kind,
            "delay_rounds": each.delay,
            "pieces": each.num_pieces,
            "normalized_load": float(each.normalized_load),
            "load_lower_bound": each.load_lower_bound,
            "stragglers": each.tolerated if isinstance(each, Scheme) else None,
            "staleness": each.staleness if isinstance(each, PolicyDefence) else None,
            "tolerates": tolerates(each),
        }
        for each in defences
    )


def tolerates(defence: Defence) -> str:
    """Return a text with the stragglers that a defence tolerates."""
    if isinstance(defence, Scheme):
        return defence.promise.describe()
    if isinstance(defence, PolicyDefence):
        return defence.tolerates
    return "any stragglers: other workers take over the pieces of a slow one"


def replays(runs: Mapping[str, Replay], *, ideal_s: float = np.nan) -> Table:
    """Return a row for each replay, by name.

    The columns are ``scheme``, the name; ``jobs`` and ``rounds``; ``runtime_s``; ``ideal_s``, the
    lower bound of all run times that the caller knows; ``ratio``, the run time over this bound;
    ``mean_round_s`` and ``longest_round_s``; ``stragglers``, in all rounds; ``most_stragglers`` in
    one round; and ``waited_out``, the number of rounds that stayed open beyond their closing rule.

    Examples
    --------
    >>> from seqgc import DelayProfile, replay
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> replays({"gc:s=1": replay("gc:s=1", profile, alpha=0.0)})["runtime_s"].tolist()
    [3.5]
    """
    return columns(
        {
            "scheme": name,
            "jobs": len(run.job_finish_round),
            "rounds": len(run.round_seconds),
            "runtime_s": run.runtime_s,
            "ideal_s": ideal_s,
            "ratio": over_bound(run.runtime_s, ideal_s) if np.isfinite(ideal_s) else None,
            "mean_round_s": float(run.round_seconds.mean()),
            "longest_round_s": float(run.round_seconds.max()),
            "stragglers": int(np.count_nonzero(~run.responded)),
            "most_stragglers": int(np.count_nonzero(~run.responded, axis=1).max()),
            "waited_out": int(np.count_nonzero(run.waited_out)),
        }
        for name, run in runs.items()
    )


def rankings(tuning: Tuning, by_seed: Sequence[Tuning] = ()) -> Table:
    """Return a row for each ranked candidate of a search, and for the best of further searches.

    The column ``part`` is ``ranking`` for the exact schemes; ``pareto`` for the front of run time
    and bill, if it was requested; ``inexact`` for the approximate schemes, if they were; and
    ``seed 0``, ``seed 1`` and so on for the best of each search in ``by_seed``. The other columns
    are the setting (``scheme``, ``mu``, ``wait_out`` and ``jobs_per_round``), the properties of the
    scheme (``normalized_load``, which is NaN if work is dealt, ``delay_rounds`` and
    ``load_lower_bound``), and the fields and properties of `seqgc.search.Ranked`.
    """
    parts = {"ranking": tuning.ranking, "pareto": tuning.pareto, "inexact": tuning.inexact}
    parts |= {f"seed {seed}": (each.best,) for seed, each in enumerate(by_seed)}
    return columns({"part": part, **_ranked(row)} for part, rows in parts.items() for row in rows)


def _ranked(row: Ranked) -> dict[str, object]:
    setting, scheme = row.setting, row.setting.scheme
    return {
        "scheme": scheme.spec,
        "mu": setting.rule.mu,
        "wait_out": setting.rule.wait_out,
        "jobs_per_round": setting.jobs_per_round,
        "normalized_load": None if isinstance(scheme, Deal) else float(scheme.normalized_load),
        "runtime_s": row.runtime_s,
        "holdout_s": row.holdout_s,
        "delay_rounds": scheme.delay,
        "load_lower_bound": scheme.load_lower_bound,
        "ideal_s": row.ideal_s,
        "holdout_ideal_s": row.holdout_ideal_s,
        "ratio": row.ratio,
        "billed_worker_s": row.billed_worker_s,
        "error": row.error,
        "information": row.information,
        "equivalent_s": row.equivalent_s,
        "holdout_equivalent_s": row.holdout_equivalent_s,
        # A scheme with rounds invokes all workers in each round, whatever the reading is.
        "reading": row.reading.label if isinstance(scheme, Deal) else "per round",
    }


def defences(result: Comparison) -> Table:
    """Return a row for each defence of a comparison, in its order.

    The columns are ``defence`` and the fields of `seqgc.comparison.Row`. ``seconds_low`` and
    ``seconds_high`` are the ends of ``seconds_between``; ``seeds_seconds`` are numbers separated by
    spaces. A number is NaN if the target was not
    reached.
    """

    def row_of(
        fields: dict[str, object], between: tuple[float, float] | None, seconds: tuple[float, ...]
    ) -> dict[str, object]:
        del fields["seconds_between"]
        low, high = between or (None, None)
        each = " ".join(map(repr, seconds))
        return fields | {"seeds_seconds": each, "seconds_low": low, "seconds_high": high}

    return columns(
        row_of(asdict(row), row.seconds_between, row.seeds_seconds) for row in result.rows
    )


def findings(found: Iterable[Finding]) -> Table:
    """Return a row for each finding of `seqgc.profiles.lint`.

    The columns are ``severity``, ``rule``, ``round``, ``worker`` and ``message``. A round or a
    worker is None if the finding is about all of them.
    """
    rows = (
        {
            "severity": each.severity,
            "rule": each.rule,
            "round": each.row,
            "worker": each.column,
            "message": each.message,
        }
        for each in found
    )
    return columns(rows, names=("severity", "rule", "round", "worker", "message"))


def counterfactuals(found: Explanation) -> Table:
    """Return a row for each run time that an explanation has replayed.

    The columns are ``what``, ``scheme``, ``mu``, ``seconds``, the interval ``low_s`` and
    ``high_s``, ``saved_s``, and ``usd``, NaN if no price is known.
    """
    names = ("what", "scheme", "mu", "seconds", "low_s", "high_s", "saved_s", "usd")
    table = columns(map(asdict, found.counterfactuals), names=names)
    return table | {"usd": np.array(table["usd"], dtype=float)}


def straggler_models(stats: StragglerStats) -> Table:
    """Return the smallest λ of each straggler model to which a profile conforms.

    The columns are ``window_rounds`` (W), ``burst_rounds`` (B), ``bursty_lam`` for the (B, W, λ)-
    bursty model, and ``arbitrary_lam`` for the (N=B, W, λ)-arbitrary model. A λ is None if the
    profile conforms for no λ.
    """
    return columns(
        (
            {
                "window_rounds": each.W,
                "burst_rounds": each.B,
                "bursty_lam": each.bursty,
                "arbitrary_lam": each.arbitrary,
            }
            for each in stats.smallest_lam
        ),
        names=("window_rounds", "burst_rounds", "bursty_lam", "arbitrary_lam"),
    )


def bills(
    usages: Mapping[str, Usage], *, prices: Prices, architecture: Architecture = "x86_64"
) -> Table:
    """Return a row for each usage of AWS, by name.

    The columns are ``estimate``, the name; the fields of `seqgc.costs.Usage`; the price of each
    kind of use, for example ``requests_usd``; and ``usd``, their sum.

    Examples
    --------
    >>> from seqgc.costs import read_prices
    >>> bills({"likely": Usage(requests=10**6)}, prices=read_prices())["usd"].tolist()
    [0.2]
    """

    def row_of(name: str, usage: Usage) -> dict[str, object]:
        bill = prices.bill(usage, architecture=architecture)
        by_kind = {f"{kind}_usd": usd for kind, usd in asdict(bill).items()}
        return {"estimate": name, **asdict(usage), **by_kind, "usd": bill.usd}

    return columns(row_of(name, usage) for name, usage in usages.items())


def trainings(results: Sequence[TrainResult]) -> Table:
    """Return a row for each finished training, with the rounds of its folder.

    The columns are ``scheme``; ``run``, its folder; ``seconds``; ``jobs`` and ``rounds``;
    ``median_round_s`` and ``slowest_round_s``; ``stragglers``, the number of missing answers
    without which rounds closed; ``waited_out``, the number of rounds that waited for stragglers;
    and the ``worst_loss`` and ``worst_accuracy`` of its models.
    """

    def row_of(result: TrainResult) -> dict[str, object]:
        seconds = read_run(result.run).rounds()["duration_s"]
        evaluations = result.evaluations.values()
        accuracies = [each.accuracy for each in evaluations if each.accuracy is not None]
        return {
            "scheme": result.scheme,
            "run": str(result.run),
            "seconds": result.seconds,
            "jobs": result.jobs,
            "rounds": len(seconds),
            "median_round_s": float(np.median(seconds)) if len(seconds) else None,
            "slowest_round_s": float(seconds.max()) if len(seconds) else None,
            "stragglers": result.counts.stragglers,
            "waited_out": result.counts.waited_out,
            "worst_loss": max((each.loss for each in evaluations), default=None),
            "worst_accuracy": min(accuracies, default=None),
        }

    return columns(map(row_of, results))


def layers(chain: Chain) -> Table:
    """Return a row for each layer of a network that was measured for a pipeline.

    The columns are ``layer``, from 1, and the fields of `seqgc.pipeline.Layer`.
    """
    return columns({"layer": at, **asdict(each)} for at, each in enumerate(chain.layers, 1))


def stages(plan: Plan) -> Table:
    """Return a row for each stage of a planned pipeline.

    The columns are ``stage``, ``first_layer`` and ``last_layer``, from 1; ``replicas``;
    ``versions``, the number of versions of the weights that a replica holds; and ``memory_bytes``,
    their size with the activations.
    """
    return columns(
        {
            "stage": at + 1,
            "first_layer": stage.first + 1,
            "last_layer": stage.last + 1,
            "replicas": stage.replicas,
            "versions": plan.in_flight(at),
            "memory_bytes": plan.memory_bytes(at),
        }
        for at, stage in enumerate(plan.stages)
    )
