"""`check_defence` passes our own defences, and finds what breaks the contract of one."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from seqgc.clocks import ClockPolicy, Slack
from seqgc.errors import WireError
from seqgc.ports import Close, Dispatch, Drop, Event, Failure, Update
from seqgc.rounds import PolicyDefence
from seqgc.schemes import parse_scheme, register, registered
from seqgc.shards import AspDds
from seqgc.testing import check_defence
from tests.kit import SOAK

OWN = [
    "bsp", "hedge", "hedge:q=0.5,factor=3", "a-bsp:wpc=2", "ssp:slack=1", "ssp:slack=2,wpc=3",
    "flexrr:slack=1,pieces=3", "flexrr:slack=2,pieces=2,helpers=0,ahead=1", "bsp-rr:pieces=4",
    "asp", "asp-dds:M=1", "asp-dds:M=3", "asp-dds:M=3,resume=shard",
    "antdt-nd-asp:M=2,resume=shard,lam=1.2,per=3,act=1", "lb-bsp", "antdt-nd", "antdt-dd",
    "antdt-nd-asp", "antdt-nd-asp:M=3,lam=1.2,per=3,act=1",
]  # fmt: skip


@pytest.mark.parametrize("spec", OWN)
@pytest.mark.parametrize("n", [1, 3, 5])
def test_our_own_keep_the_contract(spec: str, n: int) -> None:
    check_defence(parse_scheme(spec, n=n), runs=500 if SOAK else 6)


def test_none_of_our_own_is_left_out() -> None:
    kinds = {name: entry.kind for name, entry in registered().items()}
    policies = {name: kind for name, kind in kinds.items() if issubclass(kind, PolicyDefence)}
    own = {name for name, kind in policies.items() if kind.__module__.startswith("seqgc.")}
    assert own == {spec.partition(":")[0] for spec in OWN}


# ---- what it finds ------------------------------------------------------------------------------

_count = itertools.count()


class BentPolicy(ClockPolicy):
    """Asynchronous clocks, but for one fault."""

    fault = ""

    def start(self):
        return self._bent(super().start())

    def on(self, event: Event):
        if self.fault == "waits-for-the-gone" and isinstance(event, Failure) and event.final:
            return []
        try:
            return self._bent(super().on(event))
        except WireError:
            if self.fault == "hears-strangers":
                return []
            raise

    def _bent(self, actions):
        bent = []
        for action in actions:
            match action, self.fault:
                case Update(), "twice":
                    bent += [action, action]
                case Update(), "never":
                    pass
                case Dispatch(), "by-chance":
                    attempt = action.attempt + 100 * (next(_count) % 7)
                    bent.append(dataclasses.replace(action, attempt=attempt))
                case Dispatch(), "too-cheap":
                    bent.append(dataclasses.replace(action, loads=action.loads / 2))
                case Drop(), "says-nothing":
                    pass
                case Close(), "closes-early":
                    record = dataclasses.replace(action.record, round=action.record.round + 1)
                    bent.append(dataclasses.replace(action, record=record))
                case _:
                    bent.append(action)
        return bent

    def snapshot(self):
        state = super().snapshot()
        if self.fault == "no-json":
            return np.array(state["completed"])
        if self.fault == "forgets":
            return {**state, "completed": [0] * len(state["completed"])}
        return state

    def restore(self, state):
        if self.fault == "takes-anything" and not isinstance(state, dict):
            return
        super().restore(state)

    def skip_to(self, job: int, *, round: int) -> None:
        too_far = {"skips-too-far": 1, "skips-too-little": -1}.get(self.fault, 0)
        super().skip_to(job + too_far, round=round)

    def end_after(self, job: int) -> None:
        if self.fault != "goes-on":
            super().end_after(job)


@dataclass(frozen=True, kw_only=True)
class Bent(PolicyDefence):
    n: int
    fault: str
    kind: ClassVar[str] = "stale"
    exact: ClassVar[bool] = False

    @property
    def staleness(self):
        return 0 if self.fault == "staler" else None

    def policy(self, rule, *, num_jobs, batches=(), payload=None):  # noqa: ARG002 (the base's)
        policy = BentPolicy(self.n, rule, num_jobs=num_jobs, barrier=Slack(slack=None))
        policy.fault = self.fault
        return policy


FAULTS = {
    "twice": r"applies part \d of job \d twice",
    "never": "has not applied all of job 0",
    "by-chance": "a run ends with|does not end|other actions",
    "too-cheap": "above its load",
    "says-nothing": "round 1000000, attempt 0, .* must be dropped",
    "closes-early": "closes round 1, and 0 is next",
    "no-json": "a snapshot as JSON raised TypeError",
    "forgets": r"applies (part \d of )?job \d twice|applies part",
    "takes-anything": "restores None",
    "skips-too-far": r"it has \d rounds after \d skipped jobs",
    "skips-too-little": r"it has \d rounds after \d skipped jobs",
    "goes-on": "told to end after job",
    "hears-strangers": "raises no WireError",
    "waits-for-the-gone": "a run ends with ScheduleError: the policy waits for ever",
    "staler": r"a task of job \d lacks job",
}


@pytest.fixture
def bent(plugins_are_forgotten: None) -> type[Bent]:  # noqa: ARG001 (as it does)
    return register("bent")(Bent)


@pytest.mark.parametrize(("fault", "what"), FAULTS.items())
def test_what_breaks_the_contract_is_found(bent: type[Bent], fault: str, what: str) -> None:
    with pytest.raises(AssertionError, match=what) as found:
        check_defence(bent(n=3, fault=fault))
    said = str(found.value)
    assert said.startswith(f"Bent(n=3, fault='{fault}'): ")
    assert said.count("\n") == 0


def test_without_a_fault_it_keeps_the_contract(bent: type[Bent]) -> None:
    check_defence(bent(n=3, fault="none"))


@dataclass(frozen=True, kw_only=True)
class Orderly(AspDds):
    """Shards, which are not in order, and say that they are."""

    in_order: ClassVar[bool] = True  # type: ignore[misc]


@pytest.mark.usefixtures("plugins_are_forgotten")
def test_a_false_promise_of_order_is_found() -> None:
    register("orderly")(Orderly)
    with pytest.raises(AssertionError, match="in_order"):
        check_defence(Orderly(n=3, M=2), runs=10)
