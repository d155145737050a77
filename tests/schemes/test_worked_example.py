"""The paper's example (section 3.3.1), mini-task by mini-task: n=4, B=2, W=3, lam=2."""

from __future__ import annotations

import numpy as np
import pytest

from seqgc.ports import BoolArray, MiniTask
from seqgc.schemes import MSGC, chunk_sizes

SCHEME = MSGC(n=4, B=2, W=3, lam=2)

# Stragglers by round: one worker for one round, another for two, as in the paper's walk-through.
STRAGGLERS = {0: {0}, 1: {0, 3}}

# The tasks of each round, by worker: (job, chunks) of each mini-task, in order of slots. D1 chunks
# are 0..7 (worker i owns 2i and 2i+1); the two D2 groups are 8..11 and 12..15, and worker i holds
# the three chunks from its own on, cyclically.
TABLE = {
    0: [[(0, [0])], [(0, [2])], [(0, [4])], [(0, [6])]],
    1: [
        [(1, [0]), (0, [1])],
        [(1, [2]), (0, [3])],
        [(1, [4]), (0, [5])],
        [(1, [6]), (0, [7])],
    ],
    2: [
        [(2, [0]), (1, [1]), (0, [0])],  # job 0: chunk 0 was lost in round 0
        [(2, [2]), (1, [3]), (0, [9, 10, 11])],
        [(2, [4]), (1, [5]), (0, [10, 11, 8])],
        [(2, [6]), (1, [7]), (0, [7])],  # job 0: chunk 7 was lost in round 1
    ],
    3: [
        [(3, [0]), (2, [1]), (1, [0]), (0, [1])],  # lost in rounds 1 and 1
        [(3, [2]), (2, [3]), (1, [9, 10, 11]), (0, [13, 14, 15])],
        [(3, [4]), (2, [5]), (1, [10, 11, 8]), (0, [14, 15, 12])],
        [(3, [6]), (2, [7]), (1, [6]), (0, [15, 12, 13])],
    ],
    4: [
        [(3, [1]), (2, [8, 9, 10]), (1, [12, 13, 14])],
        [(3, [3]), (2, [9, 10, 11]), (1, [13, 14, 15])],
        [(3, [5]), (2, [10, 11, 8]), (1, [14, 15, 12])],
        [(3, [7]), (2, [11, 8, 9]), (1, [15, 12, 13])],
    ],
    5: [
        [(3, [8, 9, 10]), (2, [12, 13, 14])],
        [(3, [9, 10, 11]), (2, [13, 14, 15])],
        [(3, [10, 11, 8]), (2, [14, 15, 12])],
        [(3, [11, 8, 9]), (2, [15, 12, 13])],
    ],
    6: [
        [(3, [12, 13, 14])],
        [(3, [13, 14, 15])],
        [(3, [14, 15, 12])],
        [(3, [15, 12, 13])],
    ],
}
FINISHED = {0: (), 1: (), 2: (), 3: (0,), 4: (1,), 5: (2,), 6: (3,)}


def answers(round: int) -> BoolArray:
    responded = np.ones(4, dtype=np.bool_)
    responded[list(STRAGGLERS.get(round, ()))] = False
    return responded


def shown(tasks: tuple[MiniTask, ...]) -> list[tuple[int, list[int]]]:
    return [(task.job, task.chunks.tolist()) for task in tasks]


def test_the_mini_tasks_of_every_round_are_the_papers() -> None:
    schedule = SCHEME.start(4)
    for round, table in TABLE.items():
        assert [shown(tasks) for tasks in schedule.assignment()] == table, f"round {round}"
        for tasks in schedule.assignment():
            assert [task.slot for task in tasks] == [round - task.job for task in tasks]
        assert schedule.conforms(answers(round))
        assert schedule.close_round(answers(round)) == FINISHED[round], f"round {round}"
    assert schedule.round == schedule.num_rounds == 7


def test_job_0_is_decoded_from_the_results_that_the_paper_names() -> None:
    schedule = SCHEME.start(4)
    for round in range(4):
        schedule.close_round(answers(round))
    terms = schedule.decoding(0).terms
    uncoded = {(t.worker, t.round): t.slot for t in terms if t.weight == 1.0}
    first_group = {t.worker for t in terms if t.round == 2 and t.worker in (1, 2)}
    second_group = {t.worker for t in terms if t.round == 3 and t.worker != 0}
    assert {key for key in uncoded if key[0] == 0} == {(0, 2), (0, 3)}
    assert first_group == {1, 2}
    assert second_group <= {1, 2, 3}
    assert len(second_group) >= 2


def test_delay_load_and_chunks_are_the_papers() -> None:
    assert SCHEME.delay == 3
    assert SCHEME.normalized_load == pytest.approx(3 / 8, rel=1e-15)
    assert chunk_sizes(32, SCHEME.chunk_fractions).tolist() == [3] * 8 + [1] * 8
    assert SCHEME.chunk_fractions[0] * 16 == pytest.approx(1.5)
