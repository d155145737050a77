"""One of eight models of a real run diverges: the others get the bits of a run in which none does.

In ``make test`` one case; with ``SEQGC_SOAK=1`` each of the eight, by other schemes and workers.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit import SOAK
from tests.masters.kit import Nursery, outcome
from tests.masters.test_killed import new

MODELS = 8
CASES = [
    (spec, kind, wild)
    for spec in ("uncoded", "gc-rep:s=1", "sr-sgc-rep:B=1,W=2,lam=2")
    for kind in ("local", "lambda-local")
    for wild in range(MODELS)
]
pytestmark = pytest.mark.timeout(0 if SOAK else 180)


@pytest.mark.parametrize(("spec", "kind", "wild"), CASES if SOAK else [("gc-rep:s=1", "local", 5)])
def test_the_others_get_the_bits_of_a_run_without_it(
    spec: str, kind: str, wild: int, nursery: Nursery, tmp_path: Path
) -> None:
    found = []
    for name in ("tame", "wild"):
        folder = new(tmp_path / name)
        text = f'scheme = "{spec}"\nworkers = 4\nsteps = 6\nbackend = "{kind}"\n'
        for index in range(MODELS):
            text += (
                f'[[models]]\nname = "m{index}"\nseed = {index}\nmodule = "toy"\ndata = "dots"\n'
            )
            text += 'batch_size = 12\noptimizer = "sgd"\n'
            beyond = name == "wild" and index == wild
            text += "lr = 1e6\nmomentum = 1e6\nweight_decay = 1e6\n" if beyond else "lr = 0.1\n"
        (folder / "run.toml").write_text(text)
        end = nursery.master("train", "run.toml", "--run", "run", folder=folder)
        assert (end.status, end.left) == (int(name == "wild"), []), end.said
        told = re.findall(r"^(m\d) +diverged after \d+ steps", end.said, re.MULTILINE)
        assert told == [f"m{wild}"] * (name == "wild"), end.said
        lines = outcome(folder / "run").items()
        kept = [each for each in lines if f"m{wild}" not in each[0] and "flight" not in each[0]]
        found.append({re.sub(r"^job \d+ ", "", key): value for key, value in kept})
    assert len(found[0]) > 6 * (MODELS - 1)
    assert found[0] == found[1]
