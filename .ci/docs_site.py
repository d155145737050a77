"""The documentation's site: what mkdocs does not do by itself, and a check of what it has built.

As a hook of mkdocs (`mkdocs.yml`): pages link files elsewhere in the repository as they do where
the repository is read. On the site these are copies; what is Markdown is a page. In the site's
tree, `docs/` is the top, and all else is where it is in the repository.

As an extension of griffe: what a package imports `as` its own name is public.

As a command, `python .ci/docs_site.py site`: every link inside the site leads somewhere, and no
page loads anything from elsewhere.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
import sys
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

try:
    from griffe import Alias, Extension
    from mkdocs.structure.files import File, Files
except ImportError:  # for the tests, which look at links without them
    Extension = object

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(rf"{BLOCK.pattern}|`[^`\n]*`", BLOCK.flags)
ELSEWHERE = re.compile(r"[a-z]+:|//")


# ---- links of pages ------------------------------------------------------------------------------


def links(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield each link of a page of the repository: as written, the path it leads to, its anchor."""
    for target in LINK.findall(CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))):
        if not ELSEWHERE.match(target):
            path, _, anchor = target.partition("#")
            found = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
            found = found if path else page
            if (ROOT / found / "README.md").is_file():
                found += "/README.md"
            yield target, found, anchor


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as mkdocs makes them."""
    text = BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found


def pages() -> list[str]:
    """Return the pages of the site: docs/, each experiment's, and Markdown that these lead to."""
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").glob("*/README.md")]
    found = sorted(path.relative_to(ROOT).as_posix() for path in files)
    for page in found:
        for _, path, _ in links(page):
            if path.endswith(".md") and path not in found and (ROOT / path).is_file():
                found.append(path)
    return found


def place(path: str) -> str:
    """Return where a file of the repository is in the site's tree.

    >>> place("docs/api/codes.md"), place("examples/stochastic.py")
    ('api/codes.md', 'examples/stochastic.py')
    """
    return path.removeprefix("docs/")


# ---- a hook of mkdocs ----------------------------------------------------------------------------


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link outside docs/."""
    for page in pages():
        for path in (page, *(path for _, path, _ in links(page))):
            if files.get_file_from_path(place(path)) is None and (ROOT / path).is_file():
                source = str(ROOT / path)
                files.append(File.generated(config, place(path), abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to where files are in the site's tree."""
    here = page.file.src_uri
    source = f"docs/{here}" if (ROOT / "docs" / here).is_file() else here
    there = {}
    for target, path, anchor in links(source):
        if (ROOT / path).is_file():
            there[target] = posixpath.relpath(place(path), posixpath.dirname(here) or ".")
            there[target] += f"#{anchor}" if anchor else ""
    return LINK.sub(lambda found: there.get(found[0], found[0]), markdown)


class PublicNames(Extension):
    """``from a import x as x`` makes x public."""

    def on_alias_instance(self, *, alias: Alias, node: Any, **_: Any) -> None:
        """Mark an alias that keeps its name."""
        if isinstance(node, ast.ImportFrom):
            alias.public = any(name.asname == alias.name for name in node.names) or None


# ---- the check of what is built ------------------------------------------------------------------


class Page(HTMLParser):
    """What a built page has: anchors, links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of an element."""
        of = {name: value or "" for name, value in attrs}
        self.anchors |= {of[name] for name in ("id", "name") if name in of}
        if tag == "a" and "href" in of:
            self.links.append(of["href"])
        if tag == "link":
            self.loaded.append(of.get("href", ""))
        self.loaded += [of[name] for name in ("src", "srcset", "data", "poster") if name in of]


def led_to(target: str, path: Path, site: Path) -> tuple[Path, str]:
    """Return the file that a link in a built page leads to, and the anchor there."""
    parts = urlsplit(target)
    top = site if parts.path.startswith("/") else path.parent
    there = Path(os.path.normpath(top / unquote(parts.path).lstrip("/"))) if parts.path else path
    return there / "index.html" if there.is_dir() else there, unquote(parts.fragment)


def problems(site: Path) -> Iterator[str]:
    """Yield a line for each link that leads nowhere, and for what is loaded from elsewhere."""
    built = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    loaded = [(path, target) for path, page in built.items() for target in page.loaded]
    for path in sorted(site.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        loaded += [(path, found) for found in re.findall(r"url\(\s*[\"']?([^\"')]+)", text)]
    for path, target in loaded:
        if ELSEWHERE.match(target) and not target.startswith("data:"):
            yield f"{path.relative_to(site)}: loads {target}"
    linked = [(path, target) for path, page in built.items() for target in page.links]
    for path, target in linked + loaded:
        if ELSEWHERE.match(target):
            continue
        there, anchor = led_to(target, path, site)
        if not there.is_file():
            yield f"{path.relative_to(site)}: {target} is not there"
        elif anchor and there in built and anchor not in {*built[there].anchors, "__top"}:
            yield f"{path.relative_to(site)}: {target} has no such anchor"


def main(site: Path) -> int:
    """Print what is wrong with a built site; return the exit status."""
    found = list(problems(site))
    print("\n".join(found) or f"{len(list(site.rglob('*.html')))} pages: links lead somewhere")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
