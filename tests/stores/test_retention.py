"""Old versions go when nobody can want them any more; the clock is wound by hand."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.errors import ParameterError, StoreError
from seqgc.stores import MemoryStore, RetiringStore
from seqgc.testing import HandWoundClock


def test_a_straggler_finds_its_weights_until_rounds_and_seconds_have_passed() -> None:
    clock, kept = HandWoundClock(), MemoryStore()
    store = RetiringStore(kept, rounds=3, grace_s=60.0, now=clock.now)
    store.advance(10)
    ref = store.publish("cnn", 0, np.ones(2))
    store.discard(ref)
    clock.wind(61)
    assert store.advance(12) == 0  # long ago, but two rounds only
    np.testing.assert_array_equal(store.fetch(ref), np.ones(2))
    assert store.advance(13) == 1
    with pytest.raises(StoreError, match="publish"):
        kept.fetch(ref)


def test_fast_rounds_do_not_shorten_the_grace_period() -> None:
    clock, kept = HandWoundClock(), MemoryStore()
    store = RetiringStore(kept, rounds=1, grace_s=60.0, now=clock.now)
    store.put("result-0", b"1")
    store.remove("result-0")
    clock.wind(59.9)
    assert store.advance(1000) == 0
    assert store.get("result-0", digest=hashlib.sha256(b"1").hexdigest(), size_bytes=1) == b"1"
    clock.wind(0.1)
    assert store.advance(1000) == 1
    with pytest.raises(StoreError, match="nothing is stored"):
        kept.get("result-0", digest="", size_bytes=1)


def test_at_the_end_everything_that_was_let_go_goes_at_once() -> None:
    kept = MemoryStore()
    store = RetiringStore(kept, rounds=5, grace_s=1e6, now=HandWoundClock().now)
    refs = [store.publish("cnn", version, np.ones(1)) for version in range(3)]
    for ref in refs[:2]:
        store.discard(ref)
        store.discard(ref)
    store.close()
    store.close()
    for ref in refs[:2]:
        with pytest.raises(StoreError):
            kept.fetch(ref)
    np.testing.assert_array_equal(kept.fetch(refs[2]), np.ones(1))


def test_what_is_stored_again_is_not_deleted_for_what_was_let_go_before() -> None:
    """A model that has left the training has one version, which comes and goes with its bundle."""
    clock, kept = HandWoundClock(), MemoryStore()
    store = RetiringStore(kept, rounds=1, grace_s=60.0, now=clock.now)
    ref = store.publish("cnn", 1, np.ones(2))
    store.put("blob", b"1")
    store.discard(ref)
    store.remove("blob")
    clock.wind(59)
    assert store.publish("cnn", 1, np.ones(2)) == ref
    store.put("blob", b"1")
    clock.wind(61)
    assert store.advance(5) == 0
    np.testing.assert_array_equal(store.fetch(ref), np.ones(2))
    store.discard(ref)
    store.remove("blob")
    assert store.advance(9) == 0
    clock.wind(60)
    assert store.advance(9) == 2


class Remembering(MemoryStore):
    """A store that knows what was removed from it, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: list[str] = []

    def remove(self, key: str) -> None:
        self.removed.append(key)


@given(
    rounds=st.integers(0, 4),
    grace_s=st.integers(0, 20),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10), st.booleans()), max_size=30),
)
def test_each_item_is_due_once_and_never_early(
    rounds: int, grace_s: int, steps: list[tuple[int, int, bool]]
) -> None:
    kept, clock = Remembering(), HandWoundClock(0.0)
    store = RetiringStore(kept, rounds=rounds, grace_s=grace_s, now=clock.now)
    round, now, retired = 0, 0, {}
    for item, (later, seconds, retire) in enumerate(steps):
        round, now = round + later, now + seconds
        clock.wind(seconds)
        if retire:
            store.advance(round)
            store.remove(str(item))
            retired[str(item)] = (round, now)
        store.advance(round)
        old = [i for i, (r, at) in retired.items() if round - r >= rounds and now - at >= grace_s]
        assert kept.removed == old
    store.close()
    assert kept.removed == list(retired)
    store.close()
    assert kept.removed == list(retired)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"rounds": -1, "grace_s": 0.0}, "`rounds` must be an integer >= 0"),
        ({"rounds": 1.5, "grace_s": 0.0}, "`rounds` must be an integer >= 0"),
        ({"rounds": 1, "grace_s": -1.0}, "`grace_s` must be finite seconds >= 0"),
        ({"rounds": 1, "grace_s": float("nan")}, "`grace_s` must be finite seconds >= 0"),
    ],
)
def test_rounds_and_seconds_are_counts(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(ParameterError, match=rule):
        RetiringStore(MemoryStore(), **arguments)
