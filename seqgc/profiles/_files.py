"""Delay profiles on disk: complete in `.npz`, and as `.csv` for people and other tools."""

from __future__ import annotations

import io
import json
import os
import warnings
import zipfile
from array import array
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from seqgc._bounded import open_bounded
from seqgc._durable import replacing
from seqgc.errors import ParameterError, ProfileError, ProfileWarning
from seqgc.ports import FloatArray
from seqgc.profiles._delay_profile import SCHEMA, DelayProfile, ProfileMeta
from seqgc.profiles._lint import MOST_USUAL_S, are_milliseconds

__all__ = ["MOST_TIMES", "read_profile", "write_profile"]

_META_COMMENT = "# seqgc-meta: "
_ARRAYS = ("times", "status", "meta")
_META_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "base_load": (int, float),
    "alpha": (int, float, type(None)),
    "batch": (int, type(None)),
    **dict.fromkeys(("model", "provider", "region", "recorded_at", "source"), (str,)),
    "rtt_s": (float, int, type(None)),
    "schema": (int,),
}
# Larger files are not unpacked: to reject a bad file takes at most a few seconds and 256 MB.
MOST_TIMES: Final = 2**22
_MOST_CSV_BYTES: Final = 2**27  # enough for `MOST_TIMES` times of up to 25 characters
_MOST_LINE: Final = 2**23
_MOST_OTHER_LINES: Final = 2**17  # empty lines and comments
# The cells, in lower case, that numpy, pandas, R and spreadsheets write for a missing answer.
_MISSING: Final = frozenset(("", "nan", "na", "n/a", "null", "none"))
_ROUND_NAMES: Final = frozenset(("", "round", "rounds", "index", "row", "step", "iteration", "job"))
_WORKER_NAMES: Final = frozenset(("worker", "worker_id", "rank", "node"))  # in a list of answers
_MOST_BYTES: Final = {
    "times": 8 * MOST_TIMES + 4096,
    "status": 2 * MOST_TIMES + 4096,
    "meta": 2**18,
}
_END_BYTES: Final = 22  # size of the record at the end of a zip archive
_ZIP64_MARK_BYTES: Final = 20  # size of the record before it, in an archive of gigabytes
_MOST_MEMBERS_BYTES: Final = 4096  # largest size of the list of members


def write_profile(profile: DelayProfile, *, path: str | Path) -> None:
    """Write ``profile`` to a `.npz` or `.csv` file, which is complete as soon as it exists.

    Raises
    ------
    ParameterError
        If ``path`` has another suffix.
    ProfileError
        If `read_profile` could not read the same profile from the file. A file may hold at most
        `MOST_TIMES` times. A CSV file can record that a worker did not answer, but not when this
        was known, or why.

    Examples
    --------
    >>> import tempfile
    >>> profile = DelayProfile.from_times([[0.5, 0.7]], meta=ProfileMeta(alpha=1.12))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_profile(profile, path=f"{folder}/a.csv")
    ...     read_profile(f"{folder}/a.csv").meta.alpha
    1.12
    """
    path = _known_suffix(path)
    if profile.times.size > MOST_TIMES:
        rule = f"a file holds at most {MOST_TIMES} times"
        raise ProfileError(f"{path}: {rule}; got {profile.times.size}")
    meta = json.dumps(asdict(profile.meta))
    if path.suffix == ".npz":
        times, status = profile.times, profile.status
        with replacing(path) as file:
            np.savez_compressed(file, times=times, status=status, meta=np.array(meta))
        return
    answers = np.where(profile.answered, profile.times, np.nan)
    if not _is_restored_from(answers, profile):
        rule = "a CSV can say that a worker did not answer, but not when this was known, or why"
        raise ProfileError(f"{path}: {rule}; write a .npz")
    rows = [",".join(map(repr, row)) + "\n" for row in answers.tolist()]
    if (longest := max(map(len, rows))) >= _MOST_LINE:
        rule = f"a line of a CSV has fewer than {_MOST_LINE} characters; got {longest}"
        raise ProfileError(f"{path}: {rule}; write a .npz")
    if _column_counts(answers):  # without names, the column would be read as numbers of rounds
        rows.insert(0, ",".join(f"w{column}" for column in range(profile.num_workers)) + "\n")
    with replacing(path) as file:
        file.write(f"{_META_COMMENT}{meta}\n{''.join(rows)}".encode())


def read_profile(path: str | Path, *, meta: ProfileMeta | None = None) -> DelayProfile:
    """Read a delay profile; if ``meta`` is given, it replaces the metadata in the file.

    A `.csv` file holds one round per line: the seconds of each worker, separated by commas. An
    empty cell or NaN means that the worker did not answer, which costs as much as the round's
    slowest answer. Lines that start with `#` are comments. The first line may hold names. If the
    first column has a name such as ``round``, ``index`` or ``step``, or counts from 0, it is
    ignored. docs/profiles.md describes the format.

    Raises
    ------
    ParameterError
        If ``path`` has another suffix than `.npz` or `.csv`.
    ProfileError
        If the file is absent, damaged, or of another format, or if a time is not a positive number.
        The message names the file and, if possible, the row and column. The error is also raised if
        the first column of a `.csv` file has no name and counts up from an integer other than 0,
        because this column may number the rounds or hold a worker's seconds.

    Warns
    -----
    ProfileWarning
        If the median answer took more than 1,000 s: the times may be milliseconds.
    """
    path = _known_suffix(path)
    try:
        profile = _read_npz(path) if path.suffix == ".npz" else _read_csv(path)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None
    except Exception as error:  # for damaged files numpy, zipfile and json raise many types
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ProfileError(f"{path}: not a delay profile: {reason}") from error
    usual_s = float(np.median(profile.times[profile.answered])) if profile.answered.any() else 0.0
    if usual_s > MOST_USUAL_S:
        warnings.warn(f"{path}: {are_milliseconds(usual_s)}", ProfileWarning, stacklevel=2)
    return profile if meta is None else replace(profile, meta=meta)


def _known_suffix(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix not in (".npz", ".csv"):
        raise ParameterError("path", "must end in .npz or .csv", str(path))
    return path


def _meta_from(text: str) -> ProfileMeta:
    try:
        fields = json.loads(text)
    except RecursionError:
        raise ProfileError("`meta` is nested too deeply") from None
    if isinstance(fields, dict) and fields.get("schema", SCHEMA) != SCHEMA:
        schema = fields["schema"]
        rule = f"this seqgc reads schema {SCHEMA}: update seqgc"
        raise ProfileError(f"`meta` has schema {schema!r:.40}, {rule}")
    if not isinstance(fields, dict) or not set(fields) <= set(_META_TYPES):
        raise ProfileError(f"`meta` must be a JSON object with keys among {sorted(_META_TYPES)}")
    for name, value in fields.items():
        if type(value) not in _META_TYPES[name]:
            types = " or ".join(each.__name__ for each in _META_TYPES[name])
            raise ProfileError(f"`meta`: {name} must be {types}; got {value!r:.40}")
    return ProfileMeta(**fields)


def _read_npz(path: Path) -> DelayProfile:
    with open_bounded(path, most_bytes=sum(_MOST_BYTES.values())) as file:
        _check_archive(file)
        archive = zipfile.ZipFile(file)
        if missing := [name for name in _ARRAYS if f"{name}.npy" not in archive.namelist()]:
            raise ProfileError(f"lacks the arrays {missing}")
        times, status, meta = (_unpacked(archive, name) for name in _ARRAYS)
    if times.dtype.kind not in "fiu":  # numpy would make numbers of text and of complex times
        raise ProfileError(f"`times` must be an array of numbers; got {times.dtype}")
    if meta.dtype.kind != "U" or meta.ndim != 0:
        raise ProfileError(f"`meta` must be one text; got {meta.dtype} of shape {meta.shape}")
    return DelayProfile(times=times, status=status, meta=_meta_from(str(meta)))


def _check_archive(file: IO[bytes]) -> None:
    """Raise if the file is not a zip archive, or if its list of members is too long to read."""
    if file.read(6) == b"\x93NUMPY":
        rule = f"a profile has the arrays {', '.join(_ARRAYS)}"
        raise ProfileError(f"holds one bare array; {rule}: write it with `write_profile`")
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ZIP64_MARK_BYTES - _END_BYTES))
    tail = file.read()
    end = tail[-_END_BYTES:]
    if not end.startswith(b"PK\5\6") or tail.startswith(b"PK\6\7") or end[-2:] != b"\0\0":
        raise ValueError("it is not an archive of a few arrays, or the file was cut short")
    if int.from_bytes(end[12:16], "little") > _MOST_MEMBERS_BYTES:
        raise ValueError("it has too many members")


def _unpacked(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """Unpack an array of an archive; raise `ProfileError` if it is too large."""
    member = archive.getinfo(f"{name}.npy")
    if member.file_size > _MOST_BYTES[name]:
        rule = f"`{name}` may have at most {_MOST_BYTES[name]} bytes, for {MOST_TIMES} times"
        raise ProfileError(f"{rule}; got {member.file_size}")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        rule = f"`{name}` must be stored or deflated, as by numpy.savez_compressed"
        raise ProfileError(f"{rule}; got compression type {member.compress_type}")
    with archive.open(member) as file, warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy warns of headers that it did not write
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _read_csv(path: Path) -> DelayProfile:
    table = _Table()
    # A spreadsheet may write a byte order mark before the first number.
    file = open_bounded(path, most_bytes=_MOST_CSV_BYTES)
    with io.TextIOWrapper(file, encoding="utf-8-sig") as text:
        for number, line in enumerate(iter(lambda: text.readline(_MOST_LINE), ""), start=1):
            if len(line) == _MOST_LINE:
                raise ProfileError(f"line {number} has more than {_MOST_LINE} characters")
            table.add(line, number=number)
    return _profile(table.seconds(), table.meta)


def _profile(seconds: FloatArray, meta: ProfileMeta) -> DelayProfile:
    """Return the profile of seconds (rounds, workers), NaN where a worker did not answer.

    A missing answer costs as much as the slowest answer in its round, or in the whole recording if
    nobody answered in that round.
    """
    missing = np.isnan(seconds)
    if not missing.any():
        return DelayProfile.from_times(seconds, meta=meta)
    if missing.all():
        raise ProfileError("no worker answered in any round, which leaves no delays to use")
    slowest = np.where(missing, -np.inf, seconds).max(axis=1, keepdims=True)
    slowest[np.isneginf(slowest)] = np.nanmax(seconds)
    times = np.where(missing, slowest, seconds)
    return DelayProfile(times=times, status=missing.astype(np.int8), meta=meta)


def _is_restored_from(seconds: FloatArray, profile: DelayProfile) -> bool:
    """Return True if `_profile` makes the same profile of these seconds (rounds, workers)."""
    if not profile.answered.any():
        return False
    read = _profile(seconds, profile.meta)
    return np.array_equal(read.times, profile.times) and np.array_equal(read.status, profile.status)


class _Table:
    """The lines of a CSV, added one by one, as seconds (rounds, workers)."""

    def __init__(self) -> None:
        self.meta = ProfileMeta()
        self._described = False
        self._others = 0
        self._names: list[str] | None = None
        self._columns = 0  # the number of columns of seconds
        self._skipped = 0  # 1 if the first column has a name such as `round`, and is ignored
        self._rows = 0
        self._seconds = array("d")
        self._all_end_in_comma = True

    def add(self, line: str, *, number: int) -> None:
        """Add line ``number`` (from 1); raise `ProfileError` if the line cannot be read."""
        if line.startswith("#") or not line.strip():
            self._comment(line, number=number)
            return
        cells = line.split(",")
        if not self._columns:
            self._begin(cells, line=line, number=number)
            if self._names is not None:
                return
        if len(cells) != self._columns + self._skipped:
            counts = f"{len(cells)} columns, the lines above {self._columns + self._skipped}"
            raise ProfileError(f"row {self._rows} (line {number}) has {counts}")
        if len(self._seconds) + self._columns > MOST_TIMES:
            raise ProfileError(f"line {number}: a file may have at most {MOST_TIMES} times")
        self._all_end_in_comma &= not cells[-1].strip()
        if self._skipped:
            self._check_index(cells.pop(0), number=number)
        row: list[float] = []
        if "_" not in line:  # Python reads 1_0 as 10
            with suppress(ValueError):
                row = list(map(float, cells))
        self._seconds.extend(
            row
            or [
                _seconds(cell, row=self._rows, column=column, line=number)
                for column, cell in enumerate(cells)
            ]
        )
        self._rows += 1

    def _comment(self, line: str, *, number: int) -> None:
        self._others += 1
        if self._others > _MOST_OTHER_LINES:
            raise ProfileError(f"more than {_MOST_OTHER_LINES} lines are empty or comments")
        if line.startswith(_META_COMMENT):
            if self._described:
                raise ProfileError(f"line {number}: a second `meta` line; remove one of the two")
            self.meta, self._described = _meta_from(line.removeprefix(_META_COMMENT)), True

    def _begin(self, cells: list[str], *, line: str, number: int) -> None:
        """Determine the columns, and their names if there are any, from the first line with cells.

        No answer takes 0 s, so a line that counts from 0 holds names. A line that counts from 1 may
        hold times, unless its first cell is a word.
        """
        for mark, named in ((";", "semicolons"), ("\t", "tabs")):
            if mark in line:
                raise ProfileError(f"line {number} has {named}: separate the cells by commas")
        names = [cell.strip().strip('"') for cell in cells]
        first, rest = names[0], names[1:]
        is_word = not _is_number(first) and first.lower() not in _MISSING
        is_text = not any(map(_is_number, names)) and any(n.lower() not in _MISSING for n in names)
        from_0 = _counts(names, 0) or ((is_word or not first) and _counts(rest, 0))
        if is_text or from_0 or (is_word and _counts(rest, 1)):
            if answers := _WORKER_NAMES.intersection(name.lower() for name in names):
                rule = (
                    f"names a column {min(answers)!r}: each line must hold a round, with a column "
                )
                rule += "of seconds for each worker, and not a single answer"
                raise ProfileError(f"line {number} {rule}")
            self._names = names
            self._skipped = int(len(names) > 1 and first.lower() in _ROUND_NAMES)
        elif (len(names) > 2 and _counts(names, 1)) or (not first and _counts(rest, 1)):
            raise ProfileError(
                f"line {number} counts the columns: if these are names and not seconds, begin "
                "the line with #; if they are seconds, put a line of names above it"
            )
        self._columns = len(cells) - self._skipped

    def _check_index(self, cell: str, *, number: int) -> None:
        """Raise `ProfileError` if an unnamed first column may hold a worker's seconds."""
        is_named = self._names is not None and self._names[0] != ""
        if not is_named and _is_number(cell) and not float(cell).is_integer():
            rule = "is not the number of a round, and column 0 has no name: name it `round` or `w0`"
            raise ProfileError(f"line {number}: {cell.strip()[:40]} {rule}")

    def seconds(self) -> FloatArray:
        """Return the seconds (rounds, workers), NaN where a worker did not answer."""
        if not self._rows:
            raise ProfileError("holds no times: a CSV has at least one line of seconds")
        times = np.frombuffer(self._seconds).reshape(self._rows, self._columns)
        if self._columns > 1 and self._all_end_in_comma:
            raise ProfileError(
                f"column {self._columns - 1} is empty in every line: if the lines end in a comma, "
                "remove the comma; if this worker never answered, write nan"
            )
        if self._skipped or not _column_counts(times) or self._are_workers():
            return times
        if times[0, 0] == 0:  # no worker answers in 0 s
            return times[:, 1:]
        raise ProfileError(
            f"column 0 counts up from {times[0, 0]:g}, so it probably numbers the rounds: remove "
            "it, or put a line of names above, `round,w0,w1` and so on (`w0,w1` if the column "
            "holds a worker's seconds)"
        )

    def _are_workers(self) -> bool:
        """Return True if the first two names differ only in the numbers at their ends."""
        stems = {name.rstrip("0123456789") for name in (self._names or ["round", "w"])[:2]}
        return len(stems) == 1


def _column_counts(times: FloatArray) -> bool:
    """Return True if the first of several columns numbers the rows, starting from any integer.

    Two rows of integers, as in small examples, may look like this by chance: the result is False.
    """
    first, others = times[:, 0], times[:, 1:]
    if not others.size or len(first) < 2 or not float(first[0]).is_integer():
        return False
    is_chance = len(first) == 2 and not (others % 1).any()
    return bool((np.diff(first) == 1).all()) and not is_chance


def _counts(names: list[str], start: int) -> bool:
    """Return True if there are two or more names, and they are the integers from ``start`` on."""
    return len(names) > 1 and names == [str(start + i) for i in range(len(names))]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.lower() not in _MISSING


def _seconds(cell: str, *, row: int, column: int, line: int) -> float:
    """Return the seconds in a cell, NaN if there was no answer."""
    text = cell.strip().strip('"')
    if text.lower() in _MISSING:
        return float("nan")
    if "_" not in text and _is_number(text):
        return float(text)
    where = f"row {row}, column {column} (round, worker; from 0; line {line})"
    rule = "must be a number, or empty if the worker did not answer"
    raise ProfileError(f"{where}: {rule}; got {text[:40]!r}")
