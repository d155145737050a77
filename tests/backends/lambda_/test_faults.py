"""Runs on a local Lambda service of which a third fails, or all of it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from seqgc import master
from seqgc.backends.lambda_ import LambdaBackend, ThrottlePolicy
from seqgc.backends.local_lambda import FaultPlan, LocalLambda
from seqgc.errors import WorkerError
from seqgc.ports import Action, Event, Failure
from seqgc.rounds import RoundPolicy
from seqgc.schemes import Scheme, parse_scheme
from seqgc.stores import open_store
from seqgc.wire import StoreRef
from tests.backends.lambda_.descent import Descent, undisturbed
from tests.backends.lambda_.local import open_transport, serve

STORE = StoreRef(kind="directory", location="run")
FUNCTION_S = 0.4  # after which a hanging environment is killed
# Scripted throttling does not pass with time: there is nothing to be gained by patience.
IMPATIENT = ThrottlePolicy(max_resubmissions=2, first_s=0.005, longest_s=0.02)


def backend_of(
    service: LocalLambda, mount: Path, work: Descent, n: int, kind: str
) -> LambdaBackend:
    return LambdaBackend(
        n,
        open_transport(kind, service),
        workload=work.ref,
        store=STORE,
        shared=open_store(STORE, mount=mount),
        throttling=IMPATIENT,
        code="faults",
    )


def plan(kind: str) -> FaultPlan:
    """Each request fails by itself: an environment that is killed is never the same again."""
    rates = dict.fromkeys(("crash", "hang", "throttle", "corrupt"), 0.075)
    return FaultPlan(seed=5, rates=rates if kind == "third" else {kind: 1.0})  # type: ignore[arg-type]


def test_when_a_third_fails_the_gradients_are_those_of_a_run_without_failures(
    tmp_path: Path,
) -> None:
    n, jobs = 4, 200
    scheme: Scheme = parse_scheme("m-sgc:B=1,W=2,lam=3", n=n)
    seen: Counter[str] = Counter()

    def observe(event: Event | Action) -> None:
        if isinstance(event, Failure):
            seen[event.reason.partition(":")[0]] += 1

    with serve(tmp_path, concurrency=64, timeout_s=FUNCTION_S, faults=plan("third")) as service:
        work = Descent(scheme, open_store(STORE, mount=tmp_path))
        policy = RoundPolicy(
            scheme.start(jobs),
            mu=0.5,
            wait_out="feasible",
            timeout_s=20.0,
            max_attempts=8,  # 0.3**8: a worker that fails for a whole round is one in 15,000
            payload="float64",
        )
        with backend_of(service, tmp_path, work, n, "asyncio") as backend:
            master.run(policy, backend, work, observe=observe)
        faults = service.statistics().faults
    assert {"crash", "hang", "throttle", "corrupt"} <= set(faults), faults
    assert {"Runtime.ExitError", "WireError"} <= set(seen)  # throttling is met before anyone hears
    for job, due in enumerate(undisturbed(jobs, delay=scheme.delay)):
        np.testing.assert_allclose(work.gradients[job], due, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("crash", "Runtime.ExitError"),
        ("throttle", "HTTP 429 TooManyRequestsException"),
        ("corrupt", "WireError"),
        ("error", "ScriptedFault"),
        ("hang", "Sandbox.Timedout"),
    ],
)
def test_when_everything_fails_a_run_stops_with_one_cause_and_few_invocations(
    tmp_path: Path, kind: str, cause: str
) -> None:
    n, deadline_s, attempts = 4, 2.0, 2
    scheme: Scheme = parse_scheme("gc:s=1", n=n)
    with serve(tmp_path, timeout_s=FUNCTION_S, faults=plan(kind)) as service:
        work = Descent(scheme, open_store(STORE, mount=tmp_path))
        policy = RoundPolicy(
            scheme.start(50),
            mu=0.5,
            wait_out="feasible",
            timeout_s=deadline_s,
            max_attempts=attempts,
        )
        with backend_of(service, tmp_path, work, n, "asyncio") as backend:
            begun = time.monotonic()
            with pytest.raises(WorkerError, match=rf"first failure, worker \d: {cause}") as error:
                master.run(policy, backend, work)
            assert time.monotonic() - begun < 2 * deadline_s
        requests = service.statistics().requests
    assert "\n" not in str(error.value)
    again = IMPATIENT.max_resubmissions if kind == "throttle" else 0
    assert n <= requests <= n * attempts * (1 + again)
    assert work.gradients == {}
