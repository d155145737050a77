"""`check_code`: whether a gradient code keeps its contract."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np

from seqgc.codes import GradientCode
from seqgc.errors import IllConditionedError, NotDecodableError, ParameterError
from seqgc.ports import BoolArray, FloatArray, IntArray
from seqgc.testing._complaints import calling, check_value, complaining, refuses

__all__ = ["check_code"]

_ALL_SETS = 1024  # try every set of survivors if there are no more
_DRAWN_SETS = 300  # else so many, and n sets of neighbours

# What sums of a few dozen numbers may err by, relative to the sum of their magnitudes.
_ROUNDING = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2}

# Rounding in float64; times the code's own amplification of it, where it has any.
_EXACT = 1e-11

# Nearer to the span than this, and not decodable, cannot be told from decodable in float64.
_SPANNED = 1e-7


def check_code(code: GradientCode, *, seed: int = 0) -> None:
    """Check that a code does what every `GradientCode` promises.

    Supports, coefficients, loads and the encoding matrix agree; any ``n - s`` answers decode, and
    whatever else `can_decode` accepts, to the sum of the partial gradients, without the results of
    who is missing; what it refuses cannot be decoded; the covers add up; arrays are read-only;
    equal content is equal, hashes, pickles and prints alike; wrong arguments are named.
    Few survivor sets are all tried, many are sampled. A code of about a hundred workers takes
    seconds; several small ``n`` and ``s`` find more than one large pair.

    Parameters
    ----------
    code
        Of a class defined at the top of a module, so that it can be pickled.
    seed : int
        Of the survivors and partial gradients drawn.

    Raises
    ------
    AssertionError
        With one line: the code, what is broken, and for which worker or survivors.

    Examples
    --------
    A test of all codes of a family for up to four workers:

    >>> from seqgc.codes import make_code
    >>> for n in range(1, 5):
    ...     for s in range(n):
    ...         check_code(make_code("binary", n, s))

    On a ring of five, sums of neighbours are not enough:

    >>> from seqgc.codes import Layout
    >>> @dataclasses.dataclass(frozen=True)
    ... class RingCode(GradientCode):
    ...     def _make_layout(self) -> Layout:
    ...         ring = (np.arange(self.n)[:, None] + np.arange(self.s + 1)) % self.n
    ...         return Layout(supports=tuple(ring), sizes=np.ones(self.n))
    >>> check_code(RingCode(5, 1))
    Traceback (most recent call last):
        ...
    AssertionError: RingCode(n=5, s=1): survivors [0, 1, 2, 3] cannot be decoded: ...
    """
    rng = np.random.default_rng(seed)
    with complaining(repr(code)):
        assert isinstance(code, GradientCode), "is no seqgc.codes.GradientCode"
        _check_layout(code)
        _check_results(code, rng)
        _check_covers(code, rng)
        _check_survivors(code, rng)
        _check_content(code)
        _check_refusals(code)


def _check_array(name: str, array: object, shape: tuple[int, ...], kind: str = "f") -> None:
    """Require a read-only array of this shape: of float64, or of integers (``kind`` "i")."""
    assert isinstance(array, np.ndarray), f"{name} is no numpy array"
    fits = array.dtype == np.float64 if kind == "f" else array.dtype.kind == kind
    assert fits, f"{name} is of {array.dtype}"
    assert array.shape == shape, f"{name} has shape {array.shape}, not {shape}"
    assert not array.flags.writeable, f"{name} can be written to"
    assert np.isfinite(array).all(), f"{name} is not finite"


# ---- who computes what --------------------------------------------------------------------------


def _check_layout(code: GradientCode) -> None:
    with calling("the layout"):
        fractions, matrix, loads = code.chunk_fractions, code.encoding_matrix, code.worker_loads
    chunks, most = len(fractions), float(loads.max())
    _check_array("chunk_fractions", fractions, (chunks,))
    assert (fractions > 0).all(), "chunk_fractions are not all positive"
    assert abs(fractions.sum() - 1) < _EXACT, f"chunk_fractions add to {fractions.sum()}"
    _check_array("encoding_matrix", matrix, (code.n, chunks))
    _check_array("worker_loads", loads, (code.n,))
    assert code.load == most, f"load is {code.load:g}, the largest of all {most:g}"
    for worker, row in enumerate(matrix):
        support, values = code.support(worker), code.coefficients(worker)
        _check_array(f"support({worker})", support, (len(support),), kind="i")
        _check_array(f"coefficients({worker})", values, (len(support),))
        distinct = set(support.tolist())
        assert distinct <= set(range(chunks)), f"support({worker}) is {distinct}, k={chunks}"
        assert len(distinct) == len(support), f"support({worker}) repeats chunks"
        assert values.all(), f"coefficients({worker}) has zeros"
        agrees = (row[support] == values).all() and np.count_nonzero(row) == len(support)
        assert agrees, f"row {worker} of encoding_matrix differs from support and coefficients"
        held, load = float(fractions[support].sum()), loads[worker]
        line = f"worker {worker} holds {held:g} of the batch; worker_loads: {load:g}"
        assert abs(held - load) < _EXACT, line
    for chunk, holders in enumerate(np.count_nonzero(matrix, axis=0).tolist()):
        line = f"chunk {chunk} has {holders} holders, and any {code.s} may be missing"
        assert holders > code.s, line


def _check_results(code: GradientCode, rng: np.random.Generator) -> None:
    for worker, dtype in itertools.product(range(code.n), _ROUNDING):
        name, values = f"encode({worker}, ...) of {dtype}", code.coefficients(worker)
        partials: FloatArray = rng.standard_normal((len(values), 3)).astype(dtype)
        with calling(name):
            result = code.encode(worker, partials)
        assert result.dtype == dtype, f"{name} is of {result.dtype}"
        assert result.shape == (3,), f"{name} has shape {result.shape}"
        off = np.abs(result - values @ partials.astype(np.float64))
        reach = np.abs(values) @ np.abs(partials.astype(np.float64))
        assert (off <= _ROUNDING[dtype] * reach).all(), f"{name} is not coefficients @ partials"


# ---- sums ---------------------------------------------------------------------------------------


def _check_covers(code: GradientCode, rng: np.random.Generator) -> None:
    places = dict[int, tuple[int, int]]()
    for number, cover in enumerate(code.covers):
        _check_array(f"covers[{number}]", cover, cover.shape, kind="i")
        for place, candidates in enumerate(cover.T.tolist()):
            line = f"covers[{number}]: workers {candidates} of place {place}"
            rows = code.encoding_matrix[candidates]
            assert (rows == rows[0]).all(), f"{line} return different results"
            here = {places.setdefault(worker, (number, place)) for worker in candidates}
            assert here == {(number, place)}, f"{line} do not all stand there only"
        total = code.encoding_matrix[cover[0]].sum(axis=0)
        assert (total == 1).all(), f"covers[{number}] does not add up to ones"
    for worker in range(code.n):
        found, expected = code.place_of(worker), places.get(worker)
        assert found == expected, f"place_of({worker}) is {found}, not {expected}"
    for responded in _masks(code, rng) if code.covers else ():
        whole = any(responded[cover].any(axis=0).all() for cover in code.covers)
        line = f"{_named(responded)}: can_decode is {not whole}, and the covers say {whole}"
        assert code.can_decode(responded) == whole, line


# ---- who may be missing -------------------------------------------------------------------------


def _check_survivors(code: GradientCode, rng: np.random.Generator) -> None:
    partials = rng.standard_normal((len(code.chunk_fractions), 3))
    results = np.stack([code.encode(i, partials[code.support(i)]) for i in range(code.n)])
    for responded in _masks(code, rng):
        who, missing = _named(responded), np.count_nonzero(~responded)
        with calling(f"{who}: can_decode"):
            enough = code.can_decode(responded)
        assert enough or missing > code.s, f"{who}: can_decode is False"
        if not enough:
            _check_refused(code, responded, results)
            continue
        try:
            _check_decoded(code, responded, results, partials.sum(axis=0))
        except IllConditionedError as error:
            if missing <= code.s:
                raise AssertionError(f"{who} cannot be decoded: {error}") from error


def _check_decoded(
    code: GradientCode, responded: BoolArray, results: FloatArray, gradient: FloatArray
) -> None:
    who = _named(responded)
    with calling(f"{who}: decoding_vector"):
        vector = code.decoding_vector(responded)
    _check_array(f"{who}: decoding_vector", vector, (code.n,))
    assert not vector[~responded].any(), f"{who}: decoding_vector uses others"
    residual = np.abs(vector @ code.encoding_matrix - 1).max()
    bound = _EXACT * (1 + code.amplification(vector))
    assert residual <= bound, f"{who}: decoding_vector misses the ones by {residual:g}"
    with calling(f"{who}: decode"):
        decoded = code.decode(np.where(responded[:, None], results, np.nan), responded)
    error = np.linalg.norm(decoded - gradient) / np.linalg.norm(gradient)
    assert error <= 100 * bound, f"{who}: decode has a relative error of {error:g}"


def _check_refused(code: GradientCode, responded: BoolArray, results: FloatArray) -> None:
    who = f"{_named(responded)}: can_decode is False, but"
    rows, ones = code.encoding_matrix[responded], np.ones(len(code.chunk_fractions))
    left = ones - rows.T @ np.linalg.lstsq(rows.T, ones)[0] if len(rows) else ones
    spanned = np.linalg.norm(left) <= _SPANNED * np.linalg.norm(ones)
    assert not spanned, f"{who} their rows span the ones"
    refuses(f"{who} decoding_vector", lambda: code.decoding_vector(responded), NotDecodableError)
    refuses(f"{who} decode", lambda: code.decode(results, responded), NotDecodableError)


def _masks(code: GradientCode, rng: np.random.Generator) -> Iterator[BoolArray]:
    """Yield every mask; of more than a thousand, some with ``s`` missing, and some others."""
    n, s = code.n, code.s
    if 2**n <= _ALL_SETS:
        yield from map(np.array, itertools.product([True, False], repeat=n))
        return
    neighbours = ((first + np.arange(s)) % n for first in range(n))
    drawn = (
        rng.permutation(n)[: s if draw % 2 else rng.integers(n + 1)] for draw in range(_DRAWN_SETS)
    )
    for missing in itertools.chain[IntArray](neighbours, drawn):
        yield ~np.isin(np.arange(n), missing)


def _named(responded: BoolArray) -> str:
    return f"survivors {np.flatnonzero(responded).tolist()}"


# ---- the object ---------------------------------------------------------------------------------


def _check_content(code: GradientCode) -> None:
    cls = type(code)
    assert "<locals>" not in cls.__qualname__, "define the class at the top of a module"
    for name, clone in check_value(code, vars(sys.modules[cls.__module__]), field="s"):
        same = np.array_equal(clone.encoding_matrix, code.encoding_matrix)
        assert same, f"{name} has another encoding_matrix"
    narrow = dataclasses.replace(code, n=np.int64(code.n), s=np.int16(code.s))  # type: ignore[arg-type]
    assert repr(narrow) == repr(code), f"made with numpy's integers it is {narrow!r}"


def _check_refusals(code: GradientCode) -> None:
    n, everybody = code.n, np.ones(code.n, dtype=np.bool_)
    parts = np.ones((len(code.support(0)), 2))
    integers = cast("FloatArray", parts.astype(np.int64))
    replace: Callable[..., GradientCode] = dataclasses.replace  # with values of wrong types, too
    calls: dict[str, Callable[[], object]] = {
        "n=0": lambda: replace(code, n=0, s=0),
        f"n={n}.0": lambda: replace(code, n=float(n)),
        "n=True": lambda: replace(code, n=True, s=0),
        "s=-1": lambda: replace(code, s=-1),
        f"s={n}": lambda: replace(code, s=n),
        "support(-1)": lambda: code.support(-1),
        f"support({n})": lambda: code.support(n),
        f"coefficients({n})": lambda: code.coefficients(n),
        "encode of too many partials": lambda: code.encode(0, np.vstack([parts, parts])),
        "encode of integers": lambda: code.encode(0, integers),
        "can_decode of a list": lambda: code.can_decode(cast("BoolArray", everybody.tolist())),
        "can_decode of n + 1": lambda: code.can_decode(np.ones(n + 1, dtype=np.bool_)),
        "decoding_vector of integers": lambda: code.decoding_vector(everybody.astype(np.int64)),
        "decode of n + 1 results": lambda: code.decode(np.ones((n + 1, 2)), everybody),
    }
    for name, call in calls.items():
        refuses(name, call, ParameterError)
