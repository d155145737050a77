"""What a shell is answered when TAB is pressed: from a table, as importing the verbs takes seconds.

The table, ``completion.json``, holds the verbs, their options and what these are for, as the
command line itself has them; ``python -m seqgc.cli._words`` writes it. Shells ask by what typer's
scripts set (``seqgc --install-completion`` installs one), and are answered in its words; but for
what no table knows, values and files, for which shells have completions of their own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypedDict

__all__ = ["TABLE", "Words", "answered", "kind_of"]

TABLE: Final = Path(__file__).with_name("completion.json")


class Words(TypedDict):
    """A verb, or a group of such; ``options`` by their flags, each with its kind and help."""

    help: str
    options: dict[str, list[str]]  # kind (flag, value or values), help
    verbs: dict[str, Words]


def answered() -> bool:
    """Answer the shell that asks; False: it wants something else than completions."""
    instruction, _, shell = os.environ["_SEQGC_COMPLETE"].partition("_")
    if instruction != "complete" or shell not in _ANSWERS:
        return False
    words: Words = json.loads(TABLE.read_text("utf-8"))
    found = _candidates(words, *_asked(shell))
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        raise SystemExit(not found)  # else files are
    sys.stdout.write(_ANSWERS[shell](found) + "\n")
    return True


def _candidates(words: Words, before: Sequence[str], begun: str) -> dict[str, str]:
    """Return what the word that has ``begun`` after those ``before`` may be, and its help."""
    open_option, given = "", set[str]()
    for word in before:
        if open_option:
            open_option = ""
        elif word in words["verbs"]:
            words, given = words["verbs"][word], set()
        elif flags := _flags_of(words, word.partition("=")[0]):
            kind, _ = words["options"][flags]
            open_option = flags if kind != "flag" and "=" not in word else ""
            if kind != "values":
                given.add(flags)
    if begun.startswith("-") and "=" not in begun and "--" not in before:
        named = [(flags, about) for flags, (_, about) in words["options"].items()]
        given.discard(open_option)  # it has no value yet
        found = {f: about for flags, about in named if flags not in given for f in _split(flags)}
        found["--help"] = "Show this message and exit."
    else:
        verbs = {} if open_option else words["verbs"]
        found = {name: verb["help"] for name, verb in verbs.items()}
    return {word: about for word, about in found.items() if word.startswith(begun)}


def kind_of(words: Words, flag: str) -> str:
    """Return the kind of a verb's option; empty: it has none of that name."""
    return words["options"][flags][0] if (flags := _flags_of(words, flag)) else ""


def _flags_of(words: Words, flag: str) -> str:
    return next((flags for flags in words["options"] if flag in _split(flags)), "")


def _split(flags: str) -> list[str]:
    return re.split("[ /]", flags)


# ---- as shells have it ---------------------------------------------------------------------------


def _asked(shell: str) -> tuple[list[str], str]:
    """Return the words before the one that is typed, without the program's, and that one."""
    if shell == "bash":
        number = int(os.environ["COMP_CWORD"])
        words = _words(os.environ["COMP_WORDS"])
        return words[1:number], words[number] if number < len(words) else ""
    text = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _words(text)[1:]
    if shell in ("powershell", "pwsh"):
        begun = os.environ.get("_TYPER_COMPLETE_WORD_TO_COMPLETE", "")
        return words[:-1] if begun else words, begun
    return (words, "") if not words or text.endswith(" ") else (words[:-1], words[-1])


def _words(line: str) -> list[str]:
    """Return the words of a line that may end in the middle of one."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words = list[str | None]()
    try:
        words.extend(iter(lexer.get_token, None))
    except ValueError:  # a quotation that is open yet
        words.append(lexer.token)
    return [word for word in words if word is not None]


def _bash(found: Mapping[str, str]) -> str:
    return "\n".join(found)


def _zsh(found: Mapping[str, str]) -> str:
    pairs = [f'"{_escaped(word)}":"{_escaped(about)}"' for word, about in found.items()]
    return "_arguments '*: :((" + "\n".join(pairs) + "))'" if pairs else "_files"


def _escaped(text: str) -> str:
    text = text.replace('"', '""').replace("'", "''")
    return re.sub(r"[$`]", r"\\\g<0>", text).replace(":", r"\\:")


def _fish(found: Mapping[str, str]) -> str:
    return "\n".join(f"{word}\t{about}" for word, about in found.items())


def _powershell(found: Mapping[str, str]) -> str:
    return "\n".join(f"{word}:::{about}" for word, about in found.items())


_ANSWERS: Final = {
    "bash": _bash,
    "fish": _fish,
    "powershell": _powershell,
    "pwsh": _powershell,
    "zsh": _zsh,
}
