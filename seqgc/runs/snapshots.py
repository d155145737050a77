"""Checkpoints of a whole run, as folders ``RUN/checkpoints/<rounds>/``.

Theory of operation
-------------------
A snapshot is a copy of the state of a run, made between two events of the loop, when the workload
has received every decoded gradient. A thread writes it to a checkpoint while workers compute. A
checkpoint contains everything that a resumed run cannot compute again: weights and buffers, the
states of optimizers, gradients that have not been applied, the results (see `HeldJob`) and weights
of the jobs in flight, the state of the policy, and a position in the journal
(`seqgc.runs.journal`). A resumed run reads only the lines of the journal after this position.

The files of a checkpoint are written into a folder with a temporary name and synced. The last file
is ``state.json``, with the length and SHA-256 of every other file. Then the folder is renamed, so
that a folder with its final name is always complete. If the disk damages the folder later, the
digests do not match, and the previous checkpoint is used. The last two checkpoints are kept. If a
checkpoint cannot be written, no part of it is left.

A run may continue from an older checkpoint because the newer checkpoints are damaged, or are of
another version of seqgc. The newer checkpoints are then kept in addition to the last two, until the
run has reached the same round, in case another version can read them.

If no round has closed since the last checkpoint, the new checkpoint has the same name and replaces
it. The old checkpoint is renamed first, and restored if the new one is never completed
(`SnapshotFolder.mend`).

A master that another master has replaced may still be writing a checkpoint (see
`seqgc.runs.lease`). Therefore the temporary name contains the number of the master, and a master
checks that it still owns the run before it renames the folder. No master removes the files of a
later master. ``state.json`` names the master. A checkpoint is not used if a later master has
continued from an earlier checkpoint.
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

SCHEMA = 6
_STATE = "state.json"
_BLANK = b'"sha256":""}'  # the end of state.json before its digest is inserted
_MOST_STATE_BYTES = 2**30
_MOST_BYTES = 2**38
_KEPT = 2

Tensors: TypeAlias = Mapping[str, torch.Tensor]
_State = TypeVar("_State")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot(Generic[_State]):
    """The state of a run after ``rounds`` closed rounds.

    ``state`` is the part that JSON can represent, and ``files`` are tensors by file and name.
    """

    rounds: int
    state: _State
    files: Mapping[str, Tensors]
    master: int = 0  # the number of the master that wrote it, or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body(Generic[_State]):
    """The content of ``state.json``.

    ``files`` gives the size in bytes and the SHA-256 of each file, by name. ``sha256`` is the
    digest of the remaining content.
    """

    schema: int
    rounds: int
    master: int
    files: dict[str, tuple[int, str]]
    state: _State
    sha256: str = ""  # the last field in all versions, so that damage can be detected in all


class _OtherVersionError(Exception):
    """A checkpoint is intact but has another schema version."""


@dataclass(frozen=True, slots=True)
class _SnapshotSchema:
    """The only field that is read from the ``state.json`` of another version."""

    schema: int


class SnapshotFolder(Generic[_State]):
    """The folder of a run's checkpoints, whose state has the type ``state``.

    ``state`` is a dataclass or a type of JSON. ``master`` is the number of the master that writes.
    ``lost`` returns the reason why this master must not write any more, or an empty string. If
    ``since`` is given, the run continues from the checkpoint after ``since`` rounds, because later
    checkpoints could not be used.

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
        """Write a checkpoint, and remove all but the last two usable checkpoints.

        Raises
        ------
        OSError
            If the checkpoint cannot be written, or the run belongs to another master. The existing
            checkpoints are kept, and no part of the new one is left.
        """
        final = self.root / str(snapshot.rounds)
        stem = f".{final.name}.{self._master}"
        partial, old = self.root / f"{stem}.part", self.root / f"{stem}.old"
        try:
            self._write(partial, snapshot)
            if lost := self.lost():
                raise OSError(lost)
            if final.exists():  # an earlier checkpoint after the same number of rounds
                rename(final, old)
            rename(partial, final)
            sync_folder(self.root)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        remains = [each.name for each in self.root.iterdir() if self._is_left_behind(each.name)]
        self._useless.discard(snapshot.rounds)
        outdated = {n for n in self._useless if n < snapshot.rounds}
        useful = [n for n in self.numbers if n not in self._useless]
        self._remove(*remains, *outdated, *useful[_KEPT:])

    def newest(
        self, *, fits: Callable[[Snapshot[_State]], bool] = lambda _: True
    ) -> tuple[Snapshot[_State], list[str]]:
        """Return the newest usable checkpoint, and the faults of newer checkpoints.

        A checkpoint is not used if ``fits`` returns False for it: the journal does not have its
        rounds.

        Raises
        ------
        DamageError
            If no checkpoint is usable.
        """
        damage: list[str] = []
        for rounds in self.numbers:
            try:
                snapshot = self._read(rounds)
                if fits(snapshot):
                    return snapshot, damage
                damage.append(f"checkpoint {rounds} has rounds that the journal does not have")
            except _OtherVersionError as error:
                what = f"schema {error}, not {SCHEMA}"
                damage.append(f"checkpoint {rounds} is of another version of seqgc: {what}")
            except (OSError, ValueError, RecursionError, SafetensorError) as error:
                damage.append(f"checkpoint {rounds} is damaged: {one_line(_about(error))}")
        what = "; ".join(damage) or "the folder has no checkpoint"
        raise DamageError(f"no checkpoint in {self.root} can be used: {what}")

    def mend(self) -> None:
        """Restore a checkpoint whose replacement was never completed.

        Call this before anything is read or written.
        """
        for path in list(self.root.iterdir()) if self.root.is_dir() else ():
            name = re.fullmatch(r"\.(\d+)\.\d+\.old", path.name, re.ASCII)
            if name and not (final := self.root / name[1]).exists():
                rename(path, final)

    @property
    def numbers(self) -> list[int]:
        """The numbers of rounds after which there are checkpoints, in descending order."""
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
        """Return True if this master or an earlier one has left a temporary folder of this name."""
        partial = re.fullmatch(r"\.\d+\.(\d+)\.(?:part|old)", name, re.ASCII)
        return partial is not None and int(partial[1]) <= self._master

    def _read(self, rounds: int) -> Snapshot[_State]:
        folder = self.root / str(rounds)
        with open_bounded(folder / _STATE, most_bytes=_MOST_STATE_BYTES) as file:
            data = file.read()
        blank = data[: -len(_BLANK) - 64] + _BLANK
        if _sealed(blank) != data:
            raise ValueError(f"the digest of {_STATE} does not match")
        content = json.loads(data)
        if (schema := msgspec.convert(content, _SnapshotSchema).schema) != SCHEMA:
            raise _OtherVersionError(schema)
        body = msgspec.convert(content, self._body, str_keys=True)
        if body.rounds != rounds:
            raise ValueError(f"{_STATE} is of round {body.rounds}")
        files = {name: _read_file(folder / name, *about) for name, about in body.files.items()}
        return Snapshot(rounds=rounds, state=body.state, files=files, master=body.master)


def _about(error: Exception) -> object:
    """Return the message of an error, without the path of the checkpoint."""
    if isinstance(error, OSError) and error.filename:
        return f"{Path(str(error.filename)).name}: {error.strerror}"
    return error


def encoded(state: object) -> bytes:
    """Convert a dataclass, or a value of JSON types, to JSON text with NaN and infinity.

    `msgspec.json` would write NaN and infinity as null, which cannot be read as a float.
    """
    plain = msgspec.to_builtins(state, str_keys=True)
    return json.dumps(plain, separators=(",", ":")).encode()


def _sealed(blank: bytes) -> bytes:
    """Insert the digest at the end of a ``state.json``."""
    return blank[: -len(_BLANK)] + _BLANK[:-2] + hashlib.sha256(blank).hexdigest().encode() + b'"}'


def _read_file(path: Path, bytes: int, sha256: str) -> Tensors:
    with open_bounded(path, most_bytes=_MOST_BYTES) as file:  # raises if the file is a pipe
        if (size := os.fstat(file.fileno()).st_size) != bytes:
            raise ValueError(f"{path.name} has {size} bytes, not {bytes}")
        data = file.read(bytes)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError(f"the digest of {path.name} differs from the one in {_STATE}")
    return load(data)
