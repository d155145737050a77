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
    """Metered quantities; they add up. ``transfer_out_bytes`` leave the region.

    Examples
    --------
    >>> (Usage(requests=2, gb_seconds=0.5) + Usage(requests=1).times(3)).requests
    5
    """

    requests: int = 0  # invocations
    gb_seconds: float = 0.0
    efs_read_bytes: int = 0
    efs_write_bytes: int = 0
    s3_puts: int = 0
    s3_gets: int = 0
    transfer_out_bytes: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

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
    >>> FunctionSetup(memory_mb=2048, timeout_s=30.0).invocation(1.0001).gb_seconds  # by the ms, up
    2.002
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
        """Return the usage of one invocation, any start included; billed up to `longest_s`."""
        return replace(self.start(min(seconds, self.longest_s)), requests=1)

    def start(self, seconds: float = START_S) -> Usage:
        """Return the usage of an environment's start that takes so many seconds."""
        # The rounding takes back what the multiplication adds: 1.001 s are 1001 ms.
        milliseconds = math.ceil(round(max(seconds, 0.0) * 1e3, 6))
        return Usage(gb_seconds=milliseconds * self.memory_mb / (1024 * 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The bytes that a task moves, beside its message.

    Of one job, ``weights_bytes`` in ``weights_files`` files or objects are new to an environment:
    each is read once, then cached. A task needs the weights of ``weights_jobs`` jobs; an
    environment that was just started has none. Its results are ``result_bytes`` as they are packed,
    ``results_stored`` if they are too large for the answer and go through the store. What a
    master outside the region reads is paid for as transfer to the internet.

    Examples
    --------
    >>> large = Traffic(
    ...     where="directory", weights_bytes=1000, result_bytes=500, results_stored=True
    ... )
    >>> large.task().efs_read_bytes, large.publication().efs_write_bytes
    (1500, 1000)
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
        answered = stored or math.ceil(self.result_bytes * _BASE64)
        out = Usage(transfer_out_bytes=answered if self.master_outside else 0)
        match self.where:
            case "directory":
                read = jobs * self.weights_bytes + stored
                return replace(out, efs_read_bytes=read, efs_write_bytes=stored)
            case "s3":
                gets = jobs * self.weights_files + self.results_stored
                return replace(out, s3_gets=gets, s3_puts=int(self.results_stored))
            case "inline":
                return out

    def publication(self) -> Usage:
        """Return what it takes the master to publish a job's weights."""
        match self.where:
            case "directory":
                return Usage(efs_write_bytes=self.weights_bytes)
            case "s3":
                return Usage(s3_puts=self.weights_files)
            case "inline":
                return Usage()
