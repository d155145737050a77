"""A check of events that come from a backend."""

from __future__ import annotations

from seqgc.errors import WireError

__all__ = ["require_worker"]


def require_worker(worker: int, n: int) -> None:
    """Raise `WireError` if the worker of an answer is not one of the ``n`` workers.

    Examples
    --------
    >>> require_worker(2, 2)
    Traceback (most recent call last):
        ...
    seqgc.errors.WireError: the worker of an answer must satisfy 0 <= worker < 2; got 2: ...
    """
    if not 0 <= worker < n:
        rule = f"must satisfy 0 <= worker < {n}"
        raise WireError(f"the worker of an answer {rule}; got {worker}: repair the backend")
