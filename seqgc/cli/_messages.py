"""What a verb says on stderr while it is at work: sentences for people, or JSON for machines.

``--log-format json``, or ``SEQGC_LOG_FORMAT=json``, makes every message one object on a line of its
own: ``time`` (UTC), ``level`` (info, warning or error), ``event``, ``message``, which is what
people would be shown, and what else there is to the event. Which it is to be is looked for before
anything else is read (`seqgc._manner`). What is not said by seqgc itself (by ``sam``, or by the
user's own code) is as it is.

``--quiet`` leaves only warnings and errors, in either form, and nothing is drawn.
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
from typing import Final, Literal, TextIO

import numpy as np

from seqgc._manner import VARIABLE, manner_of
from seqgc.errors import ParameterError, ProfileWarning, did_you_mean

_FORMATS: Final = ("text", "json")

Level = Literal["info", "warning", "error"]


@dataclass(slots=True)
class _Voice:
    """How this process speaks: all its threads alike."""

    as_json: bool = False
    quiet: bool = False


_voice: Final = _Voice()


def check_format(wanted: str) -> str:
    """Refuse, with `ParameterError`, a format that there is not."""
    if wanted not in _FORMATS:
        rule = f"must be {' or '.join(_FORMATS)}"
        raise ParameterError("log_format", rule, wanted, did_you_mean(wanted, _FORMATS))
    return wanted


def check_environment(arguments: Sequence[str]) -> None:
    """Refuse, with `ParameterError`, a format that the environment asks for and there is not."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted and wanted not in _FORMATS and manner_of(arguments).format == wanted:
        rule = f"must be {' or '.join(_FORMATS)}"
        raise ParameterError(VARIABLE, rule, wanted, did_you_mean(wanted.lower(), _FORMATS))


@contextmanager
def speaking(arguments: Sequence[str]) -> Iterator[None]:
    """Speak as a command line, or the environment, asks for, warnings of Python's included."""
    wanted = manner_of(arguments)
    before, shown = (_voice.as_json, _voice.quiet), warnings.showwarning
    _voice.as_json, _voice.quiet = wanted.format == "json", wanted.quiet

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if _voice.as_json:
            say("warning", str(message), level="warning")
        elif issubclass(category, ProfileWarning):  # one line, as errors are
            say("warning", f"seqgc: {message}", level="warning")
        else:
            shown(message, category, filename, lineno, file, line)

    warnings.showwarning = show_warning
    try:
        yield
    finally:
        (_voice.as_json, _voice.quiet), warnings.showwarning = before, shown


def in_json() -> bool:
    """Whether messages are for machines, who have no use for bars."""
    return _voice.as_json


def is_quiet() -> bool:
    """Whether only warnings and errors are said."""
    return _voice.quiet


def say(
    event: str,
    message: str,
    *,
    level: Level = "info",
    fields: Mapping[str, object] | None = None,
    show: Callable[[str], object] | None = None,
) -> None:
    """Say something on stderr; to people by ``show``, if that is given."""
    if is_quiet() and level == "info":
        return
    if in_json():
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        said = {"time": time, "level": level, "event": event, "message": message}
        line = json.dumps(plain({**(fields or {}), **said}), allow_nan=False, default=str)
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    elif show is not None:
        show(message)
    else:
        sys.stderr.write(message + "\n")


def plain(value: object) -> object:
    """Return a value as JSON has it: arrays as lists, dataclasses by their fields."""
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
