"""Wrong values, expulsions, switches, clocks and second masters, each in scenarios of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kit import SOAK
from tests.simulation.faults import (
    AUDITED,
    BACKENDS,
    LARGE,
    SPECS,
    SWITCHED,
    TABLES,
    Fault,
    Scenario,
)
from tests.simulation.runs import simulate

pytestmark = pytest.mark.timeout(0 if SOAK else 180)
FUNCTIONS = ("lambda", "lambda-inline")  # whose answers are in their replies
FORMS = {"short": 0.1, "half": 0.2, "lacking": 0.4, "huge": 0.6, "nan": 0.7, "matrix": 0.9}


def scenario(spec: str, *faults: Fault, seed: int = 0, **more: object) -> Scenario:
    return Scenario(
        seed=seed, spec=spec, delays=seed % TABLES, checkpoint_every_s=9.0, faults=faults, **more
    )


def ends_well(scenario: Scenario, *, masters: int = 1) -> None:
    outcome = simulate(scenario)
    assert (outcome.fault, outcome.masters) == (None, masters), scenario


def tasks(kind: str, chance: float, *, seed: int, amount: float | None = None) -> list[Fault]:
    """Return faults of so many of a run's tasks, each when it is first sent."""
    rng = np.random.default_rng([seed, 9])
    hit = np.argwhere(rng.random((LARGE.rounds, LARGE.n)) < chance).tolist()
    amounts = rng.random(len(hit)) if amount is None else [amount] * len(hit)
    return [
        Fault(kind=kind, at=(*at, 0), amount=float(much))
        for at, much in zip(hit, amounts, strict=True)
    ]


@pytest.mark.parametrize("spec", SPECS if SOAK else SPECS[::3])
@pytest.mark.parametrize("form", FORMS if SOAK else ["huge"])
def test_what_no_task_can_have_given_is_that_workers_failure(form: str, spec: str) -> None:
    """Row 20: a third of all answers; the run needs no second master, and has the same weights."""
    for seed in range(7 if SOAK else 1):
        ends_well(scenario(spec, *tasks("falsify", 0.33, seed=seed, amount=FORMS[form]), seed=seed))


@pytest.mark.parametrize("backend", FUNCTIONS if SOAK else FUNCTIONS[:1])
def test_answers_of_functions_that_no_task_can_have_given_are_their_failures(backend: str) -> None:
    """Row 20, on the wire: of any form that is not what was asked for, or not finite."""
    for seed in range(3 * len(SPECS) if SOAK else 1):
        spec = SPECS[seed % len(SPECS)]
        ends_well(scenario(spec, *tasks("falsify", 0.2, seed=seed), seed=seed, backend=backend))
        few = tasks("not-finite", 0.1, seed=seed)
        ends_well(scenario(spec, *few, seed=seed, backend=backend))


@pytest.mark.parametrize("spec", SPECS if SOAK else SPECS[1::3])
def test_a_model_that_diverges_leaves_the_others_as_they_are(spec: str) -> None:
    """Row 24: one of eight."""
    shape = replace(LARGE, models=8, steps=2)
    for seed in range(20 if SOAK else 1):
        ends_well(scenario(spec, seed=seed, wild=True, shape=shape))


@pytest.mark.parametrize("spec", AUDITED)
def test_with_an_audit_no_lie_is_applied(spec: str) -> None:
    """Row 21: one liar, or two, no more than the scheme's s; some runs end, and name them."""
    for seed in range(280 if SOAK else 1):
        rng = np.random.default_rng(seed)
        liars = rng.choice(LARGE.n, 1 + seed % 2, replace=False).tolist()
        lies = [fault for fault in tasks("lie", 0.3, seed=seed) if fault.at[1] in liars]
        outcome = simulate(scenario(spec, *lies, seed=seed, audit=True))
        assert outcome.fault is None, (seed, outcome.fault)


@pytest.mark.parametrize(("alone", "masters"), [((2, 4), 2), ((4,), 1)])
def test_who_is_known_to_lie_is_not_believed_about_a_job_before(
    alone: tuple[int, ...], masters: int
) -> None:
    """It lies about two jobs, and is found by the first; of the other it may have been alone."""
    crashes = [(2, 1), (2, 3), (2, 5), *((3, worker) for worker in alone)]
    faults = [
        Fault(kind="crash", at=(*where, attempt), amount=0.5)
        for where in crashes
        for attempt in range(3)
    ]
    faults += [Fault(kind="lie", at=(round, 0, 0), amount=0.5) for round in (2, 3)]
    lying = replace(scenario("sr-sgc-rep:B=1,W=2,lam=3", *faults, seed=0, audit=True), delays=0)
    ends_well(lying, masters=masters)


def test_switches_that_were_made_are_made_again_whenever_the_master_dies() -> None:
    best = ((9, SWITCHED[1]), (6, SWITCHED[4]), (3, SWITCHED[0]))
    for at in range(3, 220, 1 if SOAK else 80):
        kill = Fault(kind="kill", at=(at,), amount=0.5)
        ends_well(scenario("gc-rep:s=1", kill, switches=best), masters=2)


@pytest.mark.parametrize("kind", ["io-error", "no-space"])
def test_a_decision_that_could_not_be_recorded_was_not_made(kind: str) -> None:
    """No checkpoint is taken in its midst: it would have a round more than the journal."""
    switching = scenario("uncoded", switches=((8, "gc-rep:s=1"),))
    lines = simulate(switching, keep=True).lines
    calls = [at for at, line in enumerate(lines) if line.startswith("call")]
    decided = next(
        number
        for number, at in enumerate(calls)
        if lines[at].endswith("write journal.jsonl")
        and lines[at - 1].startswith("Notice")
        and lines[at + 2].startswith("Close")
    )
    ends_well(
        scenario(
            "uncoded",
            Fault(kind=kind, at=(decided,), amount=0.01),
            switches=switching.switches,
        ),
        masters=2,
    )


@pytest.mark.parametrize("spec", SPECS if SOAK else SPECS[::4])
def test_a_wall_clock_that_steps_changes_nothing(spec: str) -> None:
    """Row 22: at every second event by up to an hour, to and fro; the same events and files.

    Functions have the same wall clock here. No worker asks another one: all have a monotonic clock,
    of which only differences are told (how long something took), so that its own time is nobody's.
    """
    for seed in range(14 if SOAK else 1):
        rng = np.random.default_rng([seed, 8])
        steps = [
            Fault(kind="clock", at=(at,), amount=float(rng.random())) for at in range(1, 180, 2)
        ]
        kills = [Fault(kind="kill", at=(int(rng.integers(0, 90)) * 2,), amount=0.5)]
        backend = BACKENDS[seed % len(BACKENDS)]
        outcome = simulate(scenario(spec, *steps, *kills, seed=seed, backend=backend))
        assert outcome.fault is None, (seed, outcome.fault)


def test_a_second_master_is_refused_at_any_event_and_leaves_no_trace() -> None:
    """Row 3, where locks are kept."""
    for seed in range(10 if SOAK else 1):
        rivals = [Fault(kind="rival", at=(at,), amount=0.0) for at in range(seed, 180, 10)]
        spec = SPECS[seed % len(SPECS)]
        with_rivals, alone = simulate(scenario(spec, *rivals)), simulate(scenario(spec))
        assert with_rivals.fault is None
        assert with_rivals.events == alone.events
        assert len(with_rivals.faults) > 5
