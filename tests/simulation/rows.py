"""Rows of tables: runs of each scheme that are broken off, at instants that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from tests.kit import SOAK
from tests.simulation.faults import SPECS, TABLES, Fault, Scenario
from tests.simulation.runs import Outcome, simulate

ROWS: Final = (*SPECS, "m-sgc-binary:B=1,W=2,lam=1", "deal")


def configurations(spec: str) -> list[Scenario]:
    """Return the runs of a scheme that are broken off; one in `make test`, which has few faults.

    Checkpoints are taken often, at times, or never, and each time other workers are slow.
    """
    each = [
        Scenario(seed=0, spec=spec, delays=delays, checkpoint_every_s=every_s, faults=())
        for delays, every_s in zip(range(TABLES), (2.0, 9.0, 1e9), strict=True)
    ]
    return each if SOAK else [each[ROWS.index(spec) % len(each)]]


def broken(
    configuration: Scenario, make: Callable[[Outcome, list[str]], list[Fault]]
) -> Iterator[Scenario]:
    """Yield a run with each fault that ``make`` finds for it by what it does, and by its calls.

    In `make test` there are two or three, others for each scheme.
    """
    whole = simulate(configuration, keep=True)
    faults = make(whole, [line for line in whole.lines if line.startswith("call")])
    first, step = ROWS.index(configuration.spec), len(faults) // 2
    for fault in faults if SOAK else faults[first::step]:
        yield replace(configuration, faults=(fault,))
