"""Work handed from slow workers to fast ones: Figures 7, 9, 10, 11 and 12 of FlexRR.

python -m experiments.flexrr.run [--output FOLDER]

In virtual time, with the patterns of slowness that the paper injects (Harlap et al., "Addressing
the straggler problem for iterative convergent parallel ML", SoCC 2016): 128 workers, eight on a
machine, 20 clocks, and a message takes a thousandth of a clock. All times are in clocks: 1 is the
time of an iteration without slowness. Each number is the mean of two seeds. "ideal" is the time of
workers that share all work and never wait (`seqgc.stragglers.busy_seconds`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from experiments.results import Table, figure, folder_arguments, save
from seqgc.clocks import ClockPolicy, Clocks, FlexRR, FlexRRPolicy
from seqgc.master import run
from seqgc.ports import FloatArray
from seqgc.profiles import ByWork, Disrupters, Pace, PowerLawClocks, SlowPeriods, Uneven
from seqgc.rounds import ClosingRule
from seqgc.schemes import parse_scheme
from seqgc.stragglers import busy_seconds
from seqgc.virtual import VirtualBackend

WORKERS, PER_MACHINE, CLOCKS, SEEDS = 128, 8, 20, (1, 2)
MESSAGE = 0.001  # clocks
MODES = ("bsp", "ssp:slack=1", "bsp-rr", "flexrr:slack=1")
FIELDS = ("figure", "pattern", "defence", "clocks")
DELAYS = (0, 50, 100, 200, 400)  # percent
EQUAL = np.full(WORKERS, 1 / WORKERS)


def clocks_taken(
    defence: Clocks | FlexRR, pace: Pace, *, clock_s: float, shares: FloatArray = EQUAL
) -> float:
    """Return the time of an iteration, in clocks; ``shares`` (n,) are the shares of the parts."""
    backend = VirtualBackend(WORKERS, pace, message_s=MESSAGE * clock_s)
    policy: ClockPolicy | FlexRRPolicy
    if isinstance(defence, Clocks):
        policy = ClockPolicy(
            WORKERS, ClosingRule(), num_jobs=CLOCKS, barrier=defence.barrier, shares=shares
        )
    else:
        loads = shares[:, None].repeat(defence.pieces, axis=1) / defence.pieces
        policy = FlexRRPolicy(defence, ClosingRule(), num_jobs=CLOCKS, loads=loads)
    run(policy, backend)
    return backend.now / CLOCKS / clock_s


def slow(delay: int, seed: int) -> Pace:
    return SlowPeriods(n=WORKERS, delay=delay / 100, seed=seed).pace()


def disrupted(delay: int, seed: int) -> Pace:
    slowdown = Disrupters(n=WORKERS, delay=delay / 100, clock_s=6.0, per=PER_MACHINE, seed=seed)
    return slowdown.pace()


def power_law(exponent: int, seed: int) -> Pace:
    return PowerLawClocks(n=WORKERS, exponent=exponent, seed=seed).pace()


PATTERNS = {
    "7": ("delay, %", DELAYS, slow, 1.0),
    "9": ("delay, %", DELAYS, disrupted, 6.0),
    "10": ("exponent", (4, 7, 11), power_law, 1.0),
}
USUAL = FlexRR(n=WORKERS, slack=1)
SENSITIVITY = {
    "11a": ("helpers", [replace(USUAL, helpers=each) for each in (0, 1, 2, 3, 4, 8, 16)]),
    "11b": ("pieces", [replace(USUAL, pieces=each) for each in (5, 10, 20, 40)]),
    "11c": ("trigger", [replace(USUAL, trigger=each) for each in (0.05, 0.1, 0.2, 0.4)]),
}


def measured(number: str) -> Iterator[dict[str, object]]:
    """Yield the rows of one of the `PATTERNS`."""
    _, values, pace_of, clock_s = PATTERNS[number]
    for value in values:
        paces = [pace_of(value, seed) for seed in SEEDS]
        for mode in MODES:
            taken = [clocks_taken(_defence(mode), pace, clock_s=clock_s) for pace in paces]
            yield _row(number, value, mode, float(np.mean(taken)))
        ideal = [busy_seconds(pace, CLOCKS) / CLOCKS / clock_s for pace in paces]
        yield _row(number, value, "ideal", float(np.mean(ideal)))


def sensitivity(number: str) -> Iterator[dict[str, object]]:
    """Yield the rows of one part of Figure 11: FlexRR with other parameters, delays of 200 %."""
    name, defences = SENSITIVITY[number]
    paces = [slow(200, seed) for seed in SEEDS]
    for defence in defences:
        taken = [clocks_taken(defence, pace, clock_s=1.0) for pace in paces]
        yield _row(number, getattr(defence, name), defence.spec, float(np.mean(taken)))


def uneven() -> Iterator[dict[str, object]]:
    """Yield the rows of Figure 12: every other machine has 75 % of the work."""
    machines = Uneven(n=WORKERS // PER_MACHINE).shares
    shares = machines.repeat(PER_MACHINE) / PER_MACHINE
    pace = ByWork(rates=np.full((1, WORKERS), float(WORKERS)), width=1.0)
    for mode in MODES:
        yield _row("12", "", mode, clocks_taken(_defence(mode), pace, clock_s=1.0, shares=shares))
    yield _row("12", "", "ideal", 1.0)


def _defence(spec: str) -> Clocks | FlexRR:
    defence = parse_scheme(spec, n=WORKERS)
    assert isinstance(defence, Clocks | FlexRR)
    return defence


def _row(number: str, pattern: object, defence: str, clocks: float) -> dict[str, object]:
    fields = (number, pattern, defence, f"{clocks:.3f}")
    return dict(zip(FIELDS, fields, strict=True))


def main() -> None:
    """Make the table, as far as it is missing, and the picture."""
    folder = folder_arguments(__doc__, __file__).parse_args().output
    table = Table(folder / "clocks.csv", FIELDS, keys=1)
    for number in PATTERNS:
        if (number,) not in table:
            table.append(measured(number))
    for number in SENSITIVITY:
        if (number,) not in table:
            table.append(sensitivity(number))
    if ("12",) not in table:
        table.append(uneven())
    rows = table.rows()
    picture = figure(width=9.6, height=5.6)
    axes = picture.subplots(2, 3).ravel()
    for ax, (number, (label, values, _, _)) in zip(axes, PATTERNS.items(), strict=False):
        for mode in (*MODES, "ideal"):
            of_mode = [r for r in rows if (r["figure"], r["defence"]) == (number, mode)]
            ax.plot(values, [float(r["clocks"]) for r in of_mode], marker=".", label=mode)
        ax.set(title=f"Fig. {number}", xlabel=label, ylabel="clocks per iteration", ylim=(0, None))
    axes[0].legend()
    for ax, (number, (label, _)) in zip(axes[3:], SENSITIVITY.items(), strict=False):
        of_it = [r for r in rows if r["figure"] == number]
        ax.plot(
            [float(r["pattern"]) for r in of_it], [float(r["clocks"]) for r in of_it], marker="."
        )
        ax.set(title=f"Fig. {number}", xlabel=label, ylabel="clocks per iteration", ylim=(0, None))
    save(picture, folder / "clocks.svg")


if __name__ == "__main__":
    main()
