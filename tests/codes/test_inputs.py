"""Wrong arguments: one line that names the argument, the rule and the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest

from seqgc.codes import BinaryCode, CyclicCode, FractionalRepetitionCode, make_code
from seqgc.errors import ParameterError
from tests.codes.registry import KINDS

CODE = CyclicCode(4, 1)
ALL = np.ones(4, dtype=np.bool_)
RESULTS = np.zeros((4, 2))

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no workers": (lambda: CyclicCode(0, 0), "`n` must be an integer >= 1; got 0"),
    "s = n": (lambda: BinaryCode(4, 4), "`s` must satisfy 0 <= s < n, n=4; got 4"),
    "s < 0": (lambda: CyclicCode(4, -1), "`s` must satisfy 0 <= s < n, n=4; got -1"),
    "n is a float": (
        lambda: CyclicCode(cast("int", 4.0), 1),
        "`n` must be an integer >= 1; got 4.0",
    ),
    "s is a bool": (lambda: CyclicCode(4, True), "`s` must be an integer; got True"),
    "groups do not fit": (
        lambda: FractionalRepetitionCode(6, 3),
        (
            "`s` must be such that s + 1 divides n (repetition code), n=6; got 3"
            " (the binary code takes any n and s)"
        ),
    ),
    "unknown kind": (
        lambda: make_code("ring", 4, 1),
        "`kind` must be one of auto, rep, cyclic, binary; got 'ring'",
    ),
    "misspelt kind": (
        lambda: make_code("cylic", 4, 1),
        ("`kind` must be one of auto, rep, cyclic, binary; got 'cylic' (did you mean 'cyclic'?)"),
    ),
    "no such worker": (
        lambda: CODE.support(4),
        "`worker` must be an integer >= 0 and <= 3; got 4",
    ),
    "worker counted from the end": (
        lambda: CODE.encode(-1, np.zeros((2, 2))),
        "`worker` must be an integer >= 0 and <= 3; got -1",
    ),
    "mask of integers": (
        lambda: CODE.can_decode(cast("np.ndarray", np.ones(4, dtype=np.int64))),
        "`responded` must be a numpy array of bool; got 'int64'",
    ),
    "mask is a list": (
        lambda: CODE.decoding_vector(cast("np.ndarray", [True] * 4)),
        "`responded` must be a numpy array of bool; got 'list'",
    ),
    "mask of other length": (
        lambda: CODE.decode(RESULTS, np.ones(5, dtype=np.bool_)),
        "`responded` must have shape (4,); got (5,)",
    ),
    "integer results": (
        lambda: CODE.decode(cast("np.ndarray", np.zeros((4, 2), dtype=np.int64)), ALL),
        "`results` must be a numpy array of floats; got 'int64'",
    ),
    "results of another n": (
        lambda: CODE.decode(np.zeros((3, 2)), ALL),
        "`results` must have shape (n, p) with 4 rows; got (3, 2)",
    ),
    "too few partials": (
        lambda: CODE.encode(0, np.zeros((1, 2))),
        "`partials` must have shape (|support|, p) with 2 rows; got (1, 2)",
    ),
    "partials of one dimension": (
        lambda: CODE.encode(0, np.zeros(2)),
        "`partials` must have shape (|support|, p) with 2 rows; got (2,)",
    ),
    "tolerance is NaN": (
        lambda: CODE.decode(RESULTS, ALL, tolerance=float("nan")),
        "`tolerance` must be positive; got nan",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_is_named(what: str) -> None:
    call, message = WRONG[what]
    with pytest.raises(ParameterError) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize("kind", KINDS)
def test_integers_of_numpy_are_integers(kind: str) -> None:
    code = make_code(kind, cast("int", np.int64(4)), cast("int", np.uint8(1)))
    assert code == make_code(kind, 4, 1)
    assert repr(code).endswith("(n=4, s=1)")
    np.testing.assert_array_equal(code.support(cast("int", np.int32(3))), code.support(3))


def test_narrow_integers_do_not_overflow() -> None:
    narrow = BinaryCode(cast("int", np.int16(256)), cast("int", np.int16(1)))  # 128 * 129 > 2**15
    assert narrow.chunk_fractions.tolist() == BinaryCode(256, 1).chunk_fractions.tolist()
