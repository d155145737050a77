"""Checkpoints of a whole run: folders ``RUN/checkpoints/<rounds>/``, each complete or not there.

Theory of operation
-------------------
A snapshot is copied between two events of the loop, when every decoded gradient has been handed
over, and written by a thread while workers compute. It holds all that a resumed run cannot work out
again: weights and buffers, the optimizers' state, gradients not applied yet, results of the jobs in
flight (see `HeldJob`), the weights that these jobs use. Schedules are not in it: they are rebuilt
from the survivor sets in the journal (`seqgc.training.journal`).

A folder is written under another name, its files synced, ``state.json`` last with the length and
SHA-256 of every other file, and then renamed. So a folder of that name is whole, unless the disk
damages it later: then its digests say so, and the one before it is taken. The last two stay. Room
for one is set aside at the start, so that the last one fits a disk that has become full.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from seqgc._bounded import open_bounded
from seqgc._durable import rename, sync_folder, write_new
from seqgc.errors import StoreError, one_line

__all__ = ["Snapshot", "SnapshotFolder", "Tensors"]

SCHEMA = 1
_STATE = "state.json"
_MOST_STATE_BYTES = 2**30
_ROOM = ".room"
_KEPT = 2

Tensors: TypeAlias = Mapping[str, torch.Tensor]
_State = TypeVar("_State")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot(Generic[_State]):
    """A run after some closed rounds: what JSON can say, and tensors by file and name."""

    rounds: int
    state: _State
    files: Mapping[str, Tensors]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body(Generic[_State]):
    """``state.json``: files by name, their bytes and SHA-256; ``sha256`` of all else in it."""

    schema: int
    rounds: int
    files: dict[str, tuple[int, str]]
    state: _State
    sha256: str = ""

    @property
    def sealed(self) -> _Body[_State]:
        blank = msgspec.json.encode(replace(self, sha256=""))
        return replace(self, sha256=hashlib.sha256(blank).hexdigest())


class SnapshotFolder(Generic[_State]):
    """The checkpoints of one run, whose state is a dataclass, or what JSON can say.

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

    def __init__(self, root: Path, state: type[_State]) -> None:
        self.root: Final = root
        self._body = _Body[state]  # type: ignore[valid-type]

    def write(self, snapshot: Snapshot[_State]) -> None:
        """Write a checkpoint, and remove all but the last two.

        A full disk is tried again with the room that was set aside.

        Raises
        ------
        OSError
            If it cannot be written; those that there are stay.
        """
        name = str(snapshot.rounds)
        partial, whole = self.root / f".{name}.part", self.root / name
        try:
            self._write(partial, snapshot)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            self.give_room_back()
            self._write(partial, snapshot)
        if whole.exists():  # of a master before this one, or of the same instant
            shutil.rmtree(self.root / f".{name}.old", ignore_errors=True)  # left by one that died
            rename(whole, self.root / f".{name}.old")
        rename(partial, whole)
        sync_folder(self.root)
        shutil.rmtree(self.root / f".{name}.old", ignore_errors=True)
        for rounds in self.numbers[_KEPT:]:
            shutil.rmtree(self.root / str(rounds), ignore_errors=True)
        self._set_room_aside(_size(whole))

    def newest(self, *, most_rounds: int | None = None) -> tuple[Snapshot[_State], list[str]]:
        """Return the newest checkpoint that is whole, and what is wrong with those after it.

        One of more than ``most_rounds`` is of no use: the journal knows no more.

        Raises
        ------
        StoreError
            If there is none.
        """
        damage: list[str] = []
        for rounds in self.numbers:
            if most_rounds is not None and rounds > most_rounds:
                damage.append(f"checkpoint {rounds} is of rounds that the journal does not know")
                continue
            try:
                return self._read(rounds), damage
            except (OSError, ValueError, RecursionError, SafetensorError) as error:
                damage.append(f"checkpoint {rounds} is damaged: {one_line(error)}")
        what = "; ".join(damage) or "there is none"
        raise StoreError(f"no checkpoint in {self.root} can be used: {what}")

    @property
    def numbers(self) -> list[int]:
        """The rounds of the checkpoints, the newest first."""
        names = [path.name for path in self.root.iterdir()] if self.root.is_dir() else []
        return sorted((int(n) for n in names if n.isascii() and n.isdigit()), reverse=True)

    def _write(self, folder: Path, snapshot: Snapshot[_State]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        files = {}
        for name, tensors in snapshot.files.items():
            data = save(dict(tensors))
            write_new(folder / name, data)
            files[name] = len(data), hashlib.sha256(data).hexdigest()
        body = _Body(schema=SCHEMA, rounds=snapshot.rounds, files=files, state=snapshot.state)
        write_new(folder / _STATE, msgspec.json.encode(body.sealed))
        sync_folder(folder)

    def _read(self, rounds: int) -> Snapshot[_State]:
        folder = self.root / str(rounds)
        with open_bounded(folder / _STATE, most_bytes=_MOST_STATE_BYTES) as file:
            body = msgspec.json.decode(file.read(), type=self._body)
        if body.sealed != body or body.rounds != rounds:
            raise ValueError(f"{_STATE} has another digest than it says")
        if body.schema != SCHEMA:
            raise ValueError(f"{_STATE} has schema {body.schema}, not {SCHEMA}")
        files = {name: _read_file(folder / name, *about) for name, about in body.files.items()}
        return Snapshot(rounds=rounds, state=body.state, files=files)

    def give_room_back(self) -> None:
        """Remove the room that was set aside."""
        (self.root / _ROOM).unlink(missing_ok=True)

    def _set_room_aside(self, size: int) -> None:
        """Have a file of the size of a checkpoint, which can be removed when the disk is full."""
        room = self.root / _ROOM
        try:
            with room.open("ab") as file:
                if file.tell() < size:
                    os.posix_fallocate(file.fileno(), 0, size)
        except OSError:  # the disk is full, or cannot do it: then there is no room
            room.unlink(missing_ok=True)


def _read_file(path: Path, bytes: int, sha256: str) -> Tensors:
    if path.stat().st_size != bytes:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {bytes}")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError(f"{path.name} has another digest than {_STATE} says")
    return load(data)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
