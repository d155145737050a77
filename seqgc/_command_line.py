"""The parts of the command line that work before the verbs are imported.

Importing the verbs takes a second, which is too long for two purposes:

- Shell completion. When TAB is pressed, the shell script that ``seqgc --install-completion``
  installed (typer's) starts seqgc and passes the typed words in environment variables. The
  completions come from a table of verbs, options and their help, ``completion.json``
  (`seqgc.cli._help` makes it). The table has no values of options; the shell completes file names.
- The format of messages (``--log-format``, ``--quiet``). An error in the command line itself is
  also reported in this format.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

__all__ = [
    "LOG_FORMAT",
    "QUIET",
    "TABLE",
    "VARIABLE",
    "MessageFormat",
    "Words",
    "answered",
    "message_format",
]

TABLE: Final = Path(__file__).with_name("completion.json")
LOG_FORMAT: Final = "--log-format"
QUIET: Final = "--quiet"
VARIABLE: Final = "SEQGC_LOG_FORMAT"


class Words(TypedDict):
    """The help, the options and the inner verbs of a verb; the command itself is the outermost.

    ``options`` maps the flags of an option, such as ``-n --workers``, to its kind (``flag``,
    ``value`` or ``values``) and its help.
    """

    help: str
    options: dict[str, list[str]]
    verbs: dict[str, Words]


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """The requested format of messages, which may be invalid.

    If ``quiet``, only warnings and errors are shown.
    """

    format: str = "text"
    quiet: bool = False


def message_format(arguments: Sequence[str]) -> MessageFormat:
    """Return the format that the words after ``seqgc``, or the environment, specify.

    Examples
    --------
    >>> message_format(["train", "run.toml", "--quiet", "--log-format=json"])
    MessageFormat(format='json', quiet=True)
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    words, wanted = arguments[:end], os.environ.get(VARIABLE, "text")
    for word, following in zip(words, [*words[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        if flag == LOG_FORMAT:
            wanted = value if equals else following or wanted
    return MessageFormat(wanted, QUIET in words)


# ---- completion ----------------------------------------------------------------------------------


def answered() -> bool:
    """Print the completions that the shell requests; return False if it requests none."""
    instruction, _, shell = os.environ["_SEQGC_COMPLETE"].partition("_")
    if instruction != "complete" or shell not in _ANSWERS:
        return False
    table: Words = json.loads(TABLE.read_text("utf-8"))
    candidates = _candidates(table, *_typed(shell))
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        raise SystemExit(not candidates)  # status 1: fish completes file names
    sys.stdout.write(_ANSWERS[shell](candidates) + "\n")
    return True


def _candidates(table: Words, words: Sequence[str], start: str) -> dict[str, str]:
    """Return the words that may follow ``words`` and begin with ``start``, and their help."""
    open_option, used = "", set[str]()
    for word in words:
        if open_option:
            open_option = ""
        elif word in table["verbs"]:
            table, used = table["verbs"][word], set()
        elif flags := _flags_of(table, word.partition("=")[0]):
            kind, _ = table["options"][flags]
            open_option = flags if kind != "flag" and "=" not in word else ""
            if kind != "values":
                used.add(flags)
    if start.startswith("-") and "=" not in start and "--" not in words:
        used.discard(open_option)  # this option still lacks its value
        candidates = {
            flag: about
            for flags, (_, about) in table["options"].items()
            if flags not in used
            for flag in _split(flags)
        }
        candidates["--help"] = "Show this message and exit."
    else:
        verbs = {} if open_option else table["verbs"]
        candidates = {name: verb["help"] for name, verb in verbs.items()}
    return {word: about for word, about in candidates.items() if word.startswith(start)}


def _flags_of(table: Words, flag: str) -> str:
    return next((flags for flags in table["options"] if flag in _split(flags)), "")


def _split(flags: str) -> list[str]:
    return re.split("[ /]", flags)


def _typed(shell: str) -> tuple[list[str], str]:
    """Return the complete words after ``seqgc``, and the word that is being typed."""
    if shell == "bash":
        number = int(os.environ["COMP_CWORD"])
        words = _words(os.environ["COMP_WORDS"])
        return words[1:number], words[number] if number < len(words) else ""
    text = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _words(text)[1:]
    if shell in ("powershell", "pwsh"):
        start = os.environ.get("_TYPER_COMPLETE_WORD_TO_COMPLETE", "")
        return words[:-1] if start else words, start
    return (words, "") if not words or text.endswith(" ") else (words[:-1], words[-1])


def _words(line: str) -> list[str]:
    """Return the words of a line, which may end within a word."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words = list[str | None]()
    try:
        words.extend(iter(lexer.get_token, None))
    except ValueError:  # a quotation is still open
        words.append(lexer.token)
    return [word for word in words if word is not None]


def _bash(candidates: Mapping[str, str]) -> str:
    return "\n".join(candidates)


def _zsh(candidates: Mapping[str, str]) -> str:
    pairs = [f'"{_escaped(word)}":"{_escaped(about)}"' for word, about in candidates.items()]
    return "_arguments '*: :((" + "\n".join(pairs) + "))'" if pairs else "_files"


def _escaped(text: str) -> str:
    text = text.replace('"', '""').replace("'", "''")
    return re.sub(r"[$`]", r"\\\g<0>", text).replace(":", r"\\:")


def _fish(candidates: Mapping[str, str]) -> str:
    return "\n".join(f"{word}\t{about}" for word, about in candidates.items())


def _powershell(candidates: Mapping[str, str]) -> str:
    return "\n".join(f"{word}:::{about}" for word, about in candidates.items())


_ANSWERS: Final = {
    "bash": _bash,
    "fish": _fish,
    "powershell": _powershell,
    "pwsh": _powershell,
    "zsh": _zsh,
}
