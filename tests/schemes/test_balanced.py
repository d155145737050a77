"""Uneven shares: what is spelt is what is done, to the point; nobody without a share is asked."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.errors import ParameterError
from seqgc.master import run
from seqgc.ports import Dispatch, Seen
from seqgc.rounds import ClosingRule, RoundPolicy, Setting
from seqgc.schemes import Balanced, Schedule, parse_scheme
from seqgc.search import ReplayBackend
from seqgc.testing import ChunkWorkload, check_scheme

SHARES = st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any)


@given(shares=SHARES, data=st.data())
def test_a_scheme_is_what_its_spec_and_its_repr_say(shares: list[int], data: st.DataObject) -> None:
    blocks = data.draw(st.lists(st.integers(1, 3), min_size=len(shares), max_size=len(shares)))
    scheme = Balanced.of(shares, blocks=blocks)
    assert parse_scheme(scheme.spec, n=len(shares)) == scheme == eval(repr(scheme))
    assert pickle.loads(pickle.dumps(scheme)) == scheme
    assert hash(parse_scheme(scheme.spec, n=len(shares))) == hash(scheme)
    assert scheme.parts.tolist() == shares


def test_equal_shares_in_a_row_are_spelt_once() -> None:
    scheme = Balanced.of([1] * 255 + [3])
    assert scheme.spec == "balanced:shares=1x255-3"
    assert Balanced(n=4, shares="2-2-1-1") == Balanced(n=4, shares="2x2-1x2")
    assert Balanced(n=2, shares="2-1", blocks="1-1") == Balanced(n=2, shares="2-1")


@given(shares=SHARES)
def test_a_batch_of_as_many_points_as_parts_is_cut_into_the_shares(shares: list[int]) -> None:
    scheme = Balanced.of(shares)
    sizes = scheme.cut(sum(shares))
    assert sizes.tolist() == [share for share in shares if share]
    assert scheme.points_touched(sizes).tolist() == shares
    assert scheme.loads_of(sum(shares)) == pytest.approx(np.array(shares) / sum(shares))


def test_blocks_divide_a_share_evenly_and_each_is_a_result_of_its_own() -> None:
    scheme = Balanced.of([6, 4, 0, 2], blocks=[3, 2, 5, 1])
    assert scheme.cut(12).tolist() == [2, 2, 2, 2, 2, 2]
    tasks = list(scheme.start(1).assignment())
    assert [[task.slot for task in own] for own in tasks] == [[0, 1, 2], [0, 1], [], [0]]
    assert [[task.chunks.tolist() for task in own] for own in tasks] == [
        [[0], [1], [2]],
        [[3], [4]],
        [],
        [[5]],
    ]


@pytest.mark.parametrize("blocks", ["", "2-1-3"])
@pytest.mark.parametrize("shares", ["1-2-3", "0-2-3", "1x3", "0x2-5", "7-7-2"])
def test_it_keeps_the_contract(shares: str, blocks: str) -> None:
    check_scheme(Balanced(n=3, shares=shares, blocks=blocks), patterns=4)


def played(schedule: Schedule, scheme: Balanced, workers: list[float]) -> list[Seen]:
    """What is seen of a run on workers of these seconds, with gradients."""
    seen: list[Seen] = []
    workload = ChunkWorkload(scheme, seed=3)
    backend = ReplayBackend(np.array([workers] * 2), compute=workload.compute)
    run(RoundPolicy(schedule, ClosingRule()), backend, workload, observe=seen.append)
    assert max(workload.errors.values()) <= 1e-12
    assert sorted(workload.errors) == [0, 1]
    return seen


def test_who_has_no_share_is_asked_for_nothing_and_never_waited_for() -> None:
    scheme = Balanced(n=3, shares="2-0-1")
    seen = played(scheme.begin(2), scheme, [1.0, 99.0, 2.0])
    asked = [list(each.assignment) for each in seen if isinstance(each, Dispatch)]
    assert asked == [[0, 2], [0, 2]]
    assert scheme.worker_loads.tolist() == pytest.approx([2 / 3, 0, 1 / 3])
    assert scheme.start(1).excused.tolist() == [False, True, False]


def test_blocks_without_a_point_are_never_sent() -> None:
    scheme = Balanced(n=3, shares="4-4-1", blocks="4-4-1")
    schedule = scheme.begin(2, batches=[3])
    held = scheme.cut(3)
    sent = [task.chunks.tolist() for own in schedule.assignment() for task in own]
    assert sent == [[chunk] for chunk in np.flatnonzero(held).tolist()]
    assert len(sent) == 3
    assert schedule.leaves_out


@pytest.mark.parametrize(
    ("shares", "blocks", "rule"),
    [
        ("1-2", "", "`shares` must list one integer for each of n=3 workers; got '1-2'"),
        ("1-2-3-4", "", "`shares` must list one integer for each of n=3 workers"),
        ("1-2--3", "", "`shares` must be integers from 0 to 1000000000 joined by '-'"),
        ("1x99999999999", "", "`shares` must be integers from 0"),
        ("0x3", "", "`shares` must not all be 0"),
        (3, "", "`shares` must be integers from 0"),
        ("1x3", "0-1x2", "`blocks` must be integers from 1 to 1000"),
        ("1x3", "1001x3", "`blocks` must be integers from 0 to 1000"),
    ],
)
def test_what_cannot_be_is_refused(shares: str, blocks: str, rule: str) -> None:
    with pytest.raises(ParameterError, match=rule):
        Balanced(n=3, shares=shares, blocks=blocks)


def test_it_is_a_setting_like_any_other() -> None:
    assert (
        Setting(scheme=Balanced(n=2, shares="3-1")).label == "balanced:shares=3-1, mu=0, feasible"
    )
