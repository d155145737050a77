"""Shards are to do, being done, or done, at all times; batches are done again with them, or not."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.errors import ParameterError, ScheduleError
from seqgc.shards import Resume, ShardService


def states(service: ShardService) -> tuple[list[int], list[int], list[int]]:
    return list(service.todo), list(service.doing.values()), sorted(service.finished)


@pytest.mark.parametrize(
    ("points", "b", "M", "shards"),
    [(0, 1, 1, 0), (1, 1, 1, 1), (12, 2, 3, 2), (13, 2, 3, 3), (5, 10, 2, 1)],
)
def test_there_are_as_many_shards_as_hold_all_points(
    points: int, b: int, M: int, shards: int
) -> None:
    service = ShardService(points, b=b, M=M)
    assert service.num_shards == shards
    taken = [service.take(worker) for worker in range(shards)]
    assert service.take(shards) is None
    parts = [service.points_of(shard) for shard in taken if shard is not None]
    assert [point for part in parts for point in part] == list(range(points))
    assert [shard.batches for shard in taken if shard] == [-(-len(part) // b) for part in parts]


def test_a_shard_that_was_called_off_is_still_not_for_the_worker_that_lost_it() -> None:
    service = ShardService(1)
    service.take(0)
    service.lost(0)
    assert service.take(0, again=False) is None
    service.take(1, again=False)
    service.lost(1, called_off=True)
    assert service.take(0, again=False) is None
    assert service.take(1, again=False) is not None


class Crew:
    """Three workers who do the batches of shards, and note which they have done, or done again."""

    def __init__(self, points: int, b: int, M: int, resume: Resume) -> None:
        self.new = lambda: ShardService(points, b=b, M=M, resume=resume, seed=3, epoch=1)
        self.service = self.new()
        self.most_again = M - 1 if resume == "shard" else 0  # of a shard that is lost
        self.lost = 0
        self.at: dict[int, tuple[int, int]] = {}  # by worker: shard and batch
        self.done: Counter[tuple[int, int]] = Counter()

    def move(self, move: str, worker: int) -> None:
        {"take": self.take, "do": self.do, "lose": self.lose}[move](worker)
        assert sorted(chain(*states(self.service))) == list(range(self.service.num_shards))

    def take(self, worker: int) -> None:
        if worker not in self.at and (shard := self.service.take(worker)) is not None:
            self.at[worker] = shard.number, shard.first
            known = [batch for number, batch in self.done if number == shard.number]
            assert sorted(known) == list(range(shard.known))

    def do(self, worker: int) -> None:
        if worker in self.at:
            number, batch = self.at.pop(worker)
            self.done[number, batch] += 1
            assert self.service.shard_of(worker)[1] == batch
            self.service.advance(number, worker)
            if worker in self.service.doing:
                self.at[worker] = number, batch + 1

    def lose(self, worker: int) -> None:
        if worker in self.at:
            number, _ = self.at.pop(worker)
            self.service.lost(worker)
            self.lost += 1
            assert self.service.todo[-1] == number

    def resume(self) -> None:
        state = json.loads(json.dumps(self.service.checkpoint()))
        todo, doing, _ = states(self.service)
        self.lost += len(doing)
        self.service, self.at = self.new(), {}
        self.service.restore(state)
        assert list(self.service.todo) == doing + todo


MOVES = st.tuples(st.sampled_from(["take", "do", "do", "lose", "resume"]), st.integers(0, 2))


@given(
    st.lists(MOVES, max_size=60),
    st.integers(0, 40),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from(["part", "shard"]),
)
def test_every_batch_is_done_once_or_with_its_shard_again_whoever_is_lost_and_if_it_is_resumed(
    moves: list[tuple[str, int]], points: int, b: int, M: int, resume: Resume
) -> None:
    crew = Crew(points, b, M, resume)
    for move, worker in moves:
        if move == "resume":
            crew.resume()
        else:
            crew.move(move, worker)
    while not crew.service.all_done:
        for worker in range(3):
            crew.move("take", worker)
            crew.move("do", worker)
    assert len(crew.service.finished) == crew.service.num_shards == -(-points // (b * M))
    assert len(crew.done) == -(-points // b)  # at least once
    assert crew.done.total() - len(crew.done) <= crew.most_again * crew.lost


def test_a_lost_shard_goes_to_the_end_and_on_at_its_first_batch_that_is_not_done() -> None:
    service = ShardService(9, M=3)
    assert service.take(4) is not None
    service.advance(0, 4)
    service.advance(0, 4)
    service.lost(4)
    assert service.todo == (1, 2, 0)
    assert [shard.first for worker in (4, 5, 6) if (shard := service.take(worker))] == [0, 0, 2]


def test_a_lost_shard_may_have_to_begin_anew_and_knows_what_has_been_done_before() -> None:
    service = ShardService(4, M=4, resume="shard")
    for batches in (2, 1):  # fewer the second time
        assert service.take(0) is not None
        for _ in range(batches):
            service.advance(0, 0)
        service.lost(0)
    assert service.checkpoint()["todo"] == [[0, 2]]
    shard = service.take(1)
    assert shard is not None
    assert (shard.first, shard.known) == (0, 2)
    for _ in range(4):
        assert not service.all_done
        service.advance(0, 1)
    assert service.all_done


def test_a_whole_shard_can_be_done_at_once() -> None:
    service = ShardService(6, M=3)
    assert service.take(0) is not None
    service.done(0, 0)
    assert service.finished == {0}
    assert service.take(0) is not None
    service.done(1, 0)
    assert service.all_done


def test_an_illegal_move_raises_and_changes_nothing() -> None:
    service = ShardService(8, M=2)
    assert service.take(0) is not None
    service.advance(0, 0)
    assert service.take(1) is not None
    service.done(1, 1)
    before = service.checkpoint(), states(service)
    moves = [
        lambda: service.take(0),  # it has one
        lambda: service.advance(1, 0),  # which is another
        lambda: service.done(2, 0),
        lambda: service.done(1, 1),  # it is done
        lambda: service.done(0, 1),  # it is another's
        lambda: service.lost(1),  # it has none
        lambda: service.lost(7),
        lambda: service.end_at(1),  # its second batch has begun
    ]
    for move in moves:
        with pytest.raises(ScheduleError):
            move()
        assert (service.checkpoint(), states(service)) == before


def test_an_epoch_can_end_early() -> None:
    service = ShardService(9, M=3)
    assert service.take(0) is not None
    service.end_at(5)
    assert service.num_shards == 2
    assert service.todo == (1,)
    service.end_at(2)
    assert service.num_shards == 1
    service.advance(0, 0)
    assert service.doing == {0: 0}
    service.advance(0, 0)
    assert service.all_done


def test_the_order_is_drawn_between_shards_and_within() -> None:
    drawn = []
    for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0)):
        service = ShardService(60, b=2, M=5, seed=seed, epoch=epoch)
        shards = [shard for worker in range(6) if (shard := service.take(worker))]
        order = np.concatenate([service.points_of(shard) for shard in shards])
        assert sorted(order) == list(range(60))
        for shard in shards:
            assert set(service.points_of(shard)) == set(
                range(shard.start, shard.start + shard.length)
            )
        drawn.append(([shard.number for shard in shards], order.tolist()))
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[2][0] != drawn[3][0]
    assert drawn[0][1][:10] != sorted(drawn[0][1][:10])


@pytest.mark.parametrize(
    "state",
    [
        {"points": 9, "todo": []},  # more than there are
        {"points": 8, "todo": [[0, 0], [0, 1]]},
        {"points": 8, "todo": [[4, 0]]},
        {"points": 8, "todo": [[-1, 0]]},
        {"points": 8, "todo": [[1, 2]]},  # it would be done
        {"points": 7, "todo": [[3, 1]]},
    ],
)
def test_a_state_of_another_epoch_is_refused(state: dict[str, object]) -> None:
    service = ShardService(8, M=2)
    before = service.checkpoint()
    with pytest.raises(ParameterError, match="state"):
        service.restore(state)  # type: ignore[arg-type]
    assert service.checkpoint() == before


@pytest.mark.parametrize("argument", ["points", "b", "M", "seed", "epoch", "resume"])
def test_a_wrong_argument_is_refused(argument: str) -> None:
    with pytest.raises(ParameterError, match=argument):
        ShardService(**{"points": 4, argument: -1})  # type: ignore[arg-type]
