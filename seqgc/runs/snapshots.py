"""Checkpoints of a whole run: folders ``RUN/checkpoints/<rounds>/``, each complete or not there.

Theory of operation
-------------------
A snapshot is copied between two events of the loop, when every decoded gradient has been handed
over, and written by a thread while workers compute. It holds everything that a resumed run cannot
compute again: weights and buffers, the states of optimizers, gradients not applied yet, and the
results (see `HeldJob`) and weights of the jobs in flight. Schedules are not stored: they are
rebuilt from the survivor sets in the journal (`seqgc.runs.journal`).

The files of a checkpoint are written into a folder with a temporary name and synced, ``state.json``
last with the length and SHA-256 of every other file. Then the folder is renamed. So a folder with
its final name is complete. If the disk damages it later, the digests do not match, and the
checkpoint before it is used. The last two checkpoints are kept. If a checkpoint cannot be written,
no part of it is left.

If a run continues from an older checkpoint, the newer ones could not be used: they are damaged, or
of another version of seqgc. They do not count as one of the two, and are kept until the run has
reached the same round, in case another version can read them.

If no round has closed since the last checkpoint, the new checkpoint replaces it under the same
name. The old one is set aside first, and restored if the new one is never completed
(`SnapshotFolder.mend`).

A master that has been replaced may still be writing a checkpoint (see `seqgc.runs.lease`). So the
temporary name contains the number of the master, a master checks that the run is still its own
before it renames the folder, and no master removes the files of a later one. ``state.json`` names
the master. A checkpoint is not used if a later master has closed its rounds differently.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from seqgc._bounded import open_bounded
from seqgc._durable import rename, sync_folder, write_new
from seqgc.errors import DamageError, one_line

__all__ = ["Snapshot", "SnapshotFolder", "Tensors", "encoded"]

SCHEMA = 5
_STATE = "state.json"
_BLANK = b'"sha256":""}'  # its end before it is sealed
_MOST_STATE_BYTES = 2**30
_MOST_BYTES = 2**38
_KEPT = 2

Tensors: TypeAlias = Mapping[str, torch.Tensor]
_State = TypeVar("_State")
Knows: TypeAlias = Callable[[int, int], bool]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot(Generic[_State]):
    """A run after some closed rounds: what JSON can say, and tensors by file and name."""

    rounds: int
    state: _State
    files: Mapping[str, Tensors]
    master: int = 0  # that wrote it; 0: it is not written


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body(Generic[_State]):
    """``state.json``: files by name, their bytes and SHA-256; ``sha256`` of all else in it."""

    schema: int
    rounds: int
    master: int
    files: dict[str, tuple[int, str]]
    state: _State
    sha256: str = ""  # comes last, so that of any version it can be told whether it is whole


class _OtherVersionError(Exception):
    """A checkpoint is whole, and of another schema."""


@dataclass(frozen=True, slots=True)
class _SnapshotSchema:
    """All that is read of another version's ``state.json``."""

    schema: int


class SnapshotFolder(Generic[_State]):
    """The checkpoints of a run, whose state is a dataclass or a JSON value.

    ``master`` is the number of the master that writes. ``lost`` returns the reason why it must not
    write any more, or an empty text. If the run continues from a checkpoint after ``since`` rounds,
    checkpoints of later rounds could not be used.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> snapshots = SnapshotFolder(Path(folder.name), dict[str, int])
    >>> for rounds in (3, 7):
    ...     files = {"line.safetensors": {"weight": torch.full((2,), float(rounds))}}
    ...     snapshots.write(Snapshot(rounds=rounds, state={"steps": rounds}, files=files))
    >>> newest, damage = snapshots.newest()
    >>> newest.rounds, newest.state["steps"], newest.files["line.safetensors"]["weight"], damage
    (7, 7, tensor([7., 7.]), [])
    >>> folder.cleanup()
    """

    def __init__(
        self,
        root: Path,
        state: type[_State],
        *,
        master: int = 1,
        since: int | None = None,
        lost: Callable[[], str] = str,
    ) -> None:
        self.root: Final = root
        self.lost: Final = lost
        self._master = master
        self._body = _Body[state]  # type: ignore[valid-type]
        self._useless = {n for n in self.numbers if since is not None and n > since}

    def write(self, snapshot: Snapshot[_State]) -> None:
        """Write a checkpoint, and remove all but the last two usable ones.

        Raises
        ------
        OSError
            If it cannot be written, or the run belongs to another master. The existing checkpoints
            are kept, and no part of the new one is left.
        """
        whole = self.root / str(snapshot.rounds)
        stem = f".{whole.name}.{self._master}"
        partial, old = self.root / f"{stem}.part", self.root / f"{stem}.old"
        try:
            self._write(partial, snapshot)
            if lost := self.lost():
                raise OSError(lost)
            if whole.exists():  # of a master before this one, or of the same instant
                rename(whole, old)
            rename(partial, whole)
            sync_folder(self.root)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        left = [each.name for each in self.root.iterdir() if self._is_left_behind(each.name)]
        self._useless.discard(snapshot.rounds)
        passed = {n for n in self._useless if n < snapshot.rounds}
        useful = [n for n in self.numbers if n not in self._useless]
        self._remove(*left, *passed, *useful[_KEPT:])

    def newest(self, *, knows: Knows = lambda *_: True) -> tuple[Snapshot[_State], list[str]]:
        """Return the newest usable checkpoint, and the faults of newer ones.

        ``knows(rounds, master)`` returns True if the journal has these rounds as that master closed
        them. Otherwise a checkpoint of that master after these rounds is not used.

        Raises
        ------
        DamageError
            If no checkpoint is usable.
        """
        damage: list[str] = []
        for rounds in self.numbers:
            try:
                snapshot = self._read(rounds)
                if knows(rounds, snapshot.master):
                    return snapshot, damage
                damage.append(f"checkpoint {rounds} is of rounds that the journal does not know")
            except _OtherVersionError as error:
                what = f"schema {error} where this one has {SCHEMA}"
                damage.append(f"checkpoint {rounds} is of another version of seqgc: {what}")
            except (OSError, ValueError, RecursionError, SafetensorError) as error:
                damage.append(f"checkpoint {rounds} is damaged: {one_line(_about(error))}")
        what = "; ".join(damage) or "there is none"
        raise DamageError(f"no checkpoint in {self.root} can be used: {what}")

    def mend(self) -> None:
        """Restore a checkpoint whose replacement was never completed.

        Call this before anything is read or written.
        """
        for path in list(self.root.iterdir()) if self.root.is_dir() else ():
            aside = re.fullmatch(r"\.(\d+)\.\d+\.old", path.name, re.ASCII)
            if aside and not (whole := self.root / aside[1]).exists():
                rename(path, whole)

    @property
    def numbers(self) -> list[int]:
        """The rounds of the checkpoints, the newest first."""
        names = [path.name for path in self.root.iterdir()] if self.root.is_dir() else []
        return sorted((int(n) for n in names if n.isascii() and n.isdigit()), reverse=True)

    def _write(self, folder: Path, snapshot: Snapshot[_State]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.root.mkdir(exist_ok=True)
        folder.mkdir()
        files = {}
        for name, tensors in snapshot.files.items():
            data = save(dict(tensors))
            write_new(folder / name, data)
            files[name] = len(data), hashlib.sha256(data).hexdigest()
        body = _Body(
            schema=SCHEMA,
            rounds=snapshot.rounds,
            master=self._master,
            files=files,
            state=snapshot.state,
        )
        write_new(folder / _STATE, _sealed(encoded(body)))
        sync_folder(folder)

    def _remove(self, *names: object) -> None:
        for name in names:
            shutil.rmtree(self.root / str(name), ignore_errors=True)

    def _is_left_behind(self, name: str) -> bool:
        """Say whether a folder is one that this master, or one before it, has not completed."""
        partial = re.fullmatch(r"\.\d+\.(\d+)\.(?:part|old)", name, re.ASCII)
        return partial is not None and int(partial[1]) <= self._master

    def _read(self, rounds: int) -> Snapshot[_State]:
        folder = self.root / str(rounds)
        with open_bounded(folder / _STATE, most_bytes=_MOST_STATE_BYTES) as file:
            data = file.read()
        blank = data[: -len(_BLANK) - 64] + _BLANK
        if _sealed(blank) != data:
            raise ValueError(f"{_STATE} has another digest than it says")
        said = json.loads(data)
        if (schema := msgspec.convert(said, _SnapshotSchema).schema) != SCHEMA:
            raise _OtherVersionError(schema)
        body = msgspec.convert(said, self._body, str_keys=True)
        if body.rounds != rounds:
            raise ValueError(f"{_STATE} is of round {body.rounds}")
        files = {name: _read_file(folder / name, *about) for name, about in body.files.items()}
        return Snapshot(rounds=rounds, state=body.state, files=files, master=body.master)


def _about(error: Exception) -> object:
    """Return what an error says, without the path of the checkpoint."""
    if isinstance(error, OSError) and error.filename:
        return f"{Path(str(error.filename)).name}: {error.strerror}"
    return error


def encoded(state: object) -> bytes:
    """Return a dataclass, or what JSON can say, as JSON in which floats may be NaN or infinite.

    `msgspec.json` writes these as null, which is no float when it is read.
    """
    plain = msgspec.to_builtins(state, str_keys=True)
    return json.dumps(plain, separators=(",", ":")).encode()


def _sealed(blank: bytes) -> bytes:
    """Return a ``state.json`` with its digest, which is to stand at its end."""
    return blank[: -len(_BLANK)] + _BLANK[:-2] + hashlib.sha256(blank).hexdigest().encode() + b'"}'


def _read_file(path: Path, bytes: int, sha256: str) -> Tensors:
    with open_bounded(path, most_bytes=_MOST_BYTES) as file:  # it may have become a pipe
        if (size := os.fstat(file.fileno()).st_size) != bytes:
            raise ValueError(f"{path.name} has {size} bytes, not {bytes}")
        data = file.read(bytes)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError(f"{path.name} has another digest than {_STATE} says")
    return load(data)
