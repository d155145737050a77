"""``seqgc scheme``: what a scheme costs and promises."""

from __future__ import annotations

from typing import Annotated

import typer

from seqgc.cli._show import print_json, print_pairs
from seqgc.schemes import parse_scheme

__all__ = ["scheme"]


def scheme(
    spec: Annotated[str, typer.Argument(help="For example gc:s=15 or m-sgc:B=1,W=2,lam=27.")],
    workers: Annotated[int, typer.Option("-n", "--workers", help="Number of workers.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a scheme costs and what it promises."""
    parsed = parse_scheme(spec, n=workers)
    facts = {
        "scheme": parsed.spec,
        "n": parsed.n,
        "s": parsed.tolerated,
        "delay": parsed.delay,
        "normalized_load": parsed.normalized_load,
        "tolerates": parsed.promise.describe(),
        "load_lower_bound": parsed.load_lower_bound,
    }
    if as_json:
        print_json(facts)
        return
    bound = "lower bound of load" + ("" if parsed.exact else ", if exact")
    print_pairs(
        {
            "scheme": parsed.spec,
            "workers": str(parsed.n),
            "delay": f"{parsed.delay} rounds",
            "normalized load": f"{parsed.normalized_load:.6f}  "
            f"({parsed.normalized_load * parsed.n:.3f} times the uncoded)",
            bound: f"{parsed.load_lower_bound:.6f}",
            "tolerates": parsed.promise.describe(),
            "inner code tolerates": f"{parsed.tolerated} missing of {parsed.n}",
        }
    )
