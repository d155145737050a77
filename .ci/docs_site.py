"""The documentation as a site: gather its pages before the build, check the result afterwards.

Pages link to files elsewhere in the repository. On the site these files are copies, and Markdown
files are pages. In the site's tree `docs/` is the top, and every other file keeps its place.

- `python .ci/docs_site.py gather FOLDER` writes the pages, and the files they link to, to FOLDER.
- `python .ci/docs_site.py check SITE` checks that every link within the built site leads somewhere,
  and that no page loads anything from elsewhere.

`PublicNames` is an extension of griffe, which reads the docstrings.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

try:
    from griffe import Alias, Extension
except ImportError:  # the tests use the rest without it
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
            file = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
            file = file if path else page
            if (ROOT / file / "README.md").is_file():
                file += "/README.md"
            yield target, file, anchor


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as the site makes them."""
    text = BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    result = set()
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        result.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return result


def pages() -> list[str]:
    """Return the pages of the site: docs/, the experiments, and the Markdown files they link to."""
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").glob("*/README.md")]
    result = sorted(path.relative_to(ROOT).as_posix() for path in files)
    for page in result:
        for _, path, _ in links(page):
            if path.endswith(".md") and path not in result and (ROOT / path).is_file():
                result.append(path)
    return result


def place(path: str) -> str:
    """Return the path of a repository's file in the site's tree.

    >>> place("docs/api/codes.md"), place("examples/stochastic.py")
    ('api/codes.md', 'examples/stochastic.py')
    """
    return path.removeprefix("docs/")


# ---- gathering the pages -------------------------------------------------------------------------


def gather(tree: Path) -> None:
    """Write the site's pages, with links that fit its tree, and the files they link to."""
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT / "docs", tree)
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages()}
    for page in texts:
        folder = posixpath.dirname(place(page)) or "."
        for target, path, anchor in links(page):
            if not (ROOT / path).is_file():
                continue
            link = posixpath.relpath(place(path), folder) + (f"#{anchor}" if anchor else "")
            texts[page] = texts[page].replace(f"]({target})", f"]({link})")
            if path not in texts:
                copy = tree / place(path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / path, copy)
    for page, text in texts.items():
        (tree / place(page)).parent.mkdir(parents=True, exist_ok=True)
        (tree / place(page)).write_text(text, encoding="utf-8")


class PublicNames(Extension):
    """Names that a package imports as ``from a import x as x``, marked as public."""

    def on_alias_instance(self, *, alias: Alias, node: Any, **_: Any) -> None:
        """Mark an import that repeats its name."""
        if isinstance(node, ast.ImportFrom):
            alias.public = any(name.asname == alias.name for name in node.names) or None


# ---- the check of what is built ------------------------------------------------------------------


class Page(HTMLParser):
    """The anchors and links of a built page, and the files that it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what an element adds."""
        of = {name: value or "" for name, value in attrs}
        self.anchors |= {of[name] for name in ("id", "name") if name in of}
        if tag == "a" and "href" in of:
            self.links.append(of["href"])
        if tag == "link":
            self.loaded.append(of.get("href", ""))
        self.loaded += [of[name] for name in ("src", "srcset", "data", "poster") if name in of]


def destination(target: str, path: Path, site: Path) -> tuple[Path, str]:
    """Return the file and the anchor to which a link in a built page leads."""
    parts = urlsplit(target)
    top = site if parts.path.startswith("/") else path.parent
    there = Path(os.path.normpath(top / unquote(parts.path).lstrip("/"))) if parts.path else path
    return there / "index.html" if there.is_dir() else there, unquote(parts.fragment)


def problems(site: Path) -> Iterator[str]:
    """Yield a line for each link that leads nowhere, and for each file loaded from elsewhere."""
    built = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    loaded = [(path, target) for path, page in built.items() for target in page.loaded]
    for path in sorted(site.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        loaded += [(path, url) for url in re.findall(r"url\(\s*[\"']?([^\"')]+)", text)]
    for path, target in loaded:
        if ELSEWHERE.match(target) and not target.startswith("data:"):
            yield f"{path.relative_to(site)}: loads {target}"
    linked = [(path, target) for path, page in built.items() for target in page.links]
    for path, target in linked + loaded:
        if ELSEWHERE.match(target):
            continue
        there, anchor = destination(target, path, site)
        if not there.is_file():
            yield f"{path.relative_to(site)}: {target} is not there"
        elif anchor and there in built and anchor not in {*built[there].anchors, "__top"}:
            yield f"{path.relative_to(site)}: {target} has no such anchor"


def check(site: Path) -> int:
    """Print the problems of a built site; return the exit status."""
    lines = list(problems(site))
    print("\n".join(lines) or f"{len(list(site.rglob('*.html')))} pages; no link is broken")
    return min(len(lines), 1)


if __name__ == "__main__":
    command, folder = sys.argv[1], Path(sys.argv[2])
    sys.exit(gather(folder) if command == "gather" else check(folder))
