"""Prices, from one dated file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from seqgc.deploy._usage import Usage
from seqgc.errors import ParameterError, did_you_mean

__all__ = ["PRICES_FILE", "Architecture", "Bill", "Prices", "prices_date", "read_prices"]

Architecture: TypeAlias = Literal["x86_64", "arm64"]

PRICES_FILE: Final = Path(__file__).with_name("prices.toml")

_GB = 2**30  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a usage costs, in US dollars; ``usd`` is the sum."""

    functions: float
    requests: float
    efs: float
    s3: float
    transfer: float

    @property
    def usd(self) -> float:
        """The sum."""
        return self.functions + self.requests + self.efs + self.s3 + self.transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The prices of a region, US dollars per unit; the fields are the keys of the file.

    Storage is not part of a `bill`: weights and gradients are there for seconds.

    Examples
    --------
    >>> from seqgc.deploy import Usage, read_prices
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

    def bill(self, usage: Usage, *, architecture: Architecture) -> Bill:
        """Return what a usage costs.

        Raises
        ------
        ParameterError
            If the architecture is not one of Lambda's.
        """
        known = get_args(Architecture)
        if architecture not in known:
            rule = f"must be {' or '.join(known)}"
            raise ParameterError("arch", rule, architecture, did_you_mean(architecture, known))
        arm = architecture == "arm64"
        second = self.lambda_arm64_gb_second if arm else self.lambda_x86_64_gb_second
        read = usage.efs_read_bytes / _GB * self.efs_elastic_read_gb
        written = usage.efs_write_bytes / _GB * self.efs_elastic_write_gb
        puts = usage.s3_puts / 1e3 * self.s3_thousand_puts
        gets = usage.s3_gets / 1e3 * self.s3_thousand_gets
        return Bill(
            functions=usage.gb_seconds * second,
            requests=usage.requests / 1e6 * self.lambda_million_requests,
            efs=read + written,
            s3=puts + gets,
            transfer=usage.transfer_out_bytes / _GB * self.transfer_out_gb,
        )


def read_prices(region: str = "us-east-1", *, path: Path = PRICES_FILE) -> Prices:
    """Return the prices of a region.

    Raises
    ------
    ParameterError
        If the file has none, or not exactly the prices that are asked for.
    """
    regions = _read(path)["regions"]
    if region not in regions:
        remedy = f"add its prices to {path}, from the pages that are named there"
        raise ParameterError("region", f"must be one of {', '.join(regions)}", region, remedy)
    values, where = regions[region], f"regions.{region}"
    names = {field.name for field in fields(Prices)}
    if set(values) != names:
        odd = ", ".join(sorted(set(values) ^ names))
        raise ParameterError("prices", f"of {where} must be {', '.join(sorted(names))}", odd)
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
            raise ParameterError("prices", f"{where}.{name} must be a price in USD >= 0", value)
    return Prices(**{name: float(value) for name, value in values.items()})


def prices_date(path: Path = PRICES_FILE) -> date:
    """Return the day for which the file's prices were true."""
    return date.fromisoformat(str(_read(path)["as_of"]))


@lru_cache(maxsize=4)
def _read(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ParameterError("prices", f"must be a TOML file ({error})", str(path)) from None
    if content.get("schema") != 1 or "as_of" not in content or "regions" not in content:
        rule = "must have schema = 1, as_of and [regions.…]"
        raise ParameterError("prices", rule, sorted(content))
    return content
