"""Real masters are killed at any instant, and their runs go on: what ``seqgc resume`` is for.

Half of the instants are seconds after the start, half are calls that make files last: before, in
the midst of, and after them. In ``make test`` a few, with ``SEQGC_SOAK=1`` a hundred of each kind.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.kit import SOAK
from tests.masters.kit import Nursery, outcome, weights

INSTANTS = 100 if SOAK else 1
LINE = ["train", "--models", "2", "--module", "toy", "--data", "dots", "--batch-size", "12"]
LINE += ["-n", "4", "--steps", "4", "--run", "run"]
SPECS = ["uncoded", "gc-rep:s=1", "gc:s=1", "m-sgc:B=1,W=2,lam=2", "bsp"]
KINDS = [(spec, kind) for kind in ("local", "lambda-local") for spec in SPECS]
KINDS += [("deal:pieces=3", "local"), ("deal:pieces=3", "lambda-local --resident")]
QUICK = [("gc:s=1", "local"), ("uncoded", "lambda-local")]  # the simulator has all others
pytestmark = pytest.mark.timeout(0)  # the nursery has a patience of its own


@pytest.mark.parametrize(("spec", "kind"), KINDS if SOAK else QUICK)
def test_a_master_that_is_killed_is_replaced_to_the_last_bit(
    spec: str, kind: str, nursery: Nursery, tmp_path: Path
) -> None:
    plain = (
        spec.partition(":")[0] in {"uncoded", "deal", "bsp"} or "-rep" in spec
    )  # bits depend on nobody's speed
    line = [*LINE, "--scheme", spec, "--backend", *kind.split()]
    whole = nursery.master(*line, folder=(folder := new(tmp_path / "whole")))
    assert (whole.status, whole.left) == (0, []), whole.said
    expected, trained = outcome(folder / "run"), weights(folder / "run")
    rng = np.random.default_rng([0, *f"{spec} {kind}".encode()])
    faults, died = list[str](), 0
    for instant in range(INSTANTS):
        every = ["--checkpoint-every-s", str(rng.choice([0.01, 60.0]))]
        at = {"after_s": float(rng.uniform(0, whole.seconds))}
        if instant % 2 == 0:
            at = {"call": int(rng.integers(whole.calls)), "when": float(rng.random())}
        folder = new(tmp_path / str(instant))
        try:
            killed = nursery.master(*line, *every, folder=folder, number=signal.SIGKILL, **at)
            assert killed.status in {-signal.SIGKILL, 0}, killed
            assert not killed.left, killed
            died += killed.status != 0
            again = ["resume", "run"]
            if not (folder / "run" / "config.toml").exists():  # nothing had been begun
                shutil.rmtree(folder / "run", ignore_errors=True)
                again = line
            after = nursery.master(*again, folder=folder)
            assert (after.status, after.left) == (0, []), f"{after.said}\n{killed}"
            found = outcome(folder / "run")
            assert set(found) == set(expected)
            if plain:
                assert found == expected
                continue
            for name, array in weights(folder / "run").items():
                np.testing.assert_allclose(array, trained[name], atol=1e-5, rtol=0)
            if instant % 5 == 0:  # one master, that closes every round on the same answers
                shutil.rmtree(folder / "run" / "checkpoints")
                new(folder / "run" / "checkpoints")
                repeated = nursery.master("resume", "run", folder=folder)
                assert repeated.status == 0, repeated.said
                assert outcome(folder / "run") == found
        except AssertionError as error:
            faults.append(f"{spec}, {kind}, {every[1]}, {at}: {error}")
            print(faults[-1], flush=True)  # long before the end of a hundred
        finally:
            shutil.rmtree(folder)
    assert not faults, "\n".join(faults)
    assert died > INSTANTS // 3 or not SOAK, "the others had ended before"


def new(folder: Path) -> Path:
    folder.mkdir()
    return folder
