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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from seqgc.deploy._deployment import DeployOptions
from seqgc.deploy._own_code import OwnCode, require_modules
from seqgc.deploy._places import FILES, OWN, PACKAGES
from seqgc.errors import ParameterError

__all__ = ["ZIP_LIMIT_BYTES", "context_files", "require_unzipped", "write_context"]

ZIP_LIMIT_BYTES: Final = 250 << 20
"""What a function that is a zip may weigh unpacked (Lambda)."""


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
    if options.package == "zip":
        require_unzipped(sum(path.stat().st_size for path in mine.values()))
    found = {name: _shipped(name) for name in FILES}
    if template is not None:
        if not os.path.isfile(template):  # noqa: PTH113 (`Path.is_file` raises at some names)
            raise ParameterError("template", "must be a SAM template", str(template))
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


def require_unzipped(size_bytes: int) -> None:
    """Refuse what a zip cannot hold."""
    if size_bytes > ZIP_LIMIT_BYTES:
        rule = f"must not exceed {ZIP_LIMIT_BYTES} bytes as a zip, unpacked (Lambda)"
        remedy = "take --package image, or `seqgc data put` what is data"
        raise ParameterError("include", rule, size_bytes, remedy)


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
