"""Every registered scheme keeps the contract; one that is registered cannot go unchecked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from seqgc.errors import ScheduleError
from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, Payload
from seqgc.schemes import (
    GC,
    SRSGC,
    GCSchedule,
    Grid,
    Schedule,
    Scheme,
    by_rounds,
    entry_of,
    load_plugins,
    parse_scheme,
    register,
    registered,
)
from seqgc.schemes.sr_sgc import SRSGCSchedule
from seqgc.stragglers import PerRound, StragglerModel
from seqgc.testing import check_scheme

pytestmark = pytest.mark.usefixtures("plugins_are_forgotten")

PER_NAME = 3
BY_HAND = {"balanced": ("balanced:shares=3-1-2-2,blocks=3-1-1-2", "balanced:shares=0-5-0-1")}
PLUGINS = {"sgc": "examples.stochastic", "het": "examples.heterogeneous"}


def small(name: str) -> list[Scheme]:
    """A few schemes of the name for few workers, over the range of what a search is offered."""
    found: list[Scheme] = []
    for n in (4, 5, 6):
        candidates = registered()[name].kind.candidates(n, Grid(max_delay=3, inexact=True))
        of_name = [scheme for scheme in candidates if entry_of(scheme).name == name]
        spread = np.linspace(0, len(of_name) - 1, PER_NAME).astype(int) if of_name else []
        found += [of_name[i] for i in sorted(set(spread))]
    return found


BY_ROUNDS = [name for name, entry in registered().items() if issubclass(entry.kind, Scheme)]


@pytest.mark.parametrize("name", [*BY_ROUNDS, *PLUGINS])
def test_what_is_registered_keeps_the_contract(name: str) -> None:
    load_plugins([PLUGINS[name]] if name in PLUGINS else [])
    schemes = [by_rounds(parse_scheme(spec, n=4), "this test") for spec in BY_HAND.get(name, ())]
    schemes = schemes or small(name)
    assert schemes, f"{name} offers a search nothing: check_scheme must be given schemes by hand"
    for scheme in schemes:
        check_scheme(scheme, patterns=6, seed=20261122)


@pytest.mark.parametrize(
    "spec",
    ["m-sgc:B=1,W=2,lam=4", "gc-rep:s=0", "gc:s=2", "gc-rep:s=1,allow_error=0.75"],
)
def test_limits_that_a_search_leaves_out_keep_it_too(spec: str) -> None:
    check_scheme(parse_scheme(spec, n=4), patterns=6)


# ---- check_scheme finds what is wrong -----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Lying(GC):
    """GC with one promise broken, whichever ``lie`` says."""

    lie: str = "none"

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads(self._code.load / (2 if self.lie == "load" else 1))

    def points_touched(self, sizes: IntArray) -> IntArray:
        touched = super().points_touched(sizes)
        return touched // 2 if self.lie == "points" else touched

    @property
    def promise(self) -> StragglerModel:
        return PerRound(s=self.n - 1) if self.lie == "promise" else super().promise

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return LyingSchedule(self, num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:  # noqa: ARG003
        return [cls(n=n, s=1)]


class LyingSchedule(GCSchedule):
    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:
        decoding = super().decoding(job, payload)
        terms = decoding.terms
        match getattr(self._scheme_of, "lie", ""):
            case "weight":
                return replace(
                    decoding, terms=(replace(terms[0], weight=2 * terms[0].weight), *terms[1:])
                )
            case "round":
                return replace(decoding, terms=(replace(terms[0], slot=1), *terms[1:]))
            case "error":
                return replace(decoding, error=0.5)
            case "lost":
                return replace(decoding, lost=(0,))
            case "unnamed":
                return replace(decoding, lost=())
            case _:
                return decoding

    def __init__(self, scheme: Lying, *args: object, **options: object) -> None:
        super().__init__(scheme, *args, **options)  # type: ignore[arg-type]
        self._scheme_of = scheme

    def _feasible(self, responded: BoolArray) -> bool:
        if self._scheme_of.lie == "harm" and responded.sum() == self.n - 1:
            return False
        return super()._feasible(responded)


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        ("load", "no exact scheme keeps this promise below load"),
        ("promise", "no exact scheme keeps this promise below load"),
        ("weight", "the decoded gradient is off by"),
        ("round", "job 0 uses a result that no worker was asked for"),
        ("error", "job 0 reports an error"),
        ("lost", "job 0: lost must name chunks"),
        ("points", "touches .*, above its load"),
        ("harm", "one more answer|conforming pattern"),
    ],
)
def test_a_broken_promise_is_found_and_named(lie: str, complaint: str) -> None:
    register("lying")(Lying)
    check_scheme(Lying(n=5, s=2))
    with pytest.raises(AssertionError, match=complaint) as caught:
        check_scheme(Lying(n=5, s=2, lie=lie), patterns=60)
    assert "\n" not in str(caught.value)
    assert "seed 0" in str(caught.value)


def test_chunks_that_an_approximation_lacks_must_be_named() -> None:
    register("lying")(Lying)
    lacking = Lying(n=6, s=1, family="rep", allow_error=0.75)
    check_scheme(lacking)
    with pytest.raises(AssertionError, match=r"chunks \[.*\] are lost"):
        check_scheme(replace(lacking, lie="unnamed"))


class ForgetfulSchedule(SRSGCSchedule):
    """A schedule whose snapshot misses an attribute, or that remembers too much."""

    def _snapshot(self) -> Mapping[str, object]:
        names = [name for name in self._state_names if name != FORGOTTEN["name"]]
        return {name: getattr(self, name) for name in names}

    def _restore(self, state: Mapping[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class RememberingSchedule(SRSGCSchedule):
    _state_names = (*SRSGCSchedule._state_names, "_all")

    def __init__(self, scheme: SRSGC, *args: object, **options: object) -> None:
        super().__init__(scheme, *args, **options)  # type: ignore[arg-type]
        self._all: tuple[BoolArray, ...] = ()

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        finished = super()._advance(responded)
        self._all = (*self._all, responded)
        return finished


class UnnamedSchedule(SRSGCSchedule):
    _state_names = ()


class UnstorableSchedule(SRSGCSchedule):
    _state_names = (*SRSGCSchedule._state_names, "_code")


FORGOTTEN = {"name": ""}


@dataclass(frozen=True, kw_only=True)
class Forgetful(SRSGC):
    kind_of_schedule: ClassVar[type[SRSGCSchedule]] = ForgetfulSchedule

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return self.kind_of_schedule(self, num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:  # noqa: ARG003
        return ()


@pytest.mark.parametrize("name", SRSGCSchedule._state_names)
def test_a_schedule_whose_snapshot_lacks_an_attribute_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register("forgetful")(Forgetful)
    scheme = Forgetful(n=5, B=2, W=3, lam=3, late="take")
    monkeypatch.setitem(FORGOTTEN, "name", "")
    check_scheme(scheme)
    monkeypatch.setitem(FORGOTTEN, "name", name)
    with pytest.raises(AssertionError, match=r"restored in round \d+( raised|:)"):
        check_scheme(scheme)


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (RememberingSchedule, "snapshots grow with the rounds: "),
        (UnnamedSchedule, "names no attributes that a checkpoint must hold"),
        (UnstorableSchedule, "cannot hold an object of the type CyclicCode"),
    ],
)
def test_a_snapshot_that_cannot_be_taken_or_grows_is_found(
    kind: type[SRSGCSchedule], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register("forgetful")(Forgetful)
    monkeypatch.setattr(Forgetful, "kind_of_schedule", kind)
    with pytest.raises(AssertionError, match=complaint):
        check_scheme(Forgetful(n=5, B=1, W=2, lam=2))


def test_a_schedule_that_has_closed_a_round_is_not_restored() -> None:
    schedule = GC(n=2, s=1).start(2)
    state = schedule.snapshot()
    schedule.close_round(np.array([True, False]))
    with pytest.raises(ScheduleError, match="only be restored before its first round closes"):
        schedule.restore(state)
    for wrong in (None, {}, {"round": 9, "past": {}, "own": {}}):
        with pytest.raises((ValueError, KeyError, TypeError)):
            GC(n=2, s=1).start(2).restore(wrong)
