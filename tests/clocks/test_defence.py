"""The names of clocks, and what each promises."""

from __future__ import annotations

import json
import pickle

import pytest

from seqgc.cli import main
from seqgc.clocks import Clocks
from seqgc.errors import ParameterError
from seqgc.schemes import parse_scheme, registered

TABLE = {
    "bsp": (Clocks(n=4, slack=0), 0, "exact"),
    "a-bsp:wpc=3": (Clocks(n=4, slack=0, wpc=3), 2, "stale"),
    "ssp:slack=1": (Clocks(n=4, slack=1), 1, "stale"),
    "ssp:slack=2,wpc=3": (Clocks(n=4, slack=2, wpc=3), 8, "stale"),
    "asp": (Clocks(n=4, slack=None), None, "stale"),
    "asp:wpc=2": (Clocks(n=4, slack=None, wpc=2), None, "stale"),
}


@pytest.mark.parametrize(("spec", "what"), TABLE.items())
def test_a_spec_says_what_it_is(spec: str, what) -> None:
    clocks, staleness, kind = what
    assert parse_scheme(spec, n=4) == clocks
    assert (clocks.spec, clocks.staleness, clocks.kind) == (spec, staleness, kind)
    assert clocks.exact == (kind == "exact")
    assert clocks.jobs_per_task == clocks.wpc
    assert eval(repr(clocks)) == clocks
    assert pickle.loads(pickle.dumps(clocks)) == clocks


def test_another_spelling_of_a_name_is_that_name() -> None:
    assert parse_scheme("ssp:slack=0", n=2).spec == "bsp"
    assert parse_scheme("ssp:slack=0,wpc=2", n=2).spec == "a-bsp:wpc=2"
    assert parse_scheme("a-bsp", n=2).spec == "bsp"


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("ssp:slack=-1", "0 <= slack"),
        ("ssp:slack=1,wpc=0", "1 <= wpc"),
        ("ssp", "needs slack, as in ssp:slack="),
        ("bsp:slack=1", "bsp takes no parameters"),
        ("asp:slack=1", "asp takes wpc"),
    ],
)
def test_what_breaks_a_rule_is_refused(spec: str, rule: str) -> None:
    with pytest.raises(ParameterError, match=rule):
        parse_scheme(spec, n=4)


def test_the_names_are_found_by_whoever_asks() -> None:
    """They are an entry point of the package, as those of a stranger's would be."""
    assert {"bsp", "a-bsp", "ssp", "asp"} <= registered().keys()


@pytest.mark.parametrize(
    ("spec", "kind", "staleness", "tolerates"),
    [
        ("bsp", "exact", 0, "all workers wait for the slowest"),
        ("ssp:slack=1", "stale", 1, "a worker waits only for workers more than 1 clock behind"),
        (
            "ssp:slack=2,wpc=2",
            "stale",
            5,
            "a worker waits only for workers more than 2 clocks behind",
        ),
        ("asp", "stale", None, "no worker waits for a slower one"),
    ],
)
def test_the_command_line_explains_them(capsys, spec, kind, staleness, tolerates) -> None:
    assert main(["scheme", spec, "-n", "8", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["scheme"], facts["kind"], facts["staleness"]) == (spec, kind, staleness)
    assert facts["tolerates"].startswith(tolerates)
    assert (facts["normalized_load"], facts["s"]) == (1 / 8, None)
    assert main(["scheme", spec, "-n", "8"]) == 0
    lacks = {None: "any number", 0: "none"}.get(staleness, f"at most {staleness}")
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "weights lack" in line]
    assert row.split("lack")[1].strip() == lacks
