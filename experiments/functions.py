"""The data folder and the start of experiments on functions."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["data_folder", "start"]


def data_folder() -> Path:
    """Return the folder of data sets: ``SEQGC_DATA``, or ``data`` on the shared file system."""
    shared = Path(os.environ.get("SEQGC_MOUNT", "/mnt/seqgc"), "data")
    return Path(os.environ.get("SEQGC_DATA", "").split(",")[0] or shared)


def start(
    description: str | None, config: Path, *, factories: str, make_up: Callable[[Path], None]
) -> int:
    """Train by ``config``; with ``--small`` by ``small.toml`` next to it, on generated images.

    ``factories`` is the module with the experiment's data and network; ``make_up`` writes generated
    images to a folder. Other arguments go to ``seqgc train``. Return its exit status.
    """
    from seqgc.cli import main as seqgc  # functions, which read data too, do not have it

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--small", action="store_true", help="Made-up images, this machine.")
    arguments, more = parser.parse_known_args()
    os.environ["SEQGC_FACTORIES"] = factories
    if not arguments.small:
        return seqgc(["train", str(config), *more])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SEQGC_DATA"] = folder
        make_up(Path(folder))
        return seqgc(["train", str(config.with_name("small.toml")), *more])
