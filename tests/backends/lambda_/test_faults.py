"""Runs on a local Lambda service of which a third fails, or all for a while, by each transport."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from seqgc import master
from seqgc.backends import Messaging
from seqgc.backends.lambda_ import Invoking, LambdaBackend, ThrottlePolicy
from seqgc.local_lambda import FaultKind, FaultPlan
from seqgc.ports import Action, BlobStore, Dispatch, Event, Failure
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import parse_scheme
from seqgc.stores import open_store
from seqgc.wire import MESSAGE_LIMIT_BYTES, StoreRef
from tests.backends.lambda_.descent import Descent, undisturbed
from tests.backends.lambda_.flaky import Flaky
from tests.backends.lambda_.local import ROOT, TRANSPORTS, Service, open_transport, serve
from tests.kit import SOAK

FUNCTION_S = 0.3  # after which a hanging environment is killed
# Of requests: killing environments costs most of the time that this takes.
RATES: dict[FaultKind, float] = {"crash": 0.05, "hang": 0.05, "throttle": 0.1, "corrupt": 0.1}
# Scripted throttling does not pass with time: there is nothing to be gained by patience.
IMPATIENT = ThrottlePolicy(max_resubmissions=2, first_s=0.005, longest_s=0.02)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run on a service; ``inline_bytes`` is what a reply takes, beyond it lies in the store."""

    spec: str
    n: int
    transport: str
    mount: Path
    inline_bytes: int = MESSAGE_LIMIT_BYTES

    @property
    def ref(self) -> StoreRef:
        return StoreRef(kind="directory", location=f"run-{self.transport}")

    @property
    def store(self) -> BlobStore:
        return open_store(self.ref, mount=self.mount)

    def work(self) -> Descent:
        return Descent(parse_scheme(self.spec, n=self.n), self.store)

    def backend(self, service: Service, work: Descent) -> LambdaBackend:
        return LambdaBackend(
            self.n,
            open_transport(self.transport, service),
            workload=work.ref,
            store=self.ref,
            shared=self.store,
            messaging=Messaging(run_id=f"run-{self.transport}", code="faults"),
            invoking=Invoking(
                throttling=IMPATIENT,
                max_body_bytes=min(MESSAGE_LIMIT_BYTES, self.inline_bytes + 4096),
            ),
        )


@pytest.mark.parametrize(
    ("run", "jobs"),
    [
        (Run(spec="gc:s=1", n=4, transport="curl", mount=Path()), 200 if SOAK else 40),
        (Run(spec="gc:s=3", n=8, transport="requests", mount=Path()), 25),
        (
            Run(spec="m-sgc:B=1,W=2,lam=3", n=4, transport="boto3", mount=Path(), inline_bytes=100),
            40,
        ),
    ],
    ids=lambda value: value.transport if isinstance(value, Run) else str(value),
)
def test_when_a_third_fails_the_gradients_are_those_of_a_run_without_failures(
    run: Run, jobs: int, tmp_path: Path
) -> None:
    run = replace(run, mount=tmp_path)
    seen: Counter[str] = Counter()

    def observe(event: Event | Action) -> None:
        if isinstance(event, Failure):
            seen[event.reason.partition(":")[0]] += 1

    # Each request fails by itself: an environment that is killed is never the same again.
    plan = FaultPlan(seed=5, rates=RATES)
    with serve(tmp_path, concurrency=64, timeout_s=FUNCTION_S, faults=plan) as service:
        work = run.work()
        scheme = parse_scheme(run.spec, n=run.n)
        policy = RoundPolicy(
            scheme.begin(jobs, payload="float64"),
            ClosingRule(mu=0.5, wait_out="feasible", timeout_s=20.0, max_attempts=8),
        )
        with run.backend(service, work) as backend:
            master.run(policy, backend, work, observe=observe)
        faults = service.statistics().faults
    assert set(RATES) <= set(faults), faults
    # Throttling is met before anyone hears; a function's URL does not tell how a function ended.
    assert {"WireError", "HTTP 502" if run.transport == "requests" else "Runtime.ExitError"} <= set(
        seen
    )
    stored = (tmp_path / run.ref.location / "blobs").exists()
    assert stored == (run.inline_bytes < MESSAGE_LIMIT_BYTES)
    for job, due in enumerate(undisturbed(jobs, delay=scheme.delay)):
        np.testing.assert_allclose(work.gradients[job], due, rtol=1e-8, atol=1e-10)


OUTAGES_S = [0.3, 2.0, 10.0] if SOAK else [0.3]


@pytest.mark.parametrize("outage_s", OUTAGES_S)
@pytest.mark.parametrize(
    ("transport", "busy"),
    list(product(TRANSPORTS, [False, True]))[:: 1 if SOAK else 2],
)
def test_an_outage_that_is_shorter_than_the_limit_of_a_round_ends_no_run(
    transport: str, busy: bool, outage_s: float, tmp_path: Path
) -> None:
    run = Run(spec="uncoded", n=4, transport=transport, mount=tmp_path)
    work, failures = run.work(), list[str]()

    def watch(seen: Event | Action) -> None:
        if isinstance(seen, Dispatch) and (seen.round, seen.attempt) == (2, 0):
            flaky.cut(outage_s, busy=busy)
        if isinstance(seen, Failure):
            failures.append(seen.reason)

    to_url = transport == "requests"
    with serve(tmp_path) as service, Flaky(service, to_url=to_url) as flaky:
        policy = RoundPolicy(
            parse_scheme(run.spec, n=run.n).begin(5, payload="float64"), ClosingRule(timeout_s=60.0)
        )
        with run.backend(flaky, work) as backend:
            master.run(policy, backend, work, observe=watch)
    assert len(failures) > 4
    assert busy == any("HTTP 503" in each for each in failures)
    for job, due in enumerate(undisturbed(5, delay=0)):
        np.testing.assert_allclose(work.gradients[job], due, rtol=1e-8, atol=1e-10)


def apart(folder: Path) -> list[str]:
    """A command that runs what follows it where the machine resolves names by a folder's files."""
    mounts = " && ".join(f"mount --bind {shlex.quote(str(folder))}/{n} /etc/{n}" for n in ETC)
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]


ETC = {"hosts": "127.0.0.1 localhost\n", "resolv.conf": "nameserver 127.0.0.1\n"}  # where none is


@pytest.mark.parametrize("outage_s", OUTAGES_S)
@pytest.mark.parametrize("transport", TRANSPORTS if SOAK else ["curl"])
def test_a_name_that_nobody_resolves_for_a_while_ends_no_run(
    transport: str, outage_s: float, tmp_path: Path
) -> None:
    for name, text in ETC.items():
        tmp_path.joinpath(name).write_text(text)
    if subprocess.run([*apart(tmp_path), "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not give a process files of its own for /etc")
    child = [sys.executable, "-m", "tests.backends.lambda_.nameless", transport, str(outage_s)]
    command = [*apart(tmp_path), *child, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert len(failures := done.stdout.splitlines()) >= 4
    due = "EndpointConnectionError" if transport == "boto3" else "resol"
    assert all(due in each for each in failures), failures
