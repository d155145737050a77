"""The cost of a plan on several services of AWS, on workers of the same size.

Every service is given the same seconds per task, and processors in proportion to the memory of the
function (`FunctionSetup.vcpus`). The comparison includes the bytes that the workers move, except on
one machine, where they move through its files. It does not include a master outside the workers,
disks, logs, the time in which machines start, and the time in which workers wait for tasks. Waiting
costs nothing only with functions that are invoked for each task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from seqgc.costs.meter import Meter, PlannedUse, estimate_plan
from seqgc.costs.prices import START_S, Architecture, Prices

__all__ = ["ComputeService", "ServiceCost", "compare_services"]

ComputeService: TypeAlias = Literal["functions", "resident", "microvms", "managed", "machine"]

# Memory (GB) and vCPUs that a running MicroVM costs at least ("Running and using MicroVMs", AWS).
_MICROVM_SIZES: Final = ((0.5, 0.25), (1, 0.5), (2, 1), (4, 2), (8, 4))
_MICROVM_LIFE_S: Final = 8 * 3600.0
# The machines have 2 GB for each vCPU, more than functions, so that the vCPUs decide.
_FAMILIES: Final[dict[Architecture, str]] = {"arm64": "c7g", "x86_64": "c7i"}
_MACHINES: Final = {
    "large": 2, "xlarge": 4, "2xlarge": 8, "4xlarge": 16, "8xlarge": 32, "12xlarge": 48,
    "16xlarge": 64,
}  # fmt: skip
_LEAST_MACHINE_S: Final = 60.0  # the least time for which a machine is billed
_MANAGED_MACHINES: Final = 3  # Lambda starts one in each of three availability zones


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCost:
    """The cost of a plan on a service, in US dollars.

    ``uses`` names what is paid for. ``usd`` is None if the cost is unknown or the service cannot
    run the plan; then ``why`` gives the reason.
    """

    service: ComputeService
    usd: float | None
    uses: str
    why: str = ""


def compare_services(
    invoked: PlannedUse, resident: PlannedUse, prices: Prices, *, architecture: Architecture
) -> list[ServiceCost]:
    """Return the likely cost of a plan on each service.

    ``invoked`` is the use of functions that are invoked for each task, and ``resident`` the use of
    functions that stay, both with the same ``seconds_per_task``.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from seqgc.costs import FunctionSetup, Traffic, read_prices
    >>> use = PlannedUse(
    ...     workers=4, rounds=100, jobs=100, seconds_per_task=36.0,
    ...     function=FunctionSetup(memory_mb=1769, timeout_s=60.0),
    ...     traffic=Traffic(where="inline", weights_bytes=0, result_bytes=0),
    ... )
    >>> for each in compare_services(
    ...     use, replace(use, resident=True), read_prices(), architecture="arm64"
    ... ):
    ...     print(f"{each.service}: {each.usd:.2f} ({each.uses})")
    functions: 0.33 (400 invocations of 1769 MB)
    resident: 0.35 (4 functions of 1769 MB for 3600 s each)
    microvms: 0.52 (4 of 2 GB and 1 vCPU for 3600 s each)
    managed: 0.25 (3 x c7g.large for 3600 s, and the fee)
    machine: 0.15 (1 x c7g.xlarge for 3602 s, with the master)
    """
    seconds = resident.lasts_s
    if seconds is None:
        return []
    vcpus = resident.workers * resident.function.vcpus
    rate = prices.ec2_arm64_vcpu_hour if architecture == "arm64" else prices.ec2_x86_64_vcpu_hour
    return [
        _functions(invoked, prices, architecture),
        _resident(resident, prices, architecture, seconds),
        _microvms(resident, prices, architecture, seconds),
        _managed(resident, prices, architecture, seconds, rate, vcpus),
        _machine(architecture, seconds + START_S, rate, vcpus),
    ]


def _functions(use: PlannedUse, prices: Prices, architecture: Architecture) -> ServiceCost:
    uses = f"{use.tasks:,} invocations of {use.function.memory_mb} MB"
    if use.pieces:
        why = "a scheme that deals pieces needs workers that stay"
        return ServiceCost(service="functions", usd=None, uses=uses, why=why)
    likely = estimate_plan(use).likely
    usd = None if likely is None else prices.bill(likely, architecture=architecture).usd
    return ServiceCost(service="functions", usd=usd, uses=uses)


def _resident(
    use: PlannedUse, prices: Prices, architecture: Architecture, seconds: float
) -> ServiceCost:
    likely = estimate_plan(use).likely
    usd = None if likely is None else prices.bill(likely, architecture=architecture).usd
    uses = f"{use.workers} functions of {use.function.memory_mb} MB for {_seconds(seconds)} each"
    return ServiceCost(service="resident", usd=usd, uses=uses)


def _microvms(
    use: PlannedUse, prices: Prices, architecture: Architecture, seconds: float
) -> ServiceCost:
    wanted_gb = use.function.memory_mb / 1024
    gb, vcpus = next((size for size in _MICROVM_SIZES if size[0] >= wanted_gb), _MICROVM_SIZES[-1])
    # A MicroVM may use up to four times its size, which is billed in addition.
    gb, vcpus = max(gb, wanted_gb), max(vcpus, use.function.vcpus)
    uses = f"{use.workers} of {gb:.3g} GB and {vcpus:.3g} vCPU for {_seconds(seconds)} each"
    rates = prices.microvm_vcpu_second, prices.microvm_gb_second, prices.microvm_snapshot_read_gb
    vcpu_second, gb_second, read_gb = rates
    if vcpu_second is None or gb_second is None or read_gb is None:
        return ServiceCost(service="microvms", usd=None, uses=uses, why=_UNPRICED)
    launches = use.workers * max(1, math.ceil(seconds / _MICROVM_LIFE_S))
    # The snapshot of the image is assumed to be as large as the memory.
    usd = use.workers * seconds * (vcpus * vcpu_second + gb * gb_second) + launches * gb * read_gb
    usd += _moved_usd(use, prices, architecture)
    note = "" if architecture == "arm64" else "; only on arm64"
    return ServiceCost(service="microvms", usd=usd, uses=uses + note)


def _managed(
    use: PlannedUse,
    prices: Prices,
    architecture: Architecture,
    seconds: float,
    rate: float | None,
    vcpus: float,
) -> ServiceCost:
    count, size = _fleet(vcpus, least=_MANAGED_MACHINES)
    billed_s = max(seconds, _LEAST_MACHINE_S)
    uses = f"{count} x {_FAMILIES[architecture]}.{size} for {_seconds(billed_s)}, and the fee"
    if rate is None or prices.managed_instance_fee is None:
        return ServiceCost(service="managed", usd=None, uses=uses, why=_UNPRICED)
    if use.pieces:
        why = "a scheme that deals pieces needs workers that stay"
        return ServiceCost(service="managed", usd=None, uses=uses, why=why)
    usd = count * _MACHINES[size] * rate * billed_s / 3600 * (1 + prices.managed_instance_fee)
    usd += use.tasks / 1e6 * prices.lambda_million_requests
    usd += _moved_usd(use, prices, architecture)
    return ServiceCost(service="managed", usd=usd, uses=uses)


def _machine(
    architecture: Architecture, seconds: float, rate: float | None, vcpus: float
) -> ServiceCost:
    count, size = _fleet(vcpus, least=1)
    billed_s = max(seconds, _LEAST_MACHINE_S)
    uses = f"{count} x {_FAMILIES[architecture]}.{size} for {_seconds(billed_s)}, with the master"
    if rate is None:
        return ServiceCost(service="machine", usd=None, uses=uses, why=_UNPRICED)
    usd = count * _MACHINES[size] * rate * billed_s / 3600
    return ServiceCost(service="machine", usd=usd, uses=uses)


_UNPRICED: Final = "the table of prices does not have this region"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _fleet(vcpus: float, *, least: int) -> tuple[int, str]:
    """Return the number and size of machines that have ``vcpus`` processors together.

    There are at least ``least`` machines. They are as small as possible.
    """
    for size, each in _MACHINES.items():
        if least * each >= vcpus:
            return least, size
    return math.ceil(vcpus / each), size


def _moved_usd(use: PlannedUse, prices: Prices, architecture: Architecture) -> float:
    """Return the price of the bytes that the workers move."""
    meter = Meter(function=use.function, traffic=replace(use.traffic, results_stored=False))
    meter.move(tasks=use.tasks, published=use.jobs * use.traffic.versions)
    return prices.bill(meter.likely, architecture=architecture).usd
