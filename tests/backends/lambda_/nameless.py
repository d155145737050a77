"""A run whose service has a name that nobody can resolve for a while: a child of `test_faults.py`.

It runs where `/etc/hosts` and `/etc/resolv.conf` are files of its own (a mount namespace), so that
the resolvers are the machine's and the clients' own: `TRANSPORT SECONDS FOLDER`, where the folder
has `hosts`. Prints the failures that the run has outlasted, a line each.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from seqgc import master
from seqgc.errors import one_line
from seqgc.local_lambda import LocalLambda
from seqgc.ports import Action, Dispatch, Event, Failure
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import parse_scheme
from tests.backends.lambda_.descent import undisturbed
from tests.backends.lambda_.local import serve
from tests.backends.lambda_.test_faults import Run

NAME = "functions.seqgc.test"


class Named:
    """A service by that name."""

    def __init__(self, service: LocalLambda) -> None:
        self.function_name, self.keys = service.function_name, service.keys
        self.endpoint_url, self.function_url = map(
            self._named, (service.endpoint_url, service.function_url)
        )

    def _named(self, url: str) -> str:
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{NAME}:{parts.port}"))


def main(transport: str, seconds: float, folder: Path) -> None:
    run = Run(spec="uncoded", n=4, transport=transport, mount=folder)
    work, failures, timers = run.work(), list[str](), list[threading.Timer]()

    def come_back() -> None:
        with folder.joinpath("hosts").open("a") as hosts:
            hosts.write(f"127.0.0.1 {NAME}\n")

    def watch(seen: Event | Action) -> None:
        if isinstance(seen, Dispatch) and not timers:
            timers.append(threading.Timer(seconds, come_back))
            timers[0].start()
        if isinstance(seen, Failure):
            failures.append(seen.reason)

    with serve(folder) as service:
        policy = RoundPolicy(
            parse_scheme(run.spec, n=4).begin(3, payload="float64"), ClosingRule(timeout_s=60.0)
        )
        with run.backend(Named(service), work) as backend:
            master.run(policy, backend, work, observe=watch)
    for job, due in enumerate(undisturbed(3, delay=0)):
        np.testing.assert_allclose(work.gradients[job], due, rtol=1e-8, atol=1e-10)
    print(*(one_line(each) for each in failures), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
