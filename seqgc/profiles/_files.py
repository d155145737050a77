"""Delay profiles on disk: `.npz` holds everything, `.csv` the matrix for people and other tools."""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from seqgc._durable import replacing
from seqgc.errors import ParameterError, ProfileError
from seqgc.profiles._profile import DelayProfile, ProfileMeta

__all__ = ["read_profile", "write_profile"]

_META_COMMENT = "# seqgc-meta: "
_ARRAYS = ("times", "status", "meta")


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
        with replacing(path) as file:
            np.savez_compressed(
                file, times=profile.times, status=profile.status, meta=np.array(meta)
            )
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
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
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
    known = set(ProfileMeta.__dataclass_fields__)
    if not isinstance(fields, dict) or not set(fields) <= known:
        raise ProfileError(f"`meta` must be a JSON object with keys among {sorted(known)}")
    try:
        return ProfileMeta(**fields)
    except TypeError as error:
        raise ProfileError(f"`meta` has a value of the wrong type: {error}") from None


def _read_npz(path: Path) -> DelayProfile:
    with path.open("rb") as file:  # numpy leaves a damaged file open if it opens it itself
        arrays = np.load(file, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ProfileError("holds one bare array; a profile needs " + ", ".join(_ARRAYS))
        with arrays:
            if missing := [name for name in _ARRAYS if name not in arrays]:
                raise ProfileError(f"lacks the arrays {missing}")
            times, status, meta = (arrays[name] for name in _ARRAYS)
    return DelayProfile(times=times, status=status, meta=_meta_from(str(meta)))


def _read_csv(path: Path) -> DelayProfile:
    meta = ProfileMeta()
    rows: list[list[float]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith(_META_COMMENT):
            meta = _meta_from(line.removeprefix(_META_COMMENT))
        elif line.strip() and not line.startswith("#"):
            rows.append(_row(line, number))
            if len(rows[-1]) != len(rows[0]):
                counts = f"{len(rows[-1])} columns, those above {len(rows[0])}"
                raise ProfileError(f"row {len(rows) - 1} (line {number}) has {counts}")
    return DelayProfile.from_times(rows, meta=meta)


def _row(line: str, number: int) -> list[float]:
    seconds = []
    for column, cell in enumerate(line.split(",")):
        try:
            seconds.append(float(cell))
        except ValueError:
            where = f"line {number}, column {column} (from 0)"
            raise ProfileError(f"{where}: must be a number; got {cell.strip()!r}") from None
    return seconds
