"""Fit stragglers to two numbers of the paper: the uncoded run time, and how often GC waited.

python -m experiments.table1_run_time.tail

Uncoded rounds wait for the slowest worker: 1321 s in 480 rounds determine the weight of the tail.
GC with s = 15 waits if more than 15 workers straggle: 129 of 480 rounds determine how many do. All
other parameters are fitted to the recording of Canada, and no worker stalls.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from experiments.delays import CANADA
from experiments.table1_run_time.run import ALPHA, JOBS, PAPER, RULE, WORKERS
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile, GilbertElliott
from seqgc.schemes import GC
from seqgc.stragglers import straggler_pattern

ROUNDS, SEED = 4000, 1000


@lru_cache(maxsize=1)
def times(body: GilbertElliott) -> FloatArray:
    return body.profile(ROUNDS, workers=WORKERS, rng=np.random.default_rng(SEED)).times


def uncoded_s(body: GilbertElliott) -> float:
    """Return the mean run time without a code, seconds."""
    return JOBS * float(times(body).max(axis=1).mean() + ALPHA / WORKERS)


def gc_waits(body: GilbertElliott) -> float:
    """Return the mean number of rounds that GC with the paper's s waits out."""
    gc = GC(n=WORKERS, s=15)
    profile = DelayProfile.from_times(times(body) + ALPHA * gc.normalized_load)
    late = straggler_pattern(profile, mu=RULE.mu).sum(axis=1)
    return JOBS * float((late > gc.s).mean())


def fitted(body: GilbertElliott) -> GilbertElliott:
    """Return the body with the ``p_bad`` and ``tail`` that explain the paper's two numbers."""

    def as_slow(p_bad: float) -> GilbertElliott:
        def excess_s(tail: float) -> float:
            return uncoded_s(replace(body, p_bad=p_bad, tail=tail)) - PAPER["uncoded"][1]

        return replace(body, p_bad=p_bad, tail=float(brentq(excess_s, 0.05, 0.6, xtol=1e-4)))

    p_bad = brentq(lambda p: gc_waits(as_slow(p)) - PAPER["gc"][3], 0.03, 0.2, xtol=1e-4)
    return as_slow(float(p_bad))


def main() -> None:
    found = fitted(CANADA.base)
    print(f"p_bad {found.p_bad:.3f}, tail {found.tail:.3f}")
    print(f"uncoded {uncoded_s(found):.0f} s, GC waits out {gc_waits(found):.0f} of {JOBS} rounds")


if __name__ == "__main__":
    main()
