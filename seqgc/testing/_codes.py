"""`check_code`: whether a gradient code keeps its contract."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np

from seqgc.codes import GradientCode
from seqgc.errors import IllConditionedError, NotDecodableError, ParameterError
from seqgc.ports import BoolArray, FloatArray, IntArray

__all__ = ["check_code"]

_replace: Callable[..., GradientCode] = dataclasses.replace  # with values of wrong types, too

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
    if not isinstance(code, GradientCode):
        raise AssertionError(f"{code!r}: is no seqgc.codes.GradientCode")
    check = _CodeCheck(code, np.random.default_rng(seed))
    check.layout()
    check.results()
    check.covers()
    check.survivors()
    check.value()
    check.refusals()


@dataclasses.dataclass(frozen=True, slots=True)
class _CodeCheck:
    code: GradientCode
    rng: np.random.Generator

    def require(self, holds: object, what: str) -> None:
        if not holds:
            raise AssertionError(f"{self.code!r}: {what}")

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Turn any error in a call that must succeed into one line."""
        try:
            yield
        except (AssertionError, IllConditionedError):
            raise
        except Exception as error:
            line = f"{self.code!r}: {what} raised {type(error).__name__}: {error}"
            raise AssertionError(line) from error

    def refuses(self, name: str, call: Callable[[], object], error: type[Exception]) -> None:
        """Require that a call raises this error and nothing else."""
        try:
            call()
        except error:
            return
        except Exception as other:
            raised = f"raises {type(other).__name__}, not {error.__name__}: {other}"
            raise AssertionError(f"{self.code!r}: {name} {raised}") from other
        raise AssertionError(f"{self.code!r}: {name} raises no {error.__name__}")

    def array(self, name: str, array: object, shape: tuple[int, ...], kind: str = "f") -> None:
        """Require a read-only array of this shape: of float64, or of integers (``kind`` "i")."""
        self.require(isinstance(array, np.ndarray), f"{name} is no numpy array")
        found = cast("FloatArray", array)
        wanted = found.dtype == np.float64 if kind == "f" else found.dtype.kind == kind
        self.require(wanted, f"{name} is of {found.dtype}")
        self.require(found.shape == shape, f"{name} has shape {found.shape}, not {shape}")
        self.require(not found.flags.writeable, f"{name} can be written to")
        self.require(np.isfinite(found).all(), f"{name} is not finite")

    # ---- who computes what -----------------------------------------------------------------------

    def layout(self) -> None:
        code = self.code
        with self.calling("the layout"):
            fractions, matrix, loads = code.chunk_fractions, code.encoding_matrix, code.worker_loads
        chunks, most = len(fractions), float(loads.max())
        self.array("chunk_fractions", fractions, (chunks,))
        self.require((fractions > 0).all(), "chunk_fractions are not all positive")
        self.require(abs(fractions.sum() - 1) < _EXACT, f"chunk_fractions add to {fractions.sum()}")
        self.array("encoding_matrix", matrix, (code.n, chunks))
        self.array("worker_loads", loads, (code.n,))
        self.require(code.load == most, f"load is {code.load:g}, the largest of all {most:g}")
        for worker, row in enumerate(matrix):
            self._row(worker, row, chunks)
            held = float(fractions[code.support(worker)].sum())
            line = f"worker {worker} holds {held:g} of the batch; worker_loads: {loads[worker]:g}"
            self.require(abs(held - loads[worker]) < _EXACT, line)
        for chunk, holders in enumerate(np.count_nonzero(matrix, axis=0).tolist()):
            line = f"chunk {chunk} has {holders} holders, and any {code.s} may be missing"
            self.require(holders > code.s, line)

    def _row(self, worker: int, row: FloatArray, chunks: int) -> None:
        support, values = self.code.support(worker), self.code.coefficients(worker)
        self.array(f"support({worker})", support, (len(support),), kind="i")
        self.array(f"coefficients({worker})", values, (len(support),))
        distinct = set(support.tolist())
        self.require(distinct <= set(range(chunks)), f"support({worker}) is {distinct}, k={chunks}")
        self.require(len(distinct) == len(support), f"support({worker}) repeats chunks")
        self.require(values.all(), f"coefficients({worker}) has zeros")
        expected = np.zeros(chunks)
        expected[support] = values
        line = f"row {worker} of encoding_matrix differs from support and coefficients"
        self.require((row == expected).all(), line)

    def results(self) -> None:
        code = self.code
        for worker, dtype in itertools.product(range(code.n), _ROUNDING):
            name, values = f"encode({worker}, ...) of {dtype}", code.coefficients(worker)
            partials: FloatArray = self.rng.standard_normal((len(values), 3)).astype(dtype)
            with self.calling(name):
                result = code.encode(worker, partials)
            self.require(result.dtype == dtype, f"{name} is of {result.dtype}")
            self.require(result.shape == (3,), f"{name} has shape {result.shape}")
            off = np.abs(result - values @ partials.astype(np.float64))
            reach = np.abs(values) @ np.abs(partials.astype(np.float64))
            line = f"{name} is not coefficients @ partials"
            self.require((off <= _ROUNDING[dtype] * reach).all(), line)

    # ---- sums ------------------------------------------------------------------------------------

    def covers(self) -> None:
        code, places = self.code, dict[int, tuple[int, int]]()
        for number, cover in enumerate(code.covers):
            self.array(f"covers[{number}]", cover, cover.shape, kind="i")
            for place, candidates in enumerate(cover.T.tolist()):
                line = f"covers[{number}]: workers {candidates} of place {place}"
                rows = code.encoding_matrix[candidates]
                self.require((rows == rows[0]).all(), f"{line} return different results")
                here = {places.setdefault(worker, (number, place)) for worker in candidates}
                self.require(here == {(number, place)}, f"{line} do not all stand there only")
            total = code.encoding_matrix[cover[0]].sum(axis=0)
            self.require((total == 1).all(), f"covers[{number}] does not add up to ones")
        for worker in range(code.n):
            found, expected = code.place_of(worker), places.get(worker)
            self.require(found == expected, f"place_of({worker}) is {found}, not {expected}")
        for responded in self.masks() if code.covers else ():
            whole = any(responded[cover].any(axis=0).all() for cover in code.covers)
            line = f"{_named(responded)}: can_decode is {not whole}, and the covers say {whole}"
            self.require(code.can_decode(responded) == whole, line)

    # ---- who may be missing ----------------------------------------------------------------------

    def survivors(self) -> None:
        code = self.code
        partials = self.rng.standard_normal((len(code.chunk_fractions), 3))
        results = np.stack([code.encode(i, partials[code.support(i)]) for i in range(code.n)])
        for responded in self.masks():
            who, missing = _named(responded), np.count_nonzero(~responded)
            with self.calling(f"{who}: can_decode"):
                enough = code.can_decode(responded)
            self.require(enough or missing > code.s, f"{who}: can_decode is False")
            if not enough:
                self._refuses(responded, results)
                continue
            try:
                self._decodes(responded, results, partials.sum(axis=0))
            except IllConditionedError as error:
                self.require(missing > code.s, f"{who} cannot be decoded: {error}")

    def _decodes(self, responded: BoolArray, results: FloatArray, gradient: FloatArray) -> None:
        code, who = self.code, _named(responded)
        with self.calling(f"{who}: decoding_vector"):
            vector = code.decoding_vector(responded)
        self.array(f"{who}: decoding_vector", vector, (code.n,))
        self.require(not vector[~responded].any(), f"{who}: decoding_vector uses others")
        residual = np.abs(vector @ code.encoding_matrix - 1).max()
        bound = _EXACT * (1 + code.amplification(vector))
        self.require(residual <= bound, f"{who}: decoding_vector misses the ones by {residual:g}")
        with self.calling(f"{who}: decode"):
            decoded = code.decode(np.where(responded[:, None], results, np.nan), responded)
        error = np.linalg.norm(decoded - gradient) / np.linalg.norm(gradient)
        self.require(error <= 100 * bound, f"{who}: decode has a relative error of {error:g}")

    def _refuses(self, responded: BoolArray, results: FloatArray) -> None:
        code, who = self.code, f"{_named(responded)}: can_decode is False, but"
        rows = code.encoding_matrix[responded]
        left = ones = np.ones(rows.shape[1])
        if len(rows):
            left = ones - rows.T @ np.linalg.lstsq(rows.T, ones)[0]
        spanned = np.linalg.norm(left) <= _SPANNED * np.linalg.norm(ones)
        self.require(not spanned, f"{who} their rows span the ones")
        for name, call in (
            ("decoding_vector", lambda: code.decoding_vector(responded)),
            ("decode", lambda: code.decode(results, responded)),
        ):
            self.refuses(f"{who} {name}", call, NotDecodableError)

    def masks(self) -> Iterator[BoolArray]:
        """Yield every mask; of more than a thousand, some with ``s`` missing, and some others."""
        n, s = self.code.n, self.code.s
        if 2**n <= _ALL_SETS:
            for answers in itertools.product([True, False], repeat=n):
                yield np.array(answers)
            return
        for first in range(n):
            yield _without(n, (first + np.arange(s)) % n)
        for draw in range(_DRAWN_SETS):
            missing = s if draw % 2 else self.rng.integers(n + 1)
            yield _without(n, self.rng.permutation(n)[:missing])

    # ---- the object ------------------------------------------------------------------------------

    def value(self) -> None:
        code, cls = self.code, type(self.code)
        self.require("<locals>" not in cls.__qualname__, "define the class at the top of a module")
        with self.calling("eval of its repr"):
            printed = eval(repr(code), dict(vars(sys.modules[cls.__module__])))
        with self.calling("pickling"):
            pickled = pickle.loads(pickle.dumps(code))
        copied = copy.deepcopy(code)
        for name, clone in (("its repr", printed), ("its pickle", pickled), ("its copy", copied)):
            self.require(clone == code, f"{name} gives {clone!r}, which is not equal")
            self.require(hash(clone) == hash(code), f"{name} has another hash")
            same = np.array_equal(clone.encoding_matrix, code.encoding_matrix)
            self.require(same, f"{name} has another encoding_matrix")
        narrow = _replace(code, n=np.int64(code.n), s=np.int16(code.s))
        self.require(repr(narrow) == repr(code), f"made with numpy's integers it is {narrow!r}")
        self.refuses("setting s", lambda: setattr(code, "s", code.s), AttributeError)

    def refusals(self) -> None:
        code, n = self.code, self.code.n
        everybody = np.ones(n, dtype=np.bool_)
        parts = np.ones((len(code.support(0)), 2))
        integers = cast("FloatArray", parts.astype(np.int64))
        calls: dict[str, Callable[[], object]] = {
            "n=0": lambda: _replace(code, n=0, s=0),
            f"n={n}.0": lambda: _replace(code, n=float(n)),
            "n=True": lambda: _replace(code, n=True, s=0),
            "s=-1": lambda: _replace(code, s=-1),
            f"s={n}": lambda: _replace(code, s=n),
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
            self.refuses(name, call, ParameterError)


def _named(responded: BoolArray) -> str:
    return f"survivors {np.flatnonzero(responded).tolist()}"


def _without(n: int, stragglers: IntArray) -> BoolArray:
    responded = np.ones(n, dtype=np.bool_)
    responded[stragglers] = False
    return responded
