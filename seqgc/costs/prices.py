"""Prices of AWS, their sources, and the bill of a usage."""

from __future__ import annotations

import math
import os
import re
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec
import tomli_w

from seqgc._aws import is_on_this_machine
from seqgc._durable import replacing
from seqgc.errors import ParameterError, did_you_mean, one_line, require_int
from seqgc.wire import StoreKind

Architecture: TypeAlias = Literal["x86_64", "arm64"]

PRICES_FILE: Final = Path(__file__).with_name("prices.toml")

INIT_LIMIT_S: Final = 10.0
"""The longest start (INIT) of an environment, in seconds. The function's time-out excludes it.

If a start takes longer, Lambda begins it again within the invocation. Lambda bills the start of all
functions since August 2025 (AWS Compute Blog, "AWS Lambda standardizes billing for INIT Phase").
"""

START_S: Final = 2.5
"""The expected time, in seconds, in which an environment imports the handler and PyTorch.

The measured processor time is 2.2 to 2.5 s, and 0.2 s without PyTorch. Modules that are imported
only when they are needed are billed in the first invocation, and all others in the start (INIT).
"""

RESTORE_S: Final = 0.05
"""The expected billed time, in seconds, in which a snapshot becomes an environment (SnapStart).

This is the measured processor time of the hook after the restore and of a small first task on
PyTorch. The restore itself is not billed by its time, but by the function's memory in GB.
"""

_BASE64 = 4 / 3  # characters per byte
_GB = 2**30  # bytes
_MB_PER_VCPU: Final = 1769


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Quantities that AWS charges for. Usages can be added.

    ``gb_seconds`` is memory in GB times billed seconds. ``transfer_out_bytes`` is the number of
    bytes that leave the region. ``restored_gb`` is the memory in GB of all environments that were
    restored from a snapshot.

    Examples
    --------
    >>> (Usage(requests=2, gb_seconds=0.5) + Usage(requests=1).times(3)).requests
    5
    """

    requests: int = 0  # invocations
    gb_seconds: float = 0.0
    efs_read_bytes: int = 0
    efs_write_bytes: int = 0
    s3_puts: int = 0
    s3_gets: int = 0
    transfer_out_bytes: int = 0
    restored_gb: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return Usage(**{name: sum(both) for name, both in pairs.items()})

    def times(self, count: int) -> Usage:
        """Return this usage multiplied by ``count``."""
        return Usage(**{f.name: getattr(self, f.name) * count for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSetup:
    """The memory (MB) and time-out (seconds) of a cloud function; they bound an invocation's cost.

    If an environment must start for an invocation, its start (INIT) is also billed. The time-out
    does not include the start. If ``snapstart``, environments start from a snapshot.

    Raises
    ------
    ParameterError
        If the memory or the time-out is outside Lambda's limits.

    Examples
    --------
    >>> FunctionSetup(memory_mb=2048, timeout_s=30.0).usage(invocations=1, ms=1001).gb_seconds
    2.002
    """

    memory_mb: int
    timeout_s: float
    snapstart: bool = False

    def __post_init__(self) -> None:
        if not 128 <= self.memory_mb <= 10240:
            rule = "must satisfy 128 <= memory_mb <= 10240 (Lambda)"
            raise ParameterError("memory_mb", rule, self.memory_mb)
        if not 0 < self.timeout_s <= 900:
            rule = "must satisfy 0 < timeout_s <= 900 (Lambda)"
            raise ParameterError("timeout_s", rule, self.timeout_s)

    @property
    def longest_s(self) -> float:
        """The longest billed time of an invocation, in seconds: a start, then the time-out."""
        return INIT_LIMIT_S + self.timeout_s

    @property
    def start_s(self) -> float:
        """The expected billed time of a start, in seconds."""
        return RESTORE_S if self.snapstart else START_S

    @property
    def vcpus(self) -> float:
        """The processors of the function: one virtual CPU (vCPU) for each 1,769 MB of memory.

        The source is AWS's "Configure Lambda function memory".
        """
        return self.memory_mb / _MB_PER_VCPU

    def usage(self, *, invocations: int, ms: float, starts: int = 0) -> Usage:
        """Return the usage of invocations that are billed for ``ms`` milliseconds in total.

        ``starts`` is the number of invocations that start an environment. Their time is part of
        ``ms``; with SnapStart, restoring their memory is billed too.
        """
        memory_gb = self.memory_mb / 1024
        return Usage(
            requests=invocations,
            gb_seconds=ms * self.memory_mb / (1024 * 1000),
            restored_gb=starts * memory_gb if self.snapstart else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The bytes that a task moves, in addition to its message.

    The weights of one job are ``weights_bytes`` bytes in ``weights_files`` files or objects. An
    environment reads each file once and caches it. A task needs the weights of ``weights_jobs``
    jobs, and a new environment has none of these weights. The packed results of a task have
    ``result_bytes`` bytes. If ``results_stored``, the results are too large for the answer and go
    through the store. The weights of a job have at most ``versions`` versions; tasks that leave
    together use the same version. If the master is outside the region (``master_outside``), the
    bytes that it reads are charged as transfer to the internet.

    Examples
    --------
    >>> files = Traffic(where="directory", weights_bytes=1000, result_bytes=500)
    >>> files.task().efs_read_bytes, files.publication().efs_write_bytes
    (1000, 1000)
    """

    where: StoreKind
    weights_bytes: int
    result_bytes: int
    weights_files: int = 1
    weights_jobs: int = 1
    versions: int = 1
    results_stored: bool = False
    master_outside: bool = False

    def __post_init__(self) -> None:
        require_int("weights_jobs", self.weights_jobs, least=1)
        if self.where == "inline" and self.results_stored:
            rule = "must be directory or s3 if results are too large for the answer"
            raise ParameterError("where", rule, self.where)

    def task(self, *, fresh: bool = False, mini_tasks: int | None = None) -> Usage:
        """Return the usage of moving the weights and results of one task.

        If ``fresh``, the environment has just started and has none of the weights; otherwise it
        lacks the weights of one job at most. The task has ``mini_tasks`` mini-tasks, each of one
        job; by default it has as many as a task can have.
        """
        jobs = self.weights_jobs if mini_tasks is None else min(mini_tasks, self.weights_jobs)
        result_bytes = math.ceil(self.result_bytes * jobs / self.weights_jobs)
        jobs = jobs if fresh else min(jobs, 1)
        stored = result_bytes if self.results_stored else 0
        answered = stored or math.ceil(result_bytes * _BASE64)
        out = Usage(transfer_out_bytes=answered if self.master_outside else 0)
        match self.where:
            case "directory":
                read = jobs * self.weights_bytes + stored
                return replace(out, efs_read_bytes=read, efs_write_bytes=stored)
            case "s3":
                gets = jobs * self.weights_files + self.results_stored
                return replace(out, s3_gets=gets, s3_puts=int(self.results_stored))
            case "inline":
                return out

    def publication(self) -> Usage:
        """Return the usage of publishing a job's weights."""
        if self.where == "directory":
            return Usage(efs_write_bytes=self.weights_bytes)
        return Usage(s3_puts=self.weights_files) if self.where == "s3" else Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The cost of a usage, in US dollars."""

    functions: float
    requests: float
    efs: float
    s3: float
    transfer: float
    restores: float

    @property
    def usd(self) -> float:
        """The total, in US dollars."""
        parts = self.functions, self.requests, self.efs, self.s3, self.transfer, self.restores
        return sum(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The prices of a region, in US dollars per unit. The fields are the keys of the price file.

    A `bill` does not include storage, because weights and gradients are stored only for seconds.
    The fields from ``snapstart_restored_gb`` on are None if the price is not known for the region.
    ``snapstart_cached_gb_second`` is the price of a version's snapshot, while the version exists.
    The fields from ``microvm_vcpu_second`` on are prices of other services, with which
    `seqgc.costs.compare_services` compares functions. ``managed_instance_fee`` is a fraction of the
    price of the machine.

    Examples
    --------
    >>> from seqgc.costs import Usage, read_prices
    >>> prices = read_prices("us-east-1")
    >>> bill = prices.bill(Usage(requests=1_000_000, gb_seconds=1000.0), architecture="arm64")
    >>> bill.requests, round(bill.functions, 7), round(bill.usd, 7)
    (0.2, 0.0133334, 0.2133334)
    """

    lambda_x86_64_gb_second: float
    lambda_arm64_gb_second: float
    lambda_million_requests: float
    efs_elastic_read_gb: float
    efs_elastic_write_gb: float
    s3_thousand_puts: float
    s3_thousand_gets: float
    transfer_out_gb: float
    snapstart_restored_gb: float | None = None
    snapstart_cached_gb_second: float | None = None
    microvm_vcpu_second: float | None = None
    microvm_gb_second: float | None = None
    microvm_snapshot_read_gb: float | None = None
    ec2_arm64_vcpu_hour: float | None = None
    ec2_x86_64_vcpu_hour: float | None = None
    managed_instance_fee: float | None = None

    def bill(self, usage: Usage, *, architecture: Architecture) -> Bill:
        """Return the cost of a usage on this processor architecture.

        Raises
        ------
        ParameterError
            If the architecture is unknown, or the region has no price of SnapStart and the usage
            has restores.
        """
        names = get_args(Architecture)
        if architecture not in names:
            rule = f"must be {' or '.join(names)}"
            raise ParameterError("arch", rule, architecture, did_you_mean(architecture, names))
        arm = architecture == "arm64"
        second = self.lambda_arm64_gb_second if arm else self.lambda_x86_64_gb_second
        read = usage.efs_read_bytes / _GB * self.efs_elastic_read_gb
        written = usage.efs_write_bytes / _GB * self.efs_elastic_write_gb
        puts = usage.s3_puts / 1e3 * self.s3_thousand_puts
        gets = usage.s3_gets / 1e3 * self.s3_thousand_gets
        if usage.restored_gb and self.snapstart_restored_gb is None:
            rule = "must be false in a region for which no price of SnapStart is known"
            raise ParameterError("snapstart", rule, True)
        return Bill(
            functions=usage.gb_seconds * second,
            requests=usage.requests / 1e6 * self.lambda_million_requests,
            efs=read + written,
            s3=puts + gets,
            transfer=usage.transfer_out_bytes / _GB * self.transfer_out_gb,
            restores=usage.restored_gb * (self.snapstart_restored_gb or 0.0),
        )

    def snapshot_usd_a_day(self, function: FunctionSetup) -> float | None:
        """Return the price of keeping a version's snapshot for a day, or None if it is unknown.

        Without SnapStart, there is no snapshot. A snapshot is billed for at least three hours.

        Examples
        --------
        >>> from seqgc.costs import read_prices
        >>> function = FunctionSetup(memory_mb=2048, timeout_s=60.0, snapstart=True)
        >>> round(read_prices("us-east-1").snapshot_usd_a_day(function), 2)
        0.26
        """
        if not function.snapstart:
            return 0.0
        second = self.snapstart_cached_gb_second
        return None if second is None else 86_400 * function.memory_mb / 1024 * second


def read_prices(region: str = "us-east-1", *, path: Path = PRICES_FILE) -> Prices:
    """Return the prices of a region from the TOML file at ``path``.

    Raises
    ------
    ParameterError
        If the file does not have the region, lacks one of its prices, or has a price that is not
        a field of `Prices`.
    """
    regions = _decoded_prices(path)["regions"]
    if region not in regions:
        remedy = f"add its prices to {path}; the file names the pages that list them"
        raise ParameterError("region", f"must be one of {', '.join(regions)}", region, remedy)
    values, where = regions[region], f"regions.{region}"
    names = {each.name for each in fields(Prices)}
    needed = {each.name for each in fields(Prices) if each.default is MISSING}
    if different := needed - set(values) | set(values) - names:
        difference = ", ".join(sorted(different))
        rule = f"of {where} must be {', '.join(sorted(names))}; missing or unknown: {difference}"
        raise ParameterError("prices", rule, sorted(values))
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise ParameterError("prices", f"{where}.{name} must be a price in USD >= 0", value)
    return Prices(**{name: float(value) for name, value in values.items()})


def prices_date(path: Path = PRICES_FILE) -> date:
    """Return the day on which the prices of the file were valid, except those in its [days]."""
    return date.fromisoformat(str(_decoded_prices(path)["as_of"]))


def _days() -> dict[str, date]:
    """Return the day of each price in the table of seqgc."""
    content = _decoded_prices(PRICES_FILE)
    days = {each.name: prices_date() for each in fields(Prices)}
    for begin, day in content["days"].items():
        days |= {name: date.fromisoformat(str(day)) for name in days if name.startswith(begin)}
    return days


@lru_cache(maxsize=4)
def _decoded_prices(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ParameterError("prices", f"must be a TOML file ({error})", str(path)) from None
    if content.get("schema") != 1 or "as_of" not in content or "regions" not in content:
        rule = "must have schema = 1, as_of and [regions.…]"
        raise ParameterError("prices", rule, sorted(content))
    return content


LIST: Final = "https://pricing.us-east-1.amazonaws.com"
"""The address of AWS's price list."""

_TIMEOUT_S, _LONGEST_S = 3.0, 20.0  # time limits: of one answer, of all files
_LARGEST: Final = 64 * 2**20  # bytes of a file; AWS's largest file has about one megabyte
_DEAREST: Final = 100.0  # US dollars per unit; every real price is below one dollar
_FRESH: Final = timedelta(days=1)
_REGION: Final = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")
_PREFIX: Final = r"(?:EU-|[A-Z]{2,4}\d+-)?"  # the region at the beginning of a usage type

# For each price: the service, the usage type, the number of units, and further attributes.
_LISTED: Final[dict[str, tuple[str, str, float, dict[str, str]]]] = {
    "lambda_x86_64_gb_second": ("AWSLambda", "Lambda-GB-Second", 1, {}),
    "lambda_arm64_gb_second": ("AWSLambda", "Lambda-GB-Second-ARM", 1, {}),
    "lambda_million_requests": ("AWSLambda", "Request", 1e6, {}),
    "efs_elastic_read_gb": ("AmazonEFS", "ETDataAccess-Bytes", 1, {"accessType": "Read"}),
    "efs_elastic_write_gb": ("AmazonEFS", "ETDataAccess-Bytes", 1, {"accessType": "Write"}),
    "s3_thousand_puts": ("AmazonS3", "Requests-Tier1", 1e3, {}),
    "s3_thousand_gets": ("AmazonS3", "Requests-Tier2", 1e3, {}),
    "transfer_out_gb": ("AWSDataTransfer", "DataTransfer-Out-Bytes", 1, {}),
}
# The prices of MicroVMs, which are in the list of few regions. AWS's file of EC2 has hundreds of
# megabytes; therefore the prices of machines come only from the table.
_LISTED_IF_OFFERED: Final[dict[str, tuple[str, str, float, dict[str, str]]]] = {
    "snapstart_restored_gb": ("AWSLambda", "Lambda-SnapStart-Restored-GB", 1, {}),
    "snapstart_cached_gb_second": ("AWSLambda", "Lambda-SnapStart-Cached-GB-S", 1, {}),
    "microvm_vcpu_second": ("AWSLambda", "Lambda-MicroVM-vCPU-Second-ARM", 1, {}),
    "microvm_gb_second": ("AWSLambda", "Lambda-MicroVM-Memory-GB-Second-ARM", 1, {}),
    "microvm_snapshot_read_gb": ("AWSLambda", "Lambda-MicroVM-Snapshot-Read-GB", 1, {}),
}
_TABLE: Final = "the table that comes with seqgc"


class _Range(msgspec.Struct, rename="camel"):
    price_per_unit: dict[str, str]
    begin_range: str = "0"


class _Term(msgspec.Struct, rename="camel"):
    price_dimensions: dict[str, _Range]


class _Product(msgspec.Struct):
    attributes: dict[str, object]


class _Terms(msgspec.Struct, rename="pascal"):
    on_demand: dict[str, dict[str, _Term]] = {}


class _Offer(msgspec.Struct):
    products: dict[str, _Product]
    terms: _Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedPrices:
    """The prices of a region, the day on which they were valid, and their source.

    If AWS's price list was not read, ``missed`` gives the reason; otherwise ``missed`` is empty.
    ``days`` has the day of each price that comes from the table of seqgc.
    """

    prices: Prices
    as_of: date
    source: str
    missed: str = ""
    days: Mapping[str, date] = field(default_factory=dict)

    def origin(self, name: str) -> tuple[date, str]:
        """Return the day and the source of a price, by the name of its field in `Prices`.

        Examples
        --------
        >>> day, source = find_prices("us-east-1", ask=False).origin("ec2_arm64_vcpu_hour")
        >>> day.year, source
        (2026, 'the table that comes with seqgc')
        """
        if name in self.days:
            return self.days[name], _TABLE
        return self.as_of, self.source


def find_prices(region: str, *, ask: bool = True) -> DatedPrices:
    """Return the prices of a region from AWS's price list, or else from a stored table.

    AWS's list is requested at most once a day and kept in the user's cache folder. If ``ask`` is
    False, it is not requested. Without AWS's list, the prices come from an older copy in the cache,
    or else from the table in seqgc. The environment variable ``SEQGC_PRICE_LIST`` replaces the
    address of AWS's list; if the variable is empty, only the table in seqgc is used.

    Raises
    ------
    ParameterError
        If ``region`` is not the name of a region, or if the list cannot be read, and neither the
        cache nor the table in seqgc has the region. The message says why the list was not read.
    """
    base = os.environ.get("SEQGC_PRICE_LIST", LIST)
    if not base:
        return _shipped(region, "SEQGC_PRICE_LIST is empty")
    if not _REGION.fullmatch(region):
        rule = "must be the name of an AWS region, for example eu-central-1"
        raise ParameterError("region", rule, region)
    cached = _cached(region)
    if cached is not None and (not ask or timedelta() <= date.today() - cached.as_of < _FRESH):
        return _with_machines(cached, region)
    if not ask:
        return _shipped(region, "it was not requested")
    answer = _ask(region, base)
    if isinstance(answer, DatedPrices):
        return _with_machines(answer, region)
    if cached is None:
        return _shipped(region, answer)
    return _with_machines(replace(cached, missed=answer), region)


def _with_machines(dated: DatedPrices, region: str) -> DatedPrices:
    """Add the prices that AWS's list does not have, if the table of seqgc has the region."""
    try:
        table = asdict(read_prices(region))
    except ParameterError:
        return dated
    unlisted = table.keys() - _LISTED.keys() - _LISTED_IF_OFFERED.keys()
    days = {name: day for name, day in _days().items() if name in unlisted}
    return replace(
        dated, prices=replace(dated.prices, **{name: table[name] for name in days}), days=days
    )


def _shipped(region: str, missed: str) -> DatedPrices:
    try:
        prices = read_prices(region)
    except ParameterError as error:
        if error.argument != "region":
            raise
        rule = f"{error.rule}, because AWS's price list was not read ({missed})"
        raise ParameterError("region", rule, region) from None
    return DatedPrices(
        prices=prices, as_of=prices_date(), source=_TABLE, missed=missed, days=_days()
    )


@lru_cache
def _ask(region: str, base: str) -> DatedPrices | str:
    """Request AWS's list, cache its prices and return them. If this fails, return the reason."""
    offers: dict[str, _Offer] = {}
    until = time.monotonic() + _LONGEST_S
    try:
        for service in dict.fromkeys(service for service, *_ in _LISTED.values()):
            url = f"{base.rstrip('/')}/offers/v1.0/aws/{service}/current/{region}/index.json"
            offers[service] = msgspec.json.decode(_read_offer(url, until), type=_Offer)
        prices = Prices(**{name: _price(offers, *where) for name, where in _LISTED.items()})
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        return one_line(f"{type(error).__name__}: {error}", limit=120)
    for name, where in _LISTED_IF_OFFERED.items():
        with suppress(ValueError):  # not offered in this region
            prices = replace(prices, **{name: _price(offers, *where)})
    dated = DatedPrices(prices=prices, as_of=date.today(), source="AWS's price list")
    listed = {name: usd for name, usd in asdict(prices).items() if usd is not None}
    content = {"schema": 1, "as_of": dated.as_of, "regions": {region: listed}}
    with suppress(OSError):  # without a cache, the list is requested again next time
        path = _file(region)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(tomli_w.dumps(content).encode())
    return dated


def _read_offer(url: str, until: float) -> bytes:
    from http.client import HTTPException

    # Imported here because this import is slower than most others.
    from urllib.request import ProxyHandler, build_opener

    # None: the proxies in the environment variables.
    proxies = dict[str, str]() if is_on_this_machine(url) else None
    parts: list[bytes] = []
    try:
        with build_opener(ProxyHandler(proxies)).open(url, timeout=_TIMEOUT_S) as answer:
            while part := answer.read(2**20):
                parts.append(part)
                if sum(map(len, parts)) > _LARGEST:
                    raise ValueError(f"{url} is larger than {_LARGEST} bytes")
                if time.monotonic() > until:
                    raise TimeoutError(f"{url} takes too long")
    except HTTPException as error:
        raise ConnectionError(f"{url}: {type(error).__name__}: {error}") from error
    return b"".join(parts)


def _price(
    offers: dict[str, _Offer], service: str, usage: str, units: float, further: dict[str, str]
) -> float:
    """Return the price of the first quantity range that is not free.

    If several products match, return the highest of their prices.
    """
    pattern, offer = re.compile(_PREFIX + re.escape(usage)), offers[service]
    prices = [
        min(ranges)[1]
        for sku, product in offer.products.items()
        if pattern.fullmatch(str(product.attributes.get("usagetype", "")))
        and further.items() <= product.attributes.items()
        and (ranges := list(_ranges(offer, sku)))
    ]
    if not prices:
        raise ValueError(f"{service} has no price in US dollars for {usage}")
    if not max(prices) < _DEAREST:
        raise ValueError(f"{service} has the price {max(prices)} for {usage}, more than expected")
    return max(prices) * units


def _ranges(offer: _Offer, sku: str) -> Iterator[tuple[float, float]]:
    """Yield the first unit and the price, in US dollars, of each range that is not free."""
    for term in offer.terms.on_demand.get(sku, {}).values():
        for each in term.price_dimensions.values():
            if "USD" in each.price_per_unit and (usd := float(each.price_per_unit["USD"])) > 0:
                yield float(each.begin_range), usd


def _file(region: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(home, "seqgc", f"prices-{region}.toml")


def _cached(region: str) -> DatedPrices | None:
    path = _file(region)
    try:
        prices, as_of = read_prices(region, path=path), prices_date(path)
    except (ParameterError, ValueError):  # the file is absent or damaged
        return None
    return DatedPrices(prices=prices, as_of=as_of, source="AWS's price list")
