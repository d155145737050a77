"""Which pictures a page has: what each is called and shows, also to those who cannot see it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from seqgc import plot
from seqgc.comparison import Comparison
from seqgc.plot import tables
from seqgc.ports import Table
from seqgc.profiles import DelayProfile
from seqgc.report._elements import number, percent
from seqgc.report._pictures import Picture
from seqgc.runs import RecordedRun
from seqgc.search import Tuning

__all__ = ["comparison_picture", "delay_pictures", "heat_map", "run_pictures", "search_pictures"]


def comparison_picture(found: Comparison) -> Picture:
    """Return the picture of when each defence is at the target, and what that costs."""
    table = tables.comparison(found)
    there = np.isfinite(table["seconds_to_target"])
    words = f"Dots of {np.count_nonzero(there)} defences"
    if there.any():
        seconds = table["seconds_to_target"][there]
        front = "; ".join(table["defence"][table["front"]].tolist())
        words += (
            f", from {number(seconds.min())} to {_most(seconds)} s; nothing is both sooner and "
            f"cheaper than these: {front}"
        )
    return Picture(
        title="Dollars over seconds to the target",
        caption="Both logarithmic; ringed is whatever nothing else beats in both.",
        alt=f"{words}.",
        draw=lambda ax: plot.comparison(found, ax=ax),
        table=table,
        wide=True,
        high=True,
    )


def heat_map(data: DelayProfile | RecordedRun, *, title: str, wide: bool = True) -> Picture:
    """Return the picture of who straggled when, in a profile or in one run."""
    table = tables.heat_map(data)
    return Picture(
        title=title,
        caption="A column is a round, a row a worker; marked cells are stragglers.",
        alt=_heat_alt(table),
        draw=lambda ax: plot.heat_map(data, ax=ax),
        table=table,
        wide=wide,
    )


def delay_pictures(data: DelayProfile | Mapping[str, RecordedRun]) -> list[Picture]:
    """Return the pictures of how long straggling lasts, and how late answers are."""
    bursts, completion = tables.bursts(data), tables.completion_times(data)
    return [
        Picture(
            title="How long straggling lasts",
            caption="A burst is a worker's straggling rounds in succession.",
            alt=f"Bars: how many bursts lasted how many rounds, up to {_most(bursts['rounds'])}.",
            draw=lambda ax: plot.bursts(data, ax=ax),
            table=bursts,
        ),
        Picture(
            title="How late answers are",
            caption="The share of all tasks that had been answered after so many seconds.",
            alt=f"Curves from 0 to {_most(completion['seconds'])} s: the share of tasks answered.",
            draw=lambda ax: plot.completion_times(data, ax=ax),
            table=completion,
        ),
    ]


def _heat_alt(heat: Table) -> str:
    straggling, slowest = heat["straggling"].astype(float), heat["slowest_s"].astype(float)
    first, last, worst = heat["round"][0], heat["round"][-1], int(np.nanargmax(straggling))
    most = f"{percent(float(straggling[worst]))} in round {heat['round'][worst]}"
    words = (
        f"Heat map, rounds {first} to {last}: {percent(float(np.nanmean(straggling)))} of all "
        f"cells straggle, at most {most}."
    )
    known = slowest[np.isfinite(slowest)]
    return f"{words} The slowest answer took {_most(known)} s." if known.size else words


def run_pictures(runs: Mapping[str, RecordedRun]) -> list[Picture]:
    """Return the pictures of what runs came to, over one another; each has closed a round."""
    rounds, jobs = tables.timeline(runs), tables.finished_jobs(runs)
    losses, spent = tables.losses(runs), tables.worker_seconds(runs)
    found = [
        Picture(
            title="What each round waited for",
            caption="A bar is as wide and high as its round was long; its colour is why it closed.",
            alt=_timeline_alt(rounds),
            draw=lambda ax: plot.timeline(runs, ax=ax),
            table=rounds,
            wide=True,
        ),
        Picture(
            title="Jobs finished",
            caption="A job is one step of the models that share it, its gradient decoded.",
            alt=f"Rising curves: {_most(jobs['jobs'])} jobs by {_most(jobs['finished_s'])} s.",
            draw=lambda ax: plot.finished_jobs(runs, ax=ax),
            table=jobs,
        ),
    ]
    if len(losses["loss"]):
        names = len(set(losses["model"].tolist()))
        found.append(
            Picture(
                title="Loss",
                caption="Of each model's batch, before the step was taken.",
                alt=f"Curves of the losses of {names} models over time.",
                draw=lambda ax: plot.losses(runs, ax=ax),
                table=losses,
            )
        )
    found.append(
        Picture(
            title="Load and cost",
            caption="Worker-seconds by what became of them: what is billed where functions work.",
            alt=f"Bars of worker-seconds: up to {_most(spent['total_s'])} s a run.",
            draw=lambda ax: plot.worker_seconds(runs, ax=ax),
            table=spent,
        )
    )
    return found


def _timeline_alt(rounds: Table) -> str:
    reasons, counts = np.unique(rounds["reason"].astype(str), return_counts=True)
    why = ", ".join(f"{n:,} by {reason}" for reason, n in zip(reasons, counts, strict=True))
    longest = _most(rounds["closed_s"] - rounds["began_s"])
    return (
        f"Timeline of {len(rounds['round']):,} rounds, closed {why}; the longest took {longest} s."
    )


def search_pictures(tuning: Tuning) -> list[Picture]:
    """Return the pictures of a search: its landscape, ratios to the bound, time and cost."""
    best = tuning.best.setting.scheme.spec
    shown = {name: getattr(tables, name)(tuning) for name in ("landscape", "ratios", "pareto")}
    return [
        Picture(
            title="The landscape",
            caption="The run time over the parameters of the best schemes; the winner is marked.",
            alt=f"Heat map of run times by B, W and lam; the winner is {best}.",
            draw=lambda ax: plot.landscape(tuning, ax=ax),
            table=shown["landscape"],
            wide=True,
            high=True,
        ),
        Picture(
            title="To the bound",
            caption="Each scheme's best, by the time of a master who knows all delays beforehand.",
            alt=f"Dots: from {number(tuning.best.ratio)} to {_most(shown['ratios']['ratio'])}.",
            draw=lambda ax: plot.ratios(tuning, ax=ax),
            table=shown["ratios"],
            high=True,
        ),
        Picture(
            title="Time and cost",
            caption="The bill in worker-seconds; on the line is whatever nothing beats in both.",
            alt=f"Dots of {len(shown['pareto']['setting']):,} settings and the line of the best.",
            draw=lambda ax: plot.pareto(tuning, ax=ax),
            table=shown["pareto"],
            high=True,
        ),
    ]


def _most(column: Table | np.ndarray) -> str:
    values = np.asarray(column)
    values = values[np.isfinite(values)]
    return number(values.max()) if values.size else "0"
