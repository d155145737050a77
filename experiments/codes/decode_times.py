"""Measure the time to compute a decoding vector, and to combine results.

OMP_NUM_THREADS=1 python -m experiments.codes.decode_times OUTPUT.csv [--quick]

Two tables, in one run each: decoding vectors against `numpy.linalg.lstsq` on the survivors' rows;
and combination against one pass of ``w @ G`` over memory. (Whole jobs against rounds, which is the
paper's Table 4, are in `experiments.table4_decoding`.) Times are milliseconds of one thread. One
row per case, appended as soon as it is measured; a row that is in the CSV is not measured again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from experiments.results import Table, arguments
from seqgc.codes import make_code
from seqgc.codes._survivors import random_sets, responded_without
from seqgc.master import Gatherer
from seqgc.ports import Decoding, MiniTask, Term
from seqgc.schemes import Scheme, parse_scheme

SEED, PARAMETERS, RESULTS = 4, 269_998, 229
FIELDS = (
    "table", "case", "what", "count", "median_ms", "mean_ms", "sd_ms", "shortest_ms", "longest_ms",
)  # fmt: skip
Measured = dict[str, list[float]]  # what -> seconds


def seconds_of(work: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


# ---- decoding vectors ----------------------------------------------------------------------------


def vectors(family: str, n: int, s: int, *, sets: int, solved: int) -> Measured:
    """Time vectors for random sets of ``s``; ``lstsq`` for the first ``solved`` of them only."""
    code = make_code(family, n, s)
    stragglers = random_sets(n, s, sets, np.random.default_rng([SEED, n, s]))
    masks = responded_without(n, stragglers)
    code.decoding_vector(np.ones(n, dtype=np.bool_))  # the code itself is made once
    found: Measured = {"new set": [], "one more": [], "another one more": [], "cached": []}
    found["numpy lstsq"] = []
    for number, responded in enumerate(masks):
        more, most = responded.copy(), responded.copy()
        more[stragglers[number, 0]] = most[stragglers[number, :2]] = True
        found["new set"].append(seconds_of(code.decoding_vector, responded))
        found["one more"].append(seconds_of(code.decoding_vector, more))
        found["another one more"].append(seconds_of(code.decoding_vector, most))
        found["cached"].append(seconds_of(code.decoding_vector, most))
        if number < solved:
            equations, ones = code.encoding_matrix[responded].T, np.ones(code.chunk_fractions.size)
            found["numpy lstsq"].append(seconds_of(np.linalg.lstsq, equations, ones))
    return found


# ---- combination ---------------------------------------------------------------------------------


def combination(parameters: int, *, repeats: int) -> Measured:
    """Time the combination of 229 stored results, and one pass over them."""
    rng = np.random.default_rng(SEED)
    results = rng.standard_normal((RESULTS, parameters), dtype=np.float32)
    weights = rng.standard_normal(RESULTS)
    terms = tuple(Term(worker=i, round=0, slot=0, weight=float(w)) for i, w in enumerate(weights))
    task = MiniTask(job=0, slot=0, chunks=np.arange(1), coefficients=np.ones(1))
    narrow, gatherer = weights.astype(np.float32), Gatherer()
    found: Measured = {"after the last arrival": [], "w @ G": []}
    for _ in range(repeats):
        for worker in range(RESULTS):
            gatherer.expect(0, [task], worker=worker)
        for worker, result in enumerate(results):
            gatherer.take(task, result, worker=worker, round=0)
        decoding = Decoding(job=0, terms=terms)
        found["after the last arrival"].append(seconds_of(gatherer.combine, decoding))
        found["w @ G"].append(seconds_of(np.matmul, narrow, results))
    return found


# ---- whole jobs ----------------------------------------------------------------------------------


def jobs(
    scheme: Scheme,
    responded: np.ndarray,
    times: np.ndarray,
    *,
    parameters: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[float]:
    """Yield the seconds from a round's end to the gradient of each job that it finished.

    Answers ``responded`` (rounds, n) arrive in the order of ``times`` (rounds, n).
    """
    rng = np.random.default_rng(SEED)
    results = rng.standard_normal((16, parameters), dtype=np.float32)
    schedule, gatherer = scheme.start(len(responded) - scheme.delay), Gatherer()
    for number, answered in enumerate(responded):
        assignment = schedule.assignment()
        for worker, tasks in enumerate(assignment):
            gatherer.expect(number, tasks, worker=worker)
        arrivals = [i for i in np.argsort(times[number], kind="stable") if answered[i]]
        for worker in arrivals:
            for task in assignment[worker]:
                result = results[(worker + task.slot) % len(results)]
                gatherer.take(task, result, worker=int(worker), round=number)
        for job in schedule.close_round(answered):
            start = clock()
            gatherer.combine(schedule.decoding(job, "float32"))
            yield clock() - start


def random_rounds(scheme: Scheme, *, rounds: int, parameters: int) -> Measured:
    rng = np.random.default_rng([SEED, scheme.tolerated])
    sets = random_sets(scheme.n, scheme.tolerated, rounds, rng)
    responded = responded_without(scheme.n, sets)
    times = rng.uniform(size=responded.shape)
    return {"after the last arrival": list(jobs(scheme, responded, times, parameters=parameters))}


# ---- all of it -----------------------------------------------------------------------------------


def cases(given: argparse.Namespace) -> Iterator[tuple[str, str, Callable[[], Measured]]]:
    """Yield a table, a case, and the function that measures it."""
    quick = given.quick
    n, parameters, repeats = (32, 10_000, 3) if quick else (256, PARAMETERS, 15)
    coded = [("cyclic", 32, 4), ("rep", 32, 3)] if quick else [("cyclic", 255, 63)]
    if not quick:
        coded += [(f, 256, s) for f in ("cyclic", "rep", "binary") for s in (15, 27, 63)]
    for family, workers, s in coded:
        if family == "rep" and workers % (s + 1):
            continue
        yield (
            "vector",
            f"{family} n={workers} s={s}",
            partial(vectors, family, workers, s, sets=20 * repeats, solved=repeats),
        )
    weighed = partial(combination, parameters, repeats=repeats)
    yield "combination", f"{RESULTS} results", weighed
    for spec in ("gc-rep:s=15", "gc-binary:s=15", "gc-binary:s=14", "gc:s=15", "gc:s=14"):
        scheme = parse_scheme(spec, n=n)
        yield (
            "combination",
            spec,
            partial(random_rounds, scheme, rounds=repeats, parameters=parameters),
        )


def row(table: str, case: str, what: str, seconds: list[float]) -> dict[str, object]:
    ms = [1e3 * value for value in seconds]
    return {
        "table": table,
        "case": case,
        "what": what,
        "count": len(ms),
        "median_ms": f"{statistics.median(ms):.3g}",
        "mean_ms": f"{statistics.mean(ms):.3g}",
        "sd_ms": f"{statistics.stdev(ms):.2g}",
        "shortest_ms": f"{min(ms):.4g}",
        "longest_ms": f"{max(ms):.4g}",
    }


def require_one_thread(parser: argparse.ArgumentParser) -> None:
    """End the program unless linear algebra has one thread."""
    if os.environ.get("OMP_NUM_THREADS") != "1":
        parser.error("set OMP_NUM_THREADS=1: threads that wait for cores make lstsq take a second")


def main() -> None:
    parser = arguments(__doc__, quick="small codes, 10,000 parameters")
    require_one_thread(parser)
    given = parser.parse_args()
    rows = Table(given.output, FIELDS, keys=2)
    for table, case, measure in cases(given):
        if (table, case) not in rows:
            rows.append(row(table, case, what, seconds) for what, seconds in measure().items())


if __name__ == "__main__":
    main()
