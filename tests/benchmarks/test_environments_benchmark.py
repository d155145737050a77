"""Memory and start of 256 local environments: what they share with their parent costs once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from seqgc.backends.lambda_ import Invoking, LambdaBackend
from seqgc.testing.scripted import next_events
from tests.backends.lambda_.constant import Constant
from tests.backends.lambda_.local import inline, open_transport, serve

N, PARAMETERS, ROUNDS = 256, 100_000, 2
MOST_MB = 1800  # 1,500 to 1,640 measured


def tree(pid: int) -> list[int]:
    """Return a process and all that it has started, and these."""
    children = [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return [pid, *(each for child in children for each in tree(child))]


def pss_mb(pid: int) -> float:
    """Return a process's share of memory: a page that k processes have counts 1/k."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.partition("\nPss:")[2].split(None, 1)[0]) / 1e3


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux says so, no other")
def test_256_environments_share_what_they_can(tmp_path: Path) -> None:
    with serve(tmp_path, concurrency=N + 64, timeout_s=60.0) as service:
        work, transport = Constant(PARAMETERS), open_transport("curl", service)
        begun = time.perf_counter()
        with LambdaBackend(
            N,
            transport,
            workload=work.ref,
            store=inline(),
            invoking=Invoking(warm_up_rounds=1),
        ) as backend:
            up_s = time.perf_counter() - begun
            begun_mb = sum(map(pss_mb, tree(service.pid)))
            for round in range(ROUNDS):
                backend.dispatch(round, [work.task(round, worker) for worker in range(N)])
                next_events(backend, N)
            service_mb, parent_mb, *environments_mb = map(pss_mb, tree(service.pid))
    total_mb = service_mb + parent_mb + sum(environments_mb)
    print(
        f"\n{len(environments_mb)} environments up in {up_s:.1f} s with {begun_mb:.0f} MB of PSS,"
        f" after {ROUNDS} rounds {total_mb:.0f} MB: service {service_mb:.0f},"
        f" parent {parent_mb:.0f}, each {sum(environments_mb) / N:.1f}"
    )
    assert len(environments_mb) >= N
    assert total_mb <= MOST_MB
