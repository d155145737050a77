"""A master to interrupt: ``python -m tests.backends.master_process FOLDER waits|forgets``."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from seqgc.backends import LocalBackend, Messaging
from seqgc.testing import eventually
from seqgc.testing.scripted import task
from tests.backends.scripted import Scripted

WORKERS = 4


def main(folder: Path, what: str) -> None:
    backend = LocalBackend(
        WORKERS,
        Scripted(folder=folder),
        messaging=Messaging(delays=lambda _, i: 10_000.0 * (i == 0)),
    )
    # Worker 0 waits with its answer, 1 and 2 compute without end, 3 has nothing to do.
    backend.dispatch(0, [task(0, 0), task(0, 1, "gate 1"), task(0, 2, "gate 2")])
    for worker in (1, 2):
        eventually((folder / f"begun {worker}").exists, f"worker {worker}'s computing")
    print(*backend.pids, flush=True)
    if what == "forgets":
        return  # without closing
    with backend:
        backend.receive(math.inf)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
