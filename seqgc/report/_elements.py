"""HTML as a tree of elements: whatever is put into it is text, and can be nothing else.

Names come from run folders and profiles that anybody may have written. They are never put together
to markup here: the tree is, and one function of the standard library writes it, which escapes all
text and all values of attributes. `element` is the only way in, and lets no character through that
a document may not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from xml.etree import ElementTree

import numpy as np

from seqgc.errors import one_line

__all__ = [
    "Element",
    "details_table",
    "element",
    "number",
    "percent",
    "plain",
    "rows_table",
    "write",
]

Element = ElementTree.Element

_FORBIDDEN: Final = re.compile(r"[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MOST_ROWS: Final = 60
_LONGEST_CELL: Final = 200
_SHORT: Final = 32  # is not broken


def plain(text: str) -> str:
    """Return a text without characters that no document may have."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def element(tag: str, *children: Element | str, **attributes: str) -> Element:
    """Return an element; attributes that are words of Python end in ``_``, as ``class_``.

    Examples
    --------
    >>> write(element("p", "<b> & ", element("b", "x"), class_='"'))
    '<p class="&quot;">&lt;b&gt; &amp; <b>x</b></p>'
    """
    names = {name.removesuffix("_").replace("_", "-"): plain(v) for name, v in attributes.items()}
    made = Element(tag, names)
    last: Element | None = None
    for child in children:
        if not isinstance(child, str):
            made.append(child)
            last = child
        elif last is None:
            made.text = (made.text or "") + plain(child)
        else:
            last.tail = (last.tail or "") + plain(child)
    return made


def write(tree: Element) -> str:
    """Return an element as HTML."""
    return ElementTree.tostring(tree, encoding="unicode", method="html")


def number(value: Any) -> str:
    """Return a value as a table shows it: four digits of what was measured, all of what is counted.

    Examples
    --------
    >>> number(12345), number(1234.567), number(0.0001236), number(float("nan")), number(True)
    ('12,345', '1,235', '0.0001236', '–', 'yes')
    """
    match value:
        case bool() | np.bool_():
            return "yes" if value else "no"
        case int() | np.integer():
            return f"{value:,}"
        case float() | np.floating():
            return _measured(float(value))
        case None:
            return "–"
    return one_line(value, limit=_LONGEST_CELL)


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.1f} %"


def _measured(value: float) -> str:
    if not np.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def rows_table(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> Element:
    """Return a table; it scrolls by itself where it is too wide. Numbers stand to the right."""
    cells = [list(row) for row in rows]
    words = {place for row in cells for place, value in enumerate(row) if isinstance(value, str)}
    head = element("tr", *(_heading(each, place in words) for place, each in enumerate(heading)))
    body = [element("tr", *map(_cell, row)) for row in cells]
    whole = element("table", element("thead", head), element("tbody", *body))
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label="Table")


def _heading(name: str, is_of_words: bool) -> Element:
    kind = {} if is_of_words else {"class_": "number"}
    return element("th", name, scope="col", **kind)


def _cell(value: Any) -> Element:
    if isinstance(value, str):
        kind = {"class_": "short"} if len(value) <= _SHORT else {}
        return element("td", number(value), **kind)
    return element("td", number(value), class_="number")


def details_table(columns: Mapping[str, Any], *, most: int = _MOST_ROWS) -> Element:
    """Return a table of equally long columns that opens on a click; of a long one the first rows.

    That it is cut is said in a sentence.
    """
    names = list(columns)
    total = len(columns[names[0]]) if names else 0
    shown = [columns[name][:most] for name in names]
    rows = zip(*shown, strict=True)
    count = "1 row" if total == 1 else f"{total:,} rows"
    parts = [element("summary", f"Table ({count})")]
    if total > most:
        parts.append(element("p", f"The first {most} of {count}.", class_="muted"))
    return element("details", *parts, rows_table((name.replace("_", " ") for name in names), rows))
