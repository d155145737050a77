"""Codes as a stranger would add them: registered, used by name, and checked."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from seqgc.codes import (
    Decoder,
    GradientCode,
    Layout,
    Solved,
    code_kinds,
    compare_codes,
    forget_code,
    make_code,
    register_code,
    worst_survivors,
)
from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, FloatArray, IntArray
from seqgc.profiles import DelayProfile
from seqgc.schemes import GC, parse_scheme
from seqgc.search import Rehearsal, SearchSpace, replay, tune
from seqgc.testing import check_code, check_scheme
from tests.codes.registry import exists, masks


@dataclass(frozen=True)
class Spread(GradientCode):
    """Neighbours hold different chunks: nothing but a layout."""

    def _make_layout(self) -> Layout:
        chunks = self.n // (self.s + 1)
        supports = tuple(np.arange(self.n)[:, None] % chunks)
        return Layout(supports=supports, sizes=np.ones(chunks))


@dataclass(frozen=True)
class Uneven(GradientCode):
    """Half of the workers hold all of the batch; two by two the others share it, 2 to 1."""

    def _check_parameters(self) -> None:
        if self.s != 1 or self.n < 4 or self.n % 2:
            raise ParameterError("s", f"must be 1, n even and >= 4 (uneven), n={self.n}", self.s)

    def _make_layout(self) -> Layout:
        shares = [np.arange(2) if i < self.n // 2 else np.array([i % 2]) for i in range(self.n)]
        return Layout(supports=tuple(shares), sizes=np.array([2, 1]))

    def _coefficients(self, worker: int) -> FloatArray:
        return np.full(self.support(worker).size, 0.5 + worker)


@dataclass(frozen=True)
class Mirrored(GradientCode):
    """Two workers stand in for each other, and say so."""

    step: int = 1

    def _check_parameters(self) -> None:
        if self.s > 1 or self.n % 2:
            raise ParameterError("n", f"must be even, and s at most 1, s={self.s}", self.n)

    def _make_layout(self) -> Layout:
        half = np.arange(self.n // 2)
        return Layout(supports=(*half[:, None], *half[:, None]), sizes=np.ones(self.n // 2))

    def _make_covers(self) -> tuple[IntArray, ...]:
        return (np.arange(self.n).reshape(2, -1),)


@dataclass(frozen=True)
class Near(GradientCode):
    """Every worker holds a chunk of its own: without s of n, s/n of the data are missing."""

    promised: float = 1.0

    @property
    def worst_error(self) -> float:
        return self.promised * math.sqrt(self.s / self.n)

    def _make_layout(self) -> Layout:
        return Layout(supports=tuple(np.arange(self.n)[:, None]), sizes=np.ones(self.n))


STRANGERS = {"spread": Spread, "uneven": Uneven, "mirrored": Mirrored, "near": Near}


@pytest.fixture
def _registered() -> Iterator[None]:
    for kind, family in STRANGERS.items():
        register_code(kind)(family)
    yield
    for kind in STRANGERS:
        forget_code(kind)


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("kind", STRANGERS)
def test_a_strangers_code_keeps_the_contract(kind: str) -> None:
    parameters = [(n, s) for n in range(1, 8) for s in range(n) if exists(kind, n, s)]
    assert len(parameters) >= 2
    for n, s in parameters:
        check_code(make_code(kind, n, s))


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("kind", STRANGERS)
def test_a_strangers_code_is_at_home_in_a_scheme(kind: str) -> None:
    n, s = 6, 1
    scheme, code = GC(n=n, s=s, family=kind), make_code(kind, n, s)
    assert scheme.normalized_load == code.load
    partials = np.random.default_rng(n).standard_normal((len(scheme.chunk_fractions), 3))
    for responded in masks(n):
        schedule = scheme.start(1)
        tasks = schedule.assignment()
        if not code.can_decode(responded):
            assert schedule.feasible(responded) == code.is_within(responded, code.worst_error)
            continue
        schedule.close_round(responded)
        total = np.zeros(3)
        for term in schedule.decoding(0).terms:
            (task,) = tasks[term.worker]
            total += term.weight * (task.coefficients @ partials[task.chunks])
        np.testing.assert_allclose(total, partials.sum(axis=0), atol=1e-12)


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("kind", STRANGERS)
def test_a_registered_code_is_a_scheme_at_once(kind: str) -> None:
    scheme = parse_scheme(f"gc-{kind}:s=1", n=6)
    assert scheme == GC(n=6, s=1, family=kind)
    assert scheme.spec == f"gc-{kind}:s=1"
    assert isinstance(scheme, GC)
    assert scheme.exact == (kind != "near")
    np.testing.assert_array_equal(scheme.worker_loads, make_code(kind, 6, 1).worker_loads)
    check_scheme(scheme, patterns=2)


@pytest.mark.usefixtures("_registered")
def test_a_search_finds_registered_codes_and_judges_them_as_replays_do() -> None:
    times = 1 + np.random.default_rng(3).exponential(size=(6, 6))
    rehearsal = Rehearsal(profile=DelayProfile.from_times(times), alpha=0.5)
    space = SearchSpace(
        families=tuple(f"gc-{kind}" for kind in STRANGERS), jobs_per_round=(1,), inexact=True
    )
    pruned, whole = (tune(rehearsal, space=space, top=5, prune=prune) for prune in (True, False))
    assert (pruned.ranking, pruned.inexact) == (whole.ranking, whole.inexact)
    names = {row.setting.scheme.spec.partition(":")[0] for row in whole.ranking}
    assert names == {"gc-spread", "gc-uneven", "gc-mirrored"}
    on = Rehearsal(profile=rehearsal.profile, alpha=0.5, num_jobs=6)
    for row in (*whole.ranking, *whole.inexact):
        assert row.runtime_s == replay(row.setting, on).runtime_s
    assert {row.setting.scheme.spec.partition(":")[0] for row in whole.inexact} == {"gc-near"}
    for row in whole.inexact:  # of n answers n - s are used, or more if they come at once
        assert isinstance(row.setting.scheme, GC)
        least = 1 - row.setting.scheme.s / 6
        assert least - 1e-12 <= row.information <= 1
        assert row.equivalent_s == pytest.approx(row.runtime_s / row.information)


@pytest.mark.usefixtures("_registered")
def test_an_approximate_code_loses_what_nobody_holds_and_is_never_chosen_for_exact_work() -> None:
    schedule = GC(n=6, s=2, family="near").start(1)
    responded = np.array([True, False, True, True, False, True])
    assert schedule.feasible(responded)
    assert not schedule.feasible(responded & (np.arange(6) > 0))
    schedule.close_round(responded)
    decoding = schedule.decoding(0)
    assert decoding.lost == (1, 4)
    assert decoding.error == pytest.approx(math.sqrt(2 / 6))
    row = next(row for row in compare_codes(6, 2).rows if row.kind == "near")
    assert not row.chosen
    assert row.load == 1 / 6  # the least of all
    with pytest.raises(AssertionError, match=r"survivors .*error 0\.5.*, over 0\.25"):
        check_code(Near(4, 1, promised=0.5))


def test_a_process_that_reads_a_scheme_knows_its_code() -> None:
    register_code("spread")(Spread)
    try:
        pickled = pickle.dumps(GC(n=6, s=1, family="spread"))
    finally:
        forget_code("spread")
    assert Spread.__module__.encode() in pickled  # importing it registers the code, if it does so


@pytest.mark.usefixtures("_registered")
def test_a_strangers_code_is_compared_with_ours_and_comes_last() -> None:
    assert code_kinds() == ("rep", "cyclic", "binary", *STRANGERS)
    rows = {row.kind: row for row in compare_codes(6, 1).rows}
    assert list(rows) == list(code_kinds())
    assert rows["rep"].chosen
    assert rows["spread"].load == rows["mirrored"].load == rows["rep"].load == 1 / 3
    assert 0 < rows["spread"].amplification <= rows["mirrored"].amplification == 1.0
    assert rows["uneven"].load == 1.0
    assert "  uneven: `s` must be 1, n even" in str(compare_codes(7, 1))


def test_what_was_compared_before_a_kind_came_is_compared_again() -> None:
    before = compare_codes(7, 2)
    register_code("spread", preference=0)(Spread)
    try:
        assert code_kinds()[0] == "spread"
        assert [row.kind for row in compare_codes(7, 2).rows] == list(code_kinds())
    finally:
        forget_code("spread")
    assert compare_codes(7, 2) == before


def test_rows_of_any_length_are_judged_by_what_they_amplify() -> None:
    code = Uneven(6, 1)
    responded, amplification = worst_survivors(code)
    worst = max(code.amplification(code.decoding_vector(mask)) for mask in masks(6, missing=1))
    assert np.count_nonzero(~responded) == 1
    assert 0 < amplification <= worst * (1 + 1e-9)


# ---- what is refused -----------------------------------------------------------------------------


def test_a_name_is_taken_once_and_well_formed() -> None:
    with pytest.raises(ParameterError, match=r"`kind` is taken by seqgc\.codes\.repetition\."):
        register_code("rep")(Spread)
    for name in ("auto", "Rep", "my code", ""):
        with pytest.raises(ParameterError, match="`kind` must be lower-case letters"):
            register_code(name)
    assert "spread" not in code_kinds()
    with pytest.raises(ParameterError, match="`kind` must be one of auto, rep, cyclic, binary"):
        forget_code("spread")


def test_a_class_that_lacks_something_is_not_registered() -> None:
    class Thawed(Spread):
        pass

    @dataclass(frozen=True)
    class Empty(GradientCode):
        pass

    with pytest.raises(ParameterError, match="`class` must be a frozen dataclass"):
        register_code("thawed")(Thawed)
    with pytest.raises(ParameterError, match="`class` must define _make_layout"):
        register_code("empty")(Empty)
    assert not {"thawed", "empty"} & {*code_kinds()}


# ---- what check_code finds -----------------------------------------------------------------------


@dataclass(frozen=True)
class Always:
    """A decoder that believes in any answers, and adds all of them up."""

    n: int

    def suffices(self, responded: BoolArray) -> bool:  # noqa: ARG002 (the protocol's)
        return True

    def solve(self, responded: BoolArray) -> Solved | None:
        return Solved(np.where(responded, 1.0, 0.0), 0.0)


@dataclass(frozen=True)
class Never(Always):
    def suffices(self, responded: BoolArray) -> bool:
        return bool(responded.all())

    def solve(self, responded: BoolArray) -> Solved | None:
        return Solved(np.array([1.0, 1.0, 0.0, 0.0]), 0.0) if responded.all() else None


@dataclass(frozen=True)
class Careless(Always):
    def solve(self, responded: BoolArray) -> Solved | None:
        del responded
        return Solved(np.r_[np.ones(self.n // 2), np.zeros(self.n - self.n // 2)], 0.0)


@dataclass(frozen=True)
class Believing(Spread):
    def _make_decoder(self) -> Decoder:
        return Always(self.n)


@dataclass(frozen=True)
class Doubting(Spread):
    def _make_decoder(self) -> Decoder:
        return Never(self.n)


@dataclass(frozen=True)
class Looking(Spread):
    def _make_decoder(self) -> Decoder:
        return Careless(self.n)


@dataclass(frozen=True)
class Lonely(GradientCode):
    def _make_layout(self) -> Layout:
        return Layout(supports=tuple(np.arange(self.n)[:, None]), sizes=np.ones(self.n))


@dataclass(frozen=True)
class Outside(Spread):
    def _make_layout(self) -> Layout:
        return Layout(supports=tuple(np.arange(self.n)[:, None]), sizes=np.ones(2))


@dataclass(frozen=True)
class Twice(Spread):
    def _make_layout(self) -> Layout:
        return Layout(supports=(np.array([0, 0]),) * self.n, sizes=np.ones(1))


@dataclass(frozen=True)
class Zero(Spread):
    def _coefficients(self, worker: int) -> FloatArray:
        return np.full(1, float(worker != 1))


@dataclass(frozen=True)
class Writable(Spread):
    def support(self, worker: int) -> IntArray:
        return super().support(worker).copy()


@dataclass(frozen=True)
class Overlapping(Spread):
    def _make_covers(self) -> tuple[IntArray, ...]:
        return (np.arange(self.n).reshape(-1, 2), np.arange(self.n).reshape(-1, 2))


@dataclass(frozen=True)
class Different(Spread):
    def _make_covers(self) -> tuple[IntArray, ...]:
        return (np.arange(self.n).reshape(2, -1).T,)


@dataclass(frozen=True, eq=False)
class Alone(Spread):
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True)
class Silent(Spread):
    """Prints less than it is."""

    def __repr__(self) -> str:
        return f"Silent(n={self.n})"


@dataclass(frozen=True)
class Trusting(Spread):
    def __post_init__(self) -> None:
        """Takes whatever it is given."""


BROKEN = {
    "believes too few answers": (Believing(4, 1), "survivors [0, 1, 2, 3]: decoding_vector misses"),
    "doubts enough answers": (Doubting(4, 1), "survivors [0, 1, 2]: can_decode is False"),
    "uses who is missing": (
        Looking(4, 1),
        "survivors [0, 2, 3]: decoding_vector uses missing workers",
    ),
    "too few holders": (Lonely(4, 1), "chunk 0 has 1 holders, and any 1 may be missing"),
    "no such chunk": (Outside(4, 1), "the layout raised IndexError"),
    "a chunk twice": (Twice(4, 1), "support(0) repeats chunks"),
    "nothing to do with a chunk": (Zero(4, 1), "coefficients(1) has zeros"),
    "arrays can be changed": (Writable(4, 1), "support(0) must be read-only"),
    "in two covers": (Overlapping(4, 1), "covers[1]: workers [0, 2] of place 0 must"),
    "others in a place": (Different(4, 1), "covers[0]: workers [0, 1] of place 0 return different"),
    "not equal": (Alone(4, 1), "its repr gives Alone(n=4, s=1), which is not equal"),
    "not printed": (Silent(4, 1), "eval of its repr raised TypeError"),
    "numpy's integers": (
        Trusting(4, 1),
        "made with numpy integers its repr is Trusting(n=np.int64(4)",
    ),
    "no code": ("rep", "must be a seqgc.codes.GradientCode"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_promise_is_found_and_named_in_one_line(what: str) -> None:
    code, line = BROKEN[what]
    with pytest.raises(AssertionError) as caught:
        check_code(code)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{code!r}: {line}")
    assert "\n" not in str(caught.value)
