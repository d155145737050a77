"""How a command line is to speak: looked for in its words before the verbs are imported.

Whatever is wrong with the words is then told in that manner, too. Which words are values of options
is in the table that TAB is answered from; what is no option there is passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from seqgc._completion import TABLE, Words, kind_of

__all__ = ["FORMAT", "QUIET", "VARIABLE", "Manner", "manner_of"]

FORMAT: Final = "--log-format"
QUIET: Final = "--quiet"
VARIABLE: Final = "SEQGC_LOG_FORMAT"


@dataclass(frozen=True, slots=True)
class Manner:
    """The format of messages, which may be one that there is not; and whether errors are all."""

    format: str = "text"
    quiet: bool = False


def manner_of(arguments: Sequence[str]) -> Manner:
    """Return what a command line, without the program's name, or the environment asks for.

    Examples
    --------
    >>> manner_of(["train", "run.toml", "--quiet", "--log-format=json"])
    Manner(format='json', quiet=True)
    >>> manner_of(["train", "--run", "--quiet"]).quiet  # the name of a folder
    False
    """
    verb: Words = json.loads(TABLE.read_text("utf-8"))
    wanted, quiet = os.environ.get(VARIABLE, "text"), False
    words, ended = iter(arguments), False
    for word in words:
        flag, given, value = word.partition("=")
        if word in verb["verbs"]:  # whose options begin
            verb, ended = verb["verbs"][word], False
        elif ended or word == "--":
            ended = True
        elif word == QUIET:
            quiet = True
        elif flag == FORMAT:
            wanted = value if given else next(words, wanted)
        elif not given and kind_of(verb, flag) in ("value", "values"):
            next(words, None)
    return Manner(wanted, quiet)
