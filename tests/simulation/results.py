"""What must hold of a run that has ended, apart from its weights; and of a second master."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from seqgc.errors import ParameterError
from seqgc.training import TrainingPlan, TrainResult, Workers, resume
from tests.simulation.faults import TASK_KINDS, Scenario
from tests.simulation.models import WILD
from tests.simulation.promises import parts_of
from tests.simulation.world import Violation, World

_ALONE = ("uncoded", "balanced", "lb-bsp", "antdt")  # nobody else is asked for the same


def check_result(result: TrainResult, scenario: Scenario, world: World) -> None:
    """See that divergence, expulsion and switches are what they may be, and told."""
    diverged = {name for name, each in result.parked.items() if each.kind == "diverged"}
    told = f"{sorted(diverged)} diverged, and {sorted(world.diverged)} was told"
    _require(diverged <= world.diverged, told)
    for model in diverged - ({WILD} if scenario.wild else set()):
        _require(_may_diverge(model, scenario, world), f"{model} diverged though it need not have")
    if scenario.wild:
        _require(WILD in diverged, "the model whose weights are beyond floats did not diverge")
    liars = {fault.at[1] for fault in world.happened if fault.kind == "lie"}
    _require(set(result.counts.expelled) <= liars, f"{result.counts.expelled} were expelled")
    _require(
        world.expelled <= set(result.counts.expelled), f"{world.expelled} were expelled before"
    )
    made = [(s.first_round, s.first_job, s.after.scheme.spec) for s in result.switches]
    for switch in world.switches:
        _require(switch in made, f"switch {switch} was made, and in the end there are {made}")


def _may_diverge(model: str, scenario: Scenario, world: World) -> bool:
    """Say whether two have said it in a round, or so much went wrong that one was enough."""
    said = {about for about in world.claims if about[1] == model}
    if any(len(world.claims[about]) > 1 for about in said):
        return True
    if parts_of(scenario) and len(set().union(*(world.claims[about] for about in said))) > 1:
        return True  # each at a clock of its own
    others = [f for f in world.happened if f.kind in TASK_KINDS and f.kind != "not-finite"]
    in_round = Counter(round for round, _ in world.claims)
    alone = scenario.spec.startswith(_ALONE) or bool(scenario.switches)
    return bool(said) and bool(
        others or alone or max(in_round.values()) > 1 or "sgc" in scenario.spec
    )


def require_refused(run: Path, plan: TrainingPlan, workers: Workers) -> None:
    """See that a second master is refused as long as the first is at work."""
    try:
        resume(run, plan, workers)
    except ParameterError:
        return
    raise Violation("a second master was let in")


def digests(run: Path, *, root: Path) -> Iterator[str]:
    """Yield what a run has written, but not the time of day."""
    journal = (run / "journal.jsonl").read_text().splitlines()
    decided = [line for line in journal if '"stop"' not in line]  # that has folders' names
    events = (run / "events.jsonl").read_text().replace(str(root), "")
    events = re.sub(r'"started_at": "[^"]*"', "", events)
    for text in ("".join(decided), events, (run / "metrics.csv").read_text()):
        yield hashlib.sha256(text.encode()).hexdigest()


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise Violation(message)
