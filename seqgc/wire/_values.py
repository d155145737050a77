"""What a header's fields may hold: types that msgspec checks while it parses."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

__all__ = [
    "MAX_FRAME_BYTES",
    "MAX_PIECES",
    "Count",
    "Digest",
    "Line",
    "Name",
    "Record",
    "Seconds",
    "one_line",
]

MAX_FRAME_BYTES = 1 << 28  # four ResNet-18 gradients in float32 are 180 MB
MAX_PIECES = 4096  # of one result; each costs the receiver a call, however short it is
_MAX_LINE_CHARACTERS = 1000

# Beyond 2**53 a JSON number is not exact everywhere.
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0)]  # finite: JSON has no other numbers
Name: TypeAlias = Annotated[str, Meta(max_length=200)]
Line: TypeAlias = Annotated[str, Meta(max_length=_MAX_LINE_CHARACTERS)]
Digest: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]  # SHA-256, hexadecimal


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object of a header: its fields, no others, of their types and ranges."""


def one_line(text: str, *, limit: int = _MAX_LINE_CHARACTERS) -> str:
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
