"""A master of functions that stay, to be killed: ``python -m … FOLDER URL KEY SECRET``."""

from __future__ import annotations

import math
import sys
from pathlib import Path

from botocore.credentials import Credentials

from seqgc.backends.lambda_ import CurlTransport, ResidentBackend, Staying, Target
from seqgc.testing import Scripted, eventually
from seqgc.testing.scripted import task
from tests.backends.lambda_.local import REGION, inline, scripted_workload

WORKERS = 3
BEAT_S = 0.2


def main(folder: Path, url: str, key: str, secret: str) -> None:
    target = Target.invoke_api("seqgc-worker", region=REGION, endpoint_url=url)
    backend = ResidentBackend(
        WORKERS,
        CurlTransport(target, credentials=Credentials(key, secret)),
        workload=scripted_workload(Scripted(folder=folder)),
        store=inline(),
        staying=Staying(beat_s=BEAT_S),
    )
    # Worker 0 computes without end, 1 has nothing to do, 2 has answered.
    backend.dispatch(0, [task(0, 0, "gate 0"), task(0, 2)])
    eventually((folder / "begun 0").exists, "computing")
    backend.receive(math.inf)
    print("ready", flush=True)
    backend.receive(math.inf)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
