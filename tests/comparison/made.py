"""Comparisons that nobody ran, to be drawn."""

from __future__ import annotations

from seqgc.comparison import Comparison, Row, Trial
from seqgc.schemes import Kind

__all__ = ["comparison_of"]


def comparison_of(*found: tuple[str, Kind, float | None, float | None]) -> Comparison:
    """Return a comparison of defences: name, kind, seconds to the target, US dollars."""
    rows = tuple(
        Row(
            defence=name,
            rule="",
            kind=kind,
            jobs_per_round=1,
            seconds_per_clock=1.25,
            over_bound=1.5,
            clocks_to_target=None if seconds is None else 29.0,
            seconds_to_target=seconds,
            seconds_between=None if seconds is None else (seconds, 2 * seconds),
            usd=usd,
            best_lr=None if seconds is None else 4.0,
            best_seconds=seconds,
            staleness_mean=0.5 if kind == "stale" else 0.0,
            staleness_max=2.0 if kind == "stale" else 0.0,
            wasted=0.0,
        )
        for name, kind, seconds, usd in found
    )
    return Comparison(
        rows=rows,
        reading="latency",
        workers="function",
        n=16,
        models=1,
        clocks=20,
        alpha=3.0,
        lr=4.0,
        trial=Trial(lrs=(1.0, 2.0, 4.0), seeds=3),
        bound_s=0.8,
    )
