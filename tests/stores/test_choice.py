"""Which store a run should use."""

from __future__ import annotations

from typing import Any

import pytest

from seqgc.errors import ParameterError
from seqgc.stores import (
    INLINE_OUTSIDE_BYTES,
    INLINE_ROUND_BYTES,
    StoreChoice,
    choose_store,
)
from seqgc.wire import MESSAGE_LIMIT_BYTES

MB = 10**6
LIMIT = MESSAGE_LIMIT_BYTES
CHEAP_OBJECTS = {"directory": 0.5, "s3": 0.25}


def chosen(
    request_bytes: int, reply_bytes: int, *, workers: int = 2, **usd: float | None
) -> StoreChoice:
    known: dict[Any, float | None] = dict(usd)
    return choose_store(
        request_bytes=request_bytes, reply_bytes=reply_bytes, workers=workers, round_usd=known
    )


@pytest.mark.parametrize("usd", [{}, {"s3": 0.0}, CHEAP_OBJECTS])
def test_what_fits_travels_and_needs_no_store(usd: dict[str, float]) -> None:
    choice = chosen(LIMIT, LIMIT, **usd)
    assert choice.kind == "inline"
    assert (
        str(choice)
        == "inline (6.29 MB of request and 6.29 MB of reply fit the 6.29 MB of a message)"
    )


@pytest.mark.parametrize("sizes", [(LIMIT + 1, 1), (1, LIMIT + 1)])
def test_what_does_not_fit_goes_where_it_is_cheaper(sizes: tuple[int, int]) -> None:
    cheaper = chosen(*sizes, **CHEAP_OBJECTS)
    assert cheaper.kind == "s3"
    assert cheaper.reason.startswith(
        "$0.2500 a round, on the directory $0.5000; more than the 6.29"
    )
    dearer = chosen(*sizes, directory=0.25, s3=0.5)
    assert (dearer.kind, dearer.reason[:7]) == ("directory", "$0.2500")
    assert chosen(*sizes, directory=0.25, s3=0.25).kind == "directory"  # the faster one


def test_a_master_sends_no_more_than_it_can_in_passing() -> None:
    each = INLINE_ROUND_BYTES // 64
    assert chosen(each, 1, workers=64, **CHEAP_OBJECTS).kind == "inline"
    more = chosen(each, 1, workers=65, **CHEAP_OBJECTS)
    assert (more.kind, more.reason[-35:]) == ("s3", "; messages would add up to 68.16 MB")
    assert chosen(each, 1, workers=65).kind == "inline"  # there is nothing else
    assert chosen(1, each, workers=65, **CHEAP_OBJECTS).kind == "inline"  # workers reply


@pytest.mark.parametrize(("workers", "kind"), [(8, "inline"), (9, "s3")])
def test_a_master_outside_has_a_slower_way(workers: int, kind: str) -> None:
    choice = choose_store(
        request_bytes=INLINE_OUTSIDE_BYTES // 8,
        reply_bytes=1,
        workers=workers,
        round_usd={"s3": 0.0},
        master_outside=True,
    )
    assert choice.kind == kind


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_the_one_store_in_reach_is_taken_whatever_it_costs(kind: str) -> None:
    choice = chosen(LIMIT + 1, 1, **{kind: 9.0})
    assert str(choice) == f"{kind} (the only store available; more than the 6.29 MB of a message)"


def test_without_prices_it_is_the_quicker_one() -> None:
    choice = chosen(LIMIT + 1, 1, directory=None, s3=None)
    assert choice.kind == "directory"
    assert choice.reason.startswith("the faster one; ")


def test_without_a_store_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"^`store` must exist .*22000000 .*deploy with EFS"):
        chosen(22 * MB, 22 * MB)
