"""The build context: the folder in which ``sam`` builds the functions.

=====================  ============================================================================
``template.yaml``      the resources to deploy
``Dockerfile``         the image; ``.dockerignore`` is next to it
``seqgc/``             the package, as it is installed on this machine
``lambda_handlers/``   the entry points of the functions, and a Makefile for the zip
``own/``               the user's code and data, and the ``requirements.txt`` of their dependencies
=====================  ============================================================================

A checkout of the repository has the same layout, so an image can also be built there by hand. A
wheel stores the files outside the two packages in the folder ``context`` next to this module. All
files are checked before the first file is written. If copying fails, the folder is left empty.

The user's files keep their path below the working directory, so that ``import mine.nets`` works in
functions as it does on this machine. Build products and older build contexts are not copied. Files
that look like secrets cause an error, because everybody who has the image can read them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from seqgc.deploy._deployment import DeployOptions, Package
from seqgc.errors import ParameterError

_FILES: Final = ("template.yaml", "Dockerfile", ".dockerignore", "own/requirements.txt")
_PACKAGES: Final = ("seqgc", "lambda_handlers")
_OWN: Final = "own"
_MOST_BYTES: Final[Mapping[Package, int]] = {"zip": 250 << 20, "image": 10 << 30}  # Lambda's limits
_MOST_TEMPLATE_BYTES: Final = 1 << 20  # CloudFormation's limit
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
_SEARCHED_BYTES: Final = 1 << 16
_WHERE: Final = "run seqgc in the folder from which `import {}` works, and --include it there"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCode:
    """The user's code and data that are built into functions, as options of ``seqgc deploy``."""

    include: Annotated[
        tuple[str, ...],
        "Your file or folder, imported in functions as on this machine. Repeatable.",
    ] = ()
    requirements: Annotated[str, "Requirements file of your code, without PyTorch."] = ""
    force: Annotated[bool, "--force", "Include files that look like secrets, too."] = False

    def files(self) -> dict[str, Path]:
        """Return the files to copy, each under its path in the functions.

        Raises
        ------
        ParameterError
            If a path does not exist, is neither a file nor a folder, looks like a secret, or has
            the same path in the functions as another.
        """
        files: dict[str, Path] = {}
        for given in self.include:
            for place, path in _files(given):
                self._refuse_secret("include", place, path)
                if not files.setdefault(place, path).samefile(path):
                    rule = f"must have another name: {files[place]} is {place} in functions, too"
                    raise ParameterError("include", rule, str(path))
        if self.requirements:
            path = Path(self.requirements)
            if not os.path.isfile(path):  # noqa: PTH113 (`Path.is_file` raises at some names)
                raise ParameterError("requirements", "must be a file", self.requirements)
            self._refuse_secret("requirements", path.name, path)
            if files.setdefault("requirements.txt", path) is not path:
                rule = "must be passed as `requirements` or left out: functions have one such file"
                raise ParameterError("include", rule, str(files["requirements.txt"]))
        return files

    def _refuse_secret(self, argument: str, place: str, path: Path) -> None:
        if not self.force and (why := _secret(place, path)) is not None:
            remedy = "leave it out; with --force, everybody who has the image can read it"
            raise ParameterError(
                argument, f"must not look like a secret ({why})", str(path), remedy
            )


def context_files(
    options: DeployOptions, own: OwnCode, *, template: Path | None = None
) -> dict[str, Path]:
    """Return the files of a build context, each under its path in the context.

    ``template`` replaces the template of seqgc.

    Raises
    ------
    ParameterError
        If a file does not exist, may not be part of an image, or is too large.
    """
    users_files = own.files()
    if options.image_uri and users_files:
        rule = "must be left out with include or requirements, because nothing is built"
        raise ParameterError("image_uri", rule, options.image_uri)
    if not options.image_uri:
        require_modules(options.factories, users_files, installs=bool(own.requirements))
    for place, path in users_files.items():
        if (name := place.split("/")[0].removesuffix(".py")) in _PACKAGES:
            raise ParameterError("include", f"must not replace the package {name}", str(path))
    require_room(options.package, users_files.values())
    files = {name: _shipped(name) for name in _FILES}
    if template is not None:
        if not os.path.isfile(template):  # noqa: PTH113 (`Path.is_file` raises at some names)
            raise ParameterError("template", "must be a SAM template", str(template))
        if (size := template.stat().st_size) > _MOST_TEMPLATE_BYTES:
            rule = f"must have at most {_MOST_TEMPLATE_BYTES} bytes (CloudFormation)"
            raise ParameterError("template", rule, f"{size} in {template}")
        files["template.yaml"] = template
    for name in _PACKAGES:
        folder = _package(name)
        files |= {f"{name}/{path.relative_to(folder).as_posix()}": path for path in _code(folder)}
    return files | {f"{_OWN}/{place}": path for place, path in users_files.items()}


def write_context(files: Mapping[str, Path], folder: Path) -> None:
    """Copy the files of a build context to a new or empty folder.

    Raises
    ------
    ParameterError
        If the folder is not empty, or cannot be created.
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
            copy.chmod(0o644)  # functions run as another user
    except BaseException:
        for inner in folder.iterdir():
            shutil.rmtree(inner) if inner.is_dir() else inner.unlink()
        raise


def require_room(package: Package, files: Iterable[Path]) -> None:
    """Raise a `ParameterError` if the files are too large for a function."""
    size, most = sum(path.stat().st_size for path in files), _MOST_BYTES[package]
    if size > most:
        rule = f"must have at most {most} bytes as package {package}, unpacked (Lambda)"
        larger = "use --package image, or " if package == "zip" else ""
        raise ParameterError("include", rule, size, f"{larger}store data with `seqgc data put`")


def _shipped(name: str) -> Path:
    """Return the path of a file of seqgc, in the wheel or else in the checkout."""
    packaged = Path(__file__).with_name("context") / name
    return packaged if packaged.is_file() else _package("seqgc").parent / name


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        rule = "must be installed with seqgc"
        raise ParameterError("context", rule, name, "pip install --force-reinstall seqgc")
    return Path(next(iter(spec.submodule_search_locations)))


def _code(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield path


def require_modules(modules: Iterable[str], places: Mapping[str, Path], *, installs: bool) -> None:
    """Raise a `ParameterError` if the functions will not have one of the modules.

    ``places`` maps the path of each included file in the functions to its path here. If
    requirements are installed (``installs``), a module may also come from one of them.

    Examples
    --------
    >>> require_modules(["mine.nets"], {"mine/nets.py": Path("mine/nets.py")}, installs=False)
    >>> require_modules(["mine"], {"nets.py": Path("mine/nets.py")}, installs=False)
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `factories` must be modules among the included files; got 'mine' \
(run seqgc in the folder from which `import mine` works, and --include it there)
    """
    tops = {PurePosixPath(place).parts[0].removesuffix(".py") for place in places}
    for module in modules:
        file = module.replace(".", "/")
        included = {f"{file}.py", f"{file}/__init__.py"} & places.keys()
        top = module.partition(".")[0]
        if not included and (top in tops or not installs):
            rule = "must be modules among the included files"
            raise ParameterError("factories", rule, module, _WHERE.format(module))


def _files(given: str) -> Iterator[tuple[str, Path]]:
    """Yield pairs of the path in the functions and the file, for all files below a path."""
    top, here = Path(os.path.abspath(given)), Path.cwd()  # noqa: PTH100 (links are not followed)
    place = top.relative_to(here) if top.is_relative_to(here) else Path(top.name)
    if not os.path.exists(top):  # noqa: PTH110 (likewise)
        raise ParameterError("include", "must be an existing file or folder", given)
    for path in _below(top):
        if path.is_symlink() or not path.is_file():
            rule = "must contain only files and folders, no links or devices"
            raise ParameterError("include", rule, str(path), "include the target of the link")
        yield (place / path.relative_to(top)).as_posix(), path


def _below(path: Path) -> Iterator[Path]:
    """Yield the files to copy below a folder, sorted by name. For a file, yield the file itself."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for inner in sorted(path.iterdir()):
        if not any(fnmatch(inner.name, pattern) for pattern in _LEFT_OUT) and not _is_context(
            inner
        ):
            yield from _below(inner)


def _is_context(folder: Path) -> bool:
    """Return True if a folder is the build context of an earlier deployment."""
    files, packages = (folder / name for name in _FILES), (folder / name for name in _PACKAGES)
    return all(path.is_file() for path in files) and all(path.is_dir() for path in packages)


def _secret(place: str, path: Path) -> str | None:
    """Return the reason why a file looks like a secret, or None if it does not look like one."""
    for part in {*PurePosixPath(place).parts, path.name}:
        name = part.lower()
        if name.endswith((".py", ".example", ".sample", ".template")):
            continue
        for pattern in _SECRET_NAMES:
            if fnmatch(name, pattern):
                return f"the name {part} matches {pattern}"
    with path.open("rb") as file:
        if (match := _SECRET_TEXT.search(file.read(_SEARCHED_BYTES))) is not None:
            return f"it contains {match[0].decode(errors='replace')[:12]!r}..."
    return None
