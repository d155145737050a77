"""Once per code: its matrix. Once per round: the decoding vector. Once per gradient: the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import pytest

from seqgc.codes import GradientCode, make_code
from seqgc.ports import FloatArray

N, PARAMETERS = 256, 100_000
# Where s + 1 does not divide n, the cyclic code solves equations.
CASES: tuple[tuple[str, int], ...] = (
    ("cyclic", 15),
    ("cyclic", 14),
    ("rep", 15),
    ("binary", 15),
    ("binary", 14),
)


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    def __call__(self, target: Callable[..., FloatArray], *args: object) -> FloatArray: ...

    def pedantic(
        self, target: Callable[[int], FloatArray], *, setup: Callable[[], object], rounds: int
    ) -> FloatArray: ...


def code_and_mask(kind: str, s: int) -> tuple[GradientCode, np.ndarray]:
    responded = np.ones(N, dtype=np.bool_)
    responded[np.random.default_rng(0).choice(N, s, replace=False)] = False
    return make_code(kind, N, s), responded


@pytest.mark.parametrize("s", [2, 14, 30, 128])
@pytest.mark.benchmark(group=f"cyclic design, n={N} to {N + 6}")
def test_cyclic_design(benchmark: Benchmark, s: int) -> None:
    sizes = iter((N, N + 1, N + 6))  # a design is kept: each code is another's; none is plain

    def matrix(n: int) -> FloatArray:
        return make_code("cyclic", n, s).encoding_matrix

    made = benchmark.pedantic(matrix, setup=lambda: ((next(sizes),), {}), rounds=3)
    assert (made != 0).sum() == (N + 6) * (s + 1)


@pytest.mark.parametrize(("kind", "s"), CASES)
@pytest.mark.benchmark(group=f"decoding vector, n={N}")
def test_decoding_vector(benchmark: Benchmark, kind: str, s: int) -> None:
    code, responded = code_and_mask(kind, s)
    vector = benchmark(code.decoding_vector, responded)
    assert not vector[~responded].any()


@pytest.mark.parametrize(("kind", "s"), CASES)
@pytest.mark.benchmark(group=f"decode {PARAMETERS} float32 parameters, n={N}")
def test_decode(benchmark: Benchmark, kind: str, s: int) -> None:
    code, responded = code_and_mask(kind, s)
    results = np.ones((N, PARAMETERS), dtype=np.float32)
    assert benchmark(code.decode, results, responded).shape == (PARAMETERS,)
