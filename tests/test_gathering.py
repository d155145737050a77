"""Gathered gradients equal plain weighted sums, whatever arrives when, and in whatever memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from seqgc.errors import ScheduleError
from seqgc.master import Gatherer
from seqgc.ports import Decoding, FloatArray, MiniTask, Part, ResultForm, Term

SIZE = 40


def mini_task(job: int = 0, *, slot: int = 0, cover: int | None = None, place: int = 0) -> MiniTask:
    return MiniTask(
        job=job,
        slot=slot,
        chunks=np.arange(1),
        coefficients=np.ones(1),
        cover=cover,
        place=place,
    )


def term(worker: int, weight: float = 1.0, *, round: int = 0, slot: int = 0) -> Term:
    return Term(worker=worker, round=round, slot=slot, weight=weight)


def gather(
    gatherer: Gatherer, tasks: list[MiniTask], results: FloatArray, *, round: int = 0
) -> None:
    """Let worker ``i`` owe ``tasks[i]``; those of the first ``len(results)`` arrive."""
    for worker, task in enumerate(tasks):
        gatherer.expect(round, [task], worker=worker)
    for worker, (task, result) in enumerate(zip(tasks, results, strict=False)):
        assert gatherer.flaw({task.slot: task}, {task.slot: result}) is None
        gatherer.take(task, result, worker=worker, round=round)


def decode(gatherer: Gatherer, *terms: Term, job: int = 0) -> FloatArray:
    return gatherer.combine(Decoding(job=job, terms=terms))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(5))
def test_sums_and_products_of_several_rounds_add_up(dtype: str, seed: int) -> None:
    """Two rounds with weights, two covers of which one is used, and results of another job."""
    rng = np.random.default_rng(seed)
    gatherer = Gatherer()
    results = rng.normal(size=(2, 12, SIZE)).astype(dtype)
    covers = [None, None, None, 0, 0, 1, 1, 0, None, 1, None, 0]
    places = [0, 0, 0, 2, 0, 0, 1, 1, 0, 2, 0, 3]
    order = rng.permutation(12)
    tasks = [mini_task(cover=covers[i], place=places[i]) for i in order]
    for round in range(2):
        other = [mini_task(1, cover=task.cover, place=task.place) for task in tasks]
        gather(gatherer, tasks if round == 0 else other, results[0], round=round)
    again = [mini_task()] * 7
    gather(gatherer, again, results[1], round=5)
    weights = rng.normal(size=(2, 12))
    first = [term(w, weights[0, w]) for w, i in enumerate(order) if covers[i] is None]
    summed = [term(w) for w, i in enumerate(order) if covers[i] == 0]
    late = [term(w, weights[1, w], round=5) for w in (0, 3, 6)]
    terms = [(first + summed + late)[i] for i in rng.permutation(len(first + summed + late))]
    gradient = decode(gatherer, *terms)
    expected = sum(t.weight * results[int(t.round > 0), t.worker].astype(np.float64) for t in terms)
    assert gradient.dtype == dtype
    np.testing.assert_allclose(gradient, expected, atol=50 * np.finfo(dtype).eps)


def test_the_first_of_each_place_counts_and_the_others_may_stand_for_it() -> None:
    gatherer = Gatherer()
    tasks = [mini_task(cover=3, place=place) for place in (1, 0, 1, 0)]
    gather(gatherer, tasks, np.array([[1.0], [10.0], [100.0], [1000.0]]))
    assert decode(gatherer, term(2), term(3)).tolist() == [11.0]


@pytest.mark.parametrize("cover", [None, 0])
def test_what_has_arrived_is_a_copy(cover: int | None) -> None:
    gatherer, results = Gatherer(), np.arange(3 * SIZE, dtype=np.float64).reshape(3, SIZE)
    expected = results.sum(axis=0)
    tasks = [mini_task(cover=cover, place=place) for place in range(3)]
    for worker, task in enumerate(tasks):
        gatherer.expect(0, [task], worker=worker)
        if worker < 2:
            gatherer.expect(0, [task], worker=worker + 3)  # two more rows, that never arrive
    for worker, task in enumerate(tasks):
        gatherer.take(task, results[worker], worker=worker, round=0)
        results[worker] = np.nan
    np.testing.assert_array_equal(decode(gatherer, term(0), term(1), term(2)), expected)


def test_a_job_never_sees_the_numbers_of_the_one_whose_memory_it_has() -> None:
    """The second job's last rows do not arrive: they hold what the first left there."""
    gatherer, rng = Gatherer(), np.random.default_rng(0)
    first = np.full((6, SIZE), 1e308)
    gather(gatherer, [mini_task()] * 6, first)
    given = decode(gatherer, *[term(w, 1e-3) for w in range(6)])
    kept = given.copy()
    for job in range(1, 4):
        results = rng.normal(size=(4, SIZE))
        gather(gatherer, [mini_task(job)] * 6, results, round=job)
        weights = rng.normal(size=4)
        terms = [term(w, weights[w], round=job) for w in (0, 1, 3)]
        expected = weights[[0, 1, 3]] @ results[[0, 1, 3]]
        np.testing.assert_allclose(decode(gatherer, *terms, job=job), expected, rtol=1e-12)
    np.testing.assert_array_equal(given, kept)


@pytest.mark.parametrize("cover", [None, 0])
def test_gradients_handed_out_are_not_written_again(cover: int | None) -> None:
    gatherer, given, kept = Gatherer(), [], []
    for job in range(4):
        results = np.full((3, SIZE), float(job + 1))
        tasks = [mini_task(job, cover=cover, place=place) for place in range(3)]
        gather(gatherer, tasks, results, round=job)
        given.append(decode(gatherer, *[term(w, round=job) for w in range(3)], job=job))
        kept.append(given[-1].copy())
    np.testing.assert_array_equal(given, kept)
    assert [vector[0] for vector in given] == [3.0, 6.0, 9.0, 12.0]


def test_blocks_take_their_memory_from_jobs_that_are_finished_until_it_is_forgotten() -> None:
    size, rows = 10_000, 20
    gatherer, results = Gatherer(), np.ones((rows, size))
    block_bytes = results.nbytes

    def bytes_at_most(job: int, *, rows: int = rows) -> int:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        gather(gatherer, [mini_task(job)] * rows, results[:rows], round=job)
        decode(gatherer, *[term(w, round=job) for w in range(rows)], job=job)
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        assert bytes_at_most(0) >= block_bytes
        assert bytes_at_most(1) < block_bytes / 2
        assert bytes_at_most(2, rows=rows // 2) < block_bytes / 4, "a smaller one fits as well"
        assert bytes_at_most(3) < block_bytes / 2
        gatherer.forget_memory()
        assert tracemalloc.get_traced_memory()[0] < block_bytes / 2
        assert bytes_at_most(4, rows=rows // 2) >= block_bytes / 2
        assert bytes_at_most(5) >= block_bytes, "what is too small is replaced"
        assert tracemalloc.get_traced_memory()[0] < 1.4 * block_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("terms", "what"),
    [
        ([term(0), term(1)], "cover 0 incompletely"),
        ([term(0), term(1), term(2), term(3)], "a place of it twice"),
        (
            [term(0), term(1), term(2, 0.5)],
            "worker 2, round 0, slot 0, a term of a plain sum, with",
        ),
        ([term(0), term(1), term(2), term(5)], "worker 5, round 0, slot 0, which has not arrived"),
        ([term(0), term(1), term(2), term(4, slot=1)], "slot 1, which has not arrived"),
        ([term(4, 0.0)], "no result"),
        ([], "no result"),
    ],
)
def test_a_decoding_that_does_not_fit_what_has_arrived_is_refused(
    terms: list[Term], what: str
) -> None:
    gatherer = Gatherer()
    tasks = [mini_task(cover=0, place=place) for place in (0, 1, 2, 1)]
    gather(gatherer, [*tasks, mini_task(), mini_task()], np.ones((5, SIZE)))
    with pytest.raises(ScheduleError, match=f"decoding of job 0 uses .*{what}") as caught:
        decode(gatherer, *terms)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cover", [None, 0])
def test_where_finite_results_overflow_the_gradient_is_not_finite(cover: int | None) -> None:
    gatherer = Gatherer()
    tasks = [mini_task(7, cover=cover, place=place) for place in range(3)]
    results = np.array([[1.0, 3e38], [2.0, 3e38], [3.0, 3e38]], dtype=np.float32)
    gather(gatherer, tasks, results)
    assert np.isfinite(decode(gatherer, *[term(w) for w in range(3)], job=7)).tolist() == [1, 0]


def test_an_answer_unlike_the_jobs_others_is_not_taken() -> None:
    gatherer = Gatherer()
    gather(gatherer, [mini_task()], np.ones((1, SIZE), dtype=np.float32))
    fair = np.ones(SIZE, dtype=np.float32)
    owed = {0: mini_task(), 2: mini_task(1, slot=2)}
    assert gatherer.flaw(owed, {0: fair, 2: np.ones(3)}) is None, "another job's may differ"
    assert gatherer.flaw({}, {0: np.ones((2, 2))}) is None, "nobody looks at what is not owed"
    expected = {
        "the answer lacks the result of slot 2": {0: fair},
        f"the result of slot 0 must be {SIZE} numbers of float32, like all results of job 0; "
        f"got {SIZE - 1} numbers of float32": {0: fair[1:], 2: fair},
        f"the result of slot 0 must be {SIZE} numbers of float32, like all results of job 0; "
        f"got {SIZE} numbers of float64": {0: fair.astype(np.float64), 2: fair},
        "the result of slot 2 must be a vector; got shape (40, 1)": {0: fair, 2: fair[:, None]},
    }
    for flaw, results in expected.items():
        assert gatherer.flaw(owed, results) == flaw
    twice = {0: mini_task(1), 1: mini_task(1, slot=1)}
    assert gatherer.flaw(twice, {0: fair, 1: fair}) is None
    assert "slot 1 must be 40 numbers" in str(gatherer.flaw(twice, {0: fair, 1: fair[1:]}))


def test_what_the_workload_says_of_results_holds_from_the_first_one_on() -> None:
    gatherer = Gatherer()
    gatherer.require(0, ResultForm(np.dtype(np.float32), 3))
    owed = {0: MiniTask(job=0, slot=0, chunks=np.array([0]), coefficients=np.ones(1))}
    assert gatherer.flaw(owed, {0: np.ones(3, np.float32)}) is None
    for wrong in (np.ones(2, np.float32), np.ones(3)):
        assert "must be 3 numbers of float32, like all results of job 0" in str(
            gatherer.flaw(owed, {0: wrong})
        )


def test_marks_never_cancel_although_weights_do() -> None:
    gatherer = Gatherer()
    gather(gatherer, [mini_task()] * 3, np.array([[1.0, 1.0], [1.0, 1.0], [5.0, 0.0]]))
    terms = (term(0, 2.0), term(1, -2.0))
    gradient = gatherer.combine(Decoding(job=0, terms=terms), marks=(slice(1, 2),))
    assert gradient.tolist() == [0.0, 4.0]


def arrive(
    gatherer: Gatherer, tasks: list[MiniTask], results: FloatArray, order: list[int]
) -> None:
    for worker, task in enumerate(tasks):
        gatherer.expect(0, [task], worker=worker)
    for worker in order:
        gatherer.take(tasks[worker], results[worker], worker=worker, round=0)


def mixed(rng: np.random.Generator, n: int) -> tuple[list[MiniTask], list[Term]]:
    """Half of the workers fill a cover's places, the others have weights."""
    tasks = [mini_task(cover=0 if w % 2 else None, place=w // 2 if w % 2 else 0) for w in range(n)]
    return tasks, [term(w, 1.0 if w % 2 else rng.normal()) for w in range(n)]


@pytest.mark.parametrize("seed", range(20))
def test_the_bits_of_a_gradient_do_not_depend_on_the_order_of_arrival(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40))
    tasks, terms = mixed(rng, n)
    results = rng.normal(size=(n, SIZE)).astype(np.float32)
    late = [w for w in range(0, n, 2) if rng.random() < 0.3]
    terms = [t for t in terms if t.worker not in late]
    gradients = []
    for also_late in (False, True, False):  # a straggler's answer may be there, and not be used
        gatherer = Gatherer()
        order = [int(w) for w in rng.permutation(n) if also_late or w not in late]
        arrive(gatherer, tasks, results, order)
        gradients.append(decode(gatherer, *terms).tobytes())
        arrive(gatherer, [mini_task(1)] * 3, 1e30 * np.ones((3, SIZE), np.float32), [0, 1, 2])
    assert len(set(gradients)) == 1


@pytest.mark.parametrize("seed", range(10))
def test_what_is_held_goes_on_elsewhere_as_if_nothing_had_happened(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, gatherer, other = 24, Gatherer(), Gatherer()
    tasks, terms = mixed(rng, n)
    results = rng.normal(size=(n, SIZE)).astype(np.float32)
    order = [int(w) for w in rng.permutation(n)]
    arrive(gatherer, tasks, results, order[: n // 2])
    held = gatherer.held()
    for worker in order[n // 2 :]:
        gatherer.take(tasks[worker], results[worker], worker=worker, round=0)
    other.restore(held)
    for worker in order[n // 2 :]:
        assert other.flaw({0: tasks[worker]}, {0: results[worker]}) is None
        assert other.flaw({0: tasks[worker]}, {0: results[worker][1:]}) is not None
        other.take(tasks[worker], results[worker], worker=worker, round=0)
    assert decode(other, *terms).tobytes() == decode(gatherer, *terms).tobytes()


@pytest.mark.parametrize("restored", [False, True])
def test_parts_are_decoded_one_by_one_in_any_order_and_then_forgotten(restored: bool) -> None:
    """Three parts of one or two places each; whoever goes on from what is held goes on alike."""
    results = np.random.default_rng(0).normal(size=(4, SIZE))
    tasks = [
        mini_task(cover=0),
        mini_task(cover=1),
        mini_task(cover=1, place=1),
        mini_task(cover=2),
    ]
    gatherer = Gatherer()
    gather(gatherer, tasks, results)
    wanted = {2: results[3], 1: 0.5 * (results[1] + results[2]), 0: results[0]}
    terms = {0: (term(0),), 1: (term(1, 0.5), term(2, 0.5)), 2: (term(3),)}
    for index, expected in wanted.items():
        part = Decoding(job=0, terms=terms[index], part=Part(index=index, of=3))
        np.testing.assert_allclose(gatherer.combine(part), expected, rtol=1e-14)
        if restored:
            held = gatherer.held()
            gatherer = Gatherer()
            gatherer.restore(held)
    assert gatherer.held() == []


@pytest.mark.parametrize(
    "terms", [(term(1),), (term(1), term(2, 0.5)), (term(0), term(1), term(2)), (term(3),), ()]
)
def test_a_part_that_is_not_its_whole_cover_with_one_weight_is_refused(
    terms: tuple[Term, ...],
) -> None:
    tasks = [
        mini_task(cover=0),
        mini_task(cover=1),
        mini_task(cover=1, place=1),
        mini_task(cover=2),
    ]
    gatherer = Gatherer()
    gather(gatherer, tasks, np.ones((3, SIZE)))
    with pytest.raises(ScheduleError, match="part 1"):
        gatherer.combine(Decoding(job=0, terms=terms, part=Part(index=1, of=3)))
