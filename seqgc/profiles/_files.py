"""Delay profiles on disk: `.npz` holds everything, `.csv` the matrix for people and other tools."""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import numpy as np

from seqgc._durable import replacing
from seqgc.errors import ParameterError, ProfileError
from seqgc.profiles._delay_profile import SCHEMA, DelayProfile, ProfileMeta

__all__ = ["read_profile", "write_profile"]

_META_COMMENT = "# seqgc-meta: "
_ARRAYS = ("times", "status", "meta")
_META_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "base_load": (int, float),
    "alpha": (int, float, type(None)),
    "batch": (int, type(None)),
    **dict.fromkeys(("model", "provider", "region", "recorded_at", "source"), (str,)),
    "schema": (int,),
}
# What numpy and json, zipfile and zlib raise for files that are damaged or of another kind.
_DAMAGE: Final = (OSError, EOFError, KeyError, MemoryError, RuntimeError, ValueError)
_DAMAGED_ARCHIVE: Final = (zipfile.BadZipFile, zlib.error)


def write_profile(profile: DelayProfile, *, path: str | Path) -> None:
    """Write ``profile`` to a `.npz` or `.csv` file, which appears whole or not at all.

    Raises
    ------
    ParameterError
        If ``path`` has another suffix.
    ProfileError
        If the format cannot hold the profile: a CSV has no place for workers that did not answer.

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
    meta = json.dumps(asdict(profile.meta))
    if path.suffix == ".npz":
        times, status = profile.times, profile.status
        with replacing(path) as file:
            np.savez_compressed(file, times=times, status=status, meta=np.array(meta))
        return
    if profile.status.any():
        raise ProfileError(f"{path}: a CSV cannot hold workers that did not answer; write a .npz")
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
    except (*_DAMAGE, *_DAMAGED_ARCHIVE) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ProfileError(f"{path}: not a delay profile: {reason}") from error
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None
    return profile if meta is None else replace(profile, meta=meta)


def _known_suffix(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix not in (".npz", ".csv"):
        raise ParameterError("path", "must end in .npz or .csv", str(path))
    return path


def _meta_from(text: str) -> ProfileMeta:
    fields = json.loads(text)
    if isinstance(fields, dict) and fields.get("schema", SCHEMA) != SCHEMA:
        schema = fields["schema"]
        raise ProfileError(f"`meta` has schema {schema!r}, this is {SCHEMA}: update seqgc")
    if not isinstance(fields, dict) or not set(fields) <= set(_META_TYPES):
        raise ProfileError(f"`meta` must be a JSON object with keys among {sorted(_META_TYPES)}")
    for name, value in fields.items():
        if type(value) not in _META_TYPES[name]:
            raise ProfileError(f"`meta` has a value of the wrong type: {name} = {value!r}")
    return ProfileMeta(**fields)


def _read_npz(path: Path) -> DelayProfile:
    with path.open("rb") as file:  # numpy leaves a damaged file open if it opens it itself
        arrays = np.load(file, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ProfileError("holds one bare array; a profile needs " + ", ".join(_ARRAYS))
        with arrays:
            if missing := [name for name in _ARRAYS if name not in arrays]:
                raise ProfileError(f"lacks the arrays {missing}")
            times, status, meta = (arrays[name] for name in _ARRAYS)
    if times.dtype.kind not in "fiu":  # numpy would make numbers of text and of complex times
        raise ProfileError(f"`times` must be an array of numbers; got {times.dtype}")
    if meta.dtype.kind != "U" or meta.ndim != 0:
        raise ProfileError(f"`meta` must be one text; got {meta.dtype} of shape {meta.shape}")
    return DelayProfile(times=times, status=status, meta=_meta_from(str(meta)))


def _read_csv(path: Path) -> DelayProfile:
    meta = ProfileMeta()
    rows: list[list[float]] = []
    # A spreadsheet puts a byte order mark first: no part of the first number.
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        if line.startswith(_META_COMMENT):
            meta = _meta_from(line.removeprefix(_META_COMMENT))
        elif line.strip() and not line.startswith("#"):
            cells = line.split(",")
            rows.append([_seconds(cell, len(rows), i, number) for i, cell in enumerate(cells)])
            if len(cells) != len(rows[0]):
                counts = f"{len(cells)} columns, those above {len(rows[0])}"
                raise ProfileError(f"row {len(rows) - 1} (line {number}) has {counts}")
    return DelayProfile.from_times(rows, meta=meta)


def _seconds(cell: str, row: int, column: int, line: int) -> float:
    try:
        return float(cell)
    except ValueError:
        where = f"row {row}, column {column} (round, worker; from 0; line {line})"
        raise ProfileError(f"{where}: must be a number; got {cell.strip()!r}") from None
