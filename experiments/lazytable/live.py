"""An app on four processes of this machine, and the same run in virtual time.

python -m experiments.lazytable.live [--clocks N]

The workers wait until they have taken the seconds of the pace: 0.3 s a clock on average, with a
lognormal factor (sigma 0.5). The table compares these runs with their replays.
"""

from __future__ import annotations

import argparse

import numpy as np

from seqgc import workers
from seqgc.profiles import ByRound
from seqgc.tables import run_app
from seqgc.tables.apps import MatrixFactorization, photograph
from seqgc.virtual import WorkerKind

WORKERS, CLOCK_S, SIGMA = 4, 0.3, 0.5


def pace() -> ByRound:
    factors = np.random.default_rng(2).lognormal(-(SIGMA**2) / 2, SIGMA, (100, WORKERS))
    return ByRound(latencies_s=CLOCK_S * factors, rates=[[0.0]])


def delay(round: int, worker: int, load: float) -> float:  # noqa: ARG001 (as all such functions)
    return pace().latency_s(worker, round=round, at=0.0)


def main() -> None:
    """Print the seconds and the objective of live runs and of their replays."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clocks", type=int, default=40)
    clocks = parser.parse_args().clocks
    app = MatrixFactorization(ratings=photograph())
    print("defence, live s, replayed s, ratio, live objective, replayed objective")
    for spec in ("bsp", "gc-rep:s=1", "ssp:slack=1", "asp"):
        with workers.local(WORKERS, delays=delay) as crew:
            live = run_app(app, spec, workers=crew, clocks=clocks)
        # In a code's rounds, a cancelled task ends at once here, as it does for functions.
        kind: WorkerKind = "function" if spec.startswith("gc") else "resident"
        replay = run_app(app, spec, workers=pace(), clocks=clocks, kind=kind)
        ratio = live.seconds / replay.seconds
        print(f"{spec}, {live.seconds:.2f}, {replay.seconds:.2f}, {ratio:.3f}, ", end="")
        print(f"{live.objective:.5f}, {replay.objective:.5f}", flush=True)


if __name__ == "__main__":
    main()
