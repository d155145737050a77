"""A disk that fills up, fails, and forgets what nobody waited for when the power goes."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from tests.simulation.faults import Fault
from tests.simulation.world import Killed, World

_T = TypeVar("_T")
_RANDOM = re.compile(r"(-[0-9a-f]{12}\.tmp|(?<=^\.)[0-9a-f]{16}\.part)$")
_ERRORS = {"no-space": (errno.ENOSPC,), "io-error": (errno.EIO, errno.ESTALE)}
"""By a fault's kind; its amount says which: a file server that comes back knows no open file."""


class SimulatedSystem:
    """Stands for the module ``os`` in `seqgc._durable`, of which the first master is alive.

    The files are real ones, as a machine's other processes see them. Apart from these it is noted
    what has been waited for: files' lengths, folders' lists. After a loss of power a file has what
    was waited for, and any part of the rest; of a folder's new names all are there, or none.
    """

    def __init__(self, world: World, *, leave: Callable[[bool], None]) -> None:
        self._world, self._leave = world, leave
        self._lengths: dict[str, int] = {}
        self._names: dict[str, set[str]] = {}
        self._renamed: dict[str, list[tuple[str, str]]] = {}
        self._full = 0  # for so many calls

    def write(self, descriptor: int, data: memoryview) -> int:
        def partly() -> None:
            os.write(descriptor, data[: len(data) // 2])

        return self._call("write", _path(descriptor), lambda: os.write(descriptor, data), partly)

    def fsync(self, descriptor: int) -> None:
        path = _path(descriptor)

        def sync() -> None:
            about = os.fstat(descriptor)
            if stat.S_ISDIR(about.st_mode):
                self._names[path] = set(os.listdir(descriptor))
                self._renamed.pop(path, None)
            else:
                self._lengths[path] = about.st_size

        self._call("fsync", path, sync)

    def replace(self, source: str | Path, target: str | Path) -> None:
        before, after = str(source), str(target)

        def rename() -> None:
            os.replace(before, after)  # noqa: PTH105
            for known in (self._lengths, self._names, self._renamed):
                _rebase(known, before, after)
            folder, _, name = after.rpartition("/")
            self._renamed.setdefault(folder, []).append((before.rpartition("/")[2], name))

        self._call("replace", after, rename)

    def repair(self) -> None:
        """Somebody has made room."""
        self._full = 0

    def lose(self, original: Path, copy: Path) -> None:
        """Take from a copy of a run's folder what the disk may not have, all of it perhaps."""
        rng = self._world.rng
        if original.name not in self._names.get(str(original.parent), ()) and rng.random() < 0.5:
            shutil.rmtree(copy)
            return
        for folder, names, files in os.walk(copy, topdown=False):
            here, there = Path(folder), original / Path(folder).relative_to(copy)
            if there.name.startswith("weights"):
                continue
            for name in sorted(files):
                size, kept = (here / name).stat().st_size, self._lengths.get(str(there / name), 0)
                os.truncate(here / name, int(rng.integers(min(kept, size), size + 1)))
            if rng.random() < 0.5:
                self._lose_names(there, here, [*names, *files])

    def _lose_names(self, there: Path, here: Path, names: list[str]) -> None:
        for before, after in reversed(self._renamed.get(str(there), [])):
            if (here / after).exists():
                shutil.rmtree(here / before, ignore_errors=True)
                (here / after).replace(here / before)
        known = self._names.get(str(there))
        for name in sorted(names) if known is not None else []:
            if name not in known and (here / name).is_dir():
                shutil.rmtree(here / name)
            elif name not in known and (here / name).exists():
                (here / name).unlink()

    def move(self, before: Path, after: Path, *, settled: bool) -> None:
        """A copy of the folder takes its place, all of which is on the disk if ``settled``."""
        if before.name in self._names.get(str(before.parent), ()):
            self._names[str(after.parent)] = {after.name}
        for known in (self._lengths, self._names, self._renamed):
            _rebase(known, str(before), str(after))
        if settled:
            self._renamed.clear()
            for folder, names, files in os.walk(after):
                self._names[folder] = {*names, *files}
                for name in files:
                    self._lengths[str(Path(folder, name))] = Path(folder, name).stat().st_size

    def _call(
        self,
        name: str,
        path: str,
        do: Callable[[], _T],
        partly: Callable[[], object] = lambda: None,
    ) -> _T:
        if not self._world.alive or self._world.elsewhere:
            return do()
        label = _RANDOM.sub(".tmp", path.rpartition("/")[2])  # these letters are random
        self._world.record.add("call", name, label)
        fault = None if self._full else self._world.of_call()
        if self._full or (fault is not None and fault.kind in _ERRORS):
            self._fail(fault, partly)
        if fault is None:
            return do()
        if fault.amount > 2 / 3:
            do()
        elif fault.amount > 1 / 3:
            partly()
        self._world.alive = False
        self._leave(fault.kind == "power-loss")
        raise Killed

    def _fail(self, fault: Fault | None, partly: Callable[[], object]) -> NoReturn:
        error = errno.ENOSPC
        if fault is None:
            self._full -= 1
        else:
            partly()
            errors = _ERRORS[fault.kind]
            error = errors[min(int(fault.amount * len(errors)), len(errors) - 1)]
            self._full = int(20 * fault.amount) if error == errno.ENOSPC else 0
        self._world.disk_failed = True
        raise OSError(error, os.strerror(error))


def _rebase(known: dict[str, _T], before: str, after: str) -> None:
    for path in [p for p in known if p.startswith(before)]:
        if path[len(before) :][:1] in {"", "/"}:
            known[after + path[len(before) :]] = known.pop(path)


def _path(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
