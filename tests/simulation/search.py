"""Seeds that fail, and the fewest faults by which they do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from tests.simulation.draws import DRAWS
from tests.simulation.faults import Scenario, shrink
from tests.simulation.plants import planted
from tests.simulation.runs import fault_free, simulate


def failures(
    seeds: Iterable[int],
    *,
    plant: str | None = None,
    draw: Callable[[int], Scenario] = DRAWS["any"],
) -> Iterator[tuple[int, str]]:
    """Yield the seeds that fail, and with what."""
    for seed in seeds:
        scenario = draw(seed)
        fault_free(scenario)  # without the plant
        with planted(plant):
            fault = simulate(scenario).fault
        if fault is not None:
            yield seed, fault


def report(seed: int, *, plant: str | None = None, log: bool = False, draw: str = "any") -> str:
    """Return what a seed comes to; if it fails, with the fewest of its faults that fail alike."""
    scenario = DRAWS[draw](seed)
    fault_free(scenario)
    with planted(plant):
        whole = simulate(scenario, keep=log)
        if whole.fault is None:
            text = f"{scenario}\n{whole.events} events, {whole.masters} masters: {whole.digest}"
            return "\n".join([*whole.lines, text])
        kind = _kind(whole.fault)

        def fails_alike(other: Scenario) -> bool:
            fault = simulate(other).fault
            return fault is not None and _kind(fault) == kind

        fewest = shrink(scenario, fails_alike)
        outcome = simulate(fewest, keep=log)
    option = "" if plant is None else f" --plant {plant!r}"
    option += "" if draw == "any" else f" --draw {draw}"
    command = f"python -m tests.simulation --seed {seed}{option}"
    return "\n".join([*outcome.lines, f"{command}\n{fewest}\n{outcome.fault}"])


def _kind(fault: str) -> str:
    """Return a fault's text without numbers and names of folders."""
    return re.sub(r"[-\w]*simulation-\w+|[\d.]+", "#", fault)[:80]


def found_in(seeds: Sequence[int], *, plant: str | None, draw: str) -> list[tuple[int, str]]:
    """Return what `failures` yields; for a process of its own."""
    torch.set_num_threads(1)
    return list(failures(seeds, plant=plant, draw=DRAWS[draw]))
