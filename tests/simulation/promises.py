"""What the defence of a run promises: the same bits, like weights, or each part once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from seqgc.control import Controlled
from seqgc.rounds import PolicyDefence
from seqgc.schemes import Defence, parse_scheme
from seqgc.training import Model, Updates
from tests.simulation.faults import Scenario, sort
from tests.simulation.models import models, straight_models

UPDATES: Final[Mapping[str, Updates | None]] = MappingProxyType(
    {
        "": None,
        "clock": Updates(apply="clock"),
        "needed": Updates(refresh="needed"),
        "late": Updates(apply="clock", refresh="late"),
        "aware": Updates(aware=True),
    }
)


def defence_of(scenario: Scenario) -> Defence:
    return parse_scheme(scenario.spec, n=scenario.shape.n)


def parts_of(scenario: Scenario) -> PolicyDefence | None:
    """Return the defence, if it has batches come in parts."""
    defence = defence_of(scenario)
    own = isinstance(defence, PolicyDefence) and not isinstance(defence, Controlled)
    return defence if own else None  # type: ignore[return-value]


def is_controlled(scenario: Scenario) -> bool:
    return isinstance(defence_of(scenario), Controlled)


def repeats(scenario: Scenario) -> bool:
    """Say whether parts are such that a run ends in the same bits, whoever was slow in it."""
    defence = parts_of(scenario)
    return defence is not None and (scenario.updates == "late" or defence.kind == "exact")


def models_of(scenario: Scenario) -> tuple[Model, ...]:
    count = scenario.shape.models
    return straight_models(count) if scenario.straight else models(count, wild=scenario.wild)


def is_lossy(scenario: Scenario) -> bool:
    """Say whether what is trained depends on whose answers were late: they are done without."""
    return not parts_of(scenario) and defence_of(scenario).kind == "approximate"


def is_plain(spec: str) -> bool:
    """Say whether gradients are sums of one cover's places, whose bits depend on nobody's speed."""
    name = spec.partition(":")[0]
    return (
        name in {"uncoded", "balanced", "deal"}
        or "-rep:" in spec
        or "-binary:" in spec
        or (name == "ra-sgc" and "p=" not in spec)
    )


def is_exact(scenario: Scenario) -> bool:
    """Say whether bits must be the fault-free run's: they depend on who responded alone.

    Switches are found at another time after a kill, and late answers that were under way are lost.
    """
    if parts_of(scenario) is not None:
        return repeats(scenario)
    if is_controlled(scenario):  # what a share is depends on who was slow
        return False
    if scenario.switches or is_plain(scenario.spec):
        return not scenario.switches
    if scenario.backend == "resident":  # who is late for one round is late for the next
        return False
    scheme = parse_scheme(scenario.spec, n=scenario.shape.n)
    if getattr(scheme, "late", "drop") == "take" and any(
        sort(fault.kind) != "task" for fault in scenario.faults
    ):
        return False
    disturbed = any(sort(fault.kind) in {"task", "read"} for fault in scenario.faults)
    return not (scenario.wild or disturbed)
