"""Measure the distance from the bound, tuned on half of a recording, judged on the other half.

python experiments/search/early_closing.py RECORDING.csv [--alpha 1.12 ...]
    [--base-load L [--recorded-alpha A]]
    [--schemes gc-rep,gc-binary | --late drop | --late take] [--concurrency]

For each alpha (seconds per unit load): the best setting of one job a round with mu = 0, closed by
``feasible``, on the first half of the rounds, and its time on the second half over the clairvoyant
bound. Both halves are repeated for ``--jobs``, so that the additional round of a run with delay 1
counts for little. ``--late`` tries RA-SGC that takes late answers, as ``seqgc tune`` does, or drops
them.
``--base-load`` is the load of the recording: its times at zero load are less by this load times
alpha, or times ``--recorded-alpha`` if the recorded functions computed faster than assumed.
``--concurrency`` also prints how many functions run at a time, on average, over the number of
workers: every function that was asked runs to its end.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from seqgc.profiles import read_profile
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import RASGC, Grid, Scheme
from seqgc.search import Rehearsal, SearchSpace, batch_replay, hold_out, replay


def concurrency(setting: Setting, rehearsal: Rehearsal) -> float:
    """Return how many functions run at a time over the number of workers."""
    run, recorded = replay(setting, rehearsal), rehearsal.profile
    assert run.loads is not None
    rows = np.arange(len(run.loads)) % recorded.num_rounds
    shifts = rehearsal.slope * (run.loads - recorded.meta.base_load)
    seconds = np.where(run.round_seconds > 0, recorded.times.mean(axis=1)[rows] + shifts, 0.0)
    return float(seconds.sum()) / run.runtime_s


def main() -> None:
    """Print a line for each alpha."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording")
    parser.add_argument("--alpha", type=float, action="append")
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--base-load", type=float, default=0.0)
    parser.add_argument("--recorded-alpha", type=float)
    parser.add_argument("--schemes", default="uncoded,gc-rep,gc-binary")
    parser.add_argument("--late", choices=["take", "drop"])
    parser.add_argument("--concurrency", action="store_true")
    given = parser.parse_args()
    profile = read_profile(given.recording)
    times, base_load = profile.times, given.base_load
    if given.recorded_alpha is not None:
        times, base_load = times - given.recorded_alpha * base_load, 0.0
    profile = replace(profile, times=times, meta=replace(profile.meta, base_load=base_load))
    n, halves = profile.num_workers, hold_out(profile, fraction=0.5)
    schemes: list[Scheme] = [
        replace(scheme, late=given.late)
        for scheme in (RASGC.candidates(n, Grid()) if given.late else ())
        if isinstance(scheme, RASGC)
    ]
    if given.late is None:
        schemes = list(SearchSpace(families=tuple(given.schemes.split(","))).schemes(n))
    for alpha in given.alpha or (1.12, 5.0, 20.0, 60.0):
        seen, held = (
            Rehearsal(profile=half, num_jobs=given.jobs, alpha=alpha, repeat=True)
            for half in halves
        )
        seconds = batch_replay(schemes, seen, rule=ClosingRule()).runtime_s
        setting = Setting(scheme=schemes[int(seconds.argmin())])
        ratio = replay(setting, held).runtime_s / held.ideal_s(given.jobs)
        more = f", concurrency {concurrency(setting, held):.2f}" if given.concurrency else ""
        print(f"alpha {alpha:g}: {setting.scheme.spec}, {ratio:.3f}{more}", flush=True)


if __name__ == "__main__":
    main()
