"""``python -m tests.simulation``: one seed, its faults shrunk if it fails; or a range of seeds."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context

import torch

from tests.simulation.faults import Scenario, draw, shrink
from tests.simulation.plants import PLANTS, planted
from tests.simulation.runs import fault_free, simulate

_CHUNK = 50


def failures(seeds: Iterable[int], *, plant: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the seeds that fail, and with what."""
    for seed in seeds:
        scenario = draw(seed)
        fault_free(scenario.spec, scenario.delays)  # without the plant
        with planted(plant):
            fault = simulate(scenario).fault
        if fault is not None:
            yield seed, fault


def report(seed: int, *, plant: str | None = None, log: bool = False) -> str:
    """Return what a seed comes to; if it fails, with the fewest of its faults that fail alike."""
    scenario = draw(seed)
    fault_free(scenario.spec, scenario.delays)
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
    command = f"python -m tests.simulation --seed {seed}{option}"
    return "\n".join([*outcome.lines, f"{command}\n{fewest}\n{outcome.fault}"])


def _kind(fault: str) -> str:
    """Return a fault's text without numbers and names of folders."""
    return re.sub(r"[-\w]*simulation-\w+|[\d.]+", "#", fault)[:80]


def _found(seeds: Sequence[int], *, plant: str | None) -> list[tuple[int, str]]:
    torch.set_num_threads(1)
    return list(failures(seeds, plant=plant))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", default="0:1000", help="FIRST:END, on every processor")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="a bug to be found")
    parser.add_argument("--log", action="store_true", help="with --seed: all that happens")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    if given.seed is not None:
        text = report(given.seed, plant=given.plant, log=given.log)
        print(text)
        return int("python -m tests.simulation" in text)
    seeds = range(*map(int, given.seeds.split(":")))
    chunks = [seeds[i : i + _CHUNK] for i in range(0, len(seeds), _CHUNK)]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        found = list(chain.from_iterable(pool.map(partial(_found, plant=given.plant), chunks)))
    for seed, fault in found[:10]:
        print(f"seed {seed}: {fault}")
    if found:
        print(report(found[0][0], plant=given.plant))
    print(f"{len(seeds)} seeds, of which {len(found)} fail")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
