"""The journal of a run: what a resumed run must do again, on the disk before it is done.

Theory of operation
-------------------
A checkpoint says where a run was some seconds ago; the journal says what has happened since, and
before: which workers each round was closed on, and which settings were switched to. From these a
resumed run rebuilds its schedule, which is a function of the survivors alone, and closes the rounds
after the checkpoint on the same survivors, so that its gradients have the same bits.

One line is one JSON object: schema version ``v``, serial number ``n`` (from 0, without gaps), the
number of the master that wrote it, its kind, its own fields, and last ``crc``, the CRC-32 of all
that stands before it. A line is appended and synced before what it says is acted on. So after a
crash at most the last line is torn, and nothing that it says has happened: it is cut off. Damage
before the last line is something else, and refused.
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
_MOST_BYTES: Final = 2**32  # of a million rounds that a thousand workers straggle in


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the journal: its kind, the number of the master that wrote it, and its fields."""

    kind: str
    master: int
    fields: dict[str, object] = field(default_factory=dict)


class Journal:
    """Appends to a run's journal.

    Parameters
    ----------
    path
        The file; made if it is absent.
    master
        Number of the master that writes.
    lines
        How many lines the file has (see `read_journal`).

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

    def append(self, kind: str, **fields: object) -> None:
        """Write a line, and wait until it is on the disk.

        Raises
        ------
        StoreError
            If it cannot be written; names the file.
        """
        body = {"v": SCHEMA, "n": self._lines, "master": self.master, "kind": kind, **fields}
        text = json.dumps(body, separators=(",", ":"), allow_nan=False)[:-1].encode()
        try:
            self._file.append(b'%b,"crc":%d}\n' % (text, zlib.crc32(text)))
        except OSError as error:
            message = f"the journal {self._path} cannot be written: {error.strerror or error}"
            raise StoreError(message) from error
        self._lines += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_journal(path: Path, *, mend: bool = False) -> tuple[list[Entry], int]:
    """Return a journal's entries, and how many bytes of a torn last line were left out.

    ``mend`` cuts these off the file, which can then be appended to.

    Raises
    ------
    StoreError
        If the file is missing or too large.
    DamageError
        If it is damaged before its last line.
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
    if b"\n" in data[good:-1]:  # good or not, lines were written after this one
        message = f"journal {path} is damaged in line {len(entries) + 1}, and goes on after it"
        whole = f"the {len(entries)} lines before it are whole, checkpoints may be as well"
        raise DamageError(f"{message} ({whole}): restore the file from a backup")
    if torn and mend:
        os.truncate(path, good)
    return entries, torn


def _decoded(text: bytes) -> dict[str, Any]:
    """Return what a line's JSON says, fast, and slowly if it has what no UTF-8 has."""
    try:
        return cast("dict[str, Any]", msgspec.json.decode(text))
    except msgspec.DecodeError:
        return cast("dict[str, Any]", json.loads(text))  # `json.dumps` writes lone surrogates


def _entry(line: bytes) -> tuple[int, Entry] | None:
    """Return a line's serial number and what it says; None if it is not whole."""
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
