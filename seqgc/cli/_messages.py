"""The messages of verbs on stderr: sentences for people, or JSON for machines.

With ``--log-format json`` or ``SEQGC_LOG_FORMAT=json`` every message is one JSON object on a line:
``time`` (UTC), ``level`` (info, warning or error), ``event``, ``message`` (the sentence for people)
and the fields of the event. The output of ``sam`` and of user code is not changed. The format is
read before the verbs are imported (`seqgc._command_line`).

With ``--quiet`` only warnings and errors are written, in either format, and no progress is drawn.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from typing import Final, TextIO

import numpy as np

from seqgc._command_line import VARIABLE, message_format
from seqgc.errors import ParameterError, ProfileWarning, did_you_mean
from seqgc.progress import Level

_FORMATS: Final = ("text", "json")


@dataclass(slots=True)
class _Chosen:
    """The format of messages in all threads of this process."""

    as_json: bool = False
    quiet: bool = False


_chosen: Final = _Chosen()


def check_format(wanted: str) -> str:
    """Return ``wanted`` if it is a format of messages, else raise `ParameterError`."""
    if wanted not in _FORMATS:
        rule = f"must be {' or '.join(_FORMATS)}"
        raise ParameterError("log_format", rule, wanted, did_you_mean(wanted, _FORMATS))
    return wanted


def check_environment(arguments: Sequence[str]) -> None:
    """Raise `ParameterError` if the format in the environment is used and is unknown."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted and wanted not in _FORMATS and message_format(arguments).format == wanted:
        rule = f"must be {' or '.join(_FORMATS)}"
        raise ParameterError(VARIABLE, rule, wanted, did_you_mean(wanted.lower(), _FORMATS))


@contextmanager
def speaking(arguments: Sequence[str]) -> Iterator[None]:
    """Use the message format of a command line in this block, also for Python's warnings."""
    wanted = message_format(arguments)
    previous, show_plain = (_chosen.as_json, _chosen.quiet), warnings.showwarning
    _chosen.as_json, _chosen.quiet = wanted.format == "json", wanted.quiet

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if _chosen.as_json:
            say("warning", str(message), level="warning")
        elif issubclass(category, ProfileWarning):  # without Python's file name and line
            say("warning", f"seqgc: {message}", level="warning")
        else:
            show_plain(message, category, filename, lineno, file, line)

    warnings.showwarning = show_warning
    try:
        yield
    finally:
        (_chosen.as_json, _chosen.quiet), warnings.showwarning = previous, show_plain


def in_json() -> bool:
    """Return True if messages are JSON objects. In this case no progress is drawn."""
    return _chosen.as_json


def is_quiet() -> bool:
    """Return True if only warnings and errors are written."""
    return _chosen.quiet


def say(
    event: str,
    message: str,
    *,
    level: Level = "info",
    fields: Mapping[str, object] | None = None,
    show: Callable[[str], object] | None = None,
) -> None:
    """Write a message to stderr, in the chosen format.

    If the format is text and ``show`` is given, ``show`` writes the message instead.
    """
    if is_quiet() and level == "info":
        return
    if in_json():
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        common = {"time": time, "level": level, "event": event, "message": message}
        line = json.dumps(plain({**(fields or {}), **common}), allow_nan=False, default=str)
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    elif show is not None:
        show(message)
    else:
        sys.stderr.write(message + "\n")


def plain(value: object) -> object:
    """Convert a value to types of JSON.

    Arrays become lists and dataclasses become dictionaries. NaN and infinity become None.
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    match value:
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple() | np.ndarray():
            return [plain(item) for item in value]
        case np.generic():
            return plain(value.item())
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
