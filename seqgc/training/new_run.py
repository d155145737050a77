"""The folder of a new run: there with all that a run must have at once, or not there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree

from seqgc._durable import make_folder, rename, replacing, sync_folder
from seqgc.errors import ParameterError

__all__ = ["make_run", "remove_unbegun", "require_new"]

_CHECKPOINTS = "checkpoints"
_RULE = "must be a folder that can be made"


def require_new(path: Path) -> None:
    """Refuse a run directory that exists, or would lie below a file."""
    if path.name == "..":
        raise ParameterError("run", _RULE, str(path))
    try:
        there = path.exists()
    except (OSError, ValueError) as error:  # a name that no folder can have
        raise ParameterError("run", _RULE, str(path), str(error)) from None
    if there:
        rule = "must not exist: a run never overwrites another"
        raise ParameterError("run", rule, str(path), "choose another directory or remove it")
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise ParameterError("run", _RULE, str(path), f"{nearest.name} is a file")


def make_run(path: Path, *, config: str) -> None:
    """Make the folder of a run, with its ``config.toml`` and ``checkpoints/``.

    It gets its name when it is whole: no verb would take it before.

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
    sync_folder(path.parent)


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
