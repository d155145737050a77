"""Delays for experiments: generators fitted to recordings, and recordings drawn again.

The recordings are 256 AWS Lambda functions that compute a small CNN's gradient, series ``canada d``
(30 rounds at each of five loads) and ``london a`` (10 rounds). They are not ours to publish. This
module has the numbers fitted to them, which `experiments.table1_run_time.fitted` finds again.

Both series have *stalls*, answers of 26 to 40 s, and these gather in few rounds: 25 in 6 of 150
rounds, or 30 in 8 of 50. `seqgc.profiles.LAMBDA_CNN` has them in as many rounds, with a random
number in each; `CANADA` draws one of the recorded numbers. ``canada, lone stalls`` has as many
stalls, but each in another round, so that one round in seven has one. If rounds wait for all
workers, this makes all the difference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from seqgc.errors import ParameterError
from seqgc.profiles import (
    LAMBDA_CNN,
    DelayProfile,
    GilbertElliott,
    ProfileGenerator,
    ProfileMeta,
    concatenate,
    fit_load_model,
    read_profile,
    resample_rounds,
)

__all__ = ["CANADA", "GENERATORS", "LONDON", "STALL_S", "RecordedRounds", "StalledRounds", "series"]

STALL_S: Final = 10.0  # an answer that took longer is a stall; none took between 6 and 25 s


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledRounds:
    """A generator of rounds, in a share of which some workers stall, whatever their state.

    ``p_round`` of the rounds have stalls; how many is drawn from ``counts``, and their seconds
    evenly from the range ``stall_s``.
    """

    base: ProfileGenerator
    p_round: float
    counts: tuple[int, ...]
    stall_s: tuple[float, float]

    def profile(self, rounds: int, *, workers: int, rng: np.random.Generator) -> DelayProfile:
        base = self.base.profile(rounds, workers=workers, rng=rng)
        times = base.times.copy()
        for row in np.flatnonzero(rng.random(rounds) < self.p_round):
            stalled = rng.choice(workers, size=min(rng.choice(self.counts), workers), replace=False)
            times[row, stalled] = rng.uniform(*self.stall_s, size=len(stalled))
        return replace(base, times=times)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedRounds:
    """The rounds of recordings, in blocks of ``block`` drawn at random."""

    recorded: DelayProfile
    block: int = 5

    def profile(self, rounds: int, *, workers: int, rng: np.random.Generator) -> DelayProfile:
        if workers != self.recorded.num_workers:
            rule = f"must be {self.recorded.num_workers}, as recorded"
            raise ParameterError("workers", rule, workers)
        return resample_rounds(self.recorded, rounds, block=self.block, rng=rng)


def series(folder: Path, name: str) -> list[DelayProfile]:
    """Read the recordings in ``folder`` whose names begin like ``cnn-canada``, by load."""
    found = []
    for path in folder.glob(f"{name}-*.csv"):
        load = float(re.findall(r"load([\d.]+)", path.name)[0])
        found.append(read_profile(path, meta=ProfileMeta(base_load=load)))
    if not found:
        rule = f"must hold recordings named {name}-*.csv"
        raise ParameterError("recordings", rule, str(folder))
    return sorted(found, key=lambda profile: profile.meta.base_load)


def at_no_load(recorded: list[DelayProfile]) -> DelayProfile:
    """Return the rounds of recordings at several loads, minus the cost of their load."""
    alpha = fit_load_model(recorded).alpha
    return concatenate([profile.at_load(0.0, alpha=alpha) for profile in recorded])


_LONDON_BODY: Final = GilbertElliott(
    p_bad=0.0263,
    stay_bad=0.0159,
    base_s=0.9586,
    base_spread=0.0595,
    excess=0.5116,
    excess_spread=0.2732,
    tail=0.0703,
)
_CANADA_BODY: Final = replace(LAMBDA_CNN, stalled_groups=1.0, stalled_workers=0.0)
CANADA: Final = StalledRounds(
    base=_CANADA_BODY,
    p_round=6 / 150,
    counts=(9, 3, 3, 5, 3, 2),
    stall_s=(26.3, 38.5),
)
LONDON: Final = StalledRounds(
    base=_LONDON_BODY, p_round=8 / 50, counts=(6, 1, 4, 3, 7, 4, 4, 1), stall_s=(26.6, 39.6)
)
GENERATORS: Final[dict[str, ProfileGenerator]] = {
    "canada": CANADA,
    # As many stalls as explain the paper's uncoded time: (1321 s - 860 s without any) / 480 rounds,
    # where a round's slowest stall takes 34 s more than the round would.
    "canada, the paper's stalls": replace(CANADA, p_round=0.028),
    "london": LONDON,
    "canada, no stalls": _CANADA_BODY,
    "canada, lone stalls": replace(
        LAMBDA_CNN, stalled_groups=1.0, stalled_workers=25 / (150 * 256)
    ),
    "london, no stalls": LONDON.base,
    # As heavy a tail and as many stragglers as explain the paper's uncoded time without any stall,
    # and the rounds that its GC waited out (`experiments.table1_run_time.tail`).
    "canada, the paper's tail": replace(_CANADA_BODY, p_bad=0.086, tail=0.230),
}
