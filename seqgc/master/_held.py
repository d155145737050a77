"""`pack_held` and `unpack_held`: a job with received results, as JSON types and vectors by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from seqgc.master._gathering import HeldJob
from seqgc.ports import FloatArray

__all__ = ["PackedJob", "pack_held", "unpack_held"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedJob:
    """A `HeldJob` in JSON types, without its vectors, which are stored by name."""

    job: int
    kind: tuple[str, int] | None
    rows: dict[int, list[tuple[int, int]]]
    stored: list[tuple[int, int, int]]
    summed: list[tuple[tuple[int, int, int], tuple[int, int]]]
    sums: list[tuple[int, int, int]]
    parts: int = 0
    asked: list[tuple[tuple[int, int], list[int]]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The names of the job's vectors."""
        stored = [_name("stored", self.job, *key) for key in self.stored]
        return stored + [_name("sum", self.job, *node) for node in self.sums]


def pack_held(job: HeldJob) -> tuple[PackedJob, dict[str, FloatArray]]:
    """Convert a job with received results to JSON types, and to its vectors by name."""
    vectors = {_name("stored", job.job, *key): vector for key, vector in job.stored.items()}
    vectors |= {_name("sum", job.job, *node): vector for node, vector in job.sums.items()}
    packed = PackedJob(
        job=job.job,
        kind=job.kind,
        rows=job.rows,
        stored=list(job.stored),
        summed=list(job.summed.items()),
        sums=list(job.sums),
        parts=job.parts,
        asked=list(job.asked.items()),
    )
    return packed, vectors


def unpack_held(packed: PackedJob, vectors: Mapping[str, FloatArray]) -> HeldJob:
    """Restore a job that `pack_held` has converted."""
    job = packed.job
    return HeldJob(
        job=job,
        kind=packed.kind,
        rows=packed.rows,
        stored={key: vectors[_name("stored", job, *key)] for key in packed.stored},
        summed=dict(packed.summed),
        sums={node: vectors[_name("sum", job, *node)] for node in packed.sums},
        parts=packed.parts,
        asked=dict(packed.asked),
    )


def _name(kind: str, *numbers: int) -> str:
    return ".".join([kind, *map(str, numbers)])
