"""What actions say only if somebody asks: a replay reads no mini-task and no decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from seqgc.ports import Decoding
from seqgc.schemes import Assignment, MiniTasks

__all__ = ["ByWorker", "Once"]


class ByWorker(Mapping[int, MiniTasks]):
    """Who is asked for what; mini-tasks are still made when somebody looks at them."""

    def __init__(self, assignment: Assignment, workers: Sequence[int]) -> None:
        self._assignment, self._workers = assignment, workers

    def __getitem__(self, worker: int) -> MiniTasks:
        if worker not in self._workers:
            raise KeyError(worker)
        return self._assignment[worker]

    def __iter__(self) -> Iterator[int]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)


class Once:
    """A decoding that is worked out when it is first asked for."""

    __slots__ = ("_decoding", "_make")

    def __init__(self, make: Callable[[], Decoding]) -> None:
        self._make = make
        self._decoding: Decoding | None = None

    def __call__(self) -> Decoding:
        if self._decoding is None:
            self._decoding = self._make()
        return self._decoding
