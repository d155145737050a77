"""Apps on tables: exact defences agree, staleness costs little, every change is added once."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

import numpy as np
import pytest

from seqgc import ports, workers
from seqgc.backends import LocalBackend, Messaging
from seqgc.errors import ModelError, ParameterError, StoreError
from seqgc.ports import FloatArray, IntArray
from seqgc.profiles import ByRound, DelayProfile
from seqgc.stores import DirectoryStore
from seqgc.tables import App, AppRun, TableLayout, run_app
from seqgc.tables.apps import (
    LDA,
    Documents,
    MatrixFactorization,
    PageRank,
    digits_mlr,
    help_texts,
    made_ratings,
    photograph,
    python_imports,
)
from seqgc.worker import ComputeFactory

N = 4
PACE = ByRound(
    latencies_s=np.random.default_rng(0).uniform(0.5, 1.5, (50, N)),
    rates=[[0.0]],
)

EXACT = [
    "uncoded",
    "balanced:shares=4-3-2-1",
    "gc:s=1",
    "gc-rep:s=1",
    "deal:pieces=4",
    "hedge",
    "bsp",
]
STALE = ["ssp:slack=1", "asp", "flexrr:slack=1,pieces=3"]


def factorization() -> MatrixFactorization:
    return MatrixFactorization(ratings=made_ratings(rows=24, columns=16))


@dataclass(frozen=True)
class Counts:
    """Counts how often each item is processed; every change is seen by later passes."""

    items: int = 23

    def initial(self, rng: np.random.Generator) -> dict[str, FloatArray]:  # noqa: ARG002
        return {"times": np.zeros(self.items), "total": np.zeros(1)}

    def process(
        self,
        tables: Mapping[str, FloatArray],
        items: IntArray,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> None:
        tables["times"][items] += 1
        tables["total"] += len(items)

    def objective(self, tables: Mapping[str, FloatArray]) -> float:
        return -float(tables["total"][0])


@dataclass(frozen=True)
class Ranks(Counts):
    has_item_state = True


def same(one: AppRun, other: AppRun, *, within: float) -> None:
    for name, table in one.tables.items():
        np.testing.assert_allclose(other.tables[name], table, rtol=0, atol=within)


# ---- what is computed ----------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [*EXACT[:1], *EXACT[2:], *STALE, "asp-dds:M=2", "bsp-rr:pieces=2"])
def test_each_item_is_processed_once_in_each_clock(spec: str) -> None:
    run = run_app(Counts(), spec, workers=PACE, clocks=5, passes=2)
    assert run.tables["times"].tolist() == [10.0] * 23
    assert run.objectives[[0, -1]].tolist() == [0.0, -230.0]
    assert len(run.objectives) == len(run.at_s) == 6
    assert (np.diff(run.at_s) >= 0).all()


@pytest.mark.parametrize("spec", ["gc:s=1", "gc-rep:s=1", "hedge", "bsp"])
def test_exact_defences_agree(spec: str) -> None:
    app = factorization()
    plain = run_app(app, "uncoded", workers=PACE, clocks=8)
    same(plain, run_app(app, spec, workers=PACE, clocks=8), within=1e-9)


def test_softmax_regression_is_gradient_descent() -> None:
    app = digits_mlr(rate=1.0)
    run = run_app(app, "gc-rep:s=1", workers=PACE, clocks=3)
    weights, one_hot = np.zeros((65, 10)), np.eye(10)[app.labels]
    for _ in range(3):
        chances = np.exp(app.points @ weights)
        chances /= chances.sum(axis=1, keepdims=True)
        weights -= app.points.T @ (chances - one_hot) / app.items
    np.testing.assert_allclose(run.tables["weights"], weights, rtol=0, atol=1e-12)


def test_page_rank_solves_its_equations() -> None:
    app = PageRank(graph=python_imports())
    names = list(app.graph)
    matrix = np.zeros((app.items, app.items))
    for node, links in app.graph.items():
        for link in links:
            matrix[names.index(link), names.index(node)] = 1 / len(links)
    ranks = np.linalg.solve(np.eye(app.items) - 0.85 * matrix, np.full(app.items, 0.15))
    for spec in ("bsp", "ssp:slack=1"):
        run = run_app(app, spec, workers=PACE, clocks=60)
        np.testing.assert_allclose(run.tables["rank"], ranks, rtol=0, atol=1e-3)


@pytest.mark.parametrize("spec", ["ssp:slack=1", "flexrr:slack=1"])
def test_staleness_changes_the_objective_by_less_than_two_percent(spec: str) -> None:
    for app in (MatrixFactorization(ratings=photograph()), digits_mlr()):
        exact = run_app(app, "bsp", workers=PACE, clocks=30)
        stale = run_app(app, spec, workers=PACE, clocks=30)
        assert stale.objective == pytest.approx(exact.objective, rel=0.02)
        assert stale.objective < 0.5 * stale.objectives[0]


@pytest.mark.parametrize("spec", ["bsp", "ssp:slack=1"])
def test_topics_remain_counts(spec: str) -> None:
    documents = help_texts(most=12)
    app = LDA(documents=documents, topics=4)
    run = run_app(app, spec, workers=PACE, clocks=4)
    topic = run.tables["topic"].astype(int)
    of_words = np.zeros_like(run.tables["words"])
    np.add.at(of_words, (documents.words, topic), 1)
    np.testing.assert_allclose(run.tables["words"], of_words, rtol=0, atol=1e-9)
    np.testing.assert_allclose(run.tables["topics"], of_words.sum(axis=0), rtol=0, atol=1e-9)
    assert run.objective < run.objectives[0]


# ---- real workers --------------------------------------------------------------------------------


@dataclass
class Mortal:
    """Local processes; the worker that sends an answer of a chosen number is killed."""

    n: int
    deaths: tuple[int, ...]
    answers: int = 0
    killed: list[int] = field(default_factory=list)

    def start(self, compute: ComputeFactory, *, run_id: str) -> LocalBackend:
        self.backend = LocalBackend(self.n, compute, messaging=Messaging(run_id=run_id))
        return self.backend

    def __call__(self, seen: ports.Seen) -> None:
        if isinstance(seen, ports.Arrival):
            self.answers += 1
            if self.answers in self.deaths:
                os.kill(pid := self.backend.pids[seen.worker], signal.SIGKILL)
                self.killed.append(pid)


def test_workers_that_are_killed_change_nothing() -> None:
    app = factorization()
    expected = run_app(app, "bsp", workers=PACE, clocks=6)
    crew = Mortal(N, deaths=(5, 9))
    run = run_app(app, "bsp", workers=crew, clocks=6, observe=crew)
    assert len(crew.killed) == 2
    same(expected, run, within=1e-9)


def test_dask_computes_the_same() -> None:
    app = factorization()
    with workers.dask(2) as two:
        run = run_app(app, "bsp", workers=two, clocks=3)
    pace = ByRound(latencies_s=[[1.0, 2.0]], rates=[[0.0]])
    same(run_app(app, "bsp", workers=pace, clocks=3), run, within=1e-9)


# ---- resumed runs --------------------------------------------------------------------------------


class Interrupted(Exception):
    """The exception that ends a run between two events."""


def interrupted(app: App, spec: str, folder: Path, *, after: int) -> bool:
    """Run an app until some answers have arrived; return True if it was not done before."""
    answers = 0

    def observe(seen: ports.Seen) -> None:
        nonlocal answers
        answers += isinstance(seen, ports.Arrival)
        if answers == after:
            raise Interrupted

    try:
        run_app(
            app,
            spec,
            workers=PACE,
            clocks=6,
            folder=folder,
            checkpoint_every_s=0.0,
            observe=observe,
        )
    except Interrupted:
        return True
    return False


@pytest.mark.parametrize(
    "spec", ["uncoded", "gc-rep:s=1", "bsp", "bsp-rr:pieces=2", "deal:pieces=4"]
)
def test_a_resumed_run_ends_in_the_same_bits(spec: str, tmp_path: Path) -> None:
    app = factorization()
    expected = run_app(app, spec, workers=PACE, clocks=6)
    assert sum(interrupted(app, spec, tmp_path, after=after) for after in (3, 7, 6)) >= 2
    run = run_app(app, spec, workers=PACE, clocks=6, folder=tmp_path)
    same(expected, run, within=0.0)
    np.testing.assert_array_equal(run.objectives, expected.objectives)


@pytest.mark.parametrize("spec", [*STALE, "asp-dds:M=2"])
def test_a_resumed_stale_run_adds_every_change_once(spec: str, tmp_path: Path) -> None:
    assert sum(interrupted(Counts(), spec, tmp_path, after=after) for after in (3, 7, 6)) >= 2
    run = run_app(Counts(), spec, workers=PACE, clocks=6, folder=tmp_path)
    assert run.tables["times"].tolist() == [6.0] * 23


def test_a_complete_run_is_read_again(tmp_path: Path) -> None:
    run = run_app(Counts(), "bsp", workers=PACE, clocks=2, folder=tmp_path)
    again = run_app(Counts(), "bsp", workers=PACE, clocks=2, folder=tmp_path)
    same(run, again, within=0.0)
    assert (again.seconds, again.sent_bytes) == (run.seconds, run.sent_bytes)


@pytest.mark.parametrize(
    ("name", "other"),
    [("seed", {"seed": 1}), ("passes", {"passes": 2}), ("clocks", {"clocks": 3})],
)
def test_a_folder_of_another_run_is_refused(
    name: str, other: dict[str, int], tmp_path: Path
) -> None:
    arguments = {"clocks": 2, "seed": 0, "passes": 1}
    run_app(Counts(), "bsp", workers=PACE, folder=tmp_path, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=rf"`{name}`.*{tmp_path}"):
        run_app(Counts(), "bsp", workers=PACE, folder=tmp_path, **arguments | other)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [2, 500])
def test_a_damaged_checkpoint_is_refused(size: int, tmp_path: Path) -> None:
    run_app(Counts(), "bsp", workers=PACE, clocks=2, folder=tmp_path)
    os.truncate(tmp_path / "tables.npz", size)
    with pytest.raises(StoreError, match=r"tables\.npz"):
        run_app(Counts(), "bsp", workers=PACE, clocks=2, folder=tmp_path)


def test_a_folder_of_the_same_app_with_other_data_is_refused(tmp_path: Path) -> None:
    app = digits_mlr()
    run = run_app(app, "bsp", workers=PACE, clocks=2, folder=tmp_path)
    other = replace(app, points=app.points + 0.1)  # the same objective before the first clock
    with pytest.raises(ParameterError, match=rf"`app`.*{tmp_path}.*{str(run.objective)[:7]}"):
        run_app(other, "bsp", workers=PACE, clocks=2, folder=tmp_path)


def test_two_runs_cannot_use_one_folder(tmp_path: Path) -> None:
    def again(seen: ports.Seen) -> None:  # noqa: ARG001
        run_app(Counts(), "bsp", workers=PACE, clocks=2, folder=tmp_path)

    with pytest.raises(ParameterError, match=rf"`folder`.*{tmp_path}"):
        run_app(Counts(), "bsp", workers=PACE, clocks=2, folder=tmp_path, observe=again)


def test_versions_that_a_killed_run_left_are_removed(tmp_path: Path) -> None:
    left = DirectoryStore(tmp_path / "tables")
    for version in range(3):
        left.publish("tables", version, np.full(24, 7.0))
    (tmp_path / "tables" / "mine.csv").touch()
    run = run_app(Counts(), "ssp:slack=1", workers=2, clocks=3, folder=tmp_path)
    assert run.tables["times"].tolist() == [3.0] * 23
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["mine.csv"]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("m-sgc:B=1,W=2,lam=2", "delay|rounds later"),
        ("a-bsp:wpc=2", "passes=2"),
        ("backup:b=1", "exact or stale"),
        ("asp-dds:M=2,resume=shard", "resume=part"),
        ("lb-bsp", "shares"),
    ],
)
def test_defences_that_would_change_the_result_are_refused(spec: str, value: str) -> None:
    with pytest.raises(ParameterError, match=rf"`defence`.*({value})"):
        run_app(Counts(), spec, workers=PACE, clocks=2)


def test_items_with_a_state_need_their_order() -> None:
    with pytest.raises(ParameterError, match="asp-dds"):
        run_app(Ranks(), "asp-dds:M=2", workers=PACE, clocks=2)
    assert run_app(Ranks(), "asp", workers=PACE, clocks=2).tables["total"] == [46.0]


class Rebinding(Counts):
    def process(self, tables, items, rng) -> None:  # type: ignore[no-untyped-def]  # noqa: ARG002
        tables["total"] = tables["total"] + 1


class Raising(Counts):
    def process(self, tables, items, rng) -> None:  # type: ignore[no-untyped-def]  # noqa: ARG002
        raise ZeroDivisionError("of nothing")


class Overflowing(Counts):
    def process(self, tables, items, rng) -> None:  # type: ignore[no-untyped-def]  # noqa: ARG002
        tables["total"][...] = np.inf


class Keeping(Counts):
    def process(self, tables, items, rng) -> None:  # type: ignore[no-untyped-def]
        kept = self.__dict__.setdefault("kept", tables)
        super().process(kept, items, rng)


@pytest.mark.parametrize(
    ("app", "why"),
    [
        (Rebinding(), "in place.*total"),
        (Raising(), "app Raising failed.*of nothing"),
        (Overflowing(), "not finite"),
        (Keeping(), "read-only"),
    ],
)
def test_faulty_apps_end_the_run_in_one_line(app: App, why: str) -> None:
    with pytest.raises(ModelError, match=why) as caught:
        run_app(app, "bsp", workers=PACE, clocks=2)
    assert "\n" not in str(caught.value)


class Shuffling(Counts):
    def process(self, tables, items, rng) -> None:  # type: ignore[no-untyped-def]
        rng.shuffle(items)
        super().process(tables, items, rng)
        items[:] = 0


@pytest.mark.parametrize("crew", [PACE, 2])
def test_an_app_may_change_its_copy_of_the_items(crew: ByRound | int) -> None:
    run = run_app(Shuffling(), "bsp", workers=crew, clocks=2, passes=2)
    assert run.tables["times"].tolist() == [4.0] * 23


@dataclass(frozen=True)
class Returning(Counts):
    tables: object = field(default_factory=lambda: {"times": [0] * 23, "total": 0})
    value: object = 0.0

    def initial(self, rng):  # type: ignore[no-untyped-def]  # noqa: ARG002
        return self.tables

    def objective(self, tables):  # type: ignore[no-untyped-def]
        tables["times"][...] = 99  # of a copy
        return self.value


def test_lists_and_numbers_of_other_types_become_float64() -> None:
    run = run_app(Returning(value=np.array([True])), "bsp", workers=PACE, clocks=2)
    assert run.tables["times"].tolist() == [2.0] * 23
    assert run.tables["total"].dtype == np.float64
    assert run.tables["total"].shape == ()
    assert run.objective == 1.0


@pytest.mark.parametrize(
    ("app", "why"),
    [
        (Returning(tables=None), "`initial`.*None"),
        (Returning(tables={"t": np.array([1.0, np.nan])}), "`initial`.*'t'.*nan"),
        (Returning(tables={"t": np.array([0, 2**60])}), f"`initial`.*'t'.*{2**60}"),
        (Returning(tables={"t": np.zeros(2, complex)}), "`initial`.*'t'.*complex"),
        (Returning(value=np.zeros(2)), r"`objective`.*\(2,\)"),
        (Returning(value=None), "`objective`.*object"),
        (Counts, "`app`.*class.*Counts"),
        (Path(), "`app`.*'items'"),
    ],
)
def test_what_is_no_app_is_refused(app: App, why: str) -> None:
    with pytest.raises(ParameterError, match=why):
        run_app(app, "bsp", workers=PACE, clocks=1)


@dataclass(frozen=True)
class Locked(Counts):
    lock: object = field(default_factory=Lock)


def test_an_app_that_cannot_be_sent_runs_in_virtual_time_only() -> None:
    assert run_app(Locked(), "bsp", workers=PACE, clocks=1).objective == -23.0
    with pytest.raises(ParameterError, match=r"`app`.*lock.*Locked"):
        run_app(Locked(), "bsp", workers=2, clocks=1)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    profile = DelayProfile.from_times([[1.0, 2.0]])
    for crew, why in ((profile, "latency_pace"), ("4", "'4'"), (0, "got 0")):
        with pytest.raises(ParameterError, match=f"`workers`.*{why}"):
            run_app(Counts(), "bsp", workers=crew, clocks=1)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(ParameterError, match=r"`folder`.*file"):
        run_app(Counts(), "bsp", workers=PACE, clocks=1, folder=tmp_path / "file")
    with pytest.raises(ParameterError, match=r"`app`.*40.*23"):
        run_app(Counts(), "uncoded", workers=40, clocks=1)
    with pytest.raises(ParameterError, match=r"checkpoint_every_s.*-1"):
        run_app(Counts(), "bsp", workers=PACE, clocks=1, checkpoint_every_s=-1.0)
    with pytest.raises(ParameterError, match=r"`kind`.*resident.*lambda"):
        run_app(Counts(), "bsp", workers=PACE, clocks=1, kind="lambda")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="clocks"):
        run_app(Counts(), "bsp", workers=PACE, clocks=0)
    with pytest.raises(ParameterError, match="initial"):
        TableLayout.of({"names": np.array(["a"])})
    with pytest.raises(ParameterError, match=r"`graph`.*'b'"):
        PageRank(graph={"a": ("b",)})
    empty = Documents(words=np.zeros(0, dtype=int), starts=np.array([0]), vocabulary=())
    with pytest.raises(ParameterError, match="items"):
        run_app(LDA(documents=empty), "bsp", workers=PACE, clocks=1)
