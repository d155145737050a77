"""Where a verb is to write: refused before what goes there is made, which may take minutes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from seqgc._durable import replacing
from seqgc.errors import ParameterError

__all__ = ["require_place"]


class _EnoughError(Exception):
    """Ends what was tried."""


def require_place(output: Path, *, argument: str = "output") -> None:
    """Refuse a file that could not be written, or replaced, as it will be: that is tried."""
    if not os.path.isdir(output.parent):  # noqa: PTH112 (`Path.is_dir` raises at some names)
        raise ParameterError(argument, "must be in a folder that is there", str(output))
    if os.path.isdir(output):  # noqa: PTH112
        raise ParameterError(argument, "must be a file, and is a folder", str(output))
    try:
        with suppress(_EnoughError), replacing(output):
            raise _EnoughError
    except OSError as error:
        rule = f"must be a file that can be written ({error.strerror})"
        raise ParameterError(argument, rule, str(output)) from None
