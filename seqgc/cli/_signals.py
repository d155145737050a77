"""What ends a run stays as it is, whatever one's own code does while it is imported."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keeping_signals() -> Iterator[None]:
    """Have what ends a run as it was before one's own code was imported, which may change it."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in numbers}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if handler is not None and signal.getsignal(number) is not handler:
                    signal.signal(number, handler)
