"""The build context: the folder in which ``sam`` builds the functions, made from what is installed.

=====================  ============================================================================
``template.yaml``      what is deployed, and from which of these files
``Dockerfile``         the image; ``.dockerignore`` beside it
``seqgc/``             the package, as it is installed here
``lambda_handlers/``   what a function runs, its Makefile (the zip), and what is installed with it
``own/``               code and data of one's own, copied beside those two, and the
                       ``requirements.txt`` of what they need besides
=====================  ============================================================================

A checkout has the same places, so that an image can be built there by hand. A wheel has what is no
package of these beside this module, in ``context``. All is looked at before anything is written,
and a folder that could not be filled is left empty.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from seqgc.deploy._deployment import DeployOptions, Package
from seqgc.deploy._own_code import OwnCode, require_modules
from seqgc.deploy._places import FILES, OWN, PACKAGES
from seqgc.errors import ParameterError

__all__ = ["context_files", "require_room", "write_context"]

_MOST_BYTES: Final[Mapping[Package, int]] = {"zip": 250 << 20, "image": 10 << 30}
"""What a function may weigh unpacked, by how it is packed (Lambda)."""

_MOST_TEMPLATE_BYTES: Final = 1 << 20
"""CloudFormation's limit."""


def context_files(
    options: DeployOptions, own: OwnCode, *, template: Path | None = None
) -> dict[str, Path]:
    """Return what a build context consists of: files of this machine, by their places in it.

    ``template`` is one's own in place of seqgc's.

    Raises
    ------
    ParameterError
        If something is not there, does not belong into an image, or does not fit a zip.
    """
    mine = own.files()
    if options.image_uri and mine:
        rule = "must be left out with include or requirements: nothing is built"
        raise ParameterError("image_uri", rule, options.image_uri)
    if not options.image_uri:
        require_modules(options.factories, mine, installs=bool(own.requirements))
    for name in PACKAGES:
        if taken := [place for place in mine if place.split("/")[0] in (name, f"{name}.py")]:
            rule = f"must not have the place of {name}"
            raise ParameterError("include", rule, str(mine[taken[0]]))
    require_room(options.package, mine.values())
    found = {name: _shipped(name) for name in FILES}
    if template is not None:
        if not os.path.isfile(template):  # noqa: PTH113 (`Path.is_file` raises at some names)
            raise ParameterError("template", "must be a SAM template", str(template))
        if (size := template.stat().st_size) > _MOST_TEMPLATE_BYTES:
            rule = f"must have at most {_MOST_TEMPLATE_BYTES} bytes (CloudFormation)"
            raise ParameterError("template", rule, f"{size} in {template}")
        found["template.yaml"] = template
    for name in PACKAGES:
        folder = _package(name)
        found |= {f"{name}/{path.relative_to(folder).as_posix()}": path for path in _code(folder)}
    return found | {f"{OWN}/{place}": path for place, path in mine.items()}


def write_context(files: Mapping[str, Path], folder: Path) -> None:
    """Copy the files to their places in a folder, which is new or empty.

    Raises
    ------
    ParameterError
        If there is something in the folder, or it cannot be made.
    """
    rule = "must be a new or an empty folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_new = not any(folder.iterdir())
    except OSError as error:
        raise ParameterError("context", rule, str(folder), error.strerror or "") from None
    if not is_new:
        raise ParameterError("context", rule, str(folder))
    try:
        for place, path in files.items():
            copy = folder / place
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            copy.chmod(0o644)  # functions run as another user, who must be able to read it
    except BaseException:
        for inner in folder.iterdir():
            shutil.rmtree(inner) if inner.is_dir() else inner.unlink()
        raise


def require_room(package: Package, files: Iterable[Path]) -> None:
    """Refuse files that a function cannot hold."""
    size, most = sum(path.stat().st_size for path in files), _MOST_BYTES[package]
    if size > most:
        rule = f"must not exceed {most} bytes as package {package}, unpacked (Lambda)"
        larger = "take --package image, or " if package == "zip" else ""
        raise ParameterError("include", rule, size, f"{larger}`seqgc data put` what is data")


def _shipped(name: str) -> Path:
    """Return a file of the context: beside this module, or where a checkout has it."""
    beside = Path(__file__).with_name("context") / name
    return beside if beside.is_file() else _package("seqgc").parent / name


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        rule = "must be installed with seqgc"
        raise ParameterError("context", rule, name, "pip install --force-reinstall seqgc")
    return Path(next(iter(spec.submodule_search_locations)))


def _code(folder: Path) -> Iterator[Path]:
    """Yield the files of a package that is installed here."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield path
