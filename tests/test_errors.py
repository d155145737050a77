"""The one check of integers, of any type but bools and floats; and the one of finite numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.profiles import DisruptedMachine, PowerLaw


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3)])
def test_an_integer_of_any_type_is_kept_as_an_int(value: object) -> None:
    found = require_int("s", value, least=3, most=3)
    assert (type(found), found) == (int, 3)


@pytest.mark.parametrize(
    ("value", "least", "most", "message"),
    [
        (True, None, None, "`s` must be an integer; got True"),
        (np.True_, None, None, "`s` must be an integer; got np.True_"),
        (2.0, 0, None, "`s` must be an integer >= 0; got 2.0"),
        ("2", None, 4, "`s` must be an integer <= 4; got '2'"),
        (None, 1, 4, "`s` must be an integer >= 1 and <= 4; got None"),
        (np.int16(5), 1, 4, "`s` must be an integer >= 1 and <= 4; got 5"),
        (-1, 0, None, "`s` must be an integer >= 0; got -1"),
        (10**30, None, 4, f"`s` must be an integer <= 4; got {10**30}"),
    ],
)
def test_what_is_refused_is_named_with_its_rule(
    value: object, least: int | None, most: int | None, message: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        require_int("s", value, least=least, most=most)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "bounds", "rule"),
    [
        (-0.5, {"least": 0}, " >= 0"),
        (math.nan, {"least": 0}, " >= 0"),
        (math.inf, {"above": 1}, " > 1"),
        (1.0, {"above": 1}, " > 1"),
        (math.inf, {}, ""),
        (9.5, {"least": 0, "most": 9}, " >= 0 and <= 9"),
    ],
)
def test_a_number_must_be_finite_and_in_range(
    value: float, bounds: dict[str, float], rule: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        require_number("mu", value, **bounds)
    assert str(caught.value) == f"`mu` must be a finite number{rule}; got {value!r}"
    assert require_number("mu", 2.5, **bounds) == 2.5


def test_integers_of_numpy_leave_no_trace_in_what_keeps_them() -> None:
    narrow = {name: np.int8(120) for name in ("first", "size", "start")}
    base = PowerLaw(least_s=0.5, index=3.0)
    made = DisruptedMachine(base=base, stop=np.int16(130), factor=2.0, **narrow)
    assert made == DisruptedMachine(base=base, first=120, size=120, start=120, stop=130, factor=2.0)
    assert "np." not in repr(made)
    profile = made.profile(np.int8(125), workers=240, rng=np.random.default_rng(0))  # 120 + 120
    assert profile.times.shape == (125, 240)
