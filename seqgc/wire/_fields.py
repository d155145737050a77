"""Reading JSON that somebody else wrote: every field is checked before it is believed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from seqgc.errors import WireError

__all__ = ["Fields", "one_line", "parse_header"]

_Text = TypeVar("_Text", bound=str)

_LARGEST = 2**53  # beyond it a JSON number is not exact everywhere


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def parse_header(text: bytes) -> Fields:
    """Parse a frame's header; anything but one JSON object of finite numbers is a `WireError`."""
    try:
        parsed = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"frame header is not JSON: {one_line(str(error), limit=200)}") from error
    return Fields(parsed, where="frame header")


def one_line(text: str, *, limit: int) -> str:
    r"""Return ``text`` as one printable line of at most ``limit`` characters.

    What a terminal or a log would obey, or could not encode, is replaced: control and formatting
    characters, lone surrogates.

    Examples
    --------
    >>> one_line("no\nsuch \x1b[31m file", limit=12) == "no such \ufffd[31"
    True
    """
    words = " ".join(text.split())[:limit].rstrip()
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in words)


class Fields:
    """One JSON object; each getter returns a value of its type and range, or raises `WireError`.

    Examples
    --------
    >>> Fields({"slot": 3}, where="item 0").integer("slot")
    3
    >>> Fields({"slot": -1}, where="item 0").integer("slot")
    Traceback (most recent call last):
        ...
    seqgc.errors.WireError: item 0: `slot` must be an integer >= 0; got -1
    """

    __slots__ = ("_where", "values")

    def __init__(self, values: Any, *, where: str) -> None:
        if not isinstance(values, Mapping):
            raise WireError(f"{where} must be a JSON object; got {type(values).__name__}")
        self.values, self._where = values, where

    def integer(self, name: str) -> int:
        """Return an integer from 0 to 2**53."""
        value = self.values.get(name)
        if type(value) is not int or not 0 <= value <= _LARGEST:
            self._refuse(name, "must be an integer >= 0", value)
        return value

    def seconds(self, name: str) -> float:
        """Return a finite number of seconds, at least 0."""
        value: Any = self.values.get(name)
        # As large as a float gets, so that float() below cannot overflow; NaN fails both tests.
        if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
            self._refuse(name, "must be a finite number >= 0", value)
        return float(value)

    def text(self, name: str, *, limit: int = 200) -> str:
        """Return a string of at most ``limit`` characters."""
        value = self.values.get(name)
        if not isinstance(value, str) or len(value) > limit:
            self._refuse(name, f"must be a string of at most {limit} characters", value)
        return value

    def sequence(self, name: str) -> list[Any]:
        """Return a JSON list, its elements unchecked."""
        value = self.values.get(name)
        if not isinstance(value, list):
            self._refuse(name, "must be a list", value)
        return value

    def objects(self, name: str) -> list[Fields]:
        """Return a JSON list of objects."""
        return [
            Fields(value, where=f"{self._where}, {name}[{place}]")
            for place, value in enumerate(self.sequence(name))
        ]

    def integers(self, name: str, *, within: range = range(_LARGEST + 1)) -> list[int]:
        """Return a JSON list of integers, each ``within`` the range."""
        values = self.sequence(name)
        if any(type(value) is not int or value not in within for value in values):
            least = f"integers >= {within[0]}"
            rule = least if within[-1] == _LARGEST else f"{least} and <= {within[-1]}"
            self._refuse(name, f"must be a list of {rule}", values)
        return values

    def integer_lists(self, name: str) -> list[list[int]]:
        """Return a JSON list of lists of integers, of either sign."""
        values = self.sequence(name)
        for value in values:
            if not isinstance(value, list) or any(type(each) is not int for each in value):
                self._refuse(name, "must be a list of lists of integers", values)
        return values

    def boolean(self, name: str) -> bool:
        """Return true or false."""
        value = self.values.get(name)
        if not isinstance(value, bool):
            self._refuse(name, "must be true or false", value)
        return value

    def one_of(self, name: str, known: tuple[_Text, ...]) -> _Text:
        """Return one of the ``known`` strings."""
        value = self.values.get(name)
        if value not in known:
            self._refuse(name, f"must be one of {', '.join(known)}", value)
        return known[known.index(value)]

    def given(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def inner(self, name: str) -> Fields:
        """Return a JSON object inside this one."""
        return Fields(self.values.get(name), where=f"{self._where}, {name}")

    def _refuse(self, name: str, rule: str, value: object) -> NoReturn:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise WireError(f"{self._where}: `{name}` {rule}; got {shown}")
