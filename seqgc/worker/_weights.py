"""The weights of one run, as a function finds them: kept, brought along, or in the store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from seqgc._types import FloatArray
from seqgc.errors import StoreError
from seqgc.ports import WeightRef, WeightStore

__all__ = ["RunWeights"]


class RunWeights:
    """Fetches weights, and keeps the latest of them, of ``limit_bytes`` in all.

    A reference contains the weights' digest, and whatever is kept has been compared with it: by the
    wire for those that travelled along, by the store for the others.

    Examples
    --------
    >>> import numpy as np
    >>> weights = RunWeights(limit_bytes=1000)
    >>> ref = WeightRef(model="cnn", version=0, digest="0" * 64, dtype="float64", size=2)
    >>> with weights.lent({ref: np.ones(2)}, lambda: None):
    ...     weights.fetch(ref)
    array([1., 1.])
    >>> weights.fetch(ref)  # kept
    array([1., 1.])
    """

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes: Final = limit_bytes
        self._kept: Final[OrderedDict[WeightRef, FloatArray]] = OrderedDict()
        self._inline: Mapping[WeightRef, FloatArray] = {}
        self._open: Callable[[], WeightStore] | None = None

    @contextmanager
    def lent(
        self, inline: Mapping[WeightRef, FloatArray], open_store: Callable[[], WeightStore]
    ) -> Iterator[None]:
        """For the block's time, fetch from ``inline`` or from the store."""
        self._inline, self._open = inline, open_store
        try:
            yield
        finally:
            self._inline, self._open = {}, None

    def fetch(self, ref: WeightRef) -> FloatArray:
        """Return the weights (size,) that ``ref`` stands for, read-only.

        Raises
        ------
        StoreError
            If they are nowhere to be found.
        """
        if ref in self._kept:
            self._kept.move_to_end(ref)
            return self._kept[ref]
        if (brought := self._inline.get(ref)) is not None:
            params = brought.copy()  # a view of the whole invocation's bytes would keep them all
            params.flags.writeable = False
        elif self._open is None:
            raise StoreError(f"weights of {ref.model!r}, version {ref.version} were asked for late")
        else:
            params = self._open().fetch(ref)
        self._keep(ref, params)
        return params

    def _keep(self, ref: WeightRef, params: FloatArray) -> None:
        self._kept[ref] = params
        while len(self._kept) > 1 and self._kept_bytes() > self._limit_bytes:
            self._kept.popitem(last=False)

    def _kept_bytes(self) -> int:
        return sum(params.nbytes for params in self._kept.values())
