"""Progress of a run in the format of the command line's messages."""

from __future__ import annotations

import time
from collections.abc import Callable

from seqgc.cli._messages import in_json, is_quiet, say
from seqgc.progress import RunProgress, Spending

__all__ = ["run_progress"]


def run_progress(
    label: str,
    *,
    total: int,
    spending: Spending | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RunProgress:
    """Return the progress of a run: a live view on a terminal, otherwise at most one line a second.

    With ``--log-format json`` there is no live view, and messages are JSON
    (`seqgc.cli._messages`). With ``--quiet`` only warnings are shown.
    """
    draws = not in_json() and not is_quiet()
    return RunProgress(label, total=total, spending=spending, clock=clock, say=say, draws=draws)
