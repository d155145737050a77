"""The user's own code, by its name; modules of the working directory are found too."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from seqgc.errors import ParameterError

__all__ = ["own_function", "search_here"]


def search_here() -> None:
    """Let modules of the working directory be found."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def own_function(path: str, *, argument: str) -> Callable[[], object]:
    """Return the user's own ``package.module:function``.

    Raises
    ------
    ParameterError
        If there is none.
    """
    module, _, name = path.partition(":")
    search_here()
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        rule = f"must be an importable package.module:function ({error})"
        raise ParameterError(argument, rule, path) from None
    if not callable(function):
        raise ParameterError(argument, "must name a function", path)
    return cast("Callable[[], object]", function)
