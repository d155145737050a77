"""Prices from AWS's price list: a server of this machine stands in for it.

There is no way to AWS from here. The stand-in's files have the form that AWS's Billing User Guide
gives ("Reading the service price list files"), with the usage types that the list has; their prices
are made up, so that no shipped table can be taken for them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import date, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from seqgc.cli import main
from seqgc.costs import find_prices, prices_date, read_prices
from seqgc.errors import ParameterError

Out = pytest.CaptureFixture[str]
PLAN = 'scheme = "uncoded"\nworkers = 2\nsteps = 1\n[[models]]\nname = "a"\nmodule = "mlp"\n'


def offer(*rows: tuple[str, dict[str, str], list[tuple[float, str]]]) -> dict[str, Any]:
    """A service's file: of each product its usage type, further attributes, and (begin, USD)."""
    products, on_demand = {}, {}
    for number, (usage, further, ranges) in enumerate(rows):
        sku = f"SKU{number}"
        attributes = {"servicecode": "x", "usagetype": usage, **further}
        products[sku] = {"sku": sku, "productFamily": "Serverless", "attributes": attributes}
        dimensions = {
            f"{sku}.JRTCKXETXF.{i}": {
                "rateCode": f"{sku}.JRTCKXETXF.{i}",
                "beginRange": f"{begin:g}",
                "endRange": "Inf",
                "unit": "unit",
                "pricePerUnit": {"USD": usd},
            }
            for i, (begin, usd) in enumerate(ranges)
        }
        term = {"sku": sku, "offerTermCode": "JRTCKXETXF", "priceDimensions": dimensions}
        on_demand[sku] = {f"{sku}.JRTCKXETXF": term}
    terms = {"OnDemand": on_demand, "Reserved": {}}
    head = {"formatVersion": "v1.0", "publicationDate": "2026-11-01T00:00:00Z"}
    return head | {"products": products, "terms": terms}


def offers(prefix: str) -> dict[str, dict[str, Any]]:
    flat = [(0, "7")]
    return {
        "AWSLambda": offer(
            (f"{prefix}Lambda-GB-Second", {}, [(6e9, "0.00001"), (0, "0.00002")]),
            (f"{prefix}Lambda-GB-Second-ARM", {}, [(0, "0.000015")]),
            (f"{prefix}Lambda-Provisioned-GB-Second", {}, flat),
            (f"{prefix}Request", {}, [(0, "0.0000003")]),
            ("Global-Request", {}, [(0, "0")]),
            (f"{prefix}Lambda-Edge-Request", {}, flat),
        ),
        "AmazonEFS": offer(
            (f"{prefix}ETDataAccess-Bytes", {"accessType": "Read"}, [(0, "0.04")]),
            (f"{prefix}ETDataAccess-Bytes", {"accessType": "Write"}, [(0, "0.07")]),
            (f"{prefix}IADataAccess-Bytes", {"accessType": "Read"}, flat),
        ),
        "AmazonS3": offer(
            (f"{prefix}Requests-Tier1", {}, [(0, "0.0000055")]),
            (f"{prefix}Requests-Tier2", {}, [(0, "0.0000005")]),
            (f"{prefix}Requests-INT-Tier1", {}, flat),
        ),
        "AWSDataTransfer": offer(
            (f"{prefix}DataTransfer-Out-Bytes", {}, [(0, "0"), (1, "0.1"), (10240, "0.08")]),
            ("Global-DataTransfer-Out-Bytes", {}, flat),
            (f"{prefix}USE1-AWS-Out-Bytes", {}, flat),
        ),
    }


class Lists(ThreadingHTTPServer):
    """The stand-in: what is at which path, and which paths were asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []

    def put(self, region: str, prefix: str) -> None:
        for service, content in offers(prefix).items():
            path = f"/offers/v1.0/aws/{service}/current/{region}/index.json"
            self.files[path] = json.dumps(content).encode()


class Handler(BaseHTTPRequestHandler):
    server: Lists

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        body = self.server.files.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lists]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Lists() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("SEQGC_PRICE_LIST", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("region", "prefix"), [("eu-central-1", "EUC1-"), ("eu-west-1", "EU-"), ("us-east-1", "")]
)
def test_a_region_s_prices_are_what_the_list_says(lists: Lists, region: str, prefix: str) -> None:
    lists.put(region, prefix)
    found = find_prices(region)
    assert (found.as_of, found.source, found.missed) == (date.today(), "AWS's price list", "")
    prices = found.prices
    assert (prices.lambda_x86_64_gb_second, prices.lambda_arm64_gb_second) == (0.00002, 0.000015)
    assert prices.lambda_million_requests == pytest.approx(0.3)
    assert (prices.efs_elastic_read_gb, prices.efs_elastic_write_gb) == (0.04, 0.07)
    assert prices.s3_thousand_puts == pytest.approx(0.0055)
    assert prices.s3_thousand_gets == pytest.approx(0.0005)
    assert prices.transfer_out_gb == 0.1  # the first gigabyte is free, and does not count
    assert len(lists.asked) == 4
    lists.files.clear()
    assert find_prices(region) == found  # kept for a day
    assert len(lists.asked) == 4


def test_without_the_list_older_prices_are_taken_then_those_that_are_shipped(
    lists: Lists, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = find_prices("us-east-2")
    assert (shipped.prices, shipped.as_of) == (read_prices("us-east-2"), prices_date())
    assert shipped.source == "the table that comes with seqgc"
    assert "404" in shipped.missed
    with pytest.raises(ParameterError, match=r"must be one of us-east-1.*price list.*404"):
        find_prices("eu-north-1")
    before = date.today() - timedelta(days=40)
    (tmp_path / "cache/seqgc").mkdir(parents=True)
    table = "\n".join(f"{name} = 9" for name in read_prices("us-east-1").__slots__)
    kept = tmp_path / "cache/seqgc/prices-eu-north-1.toml"
    kept.write_text(f"schema = 1\nas_of = {before}\n[regions.eu-north-1]\n{table}\n")
    old = find_prices("eu-north-1")
    assert (old.as_of, old.prices.transfer_out_gb) == (before, 9.0)
    assert "404" in old.missed
    asked = len(lists.asked)
    assert find_prices("eu-north-1", ask=False).as_of == before
    assert find_prices("us-west-2", ask=False).source == "the table that comes with seqgc"
    assert len(lists.asked) == asked
    monkeypatch.setenv("SEQGC_PRICE_LIST", "http://127.0.0.1:9")  # nobody is there
    assert find_prices("us-west-2").prices == read_prices("us-west-2")


def test_the_list_also_has_microvms_and_the_table_has_machines(lists: Lists) -> None:
    for region, prefix in (("us-west-2", "USW2-"), ("eu-west-1", "EU-"), ("eu-central-1", "EUC1-")):
        lists.put(region, prefix)
    rows = [
        (f"USW2-Lambda-MicroVM-{what}", {}, [(0, usd)])
        for what, usd in (
            ("vCPU-Second-ARM", "0.00003"),
            ("vCPU-Second", "0.00004"),
            ("Memory-GB-Second-ARM", "0.000005"),
            ("Snapshot-Read-GB", "0.002"),
        )
    ]
    rows.append(("USW2-Lambda-SnapStart-Restored-GB", {}, [(0, "0.0002")]))
    rows.append(("USW2-Lambda-SnapStart-Cached-GB-S", {}, [(0, "0.000002")]))
    path = "/offers/v1.0/aws/AWSLambda/current/us-west-2/index.json"
    content, more = json.loads(lists.files[path]), offer(*rows)
    for part in (content, more):
        part["terms"] = part["terms"]["OnDemand"]
    renamed = {f"VM{sku}": product for sku, product in more["products"].items()}
    content["products"] |= renamed
    terms = {f"VM{sku}": term for sku, term in more["terms"].items()}
    content["terms"] = {"OnDemand": content["terms"] | terms}
    lists.files[path] = json.dumps(content).encode()
    for _ in range(2):  # from the list, and from the cache
        found = find_prices("us-west-2")
        prices = found.prices
        assert prices.microvm_vcpu_second == 0.00003
        assert (prices.microvm_gb_second, prices.microvm_snapshot_read_gb) == (0.000005, 0.002)
        assert prices.snapstart_restored_gb == 0.0002
        assert prices.snapstart_cached_gb_second == 0.000002
        assert found.origin("microvm_gb_second") == (date.today(), "AWS's price list")
        table = read_prices("us-west-2")
        assert prices.ec2_arm64_vcpu_hour == table.ec2_arm64_vcpu_hour is not None
        day, source = found.origin("ec2_arm64_vcpu_hour")
        assert (day > prices_date(), source) == (True, "the table that comes with seqgc")
    elsewhere = find_prices("eu-central-1").prices  # neither the list nor the table has them
    assert (elsewhere.microvm_gb_second, elsewhere.ec2_x86_64_vcpu_hour) == (None, None)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"products"', b'"product"', "products"),
        (b"{", b"[", "Expected `object`"),
        (b"EUC1-Request", b"EUC1-Requests", "AWSLambda has no price in US dollars for Request"),
        (b'"USD"', b'"CNY"', "has no price in US dollars"),
        (b'"0.0000003"', b'"inf"', "has the price inf for Request"),
        (b'"0.0000003"', b'"dear"', "could not convert"),
    ],
)
def test_a_list_that_is_not_understood_is_not_believed(
    lists: Lists, old: bytes, new: bytes, says: str
) -> None:
    lists.put("eu-central-1", "EUC1-")
    lists.files = {path: body.replace(old, new) for path, body in lists.files.items()}
    with pytest.raises(ParameterError, match=says):
        find_prices("eu-central-1")


def test_what_costs_says_whose_prices_and_of_which_day(
    lists: Lists, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(PLAN)
    lists.put("eu-central-1", "EUC1-")
    usd = {}
    for region in ("eu-central-1", "us-east-2"):
        assert main(["cost", "run.toml", "--region", region, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        usd[region] = facts["usd_at_most"]
        if region == "eu-central-1":
            assert facts["prices_source"] == "AWS's price list"
            assert facts["prices_as_of"] == date.today().isoformat()
    assert facts["prices_source"] == "the table that comes with seqgc"
    assert facts["prices_as_of"] == prices_date().isoformat()
    assert usd["eu-central-1"] > usd["us-east-2"] > 0
    assert main(["cost", "run.toml", "--region", "us-east-2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "was not read: HTTPError: HTTP Error 404" in said
