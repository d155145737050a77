"""Functions that stay, on the local service: leases, ends and starts that fail lose no job."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgc import master
from seqgc.backends import Messaging
from seqgc.backends.lambda_ import Address, ResidentBackend, Staying, ThrottlePolicy
from seqgc.errors import BudgetError, WorkerError
from seqgc.local_lambda import FaultPlan, LocalLambda
from seqgc.ports import Action, Arrival, Event, Failure, Leases, Notice
from seqgc.rounds import ClosingRule, Setting, SwitchingPolicy
from seqgc.schemes import parse_scheme
from seqgc.stores import open_store
from seqgc.testing import PATIENCE_S, Scripted, eventually
from seqgc.testing.scripted import (
    address,
    gradient,
    next_arrival,
    next_event,
    next_events,
    part,
    task,
)
from seqgc.wire import StoreRef, WorkloadRef
from tests.backends.lambda_ import resident_master
from tests.backends.lambda_.descent import Descent, undisturbed
from tests.backends.lambda_.local import (
    ROOT,
    inline,
    open_transport,
    scripted_workload,
    serve,
)
from tests.kit import SOAK, at_some_pace, children, interrupts

pytestmark = pytest.mark.timeout(0 if SOAK else 180)
BEAT_S = 0.2
STORE = StoreRef(kind="directory", location="run")


def opened(service: LocalLambda, n: int, workload: WorkloadRef, **more: Any) -> ResidentBackend:
    usual: dict[str, Any] = {"store": inline(), "staying": Staying(beat_s=BEAT_S)}
    transport = open_transport("curl", service)
    return ResidentBackend(n, transport, workload=workload, **(usual | more))


def functions_of(service: LocalLambda) -> list[int]:
    """The processes of environments: children of the service's child."""
    return [pid for parent in children(service.pid) for pid in children(parent)]


def descend(
    service: LocalLambda,
    mount: Path,
    *,
    spec: str,
    n: int,
    jobs: int,
    staying: Staying,
    meanwhile: Callable[[int], None] = lambda _: None,
) -> list[str]:
    """Train; ``meanwhile`` is called with each round that closes. Return why tasks failed.

    The gradients are those of an undisturbed run.
    """
    scheme, failures = parse_scheme(spec, n=n), list[str]()
    store = open_store(STORE, mount=mount)
    work = Descent(scheme, store)

    def observe(seen: Event | Action | Notice) -> None:
        match seen:
            case Failure(reason=reason):
                failures.append(reason)
            case _ if type(seen).__name__ == "Close":
                meanwhile(seen.record.round)  # type: ignore[union-attr]

    with opened(
        service,
        n,
        work.ref,
        store=STORE,
        shared=store,
        messaging=Messaging(run_id="run", code=spec),
        staying=staying,
    ) as backend:
        setting = Setting(scheme=scheme, rule=ClosingRule(timeout_s=30.0))
        policy = SwitchingPolicy(setting, num_jobs=jobs)
        master.run(policy, backend, work, observe=observe)
    exact = undisturbed(jobs, delay=scheme.delay)
    for job, due in enumerate(exact):
        np.testing.assert_allclose(work.gradients[job], due, rtol=1e-8, atol=1e-10)
    return failures


@pytest.fixture
def mount(lambda_mount: Path) -> Iterator[Path]:
    yield lambda_mount
    for file in (lambda_mount / "run").rglob("*"):
        if file.is_file():
            file.unlink()


def test_leases_of_a_second_end_and_no_task_fails(lambda_service: LocalLambda, mount: Path) -> None:
    n, leases = 3, Leases(longest_s=20.0)

    def wait(round: int) -> None:
        if round in (5, 15):
            time.sleep(0.7)  # a lease

    failures = descend(
        lambda_service,
        mount,
        spec="uncoded",
        n=n,
        jobs=30,
        staying=Staying(limit_s=20.0, leave=(0.02, 0.03), beat_s=BEAT_S, leases=leases),
        meanwhile=wait,
    )
    assert failures == []
    assert leases.count >= 2 * n


def test_a_lease_that_ends_in_mid_piece_loses_that_piece_and_no_other(
    lambda_service: LocalLambda, tmp_path: Path
) -> None:
    def check(limit_s: float) -> None:
        """The next function has most of that time to begin."""
        folder = tmp_path / str(limit_s)
        folder.mkdir()
        work = scripted_workload(Scripted(folder=folder))
        staying = Staying(limit_s=limit_s, leave=(0.1, 0.2), beat_s=BEAT_S)
        with opened(lambda_service, 1, work, staying=staying) as backend:
            backend.dispatch(0, [task(0, 0, "gate a")])
            eventually((folder / "begun a").exists, "computing")
            for round in (1, 2):
                backend.dispatch(round, [task(round, 0)])
            events = next_events(backend, 3)
            assert [address(e) for e in events[:2]] == [("Arrival", 1, 0, 0), ("Arrival", 2, 0, 0)]
            assert address(events[2]) == ("Failure", 0, 0, 0)
            assert "is lost" in events[2].reason  # type: ignore[union-attr]
            (folder / "go a").touch()
            backend.dispatch(0, [task(0, 0, attempt=1)])
            assert address(next_event(backend)) == ("Arrival", 0, 0, 1)

    at_some_pace(check, 3.0, 15.0)


@pytest.mark.parametrize("spec", ["gc-rep:s=1", "deal"] if SOAK else ["deal"])
def test_functions_killed_at_random_instants_lose_no_job(
    spec: str, mount: Path, lambda_service: LocalLambda
) -> None:
    n, kills, jobs = (16, 4, 150) if SOAK else (4, 2, 40)
    draw = random.Random(7)
    rounds = set(draw.sample(range(5, jobs - 5), kills))

    def kill(round: int) -> None:
        if round in rounds:
            time.sleep(0.02 * draw.random())
            os.kill(draw.choice(functions_of(lambda_service)), signal.SIGKILL)

    failures = descend(
        lambda_service,
        mount,
        spec=spec,
        n=n,
        jobs=jobs,
        staying=Staying(limit_s=20.0, beat_s=BEAT_S),  # the service's own
        meanwhile=kill,
    )
    print(f"{len(failures)} tasks failed: {sorted({each[:60] for each in failures})}")
    ours = ("is lost", "Runtime exited", "Timedout")  # the last: leases end, if it takes so long
    assert all(any(why in each for why in ours) for each in failures)


@pytest.mark.parametrize("plain", [True, False] if SOAK else [True])
def test_strangers_get_nothing_and_disturb_no_run(
    plain: bool, mount: Path, lambda_service: LocalLambda
) -> None:
    """Some say nothing, some rubbish; none hangs up, and the rest of the run has them all."""
    n, strangers, jobs = (4, 2000, 200) if SOAK else (2, 30, 15)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    draw, callers = random.Random(11), list[socket.socket]()
    descriptors, megabytes = list[int](), list[float]()

    def call(round: int) -> None:
        if not megabytes:
            megabytes.append(resident_mb())
        for _ in range(min(strangers, strangers * 2 * (round + 1) // jobs) - len(callers)):
            caller = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            if draw.random() < 0.5:
                caller.sendall(draw.randbytes(draw.randint(1, 300)))
            callers.append(caller)
        descriptors.append(sum(1 for _ in Path("/proc/self/fd").iterdir()) - len(callers))
        megabytes.append(resident_mb())

    with ExitStack() as stack:
        stack.callback(lambda: [each.close() for each in callers])
        failures = descend(
            lambda_service,
            mount,
            spec="deal",
            n=n,
            jobs=jobs,
            staying=Staying(address=Address(ports=(port,), plain=plain), limit_s=20.0, beat_s=1.0),
            meanwhile=call,
        )
        assert all("Timedout" in each or "ended" in each for each in failures), "leases, at most"
        assert len(callers) == strangers
        heard = b"".join(map(rest, callers))
        assert plain is False or heard == b""  # else what TLS says to everybody, before it knows
        assert max(descriptors) - descriptors[0] <= 256 + 2 * n
        assert max(megabytes) - megabytes[0] <= 256 * 0.4 + 16
        print(
            f"{len(failures)} tasks failed, {max(descriptors) - descriptors[0]} descriptors,",
            end=" ",
        )
        print(f"{max(megabytes) - megabytes[0]:.0f} MB more; they heard {len(heard)} bytes")


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def rest(caller: socket.socket) -> bytes:
    """Return all that a stranger was told until it was hung up on."""
    told = bytearray()
    try:
        while more := caller.recv(4096):
            told += more
    except ConnectionError:
        pass
    return bytes(told)


def test_who_hangs_is_replaced_and_its_task_fails(
    lambda_service: LocalLambda, tmp_path: Path
) -> None:
    work = scripted_workload(Scripted(folder=tmp_path))
    with opened(lambda_service, 1, work) as backend:
        backend.dispatch(0, [task(0, 0, "gate a")])
        eventually((tmp_path / "begun a").exists, "computing")
        backend.restart(0)
        assert address(next_event(backend)) == ("Failure", 0, 0, 0)
        (tmp_path / "go a").touch()
        backend.dispatch(1, [task(1, 0)])
        assert address(next_event(backend)) == ("Arrival", 1, 0, 0)


def test_a_function_that_is_stopped_is_lost_though_its_connection_has_not_ended(
    lambda_service: LocalLambda, tmp_path: Path
) -> None:
    work = scripted_workload(Scripted(folder=tmp_path))
    with opened(lambda_service, 1, work) as backend:
        backend.dispatch(0, [task(0, 0, "pid")])
        (pid,) = map(int, next_arrival(backend).results[0])
        os.kill(pid, signal.SIGSTOP)
        try:
            backend.dispatch(1, [task(1, 0)])
            failure = next_event(backend)
            assert address(failure) == ("Failure", 1, 0, 0)
            assert "silent for 5 heartbeats" in failure.reason  # type: ignore[union-attr]
            backend.dispatch(1, [task(1, 0, attempt=1)])
            assert address(next_event(backend)) == ("Arrival", 1, 0, 1)
        finally:
            os.kill(pid, signal.SIGKILL)


def test_what_a_vpc_carries_is_encrypted(lambda_service: LocalLambda, tmp_path: Path) -> None:
    work, address_ = scripted_workload(Scripted(folder=tmp_path)), Address(plain=False)
    with opened(lambda_service, 2, work, staying=Staying(address=address_)) as backend:
        backend.dispatch(0, [task(0, worker, size=50_000) for worker in range(2)])
        for event in next_events(backend, 2):
            assert isinstance(event, Arrival)
            assert np.array_equal(event.results[0], gradient(part(size=50_000)))


def test_throttled_starts_are_tried_again(tmp_path: Path) -> None:
    faults = FaultPlan(script={(0,): "throttle", (1,): "throttle"})
    patience = ThrottlePolicy(first_s=0.01, longest_s=0.05)
    with (
        serve(tmp_path, faults=faults) as service,
        opened(
            service,
            1,
            scripted_workload(Scripted(folder=tmp_path)),
            staying=Staying(beat_s=BEAT_S, throttling=patience),
        ) as backend,
    ):
        assert backend.ready == (True,)
        assert service.statistics().throttled == 2


def test_an_image_without_the_workload_is_refused_with_its_own_words(
    lambda_service: LocalLambda,
) -> None:
    unknown = WorkloadRef(name="unknown", settings={})
    with pytest.raises(WorkerError, match=r"^no function became resident: .*`workload` must"):
        opened(lambda_service, 2, unknown)


def test_no_function_is_invoked_whose_lease_exceeds_what_may_be_spent(
    lambda_service: LocalLambda, tmp_path: Path
) -> None:
    leases = Leases(longest_s=20.0)

    def admit() -> None:
        if leases.count == 2:
            raise BudgetError("no more", round=0, spent_usd=0.0)

    leases.admit = admit
    work = scripted_workload(Scripted(folder=tmp_path))
    staying = Staying(beat_s=BEAT_S, leases=leases)
    with opened(lambda_service, 2, work, staying=staying) as backend:
        assert leases.open == 2
        with pytest.raises(BudgetError, match="no more"):
            backend.restart(0)


# ---- when the master has gone --------------------------------------------------------------------


def ended(service: LocalLambda) -> int:
    """How many invocations have ended."""
    return service.log().count("REPORT RequestId")


def test_no_function_outlives_a_master_that_is_killed(tmp_path: Path) -> None:
    with serve(tmp_path, timeout_s=900.0) as service:
        command = [sys.executable, "-m", resident_master.__name__, str(tmp_path)]
        command += [service.endpoint_url, *service.keys]
        with (
            interrupts(),
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process,
        ):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert ended(service) == 0
            process.kill()
        # The one that computes is given five beats; ten seconds with beats of one.
        eventually(lambda: ended(service) == resident_master.WORKERS, "their ends")
        log = service.log()
        assert log.count("Runtime exited with error: exit status 1") == 0  # it is a reply's
        assert log.count('"message":"stayed"') == 2


def test_functions_end_with_the_backend(lambda_service: LocalLambda, tmp_path: Path) -> None:
    before, leases = ended(lambda_service), Leases(longest_s=900.0)
    work = scripted_workload(Scripted(folder=tmp_path))
    with opened(lambda_service, 3, work, staying=Staying(beat_s=BEAT_S, leases=leases)):
        pass
    assert leases.ended_ms + leases.open_ms < 900_000  # of three
    eventually(lambda: ended(lambda_service) >= before + 3, "their ends")
