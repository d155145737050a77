"""``python -m tests.simulation``: one seed, its faults shrunk if it fails; or a range of seeds."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch

from tests.simulation.draws import DRAWS
from tests.simulation.plants import FOUND_IN, PLANTS
from tests.simulation.search import found_in, report

_CHUNK = 50
_TOLD = 1000  # every so many seeds it is said how far it is


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", default="0:1000", help="FIRST:END")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="for many seeds")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="a bug to be found")
    kinds = "runs of one kind; any, unless a plant is looked for in another"
    parser.add_argument("--draw", choices=sorted(DRAWS), help=kinds)
    parser.add_argument("--log", action="store_true", help="with --seed: all that happens")
    given = parser.parse_args(words)
    draw = given.draw or FOUND_IN.get(given.plant, "any")
    torch.set_num_threads(1)
    if given.seed is not None:
        text = report(given.seed, plant=given.plant, log=given.log, draw=draw)
        print(text)
        return int("python -m tests.simulation" in text)
    seeds = range(*map(int, given.seeds.split(":")))
    chunks = [seeds[i : i + _CHUNK] for i in range(0, len(seeds), _CHUNK)]
    found: list[tuple[int, str]] = []
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        results = pool.map(partial(found_in, plant=given.plant, draw=draw), chunks)
        for chunk, failed in zip(chunks, results, strict=True):
            for seed, fault in failed:
                print(f"seed {seed}: {fault}", flush=True)
            found += failed
            if chunk.stop % _TOLD == 0:
                told = f"up to seed {chunk.stop}: {len(found)} fail"
                print(told, file=sys.stderr)
    if found:
        print(report(found[0][0], plant=given.plant, draw=draw))
    print(f"{len(seeds)} seeds, of which {len(found)} fail")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
