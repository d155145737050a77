"""A message of 1.5 MB of float32 in a frame, and in JSON (target: 1 ms each way).

Beside what any JSON library would take for the same body; nothing is gated.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pytest

from seqgc.wire import ResultMessage, Subject, decode, encode, from_json, to_json, to_mapping

NUMBERS = 375_000  # 1.5 MB
RUNS = 30


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    extra_info: dict[str, float]

    def pedantic(self, target: Callable[[], Any], *, rounds: int) -> Any: ...


def best_ms(action: Callable[[], object]) -> float:
    """Milliseconds of the fastest of some runs."""
    action()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


@pytest.fixture(scope="module")
def message() -> ResultMessage:
    vector = np.random.default_rng(0).standard_normal(NUMBERS).astype(np.float32)
    return ResultMessage(subject=Subject(round=3, worker=1, attempt=0), results={0: vector})


@pytest.mark.benchmark(group="wire: JSON of a frame of 1.5 MB")
def test_json_of_a_frame(benchmark: Benchmark, message: ResultMessage) -> None:
    frame = encode(message, run_id="r")
    body = to_json(frame)
    text, parsed = body.decode(), to_mapping(frame)
    assert benchmark.pedantic(lambda: from_json(to_json(frame)), rounds=RUNS) == frame
    measured = {
        "write_ms": best_ms(lambda: to_json(frame)),
        "read_ms": best_ms(lambda: from_json(body)),
        "read_text_ms": best_ms(lambda: from_json(text)),
        "write_mapping_ms": best_ms(lambda: to_mapping(frame)),
        "read_mapping_ms": best_ms(lambda: from_json(parsed)),
        "json_write_ms": best_ms(
            lambda: json.dumps({"seqgc": 1, "frame": base64.b64encode(frame).decode()})
        ),
        "json_read_ms": best_ms(lambda: base64.b64decode(json.loads(body)["frame"])),
    }
    measured["write_ratio"] = measured["json_write_ms"] / measured["write_ms"]
    measured["read_ratio"] = measured["json_read_ms"] / measured["read_ms"]
    benchmark.extra_info |= measured
    print("\n" + ", ".join(f"{name} {value:.2f}" for name, value in measured.items()))


@pytest.mark.benchmark(group="wire: a frame of 1.5 MB")
def test_a_frame(benchmark: Benchmark, message: ResultMessage) -> None:
    frame = encode(message, run_id="r")
    decoded = benchmark.pedantic(lambda: decode(frame, run_id="r"), rounds=RUNS)
    np.testing.assert_array_equal(decoded.results[0], message.results[0])
    measured = {
        "encode_ms": best_ms(lambda: encode(message, run_id="r")),
        "decode_ms": best_ms(lambda: decode(frame, run_id="r")),
    }
    benchmark.extra_info |= measured
    print("\n" + ", ".join(f"{name} {value:.2f}" for name, value in measured.items()))
