"""Errors of user code, described in one line with file and line number."""

from __future__ import annotations

import signal
import sysconfig
import threading
from pathlib import Path
from traceback import walk_tb
from typing import Final

from seqgc.errors import one_line

__all__ = ["fault_of", "is_own_interrupt"]

# The cause of an error in these packages is in the code that called them.
_PACKAGES: Final = frozenset({"seqgc", "torch", "numpy"})
_LIBRARY: Final = Path(sysconfig.get_paths()["stdlib"])
_INSTALLED: Final = ("site-packages", "dist-packages")


def fault_of(error: BaseException) -> str:
    r"""Describe an error in one line: its type, its message, and where in user code it happened.

    The place is the innermost line of user code in the traceback. User code is all code outside the
    standard library, PyTorch, numpy and seqgc.

    Examples
    --------
    >>> code = compile("def forward(x):\n    return x / 0", "nets.py", "exec")
    >>> exec(code, nets := {})
    >>> try:
    ...     nets["forward"](1)
    ... except ZeroDivisionError as error:
    ...     fault_of(error)
    'ZeroDivisionError: division by zero (nets.py:2, in forward)'
    """
    try:
        message = one_line(error, limit=600)
    except Exception:  # the error's __str__ may raise
        message = "it has no message"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    own = [(code, line) for code, line in frames if _is_own(code.co_filename)]
    if own:
        code, line = own[-1]
        text += f" ({code.co_filename}:{line}, in {code.co_name})"
    return one_line(text)


def is_own_interrupt(error: BaseException) -> bool:
    """Return True if an error is a `KeyboardInterrupt` that user code raised without Ctrl-C.

    After Ctrl-C, Python raises this error only in the main thread, and never in a process that
    ignores SIGINT, such as a worker process.

    Examples
    --------
    >>> is_own_interrupt(ValueError())
    False
    """
    in_main = threading.current_thread() is threading.main_thread()
    is_ignored = signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL)
    return isinstance(error, KeyboardInterrupt) and (is_ignored or not in_main)


def _is_own(file: str) -> bool:
    parts = Path(file).parts
    for folder in _INSTALLED:
        if folder in parts:
            return _PACKAGES.isdisjoint(parts[parts.index(folder) + 1 :][:1])
    if file.startswith("<frozen") or Path(file).is_relative_to(Path(__file__).parent):
        return False
    return not Path(file).is_relative_to(_LIBRARY)
