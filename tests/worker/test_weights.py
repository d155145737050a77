"""What is kept of weights, where the compute has threads of its own."""

from __future__ import annotations

import numpy as np

from seqgc.stores import MemoryStore
from seqgc.worker._weights import RunWeights, WeightCache

WEIGHTS = np.arange(5.0)


def test_weights_that_two_threads_of_a_compute_fetch_at_once_count_once() -> None:
    ref = MemoryStore().publish("cnn", 0, WEIGHTS)
    cache = WeightCache(limit_bytes=2 * WEIGHTS.nbytes)
    run = RunWeights(cache)
    for params in (WEIGHTS, WEIGHTS.copy()):
        cache.put(run, ref, params)
    assert cache._bytes == WEIGHTS.nbytes
    assert cache.get(run, ref) is WEIGHTS
