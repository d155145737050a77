"""Download MNIST's four files; no other program of seqgc downloads data."""

from __future__ import annotations

import argparse
import hashlib
import urllib.request
from pathlib import Path

from experiments.mnist_cnn.factories import FILES
from experiments.mnist_cnn.idx import read_idx

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mirror", default=MIRROR)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for names in FILES.values():
        for name, dimensions in zip(names, (3, 1), strict=True):
            path = arguments.folder / f"{name}.gz"
            if not path.exists():
                with urllib.request.urlopen(f"{arguments.mirror}/{name}.gz", timeout=60) as reply:
                    path.write_bytes(reply.read())
            shape = read_idx(path, dimensions=dimensions).shape
            print(path.name, shape, hashlib.sha256(path.read_bytes()).hexdigest())


if __name__ == "__main__":
    main()
