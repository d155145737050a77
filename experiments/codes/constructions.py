"""Measure how much constructions of cyclic codes amplify rounding errors.

python -m experiments.codes.constructions OUTPUT.csv [--quick]

One row per construction, n and s, appended to the CSV as soon as it is measured. An
existing row is not measured again. Every code has windows of s+1 chunks (more with slack) and rows
of unit norm; `amplification` is the gradient's relative error over that of the workers' results.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import numpy as np

from experiments.results import Table, arguments
from seqgc.codes import cyclic as cyclic_design
from seqgc.codes._decoders import Solutions
from seqgc.codes._survivors import contiguous_sets, random_sets, worst_of

SEED = 2020
FIELDS = (
    "construction", "n", "s", "load", "median", "q99", "q999", "worst_200_random",
    "worst_contiguous", "worst_found", "design_s",
)  # fmt: skip
CASES = [(256, s) for s in (2, 6, 14, 27, 30, 62, 100, 126)] + [(1024, s) for s in (6, 30, 100)]
QUICK = [(64, 6), (64, 14)]
Construction = Callable[[int, int, np.random.Generator], np.ndarray]


# ---- parity matrices H (s, n), H @ 1 == 0 --------------------------------------------------------


def gaussian(n: int, s: int, rng: np.random.Generator) -> np.ndarray:
    """Tandon et al. 2017, algorithm 2: the last column makes the rows' sums 0."""
    parity = rng.standard_normal((s, n))
    parity[:, -1] = -parity[:, :-1].sum(axis=1)
    return parity


def orthonormal(n: int, s: int, rng: np.random.Generator) -> np.ndarray:
    """Orthonormal rows that span a random subspace orthogonal to the ones."""
    parity = rng.standard_normal((s, n))
    return np.linalg.qr((parity - parity.mean(axis=1, keepdims=True)).T)[0].T


def waves(n: int, frequencies: np.ndarray) -> np.ndarray:
    """Complex waves, with columns scaled by the ones' part in their null space: H @ 1 == 0."""
    basis = np.linalg.qr(np.exp(2j * np.pi / n * np.outer(frequencies, np.arange(n))).T)[0]
    # H @ 1 is bilinear: the scales are orthogonal to the conjugate waves.
    scales = 1.0 - basis.conj() @ basis.sum(axis=0)
    return (basis * scales[:, None]).T


def consecutive(n: int, s: int, _rng: np.random.Generator) -> np.ndarray:
    """Raviv et al. 2020: s consecutive n-th roots of unity, those around -1.

    They come in conjugate pairs, and the code is real, unless n and s are both even.
    """
    return waves(n, n // 2 - (s - 1) // 2 + np.arange(s))


def real_waves(n: int, frequencies: np.ndarray, *, odd: int) -> np.ndarray:
    phases = 2 * np.pi / n * np.outer(frequencies, np.arange(n))
    alternating = [(-1.0) ** np.arange(n)[None]] if odd else []
    rows = np.concatenate([np.cos(phases), np.sin(phases), *alternating])
    basis = np.linalg.qr(rows.T)[0]
    return (basis * (1.0 - basis @ basis.sum(axis=0))[:, None]).T


def equal_complex(n: int, s: int, rng: np.random.Generator) -> np.ndarray:
    """Roots at nearly equal distances, without conjugate pairs: complex coefficients."""
    spacing = n / (s + 1)
    reach = min(0.3 * spacing, spacing - 1) / 2
    moved = np.arange(1, s + 1) * spacing + reach * rng.uniform(-1, 1, s)
    return waves(n, np.floor(moved + 0.5) + 0.1 * rng.uniform(-1, 1, s))


def one_draw(n: int, s: int, rng: np.random.Generator) -> np.ndarray:
    """One draw of the library's angles, not screened."""
    return cyclic_design._parity(n, s, 0.3, 0.1, rng)


# ---- encoding matrices ---------------------------------------------------------------------------


def windows(n: int, s: int) -> np.ndarray:
    return (np.arange(n)[:, None] + np.arange(s + 1)) % n


def encoded(parity: np.ndarray, supports: np.ndarray) -> np.ndarray:
    """Rows of unit norm, supported on ``supports`` (n, s+1), in the null space of ``parity``."""
    n = parity.shape[1]
    matrix = np.zeros((n, n), dtype=parity.dtype)
    for row, support in zip(matrix, supports, strict=True):
        row[support] = np.linalg.qr(parity[:, support].conj().T, mode="complete")[0][:, -1]
    return matrix


def cyclic(make: Construction) -> Construction:
    return lambda n, s, rng: encoded(make(n, s, rng), windows(n, s))


def permuted(n: int, s: int, rng: np.random.Generator) -> np.ndarray:
    """Windows over the columns of one draw in random order."""
    return encoded(one_draw(n, s, rng)[:, rng.permutation(n)], windows(n, s))


def random_supports(n: int, s: int, rng: np.random.Generator) -> np.ndarray:
    """Every worker holds s+1 chunks and every chunk is held s+1 times: shifts of a random set."""
    shifts = rng.choice(n, s + 1, replace=False)
    order = rng.permutation(n)
    return encoded(one_draw(n, s, rng), order[(np.arange(n)[:, None] + shifts) % n])


def library(n: int, s: int, _rng: np.random.Generator) -> np.ndarray:
    """Return the angles that `CyclicCode` uses."""
    coefficients = cyclic_design.design.__wrapped__(n, s).coefficients
    matrix = np.zeros((n, n))
    np.put_along_axis(matrix, windows(n, s), coefficients, axis=1)
    return matrix


def best_of(draws: int, badness: Callable[[Solutions, int, int], float]) -> Construction:
    def construct(n: int, s: int, rng: np.random.Generator) -> np.ndarray:
        variants = cyclic_design._VARIANTS
        drawn = [
            encoded(cyclic_design._parity(n, s, *variants[k % len(variants)], rng), windows(n, s))
            for k in range(draws)
        ]
        return min(drawn, key=lambda matrix: badness(Solutions.of(matrix, n - s), n, s))

    return construct


def tail(solutions: Solutions, n: int, s: int, share: float = 0.99) -> float:
    """The larger of the worst contiguous set and a quantile of 2,000 random ones."""
    drawn = random_sets(n, s, 2000, np.random.default_rng(SEED + 1))
    contiguous = solutions.lengths(contiguous_sets(n, s)).max()
    return float(max(contiguous, np.quantile(solutions.lengths(drawn), share)))


def root_mean(solutions: Solutions, n: int, s: int) -> float:
    """Mean square root over random and contiguous sets: finite where the mean is not."""
    drawn = random_sets(n, s, 2000, np.random.default_rng(SEED + 1))
    sets = np.concatenate([drawn, contiguous_sets(n, s)])
    return float(np.sqrt(solutions.lengths(sets)).mean())


def adversarial(solutions: Solutions, n: int, s: int) -> float:
    del n
    return worst_of(solutions, s, budget=2e8)[1]


def optimised(badness: Callable[[Solutions, int, int], float], steps: int = 60) -> Construction:
    """Angles moved one by one at random, while that lowers the badness."""

    def construct(n: int, s: int, rng: np.random.Generator) -> np.ndarray:
        spacing = n / (s + 1)
        current = np.floor(np.arange(1, s // 2 + 1) * spacing + 0.5)
        current += 0.1 * rng.uniform(-1, 1, current.size)

        def judged(frequencies: np.ndarray) -> tuple[float, np.ndarray]:
            matrix = encoded(real_waves(n, frequencies, odd=s % 2), windows(n, s))
            return badness(Solutions.of(matrix, n - s), n, s), matrix

        least, best = judged(current)
        for _ in range(steps):
            trial = current.copy()
            trial[rng.integers(trial.size)] += spacing / 4 * rng.standard_normal() ** 3
            value, matrix = judged(trial)
            if value < least:
                least, best, current = value, matrix, trial
        return best

    return construct


def scaled(n: int, s: int, rng: np.random.Generator) -> np.ndarray:
    """The best of 20 vectors near the ones in the waves' null space, as scales of H's columns."""
    parity = one_draw(n, s, rng)
    kernel = np.linalg.svd(parity)[2][s:]  # the scaled waves'; it contains the ones

    def draw(spread: float) -> np.ndarray:
        scales = 1.0 + spread * math.sqrt(n) * rng.standard_normal(n - s) @ kernel / math.sqrt(
            n - s
        )
        return encoded(parity * scales, windows(n, s))

    drawn = [draw(spread) for spread in (0.1, 0.3) for _ in range(10)]
    return min(drawn, key=lambda matrix: tail(Solutions.of(matrix, n - s), n, s))


CONSTRUCTIONS: dict[str, tuple[Construction, int]] = {
    "Gaussian H": (cyclic(gaussian), 0),
    "orthonormal Gaussian H": (cyclic(orthonormal), 0),
    "consecutive roots": (cyclic(consecutive), 0),
    "permuted columns": (permuted, 0),
    "random supports": (random_supports, 0),
    "near-equal angles, one draw": (cyclic(one_draw), 0),
    "near-equal angles, library": (library, 0),
    "complex near-equal angles": (cyclic(equal_complex), 0),
    "library, slack 1": (library, 1),
    "library, slack 2": (library, 2),
    "library, slack 4": (library, 4),
    "complex, slack 1": (cyclic(equal_complex), 1),
    "60 draws, 99 % quantile": (best_of(60, tail), 0),
    "60 draws, mean root": (best_of(60, root_mean), 0),
    "60 draws, worst found": (best_of(60, adversarial), 0),
    "60 moved angles, 99 % quantile": (optimised(tail), 0),
    "60 moved angles, mean root": (optimised(root_mean), 0),
    "scaled columns": (scaled, 0),
}
# Those that judge many codes are too slow for larger ones.
SEARCHING = ("60 ", "scaled")
SEARCHED_UP_TO = (256, 30)  # n, s


# ---- measuring -----------------------------------------------------------------------------------


def measured(name: str, n: int, s: int, *, sets: int) -> dict[str, object]:
    construct, slack = CONSTRUCTIONS[name]
    began = time.perf_counter()
    matrix = construct(n, s + slack, np.random.default_rng([SEED, n, s]))
    seconds = time.perf_counter() - began
    solutions = Solutions.of(matrix, n - s - slack)
    drawn = solutions.lengths(random_sets(n, s, sets, np.random.default_rng([SEED, n, s, 1])))
    numbers = {
        "load": (s + slack + 1) / n,
        "median": np.median(drawn) / math.sqrt(n),
        "q99": np.quantile(drawn, 0.99) / math.sqrt(n),
        "q999": np.quantile(drawn, 0.999) / math.sqrt(n),
        "worst_200_random": drawn[:200].max() / math.sqrt(n),
        "worst_contiguous": solutions.lengths(contiguous_sets(n, s)).max() / math.sqrt(n),
        "worst_found": worst_of(solutions, s)[1] / math.sqrt(n),
        "design_s": seconds,
    }
    shown = {field: f"{number:.4g}" for field, number in numbers.items()}
    return {"construction": name, "n": n, "s": s, **shown}


def outstanding(table: Table, cases: list[tuple[int, int]]) -> Iterator[tuple[str, int, int]]:
    for n, s in cases:
        yield from (
            (name, n, s)
            for name, (_, slack) in CONSTRUCTIONS.items()
            if (name, n, s) not in table
            and n % (s + slack + 1) != 0
            and not (
                name.startswith(SEARCHING) and (n > SEARCHED_UP_TO[0] or s > SEARCHED_UP_TO[1])
            )
        )


def main() -> None:
    given = arguments(__doc__, quick="two small codes, fewer sets").parse_args()
    table = Table(given.output, FIELDS, keys=3)
    for name, n, s in outstanding(table, QUICK if given.quick else CASES):
        table.append([measured(name, n, s, sets=1000 if given.quick else 5000)])


if __name__ == "__main__":
    main()
