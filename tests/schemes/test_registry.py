"""Schemes register themselves: names, parameters by their types, and what is refused."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile
from seqgc.schemes import (
    GC,
    Grid,
    Schedule,
    Scheme,
    load_plugins,
    parse_scheme,
    register,
    registered,
)
from seqgc.search import Rehearsal, SearchSpace, tune
from seqgc.stragglers import StragglerModel


@dataclass(frozen=True, kw_only=True)
class Twice(Scheme):
    """Repetition by two, with a parameter of each type."""

    n: int
    at: int = 1
    by: float = 1.0
    how: str = "plain"
    exact: ClassVar[bool] = True
    delay: ClassVar[int] = 0
    tolerated: ClassVar[int] = 1

    @property
    def _inner(self) -> GC:
        return GC(n=self.n, s=1, family="rep")

    @property
    def worker_loads(self) -> FloatArray:
        return self._inner.worker_loads

    @property
    def chunk_fractions(self) -> FloatArray:
        return self._inner.chunk_fractions

    @property
    def promise(self) -> StragglerModel:
        return self._inner.promise

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return self._inner.start(num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:
        return (cls(n=n, at=at) for at in grid.values(1, 2))


pytestmark = pytest.mark.usefixtures("plugins_are_forgotten")


def test_a_spec_names_fields_by_their_types_and_leaves_defaults_out() -> None:
    register("twice")(Twice)
    register("twice-fancy", how="fancy")(Twice)
    assert parse_scheme("twice", n=4) == Twice(n=4)
    parsed = parse_scheme("twice-fancy:at=3,by=0.5", n=4)
    assert parsed == Twice(n=4, at=3, by=0.5, how="fancy")
    assert parsed.spec == "twice-fancy:at=3,by=0.5"
    assert parse_scheme("twice:how=odd", n=4).spec == "twice:how=odd"
    for spec, rule in {
        "twice:at=1.5": "twice: at must be an integer",
        "twice:by=much": "twice: by must be a number",
        "twice-fancy:how=odd": "twice-fancy takes at, by",
        "twice:at": "twice: .*key=value",
    }.items():
        with pytest.raises(ParameterError, match=rule):
            parse_scheme(spec, n=4)


def test_what_is_registered_is_searched_without_another_edit() -> None:
    register("twice")(Twice)
    rehearsal = Rehearsal(profile=DelayProfile.from_times(np.ones((4, 6))), alpha=0.5)
    space = SearchSpace(families=("twice",), jobs_per_round=(1,), mus=(0.0,))
    assert [row.setting.scheme for row in tune(rehearsal, space=space).ranking] == [Twice(n=6)]


def test_an_approximation_is_searched_only_when_asked_for_and_ranked_apart() -> None:
    times = np.ones((4, 6))
    times[:, 0] = 9.0
    times[:, 1] = 8.0
    rehearsal = Rehearsal(profile=DelayProfile.from_times(times), alpha=0.5)
    space = SearchSpace(families=("gc-rep",), jobs_per_round=(1,), mus=(0.0,))
    assert not tune(rehearsal, space=space).inexact
    found = tune(
        rehearsal, space=SearchSpace(families=("gc-rep",), jobs_per_round=(1,), inexact=True)
    )
    assert all(row.setting.scheme.exact and row.error is None for row in found.ranking)
    assert found.inexact
    for row in found.inexact:
        assert not row.setting.scheme.exact
        assert row.error is not None
        assert 0 <= row.error <= row.setting.scheme.allow_error  # type: ignore[attr-defined]


def test_only_what_keeps_the_contract_is_registered() -> None:
    class Bare(Twice):
        pass

    class Loose:
        """Of no kind at all."""

    @dataclass(frozen=True, kw_only=True)
    class Half(Scheme):
        n: int

    for kind, complaint in (
        (Bare, "frozen dataclass"),
        (Loose, "frozen dataclass"),
        (Half, "chunk_fractions, delay"),
    ):
        with pytest.raises(ParameterError, match=complaint):
            register("mine")(kind)
    with pytest.raises(ParameterError, match="must have the fields colour"):
        register("mine", colour="red")(Twice)
    with pytest.raises(ParameterError, match="lower-case letters"):
        register("Mine")
    with pytest.raises(ParameterError, match=r"is taken by seqgc\.schemes\.gc\.GC"):
        register("gc")(Twice)
    with pytest.raises(ParameterError, match="must be registered to have a spec"):
        _ = Twice(n=4).spec
    assert "mine" not in registered()


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ({"worker_loads": np.ones(3)}, "worker_loads must be 4 numbers >= 0, not all of them 0"),
        ({"chunk_fractions": np.ones(2)}, "chunk_fractions must be numbers >= 0 that sum to 1"),
        ({"delay": -1}, "delay must be an integer >= 0"),
        ({"exact": "yes"}, "exact must be True or False"),
        ({"promise": None}, "promise must be a StragglerModel"),
    ],
)
def test_a_scheme_whose_numbers_cannot_be_is_refused_when_it_is_named(
    broken: dict[str, object], complaint: str
) -> None:
    kind = dataclass(frozen=True, kw_only=True)(type("Broken", (Twice,), broken))
    register("broken")(kind)
    with pytest.raises(ParameterError, match=complaint):
        parse_scheme("broken", n=4)


def test_a_plugin_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "faulty_plugin.py").write_text("raise RuntimeError('no\\nsuch thing')")
    for module, why in (
        ("faulty_plugin", "RuntimeError: no such thing"),
        ("absent_plugin", "ModuleNotFoundError: No module named 'absent_plugin'"),
    ):
        with pytest.raises(ParameterError) as caught:
            load_plugins([module])
        assert str(caught.value) == f"`plugin` must be importable ({why}); got {module!r}"


def test_entry_points_are_looked_up_for_a_name_that_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = "from seqgc.schemes import register\nfrom tests.schemes.test_registry import Twice\n"
    (tmp_path / "brought.py").write_text(source + "register('brought')(Twice)\n")
    point = importlib.metadata.EntryPoint(name="b", value="brought", group="seqgc.schemes")
    asked = []

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        asked.append(group)
        return [point]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert parse_scheme("gc:s=1", n=4) == GC(n=4, s=1)
    assert not asked, "a known name needs no look at what is installed"
    assert parse_scheme("brought:at=2", n=4).n == 4
    assert asked == ["seqgc.schemes"]
