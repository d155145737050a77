"""Check how the package reads: words of docstrings, names of classes, circles of imports.

- Docstrings are searched for habits that make a reader start again. Each room (a subpackage, or the
  modules at the top) has a limit, in marks per 1,000 words, which may only fall.
- A class name is defined once in the package.
- At most two modules import each other in a circle. Imports inside functions and for types count.

The limits and the exceptions that remain are in `prose.json`. `--update [ROOM ...]` lowers the
limits of some rooms, or of all, to the present values. Nothing raises a limit.
`--list [ROOM ...]` shows every mark.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("prose.json")
TOP = "(top)"  # the modules that are in no room
NEW_ROOM = 0.5  # limit of a room that the table does not have
LARGEST_CIRCLE = 2

HABITS = {
    "begins with a question word": re.compile(
        r"\A(?:(?:Of|By|In|For|To) what|What|Whom|Whose|Which|How|When|Where|Whether|Why)\b"
    ),
    "`who` without a noun": re.compile(
        r"(?:\A|[.;:,(]\s+)(?:who|those who)\b|\b(?:of whom|whoever|whomever)\b", re.IGNORECASE
    ),
    "a word that is rare today": re.compile(
        r"\b(?:anew|besides|lest|be it|for good|take note|so as it|thereof|therein|hence)\b",
        re.IGNORECASE,
    ),
    "`go on` for continue": re.compile(r"\b(?:go|goes|going|gone|went) on\b", re.IGNORECASE),
    "`one's own`": re.compile(r"\bone's own\b", re.IGNORECASE),
    "`is none` for there is no": re.compile(
        r"\b(?:is|are|was|be) (?:none|no such|nobody's|nothing's)\b|\bthat there is(?: not)?\b"
    ),
    "`so many` for as many": re.compile(r"\bso (?:many|much|long|few)\b"),
    "`have` for make": re.compile(
        r"(?:\A|\. )Have (?:a|all|each|every|it|its|that|the|them|these|those)\b"
    ),
    "`those` without a noun": re.compile(
        r"\b(?:those|these|others|others')(?=[.,;:]| (?:that|who|of|which) )"
    ),
}
SECTION = re.compile(r"\n[ \t]*(?:Examples?|Parameters)\n[ \t]*-+")  # code and names follow


@dataclass
class Room:
    """The docstrings of a room."""

    words: int = 0
    marks: list[tuple[str, str]] = field(default_factory=list)  # where, what

    @property
    def rate(self) -> float:
        """Marks per 1,000 words, to one decimal."""
        return round(1000 * len(self.marks) / max(self.words, 1), 1)


@dataclass
class Package:
    """What the check looks at."""

    rooms: dict[str, Room] = field(default_factory=lambda: defaultdict(Room))
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    imports: dict[str, set[str]] = field(default_factory=dict)

    def twice(self) -> dict[str, list[str]]:
        """Return the places of each class name that is defined more than once."""
        return {name: at for name, at in sorted(self.classes.items()) if len(at) > 1}

    def circles(self) -> list[list[str]]:
        """Return the modules of each circle that is too large."""
        groups = strongly_connected(self.imports)
        return sorted(sorted(group) for group in groups if len(group) > LARGEST_CIRCLE)


def read_package(folder: Path) -> Package:
    """Parse every module of a package once."""
    package = Package()
    names = {module_name(path, folder): path for path in sorted(folder.rglob("*.py"))}
    for module, path in names.items():
        where = path.relative_to(folder)
        room = package.rooms[where.parts[0] if len(where.parts) > 1 else TOP]
        package.imports[module] = set()
        for node in statements(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                package.imports[module] |= imported(node, names) - {module}
                continue
            at = f"{folder.name}/{where}:{getattr(node, 'lineno', 1)}"
            if isinstance(node, ast.ClassDef):
                package.classes[node.name].append(at)
            if text := ast.get_docstring(node):
                prose = SECTION.split(text)[0]
                room.words += len(prose.split())
                room.marks += [(at, mark) for mark in marks(prose)]
    return package


def module_name(path: Path, folder: Path) -> str:
    """Return the name that a file is imported by."""
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(tree: ast.AST) -> Iterator[Any]:
    """Yield the module, its classes and functions, and its imports, however deep they are."""
    if isinstance(tree, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield tree
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, part, ()):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node
            else:
                yield from statements(node)


def imported(node: ast.Import | ast.ImportFrom, names: Mapping[str, Path]) -> set[str]:
    """Return the modules of the package that a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & names.keys()
    inner = {f"{node.module}.{alias.name}" for alias in node.names}
    parts = {name if name in names else node.module or "" for name in inner}
    return parts & names.keys()


def marks(text: str) -> list[str]:
    """Return what a reader of a docstring stumbles on.

    >>> marks("Whether all go on.")
    ['begins with a question word: Whether', '`go on` for continue: go on']
    """
    return [
        f"{habit}: {' '.join(match.group().split())}"
        for habit, pattern in HABITS.items()
        for match in pattern.finditer(text)
    ]


def strongly_connected(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of nodes that reach each other (Tarjan 1972).

    >>> strongly_connected({"a": {"b"}, "b": {"a"}, "c": {"a"}})
    [{'a', 'b'}, {'c'}]
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[set[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in sorted(edges[node]):
            if other not in order:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            at = stack.index(node)
            groups.append(set(stack[at:]))
            del stack[at:]

    for node in edges:
        if node not in order:
            visit(node)
    return groups


def problems(package: Package, table: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the table does not allow, a line each."""
    limits = table["marks_per_1000_words"]
    for name, room in sorted(package.rooms.items()):
        if room.rate > (limit := limits.get(name, NEW_ROOM)):
            yield f"{name}: {room.rate} marks per 1,000 words, at most {limit} are allowed"
            yield from (f"  {at}: {mark}" for at, mark in room.marks)
    for name, at in package.twice().items():
        if len(at) > table["class_names_used"].get(name, 1):
            yield f"class {name} is defined {len(at)} times: {', '.join(at)}"
    for circle in package.circles():
        if len(circle) > table["modules_in_a_circle"]:
            yield f"{len(circle)} modules import each other in a circle: {', '.join(circle)}"


def lowered(package: Package, table: Mapping[str, Any], rooms: set[str]) -> dict[str, Any]:
    """Return the table with the limits of some rooms (of none named: of all) as low as they are."""
    limits = {
        name: min(room.rate, limit) if name in (rooms or package.rooms) else limit
        for name, room in sorted(package.rooms.items())
        for limit in [table["marks_per_1000_words"].get(name, NEW_ROOM)]
    }
    largest = max(map(len, package.circles()), default=LARGEST_CIRCLE)
    used = table["class_names_used"]
    twice = {name: min(len(at), used.get(name, 1)) for name, at in package.twice().items()}
    return {
        "marks_per_1000_words": limits,
        "class_names_used": {name: count for name, count in twice.items() if count > 1},
        "modules_in_a_circle": min(largest, table["modules_in_a_circle"]),
    }


def main(
    argv: list[str] | None = None, *, folder: Path = ROOT / "seqgc", file: Path = TABLE
) -> int:
    """Check the package, or lower the limits; return the exit status."""
    parser = argparse.ArgumentParser(prog=".ci/prose.py", description=__doc__.splitlines()[0])
    parser.add_argument("--update", nargs="*", metavar="ROOM", help="lower the limits")
    parser.add_argument("--list", nargs="*", metavar="ROOM", help="show the marks")
    options = parser.parse_args(argv)
    table = json.loads(file.read_text("utf-8"))
    package = read_package(folder)
    if options.list is not None:
        for name, room in sorted(package.rooms.items()):
            if name in (options.list or package.rooms):
                print(f"{name}: {room.rate} marks per 1,000 words")
                print(*(f"  {at}: {mark}" for at, mark in room.marks), sep="\n")
        return 0
    lines = list(problems(package, table))
    print(*lines, sep="\n", file=sys.stderr, end="\n" if lines else "")
    if options.update is not None:
        table = lowered(package, table, set(options.update))
        file.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
