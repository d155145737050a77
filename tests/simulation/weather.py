"""Faults by chance, everywhere and for as long as it takes; and cheap runs on functions in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from seqgc import master
from seqgc.backends import Messaging
from seqgc.backends.lambda_ import Invoking, LambdaBackend
from seqgc.ports import Close, Drop, Failure, RoundRecord, Seen
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import parse_scheme
from seqgc.stores import open_store
from seqgc.wire import StoreRef
from tests.backends.lambda_.descent import Descent, undisturbed
from tests.simulation.crew import simulated
from tests.simulation.faults import HARMLESS, Fault, Scenario, sort
from tests.simulation.functions import Account, Wire
from tests.simulation.ledger import Ledger
from tests.simulation.world import World

RUN = "run-0123456789ab"
STORE = StoreRef(kind="directory", location=RUN)


class Weather(World):
    """So many of all tasks, or readings of the store, meet with one of ``kinds`` of faults."""

    def __init__(self, seed: int, kinds: Sequence[str], chance: float, *, cold: float = 0) -> None:
        scenario = Scenario(seed=seed, spec="", delays=0, checkpoint_every_s=1e9, faults=())
        super().__init__(scenario)
        self._kinds = {name: [k for k in kinds if sort(k) == name] for name in ("task", "read")}
        self._chance, self._cold = chance, cold
        self.counts: Counter[str] = Counter()

    @property
    def may_fail(self) -> bool:
        return bool(self.counts.keys() - {*HARMLESS})

    def delay_s(self, round: int, worker: int) -> float:
        return float(self.delays_s[round % 64, worker % self.shape.n])

    def starts_cold(self) -> bool:
        cold = self.rng.random() < self._cold
        self.counts["cold"] += cold
        return bool(cold)

    def of_task(self, round: int, worker: int) -> Fault | None:
        return self._by_chance("task", round, worker)

    def of_read(self) -> Fault | None:
        self.reads += 1
        return self._by_chance("read")

    def _by_chance(self, name: str, *at: int) -> Fault | None:
        if not self._kinds[name] or self.rng.random() >= self._chance:
            return None
        kind = str(self.rng.choice(self._kinds[name]))
        self.counts[kind] += 1
        return Fault(kind=kind, at=at, amount=float(self.rng.random()))


@dataclass(frozen=True, kw_only=True)
class Cheap:
    """A run of least squares on functions, from its start to the check of all its gradients."""

    weather: Weather
    mount: Path
    spec: str
    n: int
    jobs: int
    rule: ClosingRule = field(default_factory=lambda: ClosingRule(timeout_s=60.0))
    invoking: Invoking = field(default_factory=Invoking)
    prepare: Callable[[Account], None] = lambda _: None

    records: list[RoundRecord] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)

    def run(self) -> Wire:
        """Run it; the wire that it ran on."""
        ledger = Ledger(self.weather)
        account = Account(self.weather, ledger, self.mount)

        def observe(seen: Seen) -> None:
            ledger(seen)
            match seen:
                case Close():
                    self.records.append(seen.record)
                case Failure():
                    self.failures.append(seen)
                case Drop():
                    self.drops.append(seen)

        scheme = parse_scheme(self.spec, n=self.n)
        with simulated(account):
            store = open_store(STORE, mount=self.mount)
            work = Descent(scheme, store)
            wire = Wire(account, self.n)
            policy = RoundPolicy(scheme.begin(self.jobs, payload="float64"), self.rule)
            with LambdaBackend(
                self.n,
                wire,
                workload=work.ref,
                store=STORE,
                shared=store,
                messaging=Messaging(run_id=RUN),
                invoking=self.invoking,
                clock=account,
            ) as backend:
                self.prepare(account)
                master.run(policy, backend, work, observe=observe)
        for job, due in enumerate(undisturbed(self.jobs, delay=scheme.delay)):
            np.testing.assert_allclose(work.gradients[job], due, rtol=1e-8, atol=1e-10)
        return wire
