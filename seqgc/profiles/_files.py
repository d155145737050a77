"""Delay profiles on disk: `.npz` holds everything, `.csv` the matrix for people and other tools."""

from __future__ import annotations

import io
import json
import os
import warnings
import zipfile
from array import array
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from seqgc._bounded import open_bounded
from seqgc._durable import replacing
from seqgc.errors import ParameterError, ProfileError
from seqgc.profiles._delay_profile import SCHEMA, DelayProfile, ProfileMeta

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
# What is larger is not unpacked: a bad file takes no more than 64 MB, and a second, to be refused.
MOST_TIMES: Final = 2**21
_MOST_CSV_TIMES: Final = 2**20  # text takes longer
_MOST_CSV_BYTES: Final = 2**25
_MOST_LINES: Final = 2**17
_MOST_LINE: Final = 2**18
_MOST_BYTES: Final = {
    "times": 8 * MOST_TIMES + 4096,
    "status": 2 * MOST_TIMES + 4096,
    "meta": 2**18,
}
_END_BYTES: Final = 22  # of the record at the end of a zip archive
_ZIP64_MARK_BYTES: Final = 20  # of the one before it, in an archive of gigabytes
_MOST_MEMBERS_BYTES: Final = 4096  # of the list of members


def write_profile(profile: DelayProfile, *, path: str | Path) -> None:
    """Write ``profile`` to a `.npz` or `.csv` file, which appears whole or not at all.

    Raises
    ------
    ParameterError
        If ``path`` has another suffix.
    ProfileError
        If the format cannot hold the profile: a file holds `MOST_TIMES` times, a CSV half as many
        in fewer than 131,072 rounds, and no worker that did not answer.

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
        raise ProfileError(f"{path}: a file holds {MOST_TIMES} times; got {profile.times.size}")
    meta = json.dumps(asdict(profile.meta))
    if path.suffix == ".npz":
        times, status = profile.times, profile.status
        with replacing(path) as file:
            np.savez_compressed(file, times=times, status=status, meta=np.array(meta))
        return
    if profile.status.any():
        raise ProfileError(f"{path}: a CSV cannot hold workers that did not answer; write a .npz")
    if profile.times.size > _MOST_CSV_TIMES or profile.num_rounds >= _MOST_LINES:
        most = f"{_MOST_CSV_TIMES} times in fewer than {_MOST_LINES} rounds"
        raise ProfileError(f"{path}: a CSV holds {most}; write a .npz")
    rows = "".join(",".join(map(repr, row)) + "\n" for row in profile.times.tolist())
    with replacing(path) as file:
        file.write(f"{_META_COMMENT}{meta}\n{rows}".encode())


def read_profile(path: str | Path, *, meta: ProfileMeta | None = None) -> DelayProfile:
    """Read a delay profile; ``meta`` replaces what the file says of itself.

    A `.csv` file holds one round per line, seconds separated by commas; lines that start with `#`
    are comments.

    Raises
    ------
    ParameterError
        If ``path`` has another suffix than `.npz` or `.csv`.
    ProfileError
        If the file is absent, damaged, of another format, or holds anything but positive seconds;
        names the file, and the row and column where there is one.
    """
    path = _known_suffix(path)
    try:
        profile = _read_npz(path) if path.suffix == ".npz" else _read_csv(path)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None
    except Exception as error:  # of damaged files numpy, zipfile and json raise all sorts
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ProfileError(f"{path}: not a delay profile: {reason}") from error
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
        raise ProfileError(f"`meta` has schema {schema!r:.40}, this is {SCHEMA}: update seqgc")
    if not isinstance(fields, dict) or not set(fields) <= set(_META_TYPES):
        raise ProfileError(f"`meta` must be a JSON object with keys among {sorted(_META_TYPES)}")
    for name, value in fields.items():
        if type(value) not in _META_TYPES[name]:
            raise ProfileError(f"`meta` has a value of the wrong type: {name} = {value!r:.40}")
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
    """Refuse what is no archive, and one whose list of members, which is read whole, is long."""
    if file.read(6) == b"\x93NUMPY":
        raise ProfileError("holds one bare array; a profile needs " + ", ".join(_ARRAYS))
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ZIP64_MARK_BYTES - _END_BYTES))
    tail = file.read()
    end = tail[-_END_BYTES:]
    if not end.startswith(b"PK\5\6") or tail.startswith(b"PK\6\7") or end[-2:] != b"\0\0":
        raise ValueError("it is no archive of a few arrays, or was cut short")
    if int.from_bytes(end[12:16], "little") > _MOST_MEMBERS_BYTES:
        raise ValueError("it has too many members")


def _unpacked(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """Return an array of an archive, unpacked only if it is as small as it may be."""
    member = archive.getinfo(f"{name}.npy")
    if member.file_size > _MOST_BYTES[name]:
        rule = f"`{name}` may have {_MOST_BYTES[name]} bytes, for {MOST_TIMES} times"
        raise ProfileError(f"{rule}; got {member.file_size}")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ProfileError(f"`{name}` is compressed in another way than numpy's")
    with archive.open(member) as file, warnings.catch_warnings():
        warnings.simplefilter("error")  # of headers that numpy has not written
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _read_csv(path: Path) -> DelayProfile:
    meta, described = ProfileMeta(), False
    seconds, rows, columns = array("d"), 0, 0
    # A spreadsheet puts a byte order mark first: no part of the first number.
    file = open_bounded(path, most_bytes=_MOST_CSV_BYTES)
    with io.TextIOWrapper(file, encoding="utf-8-sig") as text:
        for number, line in enumerate(iter(lambda: text.readline(_MOST_LINE), ""), start=1):
            if len(line) == _MOST_LINE:
                raise ProfileError(f"line {number} has more than {_MOST_LINE} characters")
            if number > _MOST_LINES:
                raise ProfileError(f"a CSV may have {_MOST_LINES} lines; a .npz holds more rounds")
            if line.startswith(_META_COMMENT):
                if described:
                    raise ProfileError(f"line {number}: `meta` has been given already")
                meta, described = _meta_from(line.removeprefix(_META_COMMENT)), True
            elif line.strip() and not line.startswith("#"):
                cells = line.split(",")
                try:
                    seconds.extend(map(float, cells))
                except ValueError:
                    raise _no_number(cells, row=rows, line=number) from None
                columns, rows = columns or len(cells), rows + 1
                if len(cells) != columns:
                    counts = f"{len(cells)} columns, those above {columns}"
                    raise ProfileError(f"row {rows - 1} (line {number}) has {counts}")
                if len(seconds) > _MOST_CSV_TIMES:
                    most = f"a CSV may have {_MOST_CSV_TIMES} times"
                    raise ProfileError(f"line {number}: {most}; a .npz holds more")
    times = np.array(seconds).reshape(rows, columns) if rows else ()
    return DelayProfile.from_times(times, meta=meta)


def _no_number(cells: list[str], *, row: int, line: int) -> ProfileError:
    for column, cell in enumerate(cells):
        try:
            float(cell)
        except ValueError:
            where = f"row {row}, column {column} (round, worker; from 0; line {line})"
            return ProfileError(f"{where}: must be a number; got {cell.strip()[:40]!r}")
    raise ValueError(cells)
