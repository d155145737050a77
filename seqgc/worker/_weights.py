"""The weights of runs, as a function finds them: kept, brought along, or in the store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from seqgc.errors import StoreError
from seqgc.ports import FloatArray, WeightRef, WeightStore

__all__ = ["RunWeights", "WeightCache", "cache_bytes"]

_MOST_BYTES = 256 << 20


def cache_bytes(environment: Mapping[str, str]) -> int:
    """Return how many bytes of weights to keep: most memory is for model, data and gradients."""
    megabytes = environment.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "")
    quarter = (int(megabytes) << 20) // 4 if megabytes.isdecimal() else _MOST_BYTES
    return min(quarter, _MOST_BYTES)


class WeightCache:
    """Weights of several runs, of ``limit_bytes`` in all or one version, if that is larger.

    The run that was not used for longest loses its weights first, the lowest version before others.
    """

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes: Final = limit_bytes
        self._runs: Final[OrderedDict[RunWeights, dict[WeightRef, FloatArray]]] = OrderedDict()
        self._bytes = 0

    def get(self, run: RunWeights, ref: WeightRef) -> FloatArray | None:
        """Return a run's weights if they are kept."""
        if run not in self._runs:
            return None
        self._runs.move_to_end(run)
        return self._runs[run].get(ref)

    def put(self, run: RunWeights, ref: WeightRef, params: FloatArray) -> None:
        """Keep a run's weights, and drop others if there is no room for all."""
        if self.get(run, ref) is not None:
            return
        while self._runs and self._bytes + params.nbytes > self._limit_bytes:
            oldest, kept = next(iter(self._runs.items()))
            self._bytes -= kept.pop(min(kept, key=lambda ref: ref.version)).nbytes
            if not kept:
                del self._runs[oldest]
        self._runs.setdefault(run, {})[ref] = params
        self._runs.move_to_end(run)
        self._bytes += params.nbytes

    def forget(self, run: RunWeights) -> None:
        """Keep nothing of a run."""
        self._bytes -= sum(params.nbytes for params in self._runs.pop(run, {}).values())


class RunWeights:
    """Fetches one run's weights, which wire or store have compared with the reference's digest."""

    def __init__(self, cache: WeightCache) -> None:
        self._cache: Final = cache
        self._inline: Mapping[WeightRef, FloatArray] = {}
        self._open: Callable[[], WeightStore] | None = None

    @contextmanager
    def lent(
        self, inline: Mapping[WeightRef, FloatArray], open_store: Callable[[], WeightStore]
    ) -> Iterator[None]:
        """For the block's time, fetch from ``inline`` or from the store, unless they are kept."""
        self._inline, self._open = inline, open_store
        try:
            yield
        finally:
            self._inline, self._open = {}, None

    def fetch(self, ref: WeightRef) -> FloatArray:
        """Return the weights (size,) that ``ref`` stands for, read-only, or raise `StoreError`."""
        if (kept := self._cache.get(self, ref)) is not None:
            return kept
        if (brought := self._inline.get(ref)) is not None:
            params = brought.copy()  # a view of the whole invocation's bytes would keep them all
            params.flags.writeable = False
        elif self._open is None:
            raise StoreError(f"weights of {ref.model!r}, version {ref.version} were asked for late")
        else:
            params = self._open().fetch(ref)
        self._cache.put(self, ref, params)
        return params
