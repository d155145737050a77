"""The spot market: prices, bills, eviction rates, and what BidBrain rents."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import numpy as np
import pytest
from botocore.stub import ANY, Stubber

from experiments.proteus import run as proteus
from experiments.proteus.run import BILLINGS, STRATEGIES, Billing, Expected, Job, Rates
from experiments.proteus.traces import Market, fetch, made_up, read
from experiments.results import Table

PRICE = 0.04
CHECKPOINTS, ELASTIC, _, BIDBRAIN = STRATEGIES
FOLDER = Path(str(proteus.__file__)).parent


def market(
    kind: str = "c4.xlarge", price: float = PRICE, *, spikes: tuple[int, ...] = ()
) -> Market:
    """Return two days of prices, in which each spike takes five minutes."""
    prices = np.full(2 * 24 * 60, price)
    for spike in spikes:
        prices[spike : spike + 5] = 1.0
    return Market(zone="a", kind=kind, prices=prices)


def ran(strategy: proteus.Strategy, billing: Billing, *markets: Market) -> Job:
    rates = {each.kind: Rates(each, 600) for each in markets}
    job = Job(
        markets=markets,
        rates=rates,
        strategy=strategy,
        billing=billing,
        reliable_usd=0.6,
        start=0,
        work=2.0 * proteus.CORES,
    )
    return job.run()


@pytest.fixture
def history() -> dict[str, object]:
    """Fetch two pages of prices, of which the second is older, as AWS sends them."""
    client = boto3.client(
        "ec2", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    common = {"AvailabilityZone": "us-east-1a", "InstanceType": "c4.xlarge"}
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    changes = [(10 * 24, "0.04"), (3, "0.05"), (1, "0.3"), (0, "0.04")]
    pages = [
        [{**common, "SpotPrice": p, "Timestamp": begin + timedelta(hours=h)} for h, p in part]
        for part in (changes[:2], changes[2:])
    ]
    asked = {"InstanceTypes": ["c4.xlarge"], "ProductDescriptions": ANY, "StartTime": ANY}
    with Stubber(client) as stubber:
        for page, (token, following) in zip(pages, [(None, "more"), ("more", "")], strict=True):
            stubber.add_response(
                "describe_spot_price_history",
                {"SpotPriceHistory": page, "NextToken": following},
                {**asked, "NextToken": token} if token else asked,
            )
        fetched = fetch(["c4.xlarge"], client=client)
        stubber.assert_no_pending_responses()
    return fetched


def test_prices_that_were_fetched_are_read_again(
    tmp_path: Path, history: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(history))
    (only,) = read([trace])
    assert (only.zone, only.kind, len(only.prices)) == ("us-east-1a", "c4.xlarge", 10 * 24 * 60)
    assert list(only.prices[[0, 59, 60, 179, 180, -1]]) == [0.04, 0.04, 0.3, 0.3, 0.05, 0.05]
    monkeypatch.setattr(
        sys, "argv", ["run", str(trace), "--starts", "1", "--output", str(tmp_path)]
    )
    proteus.main()
    rows = Table(tmp_path / "spot.csv", proteus.FIELDS, keys=3).rows()
    assert [row["strategy"] for row in rows] == [each.name for each in STRATEGIES] * 4
    assert {row["prices"] for row in rows} == {"trace"}
    assert "BidBrain" in (tmp_path / "spot.svg").read_text()


def test_a_type_without_a_known_price_is_refused(tmp_path: Path) -> None:
    row = {"InstanceType": "x9.huge", "AvailabilityZone": "a", "SpotPrice": "1", "Timestamp": ""}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"SpotPriceHistory": [row]}))
    with pytest.raises(ValueError, match=r"trace\.json.*x9\.huge.*TYPES"):
        read([trace])
    with pytest.raises(ValueError, match=r"48 hours.*20 hours.*143"):
        list(proteus.judged([market()], 20, "per-second", starts=1, seed=1))


@pytest.mark.parametrize("billing", BILLINGS)
def test_without_evictions_a_job_pays_for_its_minutes(billing: Billing) -> None:
    job = ran(CHECKPOINTS, billing, market())
    assert job.now == int(np.ceil(120 * proteus.CHECKPOINTS + proteus.BOOT))
    assert job.cost == pytest.approx(128 * PRICE * job.now / 60)


@pytest.mark.parametrize(
    ("spike", "billing", "paid"),
    [
        (30, "hourly-2016", 0),
        (30, "per-second", 0),
        (60, "hourly-2016", 60),
        (90, "hourly-2016", 60),
        (90, "per-second", 90),
    ],
)
def test_what_an_eviction_refunds(spike: int, billing: Billing, paid: int) -> None:
    job = ran(ELASTIC, billing, market(spikes=(spike,)))
    minutes = paid + job.now - (spike + 5)
    assert job.evictions == 1
    assert job.cost == pytest.approx(128 * PRICE * minutes / 60 + 0.6 * job.now / 60)
    assert (job.free > 0) == (paid < spike)


def test_only_in_2016_an_eviction_costs_the_work_since_the_last_checkpoint() -> None:
    then, now = (ran(CHECKPOINTS, billing, market(spikes=(100,))) for billing in BILLINGS)
    assert 0 < then.now - now.now <= proteus.INTERVAL
    assert then.done == pytest.approx(now.done, rel=0.01)
    assert then.total > now.total


def test_eviction_rates_by_hand() -> None:
    """Begins every five minutes; a price of 0.1 every two hours; half of all hours have one."""
    prices = np.full(2400, PRICE)
    prices[::120] = 0.1
    prices[1260:] = 9.0
    rates = Rates(Market(zone="a", kind="c4.xlarge", prices=prices), 1260)  # later ones are judged
    assert rates(0.02, 60) == (0.5, 32.5)
    assert rates(0.02, 30)[0] == pytest.approx(1 - 0.5**0.5)
    assert rates(0.2, 60)[0] == 0.0


def test_equations_4_2_to_4_4_by_hand() -> None:
    spot = Expected(cores=8, cost=1.0, minutes=50, beta=0.5)
    other = Expected(cores=4, cost=0.3, minutes=60, beta=0.2)
    lost = (1 - 0.5 * 0.8) * proteus.LAMBDA + proteus.SIGMA
    work = proteus.PHI * (8 * (50 - lost) + 4 * (60 - lost)) / 60
    assert proteus.cost_per_work([spot, other], changing=True) == pytest.approx(1.3 / work)
    assert proteus.cost_per_work([], changing=False) == np.inf


@pytest.mark.parametrize("billing", BILLINGS)
def test_bidbrain_rents_the_cheaper_cores_up_to_its_limit(billing: Billing) -> None:
    job = ran(BIDBRAIN, billing, market("c4.xlarge", 0.04), market("c4.2xlarge", 0.06))
    assert {each.market.kind for each in job.rented} == {"c4.2xlarge"}
    cores = sum(each.cores for each in job.rented)
    assert proteus.LARGEST - proteus.BLOCK / 2 < cores <= proteus.LARGEST


def test_the_thesis_s_savings_on_made_up_prices() -> None:
    """At most 20 % of the cost and 25 to 45 % less time, in rows that are remade as checked in."""
    made = list(proteus.rows("made-up-1", made_up(1), "hourly-2016", 2, starts=50, seed=1))
    checked_in = Table(FOLDER / "spot.csv", proteus.FIELDS, keys=3).rows()
    for row in made:
        assert {name: str(value) for name, value in row.items()} in checked_in
    standard, *_, bidbrain = made
    assert float(str(bidbrain["cost"])) <= 0.20
    assert 0.25 <= 1 - float(str(bidbrain["time"])) / float(str(standard["time"])) <= 0.45


def test_the_readme_of_proteus_says_what_its_table_says() -> None:
    text = (FOLDER / "README.md").read_text()
    rows = Table(FOLDER / "spot.csv", proteus.FIELDS, keys=3).rows()
    long = {(r["prices"], r["billing"], r["strategy"]): r for r in rows if r["hours"] == "20"}
    assert len(rows) == 2 * len(long) == 4 * 2 * len(STRATEGIES)
    for row in (row for row in rows if row["hours"] == "2"):
        key = row["prices"], row["billing"], row["strategy"]
        cells = [*key, row["cost"], row["time"], long[key]["cost"], long[key]["time"]]
        assert f"| {' | '.join(cells)} |" in text
