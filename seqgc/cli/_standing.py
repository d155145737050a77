"""Where a run stands, in words: counters that its events move, read only when they are shown."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol, cast

from seqgc.ports import Close, Dispatch, Notice, Seen

_MOST_NAMED = 12  # models whose losses are told one by one, if there is room


class Spending(Protocol):
    """What counts a run's cost, US dollars."""

    @property
    def spent_usd(self) -> float: ...


@dataclass(slots=True, kw_only=True)
class Standing:
    """What is known of a run so far; an observer of the run, which does no more than count.

    ``total`` is the number of rounds. A round's stragglers are those whose answers were missing
    when it closed; ``survived`` counts them over all rounds, less the late answers that were used.
    """

    total: int
    spending: Spending | None = None
    clock: Callable[[], float] = time.monotonic
    done: int = 0  # rounds, those of the masters before included
    closed: int = 0  # of them by this master
    finished: int = 0  # jobs, by this master
    stragglers: int | None = None  # of the newest round; None where work is dealt
    survived: int = 0
    wait_outs: int = 0
    losses: dict[str, float] = field(default_factory=dict)  # newest batch's, by model
    parked: set[str] = field(default_factory=set)
    began_s: float | None = None

    def __call__(self, seen: Seen) -> None:
        match seen:
            case Close(record=record, jobs=jobs):
                self.closed += 1
                self.finished += len(jobs)
                self.done = max(self.done, record.round + 1)
                self.wait_outs += record.waited_out
                dealt = record.reason == "dealt"
                self.stragglers = None if dealt else int((~record.responded).sum())
                # A resumed run may take late answers to rounds that were not shown.
                self.survived = max(0, self.survived + record.missed)
            case Notice(kind="run" | "resume", fields=fields):
                self.total = cast("int", fields["rounds"])
            case Notice(kind="round", fields=fields):
                self.closed += 1
                self.done = cast("int", fields["done"])
            case Notice(kind="parked", fields=fields):
                self.parked.add(str(fields["model"]))
            case Dispatch(round=first) if self.began_s is None:
                self.began_s = self.clock()
                self.done = max(self.done, first)  # by the masters before

    @property
    def elapsed_s(self) -> float:
        """Seconds since this master sent its first tasks."""
        return 0.0 if self.began_s is None else self.clock() - self.began_s

    @property
    def left_s(self) -> float | None:
        """Seconds that the rounds left will take if they are as those before; None: not known."""
        if not self.closed or self.began_s is None:
            return None
        return max(0, self.total - self.done) * self.elapsed_s / self.closed

    @property
    def jobs_per_minute(self) -> float | None:
        """None: not known, or there are no jobs."""
        return 60 * self.finished / self.elapsed_s if self.finished and self.elapsed_s else None

    @property
    def facts(self) -> dict[str, object]:
        """What machines are told."""
        return {
            "round": self.done,
            "rounds": self.total,
            "stragglers": self.stragglers,
            "survived": self.survived,
            "wait_outs": self.wait_outs,
            "jobs": self.finished,
            "jobs_per_minute": self.jobs_per_minute,
            "left_s": self.left_s,
            "spent_usd": None if self.spending is None else self.spending.spent_usd,
            "loss": self._spread(),
            "parked": len(self.parked),
        }

    def words(self) -> list[str]:
        """Return what people are told of the rounds, part by part."""
        parts = [f"{self.done} of {max(self.total, self.done)} rounds"]
        if self.stragglers is not None:
            parts.append(f"stragglers: {self.stragglers} now and {self.survived} survived")
            parts.append(f"{self.wait_outs} wait-out{'' if self.wait_outs == 1 else 's'}")
        if (rate := self.jobs_per_minute) is not None:
            parts.append(f"{rate:.3g} jobs/min" if rate < 1000 else f"{rate:,.0f} jobs/min")
        if (left_s := self.left_s) is not None and self.done < self.total:
            parts.append(f"{_clock_time(left_s)} left")
        if self.spending is not None:
            parts.append(f"at most ${self.spending.spent_usd:.4f} so far")
        return parts

    def loss_words(self, *, width: float = math.inf, lines: float = math.inf) -> list[str]:
        """Return each model's loss, part by part, if that fits; else the best, median and worst."""
        losses = dict(self.losses)
        if not losses:
            return []
        each = [f"{name} {loss:.4g}{self._mark(name)}" for name, loss in losses.items()]
        each[0] = f"loss: {each[0]}"
        fits = all(len(part) < width for part in each) and len(folded(each, width)) <= lines
        if len(each) <= _MOST_NAMED and fits:
            return each
        spread = self._spread()
        parts = [f"{name} {loss:.4g}" for name, loss in spread.items()]
        parts[0] = f"loss of {len(losses)} models: {parts[0]}"
        return [*parts, f"{len(self.parked)} parked"]

    def _mark(self, name: str) -> str:
        return " (parked)" if name in self.parked else ""

    def _spread(self) -> dict[str, float]:
        """Return the best, median and worst of the models that are still trained; {}: none is.

        A loss that is no number is worse than all others.
        """
        losses = list(dict(self.losses).items())
        going = [loss for name, loss in losses if name not in self.parked]
        if not (known := going or [loss for _, loss in losses]):
            return {}
        ranked = sorted(math.inf if math.isnan(loss) else loss for loss in known)
        return {"best": ranked[0], "median": median(ranked), "worst": ranked[-1]}


def folded(parts: list[str], width: float) -> list[str]:
    """Return parts as lines with commas, broken after one where the next part would not fit.

    Examples
    --------
    >>> folded(["one", "two", "three"], 9)
    ['one, two,', 'three']
    """
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f", {part}"
            continue
        if lines:
            lines[-1] += ","
        lines.append(part)
    return lines


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
