"""`check_code`, which checks the contract of a gradient code, and helpers for other checks."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar, cast

import numpy as np

from seqgc.codes import GradientCode
from seqgc.errors import IllConditionedError, NotDecodableError, ParameterError
from seqgc.ports import BoolArray, FloatArray, IntArray

_Value = TypeVar("_Value")

_ALL_SETS = 1024  # up to this number of survivor sets, every set is tried
_DRAWN_SETS = 300  # for more sets: number of random sets, in addition to n consecutive ones

# Rounding error of a sum of a few dozen numbers, relative to the sum of their magnitudes.
_ROUNDING = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2}

# Rounding error in float64, to be multiplied by the amplification of the code, if any.
_EXACT = 1e-11

# In float64, a set of survivors whose distance from the span is smaller than this cannot be
# distinguished from a decodable set.
_SPANNED = 1e-7


def check_code(code: GradientCode, *, seed: int = 0) -> None:
    """Check that a code fulfils the contract of `GradientCode`.

    Supports, coefficients, loads and the encoding matrix must agree. Any ``n - s`` answers must
    decode to the sum of the partial gradients (with an approximate code, to within its
    ``worst_error``), and so must every other set of survivors that `can_decode` accepts; decoding
    must not use the results of missing workers. If `can_decode` is False for a set, the set must
    not be decodable. The results of each cover must add up to the gradient. Arrays must be
    read-only. Codes with equal content must be equal, and have equal hashes, pickles and reprs.
    Wrong arguments must raise a `ParameterError`.

    If there are few survivor sets, all are tried; otherwise some are drawn with ``seed``. The check
    of a code for about a hundred workers takes seconds. Several small ``n`` and ``s`` reveal more
    faults than one large pair. The class must be at the top level of a module, so that the code can
    be pickled.

    Raises
    ------
    AssertionError
        If the contract is broken. The message is one line, with the code, the fault, and the worker
        or the survivors.

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
        assert isinstance(code, GradientCode), "must be a seqgc.codes.GradientCode"
        _check_layout(code)
        for worker in range(code.n):
            _check_worker(code, worker, rng)
        _check_covers(code)
        worst = code.worst_error
        assert 0 <= worst < 1, f"worst_error must be 0 (exact), or above 0 and below 1: {worst}"
        _check_survivors(code, rng)
        module = vars(sys.modules[type(code).__module__])
        for name, clone in check_value(code, module, field="s"):
            same = np.array_equal(clone.encoding_matrix, code.encoding_matrix)
            assert same, f"{name} has another encoding_matrix"
        _check_refusals(code)


@contextmanager
def complaining(subject: str, remark: str = "") -> Iterator[None]:
    """Add the subject to the message of a failed assertion."""
    if not __debug__:
        raise RuntimeError("python -O removes assertions, so nothing would be checked")
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{subject}: {error}{remark}") from error.__cause__


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Convert any error in a call that must succeed into an `AssertionError` of one line.

    Only an `IllConditionedError` is not converted.
    """
    try:
        yield
    except (AssertionError, IllConditionedError):
        raise
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error


def refuses(
    name: str, error: type[Exception], call: Callable[..., object], *arguments: object
) -> None:
    """Require that a call raises ``error``."""
    try:
        call(*arguments)
    except error:
        return
    except Exception as other:
        line = f"{name} raises {type(other).__name__}, not {error.__name__}: {other}"
        raise AssertionError(line) from other
    raise AssertionError(f"{name} raises no {error.__name__}")


def check_value(
    value: _Value, names: Mapping[str, object], *, field: str
) -> Iterator[tuple[str, _Value]]:
    """Require a frozen value; yield copies made by repr, pickle and deepcopy, if all are equal."""
    assert "<locals>" not in type(value).__qualname__, "its class must be at the top of a module"
    with calling("eval of its repr"):
        printed = eval(repr(value), dict(names))
    with calling("pickling"):
        pickled = pickle.loads(pickle.dumps(value))
    copied = copy.deepcopy(value)
    for name, clone in (("its repr", printed), ("its pickle", pickled), ("its copy", copied)):
        assert clone == value, f"{name} gives {clone!r}, which is not equal"
        assert hash(clone) == hash(value), f"{name} has another hash"
        yield name, clone
    refuses(f"setting {field}", AttributeError, setattr, value, field, getattr(value, field))


def _check_array(name: str, array: object, shape: tuple[int, ...], kind: str = "f") -> None:
    """Require a finite read-only array of float64, or of integers if ``kind`` is "i"."""
    assert isinstance(array, np.ndarray), f"{name} must be a numpy array, got {type(array)}"
    fits = array.dtype == np.float64 if kind == "f" else array.dtype.kind == kind
    assert fits, f"{name} has dtype {array.dtype}"
    assert array.shape == shape, f"{name} has shape {array.shape}, not {shape}"
    assert not array.flags.writeable, f"{name} must be read-only"
    assert np.isfinite(array).all(), f"{name} is not finite"


def _check_layout(code: GradientCode) -> None:
    with calling("the layout"):
        fractions, matrix, loads = code.chunk_fractions, code.encoding_matrix, code.worker_loads
    _check_array("chunk_fractions", fractions, (fractions.size,))
    assert (fractions > 0).all(), "chunk_fractions are not all positive"
    assert abs(fractions.sum() - 1) < _EXACT, f"chunk_fractions add to {fractions.sum()}"
    _check_array("encoding_matrix", matrix, (code.n, fractions.size))
    _check_array("worker_loads", loads, (code.n,))
    assert code.load == loads.max(), (
        f"load is {code.load:g}, the largest of worker_loads {loads.max():g}"
    )


def _check_worker(code: GradientCode, worker: int, rng: np.random.Generator) -> None:
    support, values = code.support(worker), code.coefficients(worker)
    _check_array(f"support({worker})", support, (len(support),), kind="i")
    _check_array(f"coefficients({worker})", values, (len(support),))
    distinct, chunks = set(support.tolist()), len(code.chunk_fractions)
    assert distinct <= set(range(chunks)), f"support({worker}) is {distinct}, k={chunks}"
    assert len(distinct) == len(support), f"support({worker}) repeats chunks"
    assert values.all(), f"coefficients({worker}) has zeros"
    row = np.zeros(chunks)
    row[support] = values
    same = (row == code.encoding_matrix[worker]).all()
    assert same, f"row {worker} of encoding_matrix differs from support and coefficients"
    held, load = float(code.chunk_fractions[support].sum()), code.worker_loads[worker]
    line = f"worker {worker} holds {held:g} of the batch; worker_loads: {load:g}"
    assert abs(held - load) < _EXACT, line
    for dtype, rounding in _ROUNDING.items():
        name, partials = f"encode({worker}, ...) of {dtype}", rng.standard_normal((len(values), 3))
        rounded: FloatArray = partials.astype(dtype)
        with calling(name):
            result = code.encode(worker, rounded)
        assert result.dtype == dtype, f"{name} has dtype {result.dtype}"
        assert result.shape == (3,), f"{name} has shape {result.shape}"
        off = np.abs(result - values @ rounded.astype(np.float64))
        near = off <= rounding * (np.abs(values) @ np.abs(rounded.astype(np.float64)))
        assert near.all(), f"{name} is not coefficients @ partials"


def _check_covers(code: GradientCode) -> None:
    places = dict[int, tuple[int, int]]()
    for number, cover in enumerate(code.covers):
        _check_array(f"covers[{number}]", cover, cover.shape, kind="i")
        for place, candidates in enumerate(cover.T.tolist()):
            line = f"covers[{number}]: workers {candidates} of place {place}"
            rows = code.encoding_matrix[candidates]
            assert (rows == rows[0]).all(), f"{line} return different results"
            here = {places.setdefault(worker, (number, place)) for worker in candidates}
            assert here == {(number, place)}, f"{line} must not stand in another place"
        total = code.encoding_matrix[cover[0]].sum(axis=0)
        assert (total == 1).all(), f"covers[{number}] does not add up to ones"
    for worker in range(code.n):
        place_of, expected = code.place_of(worker), places.get(worker)
        assert place_of == expected, f"place_of({worker}) is {place_of}, not {expected}"


def _check_survivors(code: GradientCode, rng: np.random.Generator) -> None:
    for chunk, holders in enumerate(np.count_nonzero(code.encoding_matrix, axis=0).tolist()):
        line = f"chunk {chunk} has {holders} holders, and any {code.s} may be missing"
        assert holders > code.s or code.worst_error, line
    partials = rng.standard_normal((len(code.chunk_fractions), 3))
    results = np.stack([code.encode(i, partials[code.support(i)]) for i in range(code.n)])
    for responded in _masks(code, rng):
        case = f"survivors {np.flatnonzero(responded).tolist()}"
        expected = np.count_nonzero(~responded) <= code.s
        must = expected and not code.worst_error
        with calling(f"{case}: can_decode"):
            enough = code.can_decode(responded)
        if code.covers:
            whole = any(responded[cover].any(axis=0).all() for cover in code.covers)
            assert enough == whole, f"{case}: can_decode is {enough}, but by the covers {whole}"
        assert enough or not must, f"{case}: can_decode is False"
        try:
            if enough:
                _check_decoded(code, responded, results, partials.sum(axis=0), case)
        except IllConditionedError as error:
            if must:
                raise AssertionError(f"{case} cannot be decoded: {error}") from error
        if expected and code.worst_error:
            _check_approximated(code, responded, results, partials, case)
        if not enough:
            case += ": can_decode is False, but"
            rows, ones = code.encoding_matrix[responded], np.ones(len(code.chunk_fractions))
            rest = ones - rows.T @ np.linalg.lstsq(rows.T, ones)[0] if len(rows) else ones
            spanned = np.linalg.norm(rest) <= _SPANNED * np.linalg.norm(ones)
            assert not spanned, f"{case} their rows span the vector of ones"
            refuses(f"{case} decoding_vector", NotDecodableError, code.decoding_vector, responded)
            refuses(f"{case} decode", NotDecodableError, code.decode, results, responded)


def _check_approximated(
    code: GradientCode, responded: BoolArray, results: FloatArray, partials: FloatArray, case: str
) -> None:
    worst = code.worst_error
    error = code.approximation(responded).error
    assert error <= worst * (1 + _ROUNDING["float32"]), f"{case}: error {error:g}, over {worst:g}"
    with calling(f"{case}: decode_within"):
        decoded = code.decode_within(
            np.where(responded[:, None], results, np.nan), responded, allow_error=worst
        )
    off = float(np.linalg.norm(decoded.gradient - partials.sum(axis=0)))
    spread = float(np.sqrt((partials**2 / code.chunk_fractions[:, None]).sum()))
    bound = decoded.error * spread * (1 + _ROUNDING["float32"]) + _EXACT * spread
    assert off <= bound, f"{case}: decode_within is off by {off:g}, over {bound:g}"


def _check_decoded(
    code: GradientCode, responded: BoolArray, results: FloatArray, gradient: FloatArray, case: str
) -> None:
    with calling(f"{case}: decoding_vector"):
        vector = code.decoding_vector(responded)
    _check_array(f"{case}: decoding_vector", vector, (code.n,))
    assert not vector[~responded].any(), f"{case}: decoding_vector uses missing workers"
    residual = np.abs(vector @ code.encoding_matrix - 1).max()
    bound = _EXACT * (1 + code.amplification(vector))
    assert residual <= bound, f"{case}: decoding_vector misses the vector of ones by {residual:g}"
    with calling(f"{case}: decode"):
        decoded = code.decode(np.where(responded[:, None], results, np.nan), responded)
    error = np.linalg.norm(decoded - gradient) / np.linalg.norm(gradient)
    assert error <= 100 * bound, f"{case}: decode has a relative error of {error:g}"


def _masks(code: GradientCode, rng: np.random.Generator) -> Iterator[BoolArray]:
    """Yield all masks (n,) of survivors if there are at most 1024, otherwise a sample.

    In half of the sample, ``s`` workers are missing.
    """
    n, s = code.n, code.s
    if 2**n <= _ALL_SETS:
        yield from map(np.array, itertools.product([True, False], repeat=n))
        return
    neighbours: list[IntArray] = [(first + np.arange(s)) % n for first in range(n)]
    counts = [s if draw % 2 else int(rng.integers(n + 1)) for draw in range(_DRAWN_SETS)]
    missing = [*neighbours, *(rng.permutation(n)[:count] for count in counts)]
    yield from (~np.isin(np.arange(n), stragglers) for stragglers in missing)


def _check_refusals(code: GradientCode) -> None:
    replace: Callable[..., GradientCode] = dataclasses.replace  # also takes wrong types
    narrow = replace(code, n=np.int64(code.n), s=np.int16(code.s))
    assert repr(narrow) == repr(code), f"made with numpy integers its repr is {narrow!r}"
    n, everybody = code.n, np.ones(code.n, dtype=np.bool_)
    parts = np.ones((len(code.support(0)), 2))
    integers = cast("FloatArray", parts.astype(np.int64))
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
        refuses(name, ParameterError, call)
