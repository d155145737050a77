"""Good inputs changed at random, and what every answer to them has in common."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from seqgc.cli import main
from seqgc.profiles import DelayProfile, ProfileMeta, write_profile
from tests.kit import SOAK, most_bytes

__all__ = ["SOAK", "WORDS", "Out", "answered", "changed", "endless", "loop", "measured", "profile"]

Out = pytest.CaptureFixture[str]
Of = TypeVar("Of")
_HEAVY = "boto3", "seqgc.cli._train", "seqgc.cli._cost", "seqgc.training", "seqgc.search"

WORDS = [
    "", "0", "-1", "1e400", "nan", "inf", "9" * 400, "1" * 4301, "-" + "9" * 30, "0.5", "1e-320",
    "true", "[]", "{}", "'", '"', "\\u0000", "[" * 700, "{a=" * 400, "\x00", "\x1b[31m", "[/]",
    "[bold]", ":f", "os:system", "a.b:c", "..", "/", "/dev/null", "\ud800", "é" * 200, "None",
    "2026-01-01", "1_0", "0x10", "=", ",", ":", "\n", "%s", "{0}", "x" * 5000,
]  # fmt: skip


def changed(good: bytes, chance: random.Random) -> bytes:
    """Return the bytes, a few of them changed, cut out, repeated or replaced by a word."""
    data = bytearray(good)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        to = min(len(data), at + chance.randint(0, 20))
        word = chance.choice(WORDS).encode(errors="surrogatepass")
        kind = chance.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at:to]
        elif kind == 2:
            data[at:at] = data[at:to]
        elif kind == 3:
            data[at:to] = word
        else:
            data[at:at] = word
    return bytes(data)


def measured(action: Callable[[], Of], *, counts: Callable[[Of], bool] = lambda _: True) -> Of:
    """Do something; in a soak it may take no more than 64 MB and a second of processor time.

    That is asked of what ``counts``. What is slow is done again: a machine may be slow for once.
    """
    if not SOAK:
        return action()
    for module in _HEAVY:  # what is imported once for all is not the input's doing
        import_module(module)
    for is_last in (False, True):
        before_bytes, start_s = most_bytes(anew=True), time.process_time()
        result = action()
        if not counts(result):
            break
        seconds = time.process_time() - start_s
        assert most_bytes() - before_bytes <= 2**26
        if seconds <= 1:
            break
        assert not is_last, f"{seconds:g} s"
    return result


def answered(capsys: Out, *arguments: str) -> int:
    """Return the exit status of a command line: if it refuses, in one line that ends nothing."""

    def run() -> int:
        capsys.readouterr()
        return main(arguments)

    try:
        status = measured(run, counts=bool)  # else it has done what was asked for
    except BaseException as error:
        error.add_note(f"seqgc {arguments!r}"[:3000])
        raise
    out, err = capsys.readouterr()
    assert status in (0, 1, 2), (arguments, err)
    if status == 2 or (status == 1 and not out):  # `profile lint` prints what is to mend
        *before, line = err.splitlines()
        assert status == 1 or not before, "nothing was begun"
        assert out == ""
        assert line.startswith("seqgc: ")
        assert len(line) <= 300, line
        assert line.isprintable()
    return status


def profile(path: Path, *, rounds: int = 6, workers: int = 4) -> Path:
    times = np.random.default_rng(0).uniform(0.5, 2.0, (rounds, workers))
    meta = ProfileMeta(base_load=0.25, alpha=0.1, batch=512, model="cnn", provider="here")
    write_profile(DelayProfile.from_times(times, meta=meta), path=path)
    return path


def loop(path: Path) -> None:
    """Make a link to itself."""
    path.symlink_to(path.name)


def endless(path: Path) -> None:
    """Make a link to a device without an end."""
    path.symlink_to("/dev/zero")
