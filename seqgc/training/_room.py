"""Room on the disk for what a run must leave at its end, when others may have filled the disk.

A checkpoint before the first step says little about the last one: optimizers make their state when
they step, and results of the jobs in flight come later. So the room is for the largest checkpoint
so far, looked at once more when all models have stepped (`Checkpointer`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from seqgc.training.snapshots import Snapshot, Tensors, encoded

__all__ = ["Room", "room_bytes"]

_State = TypeVar("_State")

_BLOCK_BYTES: Final = 4096  # of which a file takes whole ones
_ENTRY_BYTES: Final = 200  # of a file's header, for each tensor
_OTHER_BYTES: Final = 1 << 14  # the journal's last lines, losses, folders
_REST: Final = 8  # one part in so many more, for what else may grow


def room_bytes(snapshot: Snapshot[_State], *, again: Iterable[str]) -> int:
    """Return what a run may write at its end: such a checkpoint, and more.

    As much more as the files that are named in ``again`` have: the trained weights are as large as
    the checkpoint's own, and of results there are more amidst a round than between two.
    """
    sizes = {name: _size(tensors) for name, tensors in snapshot.files.items()}
    state = len(encoded(snapshot.state))
    size = state + sum(sizes.values()) + sum(sizes.get(name, 0) for name in again)
    return size + size // _REST + _OTHER_BYTES


def _size(tensors: Tensors) -> int:
    size = sum(tensor.nbytes + _ENTRY_BYTES for tensor in tensors.values())
    return (size // _BLOCK_BYTES + 1) * _BLOCK_BYTES


class Room:
    """A file as large as what must be written at the end, which is removed before that.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> room = Room(Path(folder.name, ".room"))
    >>> room.keep(5000)
    >>> Path(folder.name, ".room").stat().st_size
    5000
    >>> room.give_back()
    >>> room.keep(5000)
    >>> list(Path(folder.name).iterdir())
    []
    >>> folder.cleanup()
    """

    def __init__(self, path: Path) -> None:
        self._path, self.is_over = path, False

    def keep(self, size: int) -> None:
        """Have at least so many bytes, unless the room has been given back.

        Raises
        ------
        OSError
            If they cannot be had; what there was before stays.
        """
        if self.is_over:
            return
        with self._path.open("ab") as file:
            if (before := file.tell()) < size:
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                except OSError:
                    os.ftruncate(file.fileno(), before)
                    raise

    def give_back(self, *, to_another: bool = False) -> None:
        """Let the end have the room, or ``to_another`` master; none is kept from now on."""
        self.is_over = True
        if not to_another:
            with suppress(OSError):  # it costs room: what is written at the end is worth more
                self._path.unlink(missing_ok=True)
