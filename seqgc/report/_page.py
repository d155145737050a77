"""`Page`: what a report says, and the one file of HTML that it becomes.

The file asks for nothing: no network, no script, no font. A policy in its head forbids the browser
all that, so that even a mistake here could not let a name from a run's folder do anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from seqgc import __version__
from seqgc._durable import replacing
from seqgc.report._elements import Element, element, number, write
from seqgc.report._pictures import Picture, figure
from seqgc.report._style import style_sheet

__all__ = ["Figure", "Page", "Section"]

_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure at a glance: its name, its value, and what it is of."""

    name: str
    value: object
    unit: str = ""
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page: a heading, sentences, pictures, and facts or a table below them."""

    title: str
    says: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    table: Element | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a report says. ``notices``: what is missing, damaged, or was left out, a sentence each.

    ``refresh_s``: after how many seconds a browser is to look again; None: never.
    """

    kind: str
    title: str
    says: Sequence[str] = ()
    notices: Sequence[str] = ()
    glance: Sequence[Figure] = ()
    sections: Sequence[Section] = ()
    refresh_s: int | None = None

    def html(self) -> str:
        """Return the file."""
        root = element("html", self._head(), self._body(), lang="en")
        return f"<!DOCTYPE html>\n{write(root)}\n"

    def write(self, path: str | Path) -> None:
        """Write the file; whoever reads it meanwhile has the one before. `OSError` if it cannot."""
        with replacing(Path(path)) as file:
            file.write(self.html().encode())

    def _head(self) -> Element:
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("meta", name="referrer", content="no-referrer"),
            element("title", f"{self.title} – {self.kind}"),
            element("link", rel="icon", href="data:,"),
            element("style", style_sheet()),
        )
        if self.refresh_s is not None:
            head.append(element("meta", http_equiv="refresh", content=str(self.refresh_s)))
        return head

    def _body(self) -> Element:
        header = element(
            "header",
            element("p", self.kind, class_="kind"),
            element("h1", self.title),
            *(element("p", sentence) for sentence in self.says),
        )
        if self.notices:
            notices = (element("li", each) for each in self.notices)
            header.append(element("ul", *notices, class_="notices"))
        if self.glance:
            header.append(element("dl", *map(_tile, self.glance), class_="glance"))
        main, numbered = element("main"), 0
        for section in self.sections:
            main.append(_section(section, first=numbered))
            numbered += len(section.pictures)
        return element("body", header, main, element("footer", f"Made by seqgc {__version__}."))


def _tile(each: Figure) -> Element:
    shown = number(each.value) + (f" {each.unit}" if each.unit else "")
    about = [element("small", each.about)] if each.about else []
    kind = {"class_": "words"} if len(shown) > 14 else {}
    return element("div", element("dt", each.name), element("dd", shown, *about), **kind)


def _section(section: Section, *, first: int) -> Element:
    made = element("section", element("h2", section.title))
    made.extend(element("p", sentence) for sentence in section.says)
    if section.pictures:
        drawn = (figure(each, number=first + i) for i, each in enumerate(section.pictures))
        made.append(element("div", *drawn, class_="pictures"))
    if section.facts:
        pairs = [
            element(tag, text)
            for pair in section.facts.items()
            for tag, text in zip(("dt", "dd"), pair, strict=True)
        ]
        made.append(element("dl", *pairs, class_="facts card"))
    if section.table is not None:
        made.append(element("div", section.table, class_="card"))
    return made
