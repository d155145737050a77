"""What the experiments on functions share: where their data is, and how they start."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["data_folder", "start"]


def data_folder() -> Path:
    """Return where data sets are: ``SEQGC_DATA``, else ``data`` on the shared file system."""
    shared = Path(os.environ.get("SEQGC_MOUNT", "/mnt/seqgc"), "data")
    return Path(os.environ.get("SEQGC_DATA", "").split(",")[0] or shared)


def start(
    description: str | None, config: Path, *, factories: str, make_up: Callable[[Path], None]
) -> int:
    """Train by ``config``; with ``--small`` by its neighbour ``small.toml``, on made-up images.

    ``factories`` is the module that knows the experiment's data and network; ``make_up`` writes
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
