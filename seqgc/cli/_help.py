"""The help of verbs, in sections. At 80 columns no name of an option is cut.

The table for shell completion (`seqgc._command_line`) contains the same names and texts. After a
change of verbs or options, ``python -m tests.cli.inside`` writes the table again.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from seqgc._command_line import Words

__all__ = ["Group", "Verb", "words"]


class Verb(TyperCommand):
    """A verb whose help groups the options into sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_sections(self, ctx, formatter)


class Group(TyperGroup):
    """A group of verbs whose help groups the options into sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_sections(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def _write_sections(verb: Any, ctx: Any, formatter: Any) -> None:
    """Write the arguments, then the options without a section, then each section."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for each in verb.get_params(ctx):
        if (row := each.get_help_record(ctx)) is not None:
            default = "Arguments" if each.param_type_name == "argument" else "Options"
            sections.setdefault(each.rich_help_panel or default, []).append(row)
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def words(verb: Any) -> Words:
    """Return the help, options and inner verbs of a verb, for shell completion."""
    options = {}
    for each in verb.params:
        if each.param_type_name != "option":
            continue
        flags = " ".join(each.opts)
        if each.secondary_opts:
            flags = "/".join((flags, *each.secondary_opts))
        kind = "flag" if each.is_flag else "values" if each.multiple else "value"
        options[flags] = [kind, " ".join((each.help or "").split())]
    verbs = {name: words(each) for name, each in getattr(verb, "commands", {}).items()}
    return Words(help=" ".join(verb.get_short_help_str().split()), options=options, verbs=verbs)
