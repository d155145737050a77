"""``seqgc scheme``: what a scheme, or another defence, costs and promises."""

from __future__ import annotations

from typing import Annotated

import typer

from seqgc.cli._options import AsJson, NumWorkers
from seqgc.cli._show import show
from seqgc.cli.config import MOST_WORKERS
from seqgc.errors import require_int
from seqgc.rounds import PolicyDefence
from seqgc.schemes import Scheme, parse_scheme


def scheme(
    spec: Annotated[
        str, typer.Argument(help="For example gc:s=15, m-sgc:B=1,W=2,lam=27 or ssp:slack=1.")
    ],
    workers: NumWorkers,
    as_json: AsJson = False,
) -> None:
    """Show what a scheme, or another defence, costs and what it promises."""
    parsed = parse_scheme(spec, n=require_int("n", workers, most=MOST_WORKERS))
    n, load = parsed.n, parsed.normalized_load
    tolerated, tolerates = None, "nobody is waited for: pieces of who fails or is slow go to others"
    if isinstance(parsed, Scheme):
        tolerated, tolerates = parsed.tolerated, parsed.promise.describe()
    elif isinstance(parsed, PolicyDefence):
        tolerates = parsed.tolerates
    facts = {
        "scheme": parsed.spec,
        "n": n,
        "s": tolerated,
        "kind": parsed.kind,
        "delay": parsed.delay,
        "normalized_load": load,
        "tolerates": tolerates,
        "load_lower_bound": parsed.load_lower_bound,
    }
    bound = "lower bound of load" + ("" if parsed.exact else ", if exact")
    pairs = {
        "scheme": parsed.spec,
        "workers": str(n),
        "gradients": parsed.kind,
        "delay": f"{parsed.delay} rounds",
        "normalized load": f"{load:.6f}  ({load * n:.3f} times the uncoded)",
        bound: f"{parsed.load_lower_bound:.6f}  (the least with which this can be tolerated)",
        "tolerates": tolerates,
    }
    if isinstance(parsed, PolicyDefence):
        facts["staleness"] = parsed.staleness
        lacks = {None: "any number", 0: "none"}.get(parsed.staleness, f"at most {parsed.staleness}")
        pairs["jobs that weights lack"] = lacks
    elif tolerated is None:
        pairs["pieces of a job"] = str(len(parsed.chunk_fractions))
    else:
        pairs["inner code tolerates"] = f"{tolerated} missing of {n}"
    show(facts, pairs, as_json=as_json)
