"""Patterns that no scheme was designed for: waited out or asked again, and never decoded wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from seqgc.errors import ParameterError
from seqgc.master import run
from seqgc.ports import Arrival, BoolArray, Close, Failure, RoundRecord, Seen, Task
from seqgc.rounds import ClosingRule, RoundPolicy, WaitOut
from seqgc.schemes import Scheme, parse_scheme
from tests.kit import SOAK
from tests.schemes.catalogue import OF_FOUR
from tests.sums import Sums

pytestmark = pytest.mark.timeout(0 if SOAK else 180)
RULES: tuple[WaitOut, ...] = ("all", "conform", "feasible")


class Weak:
    """A backend of which each round's stragglers are late, or crash once and are late then.

    ``stragglers`` is (rounds, n); the clock begins at 0 with each round. Who does not straggle
    answers after 1 to 1.4 seconds, all others after 20 or more.
    """

    def __init__(self, stragglers: BoolArray, workload: Sums, rng: np.random.Generator) -> None:
        self._stragglers, self._compute = stragglers, workload.compute
        self._times = 1 + 0.4 * rng.random(stragglers.shape) + 19 * stragglers
        self._crashes = stragglers & (rng.random(stragglers.shape) < 0.5)
        self._pending: list[tuple[float, Task]] = []  # the next to arrive comes last
        self._now = 0.0

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        if tasks[0].attempt == 0:
            self._pending, self._now = [], 0.0
        for task in tasks:
            crashes = task.attempt == 0 and self._crashes[round, task.worker]
            seconds = 0.5 if crashes else self._times[round, task.worker]
            self._pending.append((self._now + float(seconds), task))
        self._pending.sort(key=lambda due: (due[0], due[1].worker), reverse=True)
        return [self._now] * len(tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Nobody listens, and the next round begins without their answers."""

    def receive(self, until: float) -> Arrival | Failure | None:
        if not self._pending or self._pending[-1][0] > until:
            assert np.isfinite(until), "the policy waits for ever"
            self._now = until
            return None
        at, task = self._pending.pop()
        self._now = at
        round, worker, attempt = task.round, task.worker, task.attempt
        if attempt == 0 and self._crashes[round, worker]:
            return Failure(round=round, worker=worker, attempt=0, at=at, reason="crashed")
        results = {item.slot: self._compute(item.parts) for item in task.items}
        return Arrival(round=round, worker=worker, attempt=attempt, at=at, results=results)

    def close(self) -> None:
        """Nothing was started."""


def closed(
    scheme: Scheme, stragglers: BoolArray, rule: ClosingRule, rng: np.random.Generator
) -> list[RoundRecord]:
    """Return a run's records, one for each row of stragglers; every gradient was right."""
    workload, records = Sums(scheme), list[RoundRecord]()

    def observe(seen: Seen) -> None:
        if isinstance(seen, Close):
            records.append(seen.record)

    jobs = len(stragglers) - scheme.delay
    policy = RoundPolicy(scheme.begin(jobs, payload="float64"), rule)
    run(policy, Weak(stragglers, workload, rng), workload, observe=observe)
    assert workload.finished == jobs
    assert len(records) == len(stragglers)
    return records


# ---- all patterns of five rounds -----------------------------------------------------------------


def every_window() -> BoolArray:
    """Return stragglers (rounds, 4) of which every five rounds are another pattern, all 2**20.

    A shift register of 20 bits, of a primitive polynomial, goes through all its states but zero; so
    it does by four steps at a time, for 2**20 - 1 is odd. As x**20 + x**3 + 1 divides its squares,
    x**40 + x**6 + 1 and so on, these fill in twice as many bits each.
    """
    bits = np.zeros(4 * (2**20 + 3), dtype=np.bool_)
    bits[0], known = True, 20
    while known < len(bits):
        power = 1 << (known // 20).bit_length() - 1
        end = min(len(bits), known + 17 * power)
        earlier, before = (bits[known - k * power : end - k * power] for k in (17, 20))
        bits[known:end], known = earlier ^ before, end
    return np.concatenate([np.zeros((5, 4), dtype=np.bool_), bits.reshape(-1, 4)])


def windows(stragglers: BoolArray) -> Iterator[int]:
    number = 0
    for at, row in enumerate(np.packbits(stragglers, axis=1)[:, 0].tolist()):
        number = (number << 4 | row >> 4) & 0xFFFFF
        if at >= 4:
            yield number


@pytest.mark.parametrize("spec", OF_FOUR)
def test_every_pattern_of_five_rounds_of_four_workers_comes_to_the_right_gradients(
    spec: str,
) -> None:
    """Each is somewhere in a run, after whatever came before it there: a tenth with each scheme.

    All with each are in `tests/schemes/test_outside.py`, where what waits is in the test.
    """
    index, everything = OF_FOUR.index(spec), every_window()
    assert len(set(windows(everything))) == 2**20 or not SOAK
    begin, end = (len(everything) * k // len(OF_FOUR) for k in (index, index + 1))
    stragglers = everything[begin : end + 4 if SOAK else begin + 75]
    wait_out = RULES[index % len(RULES)]
    rule = ClosingRule(mu=0.5, wait_out=wait_out, timeout_s=60.0, max_attempts=1)
    records = closed(parse_scheme(spec, n=4), stragglers, rule, np.random.default_rng(1))
    waited = sum(record.waited_out for record in records)
    assert waited > 0.1 * len(records), "for many who were late"
    assert spec == "uncoded" or waited < 0.9 * len(records), "but not wherever one was"


# ---- random ones ---------------------------------------------------------------------------------


def drawn(rng: np.random.Generator) -> Scheme:
    """Return a scheme of at most 32 workers."""
    while True:
        n = int(rng.integers(1, 33))
        family = str(rng.choice(["", "-rep", "-binary"]))
        s, B, more = (int(rng.integers(0, most)) for most in (n, 4, 4))
        window = f"B={B},W={B + more},lam={int(rng.integers(0, n + 1))}"
        spec = rng.choice(["uncoded", f"gc{family}:s={s}", f"sr-sgc{family}:{window}"])
        spec = rng.choice([spec, f"m-sgc{family}:{window}"])
        try:
            return parse_scheme(str(spec), n=n)
        except ParameterError:
            continue


def test_random_patterns_of_up_to_32_workers_come_to_the_right_gradients() -> None:
    rng = np.random.default_rng(20261122)
    rounds, specs = 0, set[str]()
    while rounds < (1_000_000 if SOAK else 200):
        scheme = drawn(rng)
        length = scheme.delay + int(rng.integers(1, 300 if SOAK else 60))
        rate = rng.choice([0.1, 0.3, 0.6, 0.9], size=(length, 1))
        stragglers = rng.random((length, scheme.n)) < rate
        rule = ClosingRule(mu=0.5, wait_out=RULES[rng.integers(3)], timeout_s=60.0, max_attempts=1)
        closed(scheme, stragglers, rule, rng)
        rounds += length
        specs.add(scheme.spec)
    assert len(specs) > 1
