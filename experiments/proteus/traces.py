"""Spot price histories: read, fetched, or made up."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from seqgc.ports import FloatArray

HOUR = 60  # minutes
# Virtual cores and on-demand price (dollars an hour, Linux, us-east-1, 2015 and 2016).
TYPES = {
    "c3.xlarge": (4, 0.210),
    "c4.xlarge": (4, 0.209),
    "c4.2xlarge": (8, 0.419),
    "d2.8xlarge": (36, 5.520),
    "g2.2xlarge": (8, 0.650),
    "m4.xlarge": (4, 0.239),
    "m4.2xlarge": (8, 0.479),
    "r3.large": (2, 0.175),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """The prices of one type in one zone, in dollars an hour; one price for each minute."""

    zone: str
    kind: str
    prices: FloatArray

    @property
    def cores(self) -> int:
        return TYPES[self.kind][0]

    @property
    def on_demand(self) -> float:
        return TYPES[self.kind][1]


def fetch(kinds: Sequence[str], *, days: int = 90, client: Any = None) -> dict[str, Any]:
    """Return the prices of the last ``days`` (AWS keeps 90), as the command-line tool prints them.

    ``client`` is a boto3 client of EC2; the default uses the region and account of the environment.
    """
    if client is None:
        import boto3

        client = boto3.client("ec2")
    pages = client.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=list(kinds),
        ProductDescriptions=["Linux/UNIX"],
        StartTime=datetime.now(UTC) - timedelta(days=days),
    )
    rows = [row for page in pages for row in page["SpotPriceHistory"]]
    return {
        "SpotPriceHistory": [{**row, "Timestamp": row["Timestamp"].isoformat()} for row in rows]
    }


def read(paths: Sequence[Path]) -> list[Market]:
    """Return the markets in files of ``aws ec2 describe-spot-price-history``, on one time axis.

    The axis begins when all markets have a price, and ends with the last change of any price.

    Raises
    ------
    ValueError
        If a file has a type of machine that `TYPES` does not list.
    """
    changes: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for path in paths:
        for row in json.loads(path.read_text())["SpotPriceHistory"]:
            if row["InstanceType"] not in TYPES:
                msg = f"{path}: no cores and price known of {row['InstanceType']}; add it to TYPES"
                raise ValueError(msg)
            minute = datetime.fromisoformat(row["Timestamp"]).timestamp() / 60
            changes[row["AvailabilityZone"], row["InstanceType"]].append(
                (minute, float(row["SpotPrice"]))
            )
    begin = max(min(rows)[0] for rows in changes.values())
    end = max(max(rows)[0] for rows in changes.values())
    axis = np.arange(np.ceil(begin), end)
    markets = []
    for (zone, kind), rows in sorted(changes.items()):
        minutes, prices = np.array(sorted(rows)).T
        at = prices[np.searchsorted(minutes, axis, side="right") - 1]
        markets.append(Market(zone=zone, kind=kind, prices=at))
    return markets


def made_up(seed: int, *, days: int = 154, zones: int = 4) -> list[Market]:
    """Return markets of the types that the thesis names, with what recordings of 2015 have.

    Each market has a low level; hours in which it is 1.5 to 4 times as high; spikes above the
    on-demand price; and small changes every few minutes. README.md says where the numbers are from.
    """
    rng = np.random.default_rng(seed)
    markets = []
    for zone in range(zones):
        for kind in ("c4.xlarge", "c4.2xlarge", "m4.xlarge", "m4.2xlarge"):
            n = days * 24 * HOUR
            low = rng.uniform(0.11, 0.18)  # of the on-demand price
            price = np.full(n, low)
            for gap_h, length_h, (least, most), whole in (
                (30.0, 6.0, (1.5 * low, 4 * low), True),  # a dear regime
                (
                    float(np.exp(rng.uniform(*np.log([6, 60])))),
                    0.75,
                    (1.05, 10.0),
                    False,
                ),  # a spike
            ):
                hour = rng.exponential(gap_h)
                while hour < days * 24:
                    length = rng.exponential(length_h)
                    begin = int(hour) * HOUR if whole else int(hour * HOUR)
                    price[begin : begin + max(HOUR if whole else 5, int(length * HOUR))] = np.exp(
                        rng.uniform(np.log(least), np.log(most))
                    )
                    hour += length + rng.exponential(gap_h)
            changes = np.cumsum(rng.random(n) < 1 / 30)  # a change every half an hour
            price = price * np.exp(rng.normal(0, 0.05, changes[-1] + 1))[changes]
            name = f"made-up-1{'abcdef'[zone]}"
            on_demand = TYPES[kind][1]
            markets.append(Market(zone=name, kind=kind, prices=price * on_demand))
    return markets
