"""A process that is started need not import the script that starts it.

multiprocessing has every child import the parent's ``__main__``, for what may be defined there.
That is slow, and fatal for a script without ``if __name__ == "__main__"``, which would start
workers of its own in each. Nothing here needs it: what ``__main__`` defines is sent by value
(`seqgc._by_value`). So while a process is started, ``__main__`` is as it always is but for where it
comes from, as in a notebook, and there is nothing to import.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

__all__ = ["without_script"]

_lock = threading.Lock()
_blocks = 0  # that are open, of all threads


class _Fileless(ModuleType):
    """Another module's names, but for its file and its spec."""

    def __init__(self, script: ModuleType) -> None:
        super().__init__(script.__name__)  # its spec is None
        self._script = script

    def __getattr__(self, name: str) -> object:
        if name == "__file__":
            raise AttributeError(name)
        return getattr(self._script, name)


@contextmanager
def without_script() -> Iterator[None]:
    """Have processes that are started in the block import no script; blocks may overlap.

    Examples
    --------
    >>> with without_script():
    ...     hasattr(sys.modules["__main__"], "__file__")
    False
    """
    global _blocks  # noqa: PLW0603 (as is what it counts for, sys.modules)
    with _lock:
        _blocks += 1
        if _blocks == 1:
            sys.modules["__main__"] = _Fileless(sys.modules["__main__"])
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            stand_in = sys.modules["__main__"]
            if _blocks == 0 and isinstance(stand_in, _Fileless):
                sys.modules["__main__"] = stand_in._script
