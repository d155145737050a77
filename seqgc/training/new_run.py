"""The folder of a new run: there with all that a run must have at once, or not there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree

from seqgc._durable import make_folder, rename, replacing
from seqgc.errors import ParameterError

__all__ = ["make_run", "remove_unbegun", "require_new"]

_CHECKPOINTS = "checkpoints"
_RULE = "must be a folder that can be made"
_MOST_NAME = (
    180  # characters, of 200 that workers take; a resumed run's has its master's number, too
)


def require_new(path: Path) -> None:
    """Refuse a run directory that exists, or that could not be made: before anything is started."""
    if path.name == "..":
        raise ParameterError("run", _RULE, str(path))
    try:
        path.lstat()  # a link that leads nowhere is there, too
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # a name that no folder can have
        why = getattr(error, "strerror", None) or str(error)
        raise ParameterError("run", _RULE, str(path), why) from None
    else:
        rule = "must not exist: a run never overwrites another"
        raise ParameterError("run", rule, str(path), "choose another directory or remove it")
    _require_name(path)
    nearest = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not nearest.is_dir():
        raise ParameterError("run", _RULE, str(path), f"{nearest.name} is no folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ParameterError("run", _RULE, str(path), f"{nearest} may not be written to")


def _require_name(path: Path) -> None:
    """Refuse a name that workers could not be told: each message to them has it, as text."""
    name = os.path.basename(os.path.realpath(path))  # noqa: PTH119 (`resolve` raises at some names)
    if len(name) > _MOST_NAME:
        raise ParameterError("run", f"must have a name of at most {_MOST_NAME} characters", name)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ParameterError("run", "must have a name that is text in UTF-8", name) from None


def make_run(path: Path, *, config: str) -> None:
    """Make the folder of a run, with its ``config.toml`` and ``checkpoints/``.

    It gets its name when it is whole: no verb would take it before. Who begins the run waits until
    that name is on the disk.

    Raises
    ------
    ParameterError
        If the folder cannot be made, or is there.
    OSError
        If there is no room for it; nothing is left of it then.
    """
    partial = path.with_name(f".{secrets.token_hex(8)}.part")
    with _making(path):
        make_folder(partial)
    try:
        Path(partial, _CHECKPOINTS).mkdir()
        with replacing(Path(partial, "config.toml")) as file:
            file.write(config.encode())
        with _making(path):
            rename(partial, path)
    except BaseException as error:
        rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):  # which should name what is known to who asked for it
            error.filename = str(path / "config.toml")
        raise


def remove_unbegun(path: Path) -> None:
    """Remove a folder that holds nothing of a run: it is empty, or has empty ``checkpoints/``.

    Earlier versions left such a one where they were ended at once, or the disk was full. Any other
    folder stays as it is.
    """
    with suppress(OSError):
        if {each.name for each in path.iterdir()} == {_CHECKPOINTS}:
            Path(path, _CHECKPOINTS).rmdir()
        path.rmdir()


@contextmanager
def _making(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ParameterError("run", _RULE, str(path), error.strerror or "") from error
