"""``seqgc train --dry-run``: what would be sent, and what it would cost."""

from __future__ import annotations

from seqgc.cli._cost import cost_facts, cost_pairs, plan_facts
from seqgc.cli._engine import FUNCTIONS, as_deployed
from seqgc.cli._plan import RunPlan, budget_of, plan_of
from seqgc.cli._run import PreparedRun
from seqgc.cli._show import print_json, print_pairs
from seqgc.cost import FunctionSetup, estimate_plan, read_prices

__all__ = ["print_dry_run"]


def print_dry_run(prepared: PreparedRun, *, as_json: bool) -> None:
    """Print a run's messages and price; start and write nothing.

    Raises
    ------
    ParameterError
        If its budget could not pay for the first round.
    """
    budget_of(prepared)
    config, plan = prepared.config, plan_of(prepared)
    facts: dict[str, object] = {
        "backend": config.backend,
        "scheme": prepared.scheme.spec,
        **plan_facts(plan),
        "max_usd": config.max_usd,
    }
    pairs = {"backend": config.backend, "scheme": prepared.scheme.spec, **_plan_pairs(plan)}
    if config.backend in FUNCTIONS:
        function = as_deployed(config)
        setup = FunctionSetup(memory_mb=function.memory_mb, timeout_s=function.timeout_s)
        estimate = estimate_plan(plan.cost_plan(setup, seconds=function.expected_s))
        prices = read_prices(function.region)
        facts |= cost_facts(estimate, prices, function.arch)
        pairs |= cost_pairs(estimate, prices, function.arch)
    else:
        facts |= {"usd": 0.0, "usd_at_most": 0.0}
        pairs["cost"] = "none on your own machines; `seqgc cost` has functions' prices"
    if as_json:
        print_json(facts)
    else:
        print_pairs(pairs)


def _plan_pairs(plan: RunPlan) -> dict[str, str]:
    limit = f"{plan.sizes.limit_bytes / 1e6:.2f} MB"
    reply = "fits"
    if not plan.sizes.reply_fits:
        reply = f"goes through the store, over the {limit} of a reply"
    request = "fits" if plan.request_fits else f"over the {limit} of a request"
    return {
        "rounds": f"{plan.rounds} of {plan.workers} tasks, for {plan.jobs} jobs",
        "invocations": f"{plan.invocations:,}, without repeated attempts",
        "warm-up": f"{plan.warm_ups:,} invocations before the first round",
        "weights of a job": f"{plan.sizes.weights_bytes:,} bytes",
        "store": str(plan.store),
        "largest request": f"{plan.request_bytes:,} bytes as JSON: {request}",
        "largest reply": f"{plan.sizes.reply_bytes:,} bytes as JSON: {reply}",
    }
