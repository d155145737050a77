"""The backends that the contract suite runs over: one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from seqgc.backends import LocalBackend
from seqgc.ports import Backend, Clock
from seqgc.worker import ComputeFactory

Delays = Callable[[int, int], float]


class Opener(Protocol):
    """Opens a backend whose workers are ready."""

    def __call__(
        self,
        n: int,
        compute: ComputeFactory,
        *,
        delays: Delays | None = None,
        clock: Clock | None = None,
    ) -> Backend: ...


BACKENDS: dict[str, Opener] = {"local": LocalBackend}
