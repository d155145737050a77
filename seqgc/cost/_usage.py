"""What is metered: gigabyte-seconds, requests, bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final

from seqgc.errors import ParameterError
from seqgc.wire import StoreKind

__all__ = ["INIT_LIMIT_S", "START_S", "FunctionSetup", "Traffic", "Usage"]

INIT_LIMIT_S: Final = 10.0
"""How long an environment may take to start (INIT), seconds, beside the function's time-out.

What takes longer Lambda begins again within the invocation. Since August 2025 it bills INIT for
all functions (compute blog, "AWS Lambda standardizes billing for INIT Phase").
"""

START_S: Final = 2.5
"""How long an environment is expected to import the handler and PyTorch for, seconds.

Measured as processor time: 2.2 to 2.5 s; 0.2 s without PyTorch. It is billed wherever it happens:
in INIT, or, of what is imported when it is first needed, in the first invocation.
"""

_BASE64 = 4 / 3  # characters a byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Metered quantities; they add up.

    ``requests`` are invocations; ``transfer_out_bytes`` leave the region.

    Examples
    --------
    >>> Usage(requests=2, gb_seconds=0.5) + Usage(requests=1).times(3)
    Usage(requests=5, gb_seconds=0.5, efs_read_bytes=0, efs_write_bytes=0, s3_puts=0, s3_gets=0, \
transfer_out_bytes=0)
    """

    requests: int = 0
    gb_seconds: float = 0.0
    efs_read_bytes: int = 0
    efs_write_bytes: int = 0
    s3_puts: int = 0
    s3_gets: int = 0
    transfer_out_bytes: int = 0

    def __add__(self, other: Usage) -> Usage:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Usage(**sums)

    def times(self, count: int) -> Usage:
        """Return ``count`` times as much."""
        return Usage(**{f.name: getattr(self, f.name) * count for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSetup:
    """A function's memory (MB) and time-out (seconds), which set what an invocation can cost.

    An invocation for which an environment must start is billed that start (INIT) as well, which the
    time-out does not count.

    Raises
    ------
    ParameterError
        If they are outside Lambda's limits.

    Examples
    --------
    >>> FunctionSetup(memory_mb=2048, timeout_s=30.0).invocation(1.0001)  # billed by the ms, up
    Usage(requests=1, gb_seconds=2.002, efs_read_bytes=0, efs_write_bytes=0, s3_puts=0, s3_gets=0, \
transfer_out_bytes=0)
    """

    memory_mb: int
    timeout_s: float

    def __post_init__(self) -> None:
        if not 128 <= self.memory_mb <= 10240:
            rule = "must satisfy 128 <= memory_mb <= 10240 (Lambda)"
            raise ParameterError("memory_mb", rule, self.memory_mb)
        if not 0 < self.timeout_s <= 900:
            rule = "must satisfy 0 < timeout_s <= 900 (Lambda)"
            raise ParameterError("timeout_s", rule, self.timeout_s)

    @property
    def longest_s(self) -> float:
        """The most that an invocation is billed: a start at its limit, then to the time-out."""
        return INIT_LIMIT_S + self.timeout_s

    def invocation(self, seconds: float) -> Usage:
        """Return the usage of one invocation of so many seconds, its environment's start included.

        It is billed for no more than `longest_s`.
        """
        return replace(self.start(min(seconds, self.longest_s)), requests=1)

    def start(self, seconds: float = START_S) -> Usage:
        """Return the usage of an environment's start that takes so many seconds."""
        # The rounding takes back what the multiplication adds: 1.001 s are 1001 ms.
        milliseconds = math.ceil(round(max(seconds, 0.0) * 1e3, 6))
        return Usage(gb_seconds=milliseconds * self.memory_mb / (1024 * 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The bytes that a task moves, beside its message.

    Parameters
    ----------
    where
        The store: files on EFS, objects on S3, or nothing but messages.
    weights_bytes
        Of one job's weights, those that are new to an environment: each is read once, then cached.
    weights_files
        How many files or objects these are.
    weights_jobs
        Of how many jobs a task needs the weights; an environment that was just started has none.
    result_bytes
        Of its results as they are packed.
    results_stored
        They are too large for the answer and go through the store.
    master_outside
        The master is outside the region: what it reads is paid for as transfer to the internet.

    Examples
    --------
    >>> large = Traffic(
    ...     where="directory", weights_bytes=1000, result_bytes=500, results_stored=True
    ... )
    >>> large.task().efs_read_bytes, large.task().efs_write_bytes, large.publication()
    (1500, 500, Usage(requests=0, gb_seconds=0.0, efs_read_bytes=0, efs_write_bytes=1000, \
s3_puts=0, s3_gets=0, transfer_out_bytes=0))
    """

    where: StoreKind
    weights_bytes: int
    result_bytes: int
    weights_files: int = 1
    weights_jobs: int = 1
    results_stored: bool = False
    master_outside: bool = False

    def __post_init__(self) -> None:
        if self.where == "inline" and self.results_stored:
            rule = "must be directory or s3 where results are too large for the answer"
            raise ParameterError("where", rule, self.where)

    def task(self, *, fresh: bool = False) -> Usage:
        """Return what one task's weights and results use, the master's reading included.

        ``fresh``: in an environment that was just started, and has none of the weights yet.
        """
        jobs = self.weights_jobs if fresh else 1
        stored = self.result_bytes if self.results_stored else 0
        answered = self.result_bytes if stored else math.ceil(self.result_bytes * _BASE64)
        out = answered if self.master_outside else 0
        match self.where:
            case "directory":
                return Usage(
                    efs_read_bytes=jobs * self.weights_bytes + stored,
                    efs_write_bytes=stored,
                    transfer_out_bytes=out,
                )
            case "s3":
                return Usage(
                    s3_gets=jobs * self.weights_files + self.results_stored,
                    s3_puts=int(self.results_stored),
                    transfer_out_bytes=out,
                )
            case "inline":
                return Usage(transfer_out_bytes=out)

    def publication(self) -> Usage:
        """Return what it takes the master to publish a job's weights."""
        match self.where:
            case "directory":
                return Usage(efs_write_bytes=self.weights_bytes)
            case "s3":
                return Usage(s3_puts=self.weights_files)
            case "inline":
                return Usage()
