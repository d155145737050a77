"""What no policy can make sense of."""

from __future__ import annotations

from seqgc.errors import WireError
from seqgc.ports import Arrival, Failure

__all__ = ["require_known"]


def require_known(event: Arrival | Failure, n: int) -> None:
    """Refuse an event of a worker that there is not among ``n``, with `WireError`."""
    if not 0 <= event.worker < n:
        rule = f"must satisfy 0 <= worker < {n}"
        raise WireError(f"the worker of an answer {rule}; got {event.worker}: repair the backend")
