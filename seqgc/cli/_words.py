"""The table that TAB is answered from (`seqgc._completion`), as the verbs and options are."""

from __future__ import annotations

import json
from typing import Any

from rich.text import Text

from seqgc._completion import TABLE, Words
from seqgc.cli._main import command

__all__ = ["words", "write_words"]


def words() -> Words:
    """Return the table as the command line has it now."""
    return _words(command())


def write_words() -> None:
    """Write the table anew, once verbs or options have changed."""
    TABLE.write_text(json.dumps(words(), indent=1, ensure_ascii=False) + "\n", "utf-8")


def _words(verb: Any) -> Words:  # of typer's own click
    options = {}
    for each in verb.params:
        if each.param_type_name != "option":
            continue
        flags = " ".join(each.opts)
        if each.secondary_opts:
            flags = "/".join((flags, *each.secondary_opts))
        kind = "flag" if each.is_flag else "values" if each.multiple else "value"
        options[flags] = [kind, _plain(each.help or "")]
    verbs = {name: _words(each) for name, each in getattr(verb, "commands", {}).items()}
    return Words(help=_plain(verb.get_short_help_str()), options=options, verbs=verbs)


def _plain(text: str) -> str:
    return Text.from_markup(" ".join(text.split())).plain


if __name__ == "__main__":
    write_words()
