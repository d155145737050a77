"""The journal of a run: what has happened since its last checkpoint, line by line.

Theory of operation
-------------------
A checkpoint is the state of a run some seconds ago. The journal says what a resumed run must do
again since then: for each round, the workers whose answers were used when it closed (the
survivors), and each switch to another setting. The resumed run closes these rounds with the same
survivors, so that its gradients have the same bits. If the bits do not depend on the survivors
(`seqgc.schemes.Defence.same_bits`), the line of a round does not name them.

The file also has the lines before the last checkpoint. They are for people: a resumed run reads
only the lines after the position that its checkpoint names, so that it starts equally fast after
any number of rounds.

Each line is a JSON object: schema version ``v``, serial number ``n`` (from 0, without gaps), the
number of the master that wrote the line, the kind, the fields of this kind, and at the end ``crc``,
the CRC-32 of all bytes before it. The run appends a line and waits until it is on the disk before
it acts on the decision. A line without survivors only has to be on the disk before the next
checkpoint. After a crash, at most the last line is incomplete. Its decision has not been carried
out, so the line is removed. If an earlier line after the checkpoint is damaged, the run cannot be
resumed.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from seqgc._bounded import open_bounded
from seqgc._durable import AppendOnly
from seqgc.errors import DamageError, StoreError

__all__ = ["Entry", "Journal", "continues", "first_entry", "read_journal"]

SCHEMA = 2
_MOST_BYTES: Final = 2**32  # enough for a million rounds with a thousand stragglers each
_MOST_LINE_BYTES: Final = 2**28


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the journal: its kind, the number of the master that wrote the line, and fields."""

    kind: str
    master: int
    fields: dict[str, object] = field(default_factory=dict)


class Journal:
    """The journal of a run, open for appending.

    Parameters
    ----------
    path
        The file, which is created if it is absent.
    master
        Number of the master that writes.
    lines
        Number of lines that the file already has (see `read_journal`).

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> journal = Journal(Path(folder.name, "journal.jsonl"), master=1)
    >>> journal.append("round", round=0, stragglers=[2])
    >>> journal.close()
    >>> entries, torn = read_journal(Path(folder.name, "journal.jsonl"))
    >>> entries[0].kind, entries[0].fields, torn
    ('round', {'round': 0, 'stragglers': [2]}, 0)
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, *, master: int, lines: int = 0) -> None:
        self.master: Final = master
        self.lines = lines
        self._path = path
        self._file = AppendOnly(path)
        self._is_synced = True

    def append(self, kind: str, *, sync: bool = True, **fields: object) -> None:
        """Write a line; with ``sync``, wait until it and all earlier lines are on the disk.

        Raises
        ------
        StoreError
            If the line cannot be written. The message names the file.
        """
        body = {"v": SCHEMA, "n": self.lines, "master": self.master, "kind": kind, **fields}
        text = json.dumps(body, separators=(",", ":"), allow_nan=False)[:-1].encode()
        self._append(b'%b,"crc":%d}\n' % (text, zlib.crc32(text)), sync=sync)
        self.lines += 1

    @property
    def size_bytes(self) -> int:
        """The length of the file."""
        return self._file.size_bytes

    def sync(self) -> None:
        """Wait until all lines are on the disk; raises like `append`."""
        if not self._is_synced:
            self._append(b"", sync=True)

    def _append(self, data: bytes, *, sync: bool) -> None:
        try:
            self._file.append(data, sync=sync)
        except OSError as error:
            message = f"the journal {self._path} cannot be written: {error.strerror or error}"
            raise StoreError(message) from error
        self._is_synced = sync

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_journal(
    path: Path, *, mend: bool = False, after_bytes: int = 0, after_lines: int = 0
) -> tuple[list[Entry], int]:
    """Return the entries of a journal, and the number of bytes of an incomplete last line.

    Only the lines after the first ``after_lines`` lines, which have ``after_bytes`` bytes, are
    read. If ``mend``, remove the incomplete line from the file, so that lines can be appended.

    Raises
    ------
    StoreError
        If the file is missing or too large.
    DamageError
        If the file is damaged before its last line, or another version of seqgc wrote it.
    """
    try:
        with open_bounded(path, most_bytes=_MOST_BYTES) as file:
            file.seek(after_bytes)
            data = file.read()
    except OSError as error:
        raise StoreError(f"journal {path}: {error.strerror or error}") from error
    entries: list[Entry] = []
    good = 0
    for line in data.splitlines(keepends=True):
        number, entry = _entry(line) or (-1, None)
        if entry is None or number != after_lines + len(entries):
            break
        entries.append(entry)
        good += len(line)
    torn = len(data) - good
    _require_version(path, data[good:])
    if b"\n" in data[good:-1]:  # more lines follow, so this is not an incomplete last line
        line_number = after_lines + len(entries) + 1
        message = f"journal {path} is damaged in line {line_number}, and more lines follow"
        intact = f"the {line_number - 1} lines before it are intact, and checkpoints may be, too"
        raise DamageError(f"{message} ({intact}): restore the file from a backup")
    if torn and mend:
        os.truncate(path, after_bytes + good)
    return entries, torn


def continues(path: Path, *, after_bytes: int, after_lines: int) -> bool:
    """Return whether a journal has a number of lines, of this many bytes, at its beginning.

    Only the first line after them is read. If the journal is missing, or is another one, the
    result is False.
    """
    try:
        with open_bounded(path, most_bytes=_MOST_BYTES) as file:
            file.seek(max(0, after_bytes - 1))
            end, following = file.read(min(1, after_bytes)), file.readline(_MOST_LINE_BYTES)
    except OSError:
        return False
    if after_bytes and end != b"\n":
        return False
    entry = _entry(following)
    return entry is None or entry[0] == after_lines


def first_entry(path: Path) -> Entry | None:
    """Return the first line of a journal; None if the file is missing or has no complete line.

    Raises `StoreError` or `DamageError` like `read_journal`.
    """
    if not path.exists():
        return None
    try:
        with open_bounded(path, most_bytes=_MOST_BYTES) as file:
            line = file.readline(_MOST_LINE_BYTES)
    except OSError as error:
        raise StoreError(f"journal {path}: {error.strerror or error}") from error
    if not line.endswith(b"\n"):
        return None
    if (entry := _entry(line)) is None or entry[0]:
        _require_version(path, line)
        raise DamageError(f"journal {path} is damaged in line 1: restore the file from a backup")
    return entry[1]


def _decoded(text: bytes) -> dict[str, Any]:
    """Parse the JSON of a line, with the slower `json` if `msgspec` cannot parse it."""
    try:
        return cast("dict[str, Any]", msgspec.json.decode(text))
    except msgspec.DecodeError:  # for example lone surrogates, which `json.dumps` writes
        return cast("dict[str, Any]", json.loads(text))


def _intact(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line whose check sum is right, in any version; otherwise None."""
    text, mark, crc = line.rpartition(b',"crc":')
    if not mark or crc != b"%d}\n" % zlib.crc32(text):
        return None
    try:
        fields = _decoded(text + b"}")
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _require_version(path: Path, data: bytes) -> None:
    """Raise `DamageError` if the first line of ``data`` was written by another version."""
    fields = _intact(data[: data.find(b"\n") + 1])
    if fields is not None and (version := fields.get("v")) != SCHEMA:
        raise DamageError(
            f"journal {path} is of another version of seqgc (schema {version}, not {SCHEMA}): "
            "resume the run with that version"
        )


def _entry(line: bytes) -> tuple[int, Entry] | None:
    """Return the serial number and the entry of a line, or None if the line is damaged."""
    if (fields := _intact(line)) is None:
        return None
    try:
        if fields.pop("v") != SCHEMA:
            return None
        number, kind, master = (fields.pop(name) for name in ("n", "kind", "master"))
        return number, Entry(kind=kind, master=master, fields=fields)
    except KeyError:
        return None
