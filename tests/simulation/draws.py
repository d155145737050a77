"""Whole runs of one kind, whatever goes wrong in them: what `--draw` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from tests.simulation.faults import (
    BACKENDS,
    LEASES_S,
    Fault,
    Scenario,
    draw,
    may_happen_to,
    of_functions,
    of_residents,
    sort,
)
from tests.simulation.promises import parts_of

_DEALT: Final = ("deal", "deal:pieces=5", "deal:pieces=12")
_PARTS: Final = ("bsp", "ssp:slack=1", "ssp:slack=3")
_STAYING: Final = (
    "uncoded",
    "gc-rep:s=1",
    "m-sgc:B=1,W=2,lam=2",
    "m-sgc-rep:B=1,W=2,lam=1",
    "sr-sgc:B=1,W=2,lam=2,late=take",
    "ra-sgc:s=0,q=0.5,r=2",
    "ra-sgc:s=0,q=0.5,r=2,p=2",
)

_STALE: Final = (
    "m-sgc:B=1,W=3,lam=1",
    "m-sgc-rep:B=1,W=3,lam=1",
    "sr-sgc:B=2,W=3,lam=2",
    "sr-sgc-rep:B=2,W=3,lam=2",
    "m-sgc-rep:B=2,W=3,lam=1",
)
"""Schemes of a delay that two models are too few for."""

_FIRST_CLOCKS: Final = (
    "bsp",
    "ssp:slack=1",
    "a-bsp:wpc=2",
    "asp",
    "asp-dds:M=2",
    "lb-bsp",
    "antdt-nd",
    "backup:b=1",
    "balanced",
    "antdt-nd-asp:M=2,lam=1.2,per=4,act=1",
)
_LATER_CLOCKS: Final = (
    "antdt-dd:most=2,probe=2",
    "asp-dds:M=3,resume=shard",
    "antdt-nd-asp:M=2,resume=shard,lam=1.2,per=4,act=1",
    "flexrr:slack=1,pieces=2",
    "bsp-rr:pieces=3",
    "flexrr:slack=2,pieces=2,helpers=1,ahead=3",
)
_STAY: Final = ("flexrr", "bsp-rr")  # defences whose workers must stay
CLOCKS: Final = _FIRST_CLOCKS + _LATER_CLOCKS
_BROKEN_OFF: Final = 0.5  # of the runs of clocks, besides those that are anyway
_BOUNDED: Final = ("needed", "late")


def dealt(seed: int) -> Scenario:
    """Work is dealt to local workers, and the master is killed at least once."""
    drawn = draw(seed)
    faults = [fault for fault in drawn.faults if fault.kind != "lie"]  # nobody is asked twice
    faults.append(Fault(kind="kill", at=(40 + seed % 60,), amount=0.5))
    return _plain(drawn, spec=_DEALT[seed % 3], backend="local", faults=faults)


def staying(seed: int) -> Scenario:
    """Rounds on functions that stay."""
    return _on_residents(seed, _STAYING[seed % len(_STAYING)])


def dealt_staying(seed: int) -> Scenario:
    """Work is dealt to functions that stay."""
    return _on_residents(seed, _DEALT[seed % 3])


def stale(seed: int) -> Scenario:
    """Gradients wait, decoded, until they are late enough; the master is killed at least once."""
    drawn = draw(seed)
    faults = [fault for fault in drawn.faults if fault.kind != "lie"]  # nobody compares
    faults.append(Fault(kind="kill", at=(40 + seed % 60,), amount=0.5))
    scenario = _plain(drawn, spec=_STALE[seed % len(_STALE)], backend=drawn.backend, faults=faults)
    shape = replace(scenario.shape, models=2, steps=scenario.shape.jobs // 2)
    return replace(scenario, shape=shape, stale=True)


def on_functions(seed: int) -> Scenario:
    """Rounds on functions of any kind that do not stay."""
    drawn, rng = draw(seed), np.random.default_rng([seed, 10])
    backend = str(rng.choice(BACKENDS[1:4]))
    faults = [fault for fault in drawn.faults if may_happen_to(backend, fault)]
    faults += of_functions(rng, shape=drawn.shape)
    return _plain(drawn, spec=drawn.spec, backend=backend, faults=faults)


def in_parts(seed: int) -> Scenario:
    """Batches come in parts, each used by itself, and the master is killed at least once."""
    drawn = draw(seed)
    faults = [fault for fault in drawn.faults if fault.kind != "lie"]  # nobody is asked twice
    faults.append(Fault(kind="kill", at=(40 + seed % 60,), amount=0.5))
    scenario = _plain(drawn, spec=_PARTS[seed % 3], backend=drawn.backend, faults=faults)
    return replace(scenario, updates="late" if seed % 3 else "")


def clock_spec(seed: int) -> str:
    """Return the defence of a seed: of every 40 seeds 10 are of those that came later.

    So the other seeds, of which some are kept for what they show, keep their runs if one is added.
    """
    if seed // 10 % 4 == 2:
        return _LATER_CLOCKS[seed % len(_LATER_CLOCKS)]
    return _FIRST_CLOCKS[seed % len(_FIRST_CLOCKS)]


def clocks(seed: int) -> Scenario:
    """Workers go on by themselves, shares change, or rounds do without some."""
    drawn, rng = draw(seed), np.random.default_rng([seed, 9])
    spec = clock_spec(seed)
    if spec == "balanced":
        spec += ":shares=" + "-".join(str(1 + worker % 3) for worker in range(drawn.shape.n))
    chances = [0.8, *[0.2 / len(BACKENDS[1:])] * len(BACKENDS[1:])]
    backend = str(rng.choice(BACKENDS, p=chances))
    if spec.startswith(_STAY) and backend != "resident":
        backend = "local"
    faults, lease_s = [fault for fault in drawn.faults if fault.kind != "lie"], LEASES_S[0]
    faults = [fault for fault in faults if may_happen_to(backend, fault)]
    if backend == "resident":
        faults += of_residents(rng, shape=drawn.shape)
        lease_s = float(rng.choice(LEASES_S))
    elif backend != "local":
        faults += of_functions(rng, shape=drawn.shape)
    if rng.random() < _BROKEN_OFF:
        at = (int(rng.integers(drawn.shape.events)),)
        faults.append(Fault(kind="kill", at=at, amount=0.5))
    scenario = _plain(drawn, spec=spec, backend=backend, faults=faults, lease_s=lease_s)
    scenario = replace(scenario, wild=False)
    if (defence := parts_of(scenario)) is None or defence.kind == "exact":
        return scenario
    bounded, once = defence.staleness is not None, not defence.most_again
    choices = ("", *("clock",) * once, "aware", *_BOUNDED * bounded)
    updates = str(rng.choice(choices))
    return replace(scenario, updates=updates, straight=updates != "late")


def _on_residents(seed: int, spec: str) -> Scenario:
    drawn, rng = draw(seed), np.random.default_rng([seed, 8])
    faults = [fault for fault in drawn.faults if may_happen_to("resident", fault)]
    faults += of_residents(rng, shape=drawn.shape) if drawn.backend != "resident" else []
    lease_s = float(rng.choice(LEASES_S))
    return _plain(drawn, spec=spec, backend="resident", faults=faults, lease_s=lease_s)


def _plain(
    drawn: Scenario, *, spec: str, backend: str, faults: list[Fault], lease_s: float = LEASES_S[0]
) -> Scenario:
    places = {(sort(fault.kind), fault.at): fault for fault in faults}  # one a place
    return replace(
        drawn,
        spec=spec,
        backend=backend,
        faults=tuple(places.values()),
        lease_s=lease_s,
        audit=False,
        wild=drawn.wild and backend == "local",
        switches=(),
    )


DRAWS: Final[Mapping[str, Callable[[int], Scenario]]] = MappingProxyType(
    {
        "any": draw,
        "dealt": dealt,
        "stale": stale,
        "functions": on_functions,
        "staying": staying,
        "dealt-staying": dealt_staying,
        "parts": in_parts,
        "clocks": clocks,
    }
)
