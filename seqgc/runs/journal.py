"""The journal of a run: its decisions, which a resumed run must repeat.

Theory of operation
-------------------
A checkpoint is the state of a run some seconds ago. The journal is the list of all decisions of the
run: for each round, the workers whose answers were used when it closed (the survivors), and each
switch to another setting. From the journal, a resumed run rebuilds its schedule, which depends only
on the survivors. It closes the rounds after the checkpoint with the same survivors, so that its
gradients have the same bits.

Each line is a JSON object: schema version ``v``, serial number ``n`` (from 0, without gaps), the
number of the master that wrote the line, the kind, the fields of this kind, and at the end ``crc``,
the CRC-32 of all bytes before it. The run appends a line and waits until it is on the disk before
it acts on the decision. Rounds of dealt work are an exception: their gradients have the same bits
whichever answers are used, so their lines only have to be on the disk before the next checkpoint.
After a crash, at most the last line is incomplete. Its decision has not been carried out, so the
line is removed. If an earlier line is damaged, the run cannot be resumed.
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

__all__ = ["Entry", "Journal", "read_journal"]

SCHEMA = 1
_MOST_BYTES: Final = 2**32  # enough for a million rounds with a thousand stragglers each


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
        self._path, self._lines = path, lines
        self._file = AppendOnly(path)
        self._is_synced = True

    def append(self, kind: str, *, sync: bool = True, **fields: object) -> None:
        """Write a line; with ``sync``, wait until it and all earlier lines are on the disk.

        Raises
        ------
        StoreError
            If the line cannot be written. The message names the file.
        """
        body = {"v": SCHEMA, "n": self._lines, "master": self.master, "kind": kind, **fields}
        text = json.dumps(body, separators=(",", ":"), allow_nan=False)[:-1].encode()
        self._append(b'%b,"crc":%d}\n' % (text, zlib.crc32(text)), sync=sync)
        self._lines += 1

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


def read_journal(path: Path, *, mend: bool = False) -> tuple[list[Entry], int]:
    """Return the entries of a journal, and the number of bytes of an incomplete last line.

    If ``mend``, remove the incomplete line from the file, so that lines can be appended.

    Raises
    ------
    StoreError
        If the file is missing or too large.
    DamageError
        If the file is damaged before its last line.
    """
    try:
        with open_bounded(path, most_bytes=_MOST_BYTES) as file:
            data = file.read()
    except OSError as error:
        raise StoreError(f"journal {path}: {error.strerror or error}") from error
    entries: list[Entry] = []
    good = 0
    for line in data.splitlines(keepends=True):
        number, entry = _entry(line) or (-1, None)
        if entry is None or number != len(entries):
            break
        entries.append(entry)
        good += len(line)
    torn = len(data) - good
    if b"\n" in data[good:-1]:  # more lines follow, so this is not an incomplete last line
        message = f"journal {path} is damaged in line {len(entries) + 1}, and more lines follow"
        intact = f"the {len(entries)} lines before it are intact, and checkpoints may be, too"
        raise DamageError(f"{message} ({intact}): restore the file from a backup")
    if torn and mend:
        os.truncate(path, good)
    return entries, torn


def _decoded(text: bytes) -> dict[str, Any]:
    """Parse the JSON of a line, with the slower `json` if `msgspec` cannot parse it."""
    try:
        return cast("dict[str, Any]", msgspec.json.decode(text))
    except msgspec.DecodeError:  # for example lone surrogates, which `json.dumps` writes
        return cast("dict[str, Any]", json.loads(text))


def _entry(line: bytes) -> tuple[int, Entry] | None:
    """Return the serial number and the entry of a line, or None if the line is damaged."""
    text, mark, crc = line.rpartition(b',"crc":')
    if not mark or crc != b"%d}\n" % zlib.crc32(text):
        return None
    try:
        fields = _decoded(text + b"}")
        if fields.pop("v") != SCHEMA:
            return None
        number, kind, master = (fields.pop(name) for name in ("n", "kind", "master"))
        return number, Entry(kind=kind, master=master, fields=fields)
    except (ValueError, KeyError, AttributeError, RecursionError):
        return None
