"""Every registered scheme keeps the contract; one that is registered cannot go unchecked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, Payload
from seqgc.schemes import (
    GC,
    MSGC,
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


class Forgetful(Scheme):
    """Says of how many of the latest rounds all that follows is a function."""

    reach: int

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        schedule = super().start(num_jobs, conformity=conformity)  # type: ignore[safe-super]
        schedule._reach = self.reach
        return schedule

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:  # noqa: ARG003
        return ()


@dataclass(frozen=True, kw_only=True)
class ForgetfulSR(Forgetful, SRSGC):
    """In truth it is all of them."""

    reach: int


@dataclass(frozen=True, kw_only=True)
class ForgetfulM(Forgetful, MSGC):
    """In truth ``delay + 1``."""

    reach: int


@pytest.mark.parametrize("reach", [1, 2, 4, 8])
def test_a_schedule_that_forgets_too_early_is_found(reach: int) -> None:
    register("forgetful")(ForgetfulSR)
    with pytest.raises(AssertionError, match=r"after \d+ repeated rounds"):
        check_scheme(ForgetfulSR(n=6, B=1, W=3, lam=2, reach=reach))


@pytest.mark.parametrize("reach", [1, 2, 3, 4, 5])
def test_m_sgc_forgets_a_job_when_it_is_over_and_not_before(reach: int) -> None:
    register("forgetful")(ForgetfulM)
    scheme = ForgetfulM(n=4, B=2, W=3, lam=2, reach=reach)
    if reach > scheme.delay:
        check_scheme(scheme)
        return
    with pytest.raises(AssertionError, match=r"after \d+ repeated rounds"):
        check_scheme(scheme)
