"""Code and data of one's own for functions: which files, where they go, and which must not.

A path that is included has the place in the functions that it has below the working directory, so
that ``import mine.nets`` means there what it means here. What a build makes by itself is left out,
an older build context included.
What looks like a secret is refused: whoever may read an image may read what is in it, for as long
as it is kept, and nobody sees that it is there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from seqgc.deploy._places import is_context
from seqgc.errors import ParameterError

__all__ = ["OwnCode", "require_modules"]

_LEFT_OUT: Final = (
    "__pycache__", "*.py[co]", ".git", ".hg", ".svn", ".aws-sam", ".venv", ".*_cache",
    ".ipynb_checkpoints", ".DS_Store", "node_modules",
)  # fmt: skip
_SECRET_NAMES: Final = (
    ".env", ".env.*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore",
    "*.kdbx", "*.ppk", "*.asc", "*.gpg", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".aws",
    ".ssh", ".gnupg", ".kube", ".azure", ".gcloud", ".docker", "credentials", "credentials.*",
    "*credentials*.json", "*credentials*.csv", "*accesskeys*.csv", "client_secret*",
    "service?account*.json", "secret", "secrets", "secret.*", "secrets.*", ".netrc", "_netrc",
    ".pgpass", ".pypirc", ".npmrc", ".git-credentials", ".htpasswd", "*.tfstate", "*.tfvars",
    "kubeconfig",
)  # fmt: skip
_SECRET_TEXT: Final = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    rb"|(?i:aws_secret_access_key)\s*[=:]|https?://[^\s:/@]+:[^\s/@]+@",
)
_LOOKED_AT_BYTES: Final = 1 << 16
_WHERE: Final = "run it in the folder from which `import {}` works, and include it from there"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCode:
    """What of one's own is built into functions, and options of ``seqgc deploy``."""

    include: Annotated[
        tuple[str, ...],
        "Your file or folder, imported in functions as on this machine. Repeatable.",
    ] = ()
    requirements: Annotated[str, "Requirements file of your code, without PyTorch."] = ""
    force: Annotated[bool, "--force", "Include files that look like secrets, too."] = False

    def files(self) -> dict[str, Path]:
        """Return what is to be copied, by its place in the functions.

        Raises
        ------
        ParameterError
            If a path is not there, is a link or no file, looks like a secret, or has the place of
            another.
        """
        found: dict[str, Path] = {}
        for given in self.include:
            for place, path in _files(given):
                self._refuse_secret("include", place, path)
                if not found.setdefault(place, path).samefile(path):
                    rule = f"must have a place of its own: {found[place]} is at {place}"
                    raise ParameterError("include", rule, str(path))
        if self.requirements:
            path = Path(self.requirements)
            if not os.path.isfile(path):  # noqa: PTH113 (`Path.is_file` raises at some names)
                raise ParameterError("requirements", "must be a file", self.requirements)
            self._refuse_secret("requirements", path.name, path)
            if found.setdefault("requirements.txt", path) is not path:
                rule = "must be given as `requirements`, or left out: functions have one file of it"
                raise ParameterError("include", rule, str(found["requirements.txt"]))
        return found

    def _refuse_secret(self, argument: str, place: str, path: Path) -> None:
        if not self.force and (why := _secret(place, path)) is not None:
            remedy = "leave it out; --force includes it, for all who may read the image"
            raise ParameterError(
                argument, f"must not look like a secret ({why})", str(path), remedy
            )


def require_modules(modules: Iterable[str], places: Mapping[str, Path], *, installs: bool) -> None:
    """Refuse modules that are not at any of the ``places``; those that it ``installs`` may be.

    Examples
    --------
    >>> require_modules(["mine.nets"], {"mine/nets.py": Path("mine/nets.py")}, installs=False)
    >>> require_modules(["mine"], {"nets.py": Path("mine/nets.py")}, installs=False)
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `factories` must be modules among what is included; got 'mine' \
(run it in the folder from which `import mine` works, and include it from there)
    """
    tops = {PurePosixPath(place).parts[0].removesuffix(".py") for place in places}
    for module in modules:
        file = module.replace(".", "/")
        there = {f"{file}.py", f"{file}/__init__.py"} & places.keys()
        top = module.partition(".")[0]
        if not there and (top in tops or not installs):
            rule = "must be modules among what is included"
            raise ParameterError("factories", rule, module, _WHERE.format(module))


def _files(given: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of a path that is to be included, with their places."""
    top, here = Path(os.path.abspath(given)), Path.cwd()  # noqa: PTH100 (links are not followed)
    place = top.relative_to(here) if top.is_relative_to(here) else Path(top.name)
    if not os.path.exists(top):  # noqa: PTH110 (likewise)
        raise ParameterError("include", "must be there", given)
    for path in _below(top):
        if path.is_symlink() or not path.is_file():
            rule = "must consist of files and folders, not of links or the like"
            raise ParameterError("include", rule, str(path), "include what it leads to")
        yield (place / path.relative_to(top)).as_posix(), path


def _below(path: Path) -> Iterator[Path]:
    """Yield a file, or what a folder contains that is to be copied, in the order of the names."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for inner in sorted(path.iterdir()):
        if not any(fnmatch(inner.name, pattern) for pattern in _LEFT_OUT) and not is_context(inner):
            yield from _below(inner)


def _secret(place: str, path: Path) -> str | None:
    """Return why a file looks like a secret; None: it does not."""
    for part in {*PurePosixPath(place).parts, path.name}:
        name = part.lower()
        if name.endswith((".py", ".example", ".sample", ".template")):
            continue
        for pattern in _SECRET_NAMES:
            if fnmatch(name, pattern):
                return f"{part} is as {pattern}"
    with path.open("rb") as file:
        if (seen := _SECRET_TEXT.search(file.read(_LOOKED_AT_BYTES))) is not None:
            return f"it has {seen[0].decode(errors='replace')[:12]!r}... in it"
    return None
