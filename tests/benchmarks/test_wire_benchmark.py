"""Answers of 400 KB and 1.5 MB of float32 in frames, and a frame of 1.5 MB in JSON.

Beside what SHA-256 takes for the same bytes, and any JSON library for the same body; nothing is
gated.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pytest

from seqgc.wire import ResultMessage, Subject, decode, encode, from_json, to_json, to_mapping

NUMBERS = 375_000  # 1.5 MB
RUNS = 30
SUBJECT = Subject(round=3, worker=1, attempt=0)


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


@pytest.mark.benchmark(group="wire: JSON of a frame of 1.5 MB")
def test_json_of_a_frame(benchmark: Benchmark) -> None:
    vector = np.random.default_rng(0).standard_normal(NUMBERS).astype(np.float32)
    frame = encode(ResultMessage(subject=SUBJECT, results={0: vector}), run_id="r")
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


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("numbers", [100_000, NUMBERS])
@pytest.mark.benchmark(group="wire: a frame")
def test_a_frame(benchmark: Benchmark, numbers: int, sealed: bool) -> None:
    vector = np.random.default_rng(0).standard_normal(numbers).astype(np.float32)
    message = ResultMessage(subject=SUBJECT, results={0: vector})

    def encoded() -> bytes:
        return encode(message, run_id="r", sealed=sealed)

    def decoded(frame: bytes) -> object:
        return decode(frame, run_id="r", sealed=sealed)

    frame = encoded()
    both = benchmark.pedantic(lambda: decoded(encoded()), rounds=RUNS)
    np.testing.assert_array_equal(both.results[0], vector)
    measured = {
        "encode_ms": best_ms(encoded),
        "decode_ms": best_ms(lambda: decoded(frame)),
        "sha256_ms": best_ms(lambda: hashlib.sha256(frame).digest()),
    }
    both_ms = measured["encode_ms"] + measured["decode_ms"]
    measured["sha256_ratio"] = 2 * measured["sha256_ms"] / both_ms
    benchmark.extra_info |= measured
    print("\n" + ", ".join(f"{name} {value:.3f}" for name, value in measured.items()))
