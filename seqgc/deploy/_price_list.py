"""Prices of any region, from the list that AWS publishes: files of JSON that anybody may read.

One file a service and region, at ``/offers/v1.0/aws/SERVICE/current/REGION/index.json`` ("AWS Price
List Bulk API", AWS Billing User Guide). ``products`` says of each stock-keeping unit what it is:
its usage type names the region (``EUC1-Request``) or, in the oldest region, mostly does not
(``Request``). ``terms.OnDemand`` has its prices, by range of the month's use. Left out are ranges
that are free of charge, and what is counted for all regions together (``Global-Request``).

Prices are kept in a file for a day. Where the list cannot be reached, what was kept before is
taken, else the table that comes with seqgc; which it was, and of which day, is told with the price.
``SEQGC_PRICE_LIST`` is the address of another copy of the list; empty, nobody is asked.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
import tomli_w

from seqgc._aws import is_on_this_machine
from seqgc._durable import replacing
from seqgc.deploy._prices import Prices, prices_date, read_prices
from seqgc.errors import ParameterError, one_line

LIST: Final = "https://pricing.us-east-1.amazonaws.com"
_TIMEOUT_S, _LONGEST_S = 3.0, 20.0  # of an answer; of all files
_LARGEST: Final = 64 * 2**20  # bytes of a file; the largest is of about one megabyte
_DEAREST: Final = 100.0  # US dollars of a unit, none of which costs one
_FRESH: Final = timedelta(days=1)
_REGION: Final = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+")
_PREFIX: Final = r"(?:EU-|[A-Z]{2,4}\d+-)?"  # what a region's name is within a usage type

# Of each price: the service, the usage type, how many units it is of, and what else it is.
_SOUGHT: Final[dict[str, tuple[str, str, float, dict[str, str]]]] = {
    "lambda_x86_64_gb_second": ("AWSLambda", "Lambda-GB-Second", 1, {}),
    "lambda_arm64_gb_second": ("AWSLambda", "Lambda-GB-Second-ARM", 1, {}),
    "lambda_million_requests": ("AWSLambda", "Request", 1e6, {}),
    "efs_elastic_read_gb": ("AmazonEFS", "ETDataAccess-Bytes", 1, {"accessType": "Read"}),
    "efs_elastic_write_gb": ("AmazonEFS", "ETDataAccess-Bytes", 1, {"accessType": "Write"}),
    "s3_thousand_puts": ("AmazonS3", "Requests-Tier1", 1e3, {}),
    "s3_thousand_gets": ("AmazonS3", "Requests-Tier2", 1e3, {}),
    "transfer_out_gb": ("AWSDataTransfer", "DataTransfer-Out-Bytes", 1, {}),
}


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
    """A region's prices, the day for which they are true, and where they are from.

    ``missed`` says why they are not from AWS's list, and is empty if they are.
    """

    prices: Prices
    as_of: date
    source: str
    missed: str = ""


def find_prices(region: str, *, ask: bool = True) -> DatedPrices:
    """Return the prices of a region: AWS's own, at most a day old, if they can be had.

    Without ``ask`` nobody is asked: what is at hand is taken.

    Raises
    ------
    ParameterError
        If nothing is at hand of that region either; it says why AWS's list could not be had.
    """
    base = os.environ.get("SEQGC_PRICE_LIST", LIST)
    if not base:
        return _shipped(region, "SEQGC_PRICE_LIST is empty")
    if not _REGION.fullmatch(region):
        raise ParameterError("region", "must be the name of an AWS region, as eu-central-1", region)
    kept = _kept(region)
    if kept is not None and (not ask or timedelta() <= date.today() - kept.as_of < _FRESH):
        return kept
    if not ask:
        return _shipped(region, "nobody was asked")
    asked = _ask(region, base)
    if isinstance(asked, DatedPrices):
        return asked
    if kept is not None:
        return DatedPrices(prices=kept.prices, as_of=kept.as_of, source=kept.source, missed=asked)
    return _shipped(region, asked)


def _shipped(region: str, missed: str) -> DatedPrices:
    try:
        prices = read_prices(region)
    except ParameterError as error:
        if error.argument != "region":
            raise
        rule = f"{error.rule}, or AWS's price list in reach ({missed})"
        raise ParameterError("region", rule, region) from None
    source = "the table that comes with seqgc"
    return DatedPrices(prices=prices, as_of=prices_date(), source=source, missed=missed)


@lru_cache
def _ask(region: str, base: str) -> DatedPrices | str:
    """Return what AWS asks, and keep it; or why it cannot be had, once for this process."""
    offers: dict[str, _Offer] = {}
    until = time.monotonic() + _LONGEST_S
    try:
        for service in dict.fromkeys(service for service, *_ in _SOUGHT.values()):
            url = f"{base.rstrip('/')}/offers/v1.0/aws/{service}/current/{region}/index.json"
            offers[service] = msgspec.json.decode(_read(url, until), type=_Offer)
        prices = Prices(**{name: _price(offers, name) for name in _SOUGHT})
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        return one_line(f"{type(error).__name__}: {error}", limit=120)
    found = DatedPrices(prices=prices, as_of=date.today(), source="AWS's price list")
    content = {"schema": 1, "as_of": found.as_of, "regions": {region: asdict(prices)}}
    with suppress(OSError):  # it is asked for again
        path = _file(region)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(tomli_w.dumps(content).encode())
    return found


def _read(url: str, until: float) -> bytes:
    from http.client import HTTPException

    # not before: it takes longer than most of what is imported
    from urllib.request import ProxyHandler, build_opener

    proxies = dict[str, str]() if is_on_this_machine(url) else None  # None: the environment's
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


def _price(offers: dict[str, _Offer], name: str) -> float:
    """Return the price: of the first range that is not free, the highest if there are several."""
    service, usage, units, further = _SOUGHT[name]
    pattern, offer = re.compile(_PREFIX + re.escape(usage)), offers[service]
    found = [
        min(ranges)[1]
        for sku, product in offer.products.items()
        if pattern.fullmatch(str(product.attributes.get("usagetype", "")))
        and further.items() <= product.attributes.items()
        and (ranges := list(_ranges(offer, sku)))
    ]
    if not found:
        raise ValueError(f"{service} has no price in US dollars of {usage}")
    if not max(found) < _DEAREST:
        raise ValueError(f"{service} has no price of {usage} that is a number")
    return max(found) * units


def _ranges(offer: _Offer, sku: str) -> Iterator[tuple[float, float]]:
    """Yield where each range begins, and its price in US dollars; those that are not free."""
    for term in offer.terms.on_demand.get(sku, {}).values():
        for each in term.price_dimensions.values():
            if "USD" in each.price_per_unit and (usd := float(each.price_per_unit["USD"])) > 0:
                yield float(each.begin_range), usd


def _file(region: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(home, "seqgc", f"prices-{region}.toml")


def _kept(region: str) -> DatedPrices | None:
    path = _file(region)
    try:
        prices, as_of = read_prices(region, path=path), prices_date(path)
    except (ParameterError, ValueError):  # not there, or damaged
        return None
    return DatedPrices(prices=prices, as_of=as_of, source="AWS's price list")
