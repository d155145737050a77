"""Many environments, long answers, stragglers: runs on the local service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from seqgc import master
from seqgc.backends import Messaging
from seqgc.backends.lambda_ import Invoking, LambdaBackend
from seqgc.local_lambda import LocalLambda
from seqgc.ports import Action, Arrival, Dispatch, Event, Failure, Observer, Seen
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import parse_scheme
from seqgc.stores import open_store
from seqgc.testing.scripted import next_events
from seqgc.wire import StoreRef, WorkloadRef
from tests.backends.lambda_.constant import Constant
from tests.backends.lambda_.local import TRANSPORTS, inline, open_transport, serve
from tests.census import Census
from tests.kit import SOAK

PARAMETERS = 100_000  # 400 KB


class Peak:
    """Counts the tasks under way: the most at once before each of some rounds; an observer.

    A transport keeps as many connections as it has needed at once, and a busy machine needs more.
    """

    def __init__(self, census: Census, rounds: tuple[int, int]) -> None:
        self._census, self._rounds, self._most = census, rounds, 0
        self.most: list[int] = []
        self.under_way: set[tuple[int, int, int]] = set()  # round, worker, attempt

    def __call__(self, seen: Seen | Event | Action) -> None:
        self._census(seen)
        match seen:
            case Dispatch():
                if seen.attempt == 0 and seen.round in self._rounds:
                    self.most.append(self._most)
                sent = ((seen.round, worker, seen.attempt) for worker in seen.assignment)
                self.under_way.update(sent)
                self._most = max(self._most, len(self.under_way))
            case Arrival() | Failure():
                self.under_way.discard((seen.round, seen.worker, seen.attempt))


def run(
    service: LocalLambda, *, n: int, s: int, rounds: int, transport: str, observe: Observer
) -> None:
    """Run rounds of GC with stragglers of 0.2 s, and check every gradient."""
    scheme, work = parse_scheme(f"gc:s={s}", n=n), Constant(PARAMETERS)

    def delays(round: int, worker: int) -> float:
        return 0.2 * ((worker + 7 * round) % n < s)

    with LambdaBackend(
        n,
        open_transport(transport, service),
        workload=work.ref,
        store=inline(),
        messaging=Messaging(delays=delays),
        invoking=Invoking(warm_up_rounds=1),
    ) as backend:
        policy = RoundPolicy(
            scheme.begin(rounds, payload="float32"),
            ClosingRule(mu=0.0, wait_out="feasible", timeout_s=60.0),
        )
        master.run(policy, backend, work, observe=observe)
    assert sorted(work.gradients) == list(range(rounds))
    chunks = len(scheme.chunk_fractions)
    for gradient in work.gradients.values():
        assert gradient.shape == (PARAMETERS,)
        np.testing.assert_allclose(gradient, chunks, rtol=1e-4)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLambda]:
    concurrency = 320 if SOAK else 48
    with serve(tmp_path_factory.mktemp("mount"), concurrency=concurrency, timeout_s=60.0) as it:
        yield it


@pytest.mark.timeout(400)  # on two cores 256 take 26 to 60 s
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("n", "s", "rounds"), [(32, 4, 3), *([(256, 15, 20)] if SOAK else [])])
def test_many_environments_answer_400_kb_each_in_every_round(
    service: LocalLambda, n: int, s: int, rounds: int, transport: str, tmp_path: Path
) -> None:
    counted = rounds // 2, rounds - 1
    census = Census(tmp_path, counted, family=counted)
    peak = Peak(census, counted)
    run(service, n=n, s=s, rounds=rounds, transport=transport, observe=peak)
    assert service.statistics().throttled == 0
    first, last = census.others
    # One more environment may have been needed, while stragglers kept others.
    assert len(last.keys() - first.keys()) <= 2 * s
    held = [sum(seen[pid]["kB"] for pid in first.keys() & last.keys()) for seen in (first, last)]
    print(f"{transport}, {n}: {census.own}, {peak.most}, {len(last)} processes with {held} kB")
    assert held[1] < 1.05 * held[0]
    more = 2 * s + peak.most[1] - peak.most[0]  # stragglers come and go
    for what, allowed in {"fd": more, "threads": more, "files": 0}.items():
        assert census.own[1][what] <= census.own[0][what] + allowed, what
    assert all(round >= rounds - 10 for round, *_ in peak.under_way), "the others have answered"


def test_gradients_of_resnet18_go_through_the_file_store_in_both_directions(tmp_path: Path) -> None:
    parameters = 11_227_812  # ResNet-18 for 100 classes: 22.5 MB in 16 bit
    ref = StoreRef(kind="directory", location="run")
    store = open_store(ref, mount=tmp_path)
    weights = np.linspace(-1.0, 1.0, parameters).astype(np.float16)
    published = store.publish("resnet18", 0, weights)
    work = Constant(1)
    with (
        serve(tmp_path) as service,
        LambdaBackend(
            2,
            open_transport("curl", service),
            workload=WorkloadRef(name="weight-decay", settings={"dtype": "float32"}),
            store=ref,
            shared=store,
            messaging=Messaging(payload="float16"),
        ) as backend,
    ):
        tasks = [work.task(0, worker) for worker in range(2)]
        for task in tasks:
            object.__setattr__(task.items[0].parts[0], "weights", published)
        backend.dispatch(0, tasks)
        for event in next_events(backend, 2):
            (gradient,) = event.results.values()  # type: ignore[union-attr]
            np.testing.assert_allclose(gradient, weights.astype(np.float32), rtol=1e-3, atol=1e-4)
    assert [path.name for path in (tmp_path / "run" / "blobs").iterdir()] == []
