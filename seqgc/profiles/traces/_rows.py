"""Rows of a trace, read from CSV, JSON, JSON lines, parquet, or log lines.

The content of a file decides how it is read, and not its name. Nested JSON objects become columns
with dotted names: ``{"a": {"b": 1}}`` is a row with the column ``a.b``.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from seqgc._bounded import open_bounded, read_bounded
from seqgc.errors import ProfileError

__all__ = ["MISSING", "REPORT", "TraceRows", "lists_answers", "read_rows", "rows_of"]

_MOST_BYTES: Final = 2**28
_MOST_ROWS: Final = 2**22
# The cells, in lower case, that stand for a missing value.
MISSING: Final = frozenset(("", "nan", "na", "n/a", "nat", "null", "none"))
_MOST_NAMES_BYTES: Final = 2**16
_OF_ANSWERS: Final = frozenset(
    ("worker", "worker_id", "rank", "node", "worker_start_tstamp", "@timestamp", "start_ts")
)
# Objects that wrap the records of a known tool (AWS, Chrome), by the name of the list in them.
_WRAPPERS: Final = ("events", "traceEvents", "results", "tasks", "records", "data")
REPORT: Final = re.compile(
    r"REPORT RequestId: (?P<request>\S+)\s+Duration: (?P<duration>[\d.]+) ms(?P<more>[^\n]*)"
)
_STAMP: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?(?![\d:])"
)
_STREAM: Final = re.compile(r"\S*\[[^\]\s]+\]\w+")


@dataclass(frozen=True, slots=True)
class TraceRows:
    """A table of ``count`` rows; a value that a row lacks is None."""

    columns: Mapping[str, Sequence[object]]
    count: int

    def has(self, *names: str) -> bool:
        """Return True if the table has all these columns."""
        return all(name in self.columns for name in names)

    def take(self, keep: Sequence[int]) -> TraceRows:
        """Return a table of the rows with these numbers."""
        columns = {name: [values[i] for i in keep] for name, values in self.columns.items()}
        return TraceRows(columns, len(keep))


def rows_of(source: object) -> TraceRows:
    """Return the rows of a mapping of columns, of a data frame, or of a sequence of mappings.

    Raises `ProfileError` if ``source`` is something else, or if columns differ in length.
    """
    if not isinstance(source, Mapping) and hasattr(source, "columns"):
        frame: Any = source
        source = {str(name): frame[name] for name in frame.columns}
    if isinstance(source, Mapping):
        columns = {str(name): _values(values) for name, values in source.items()}
        lengths = {name: len(values) for name, values in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ProfileError(f"the columns differ in length: {lengths}")
        return TraceRows(columns, next(iter(lengths.values()), 0))
    if isinstance(source, Iterable) and not isinstance(source, str | bytes):
        return _from_records(source)
    rule = "must be a path, a mapping of columns, a data frame, or a sequence of mappings"
    raise ProfileError(f"a trace {rule}; got {type(source).__name__}")


def _values(values: Any) -> list[object]:
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    return [None if isinstance(each, float) and each != each else each for each in listed]


def read_rows(path: str | Path) -> TraceRows:
    """Return the rows of a file.

    Raises
    ------
    ProfileError
        If the file is a pickle, or has no rows of a format that can be read.
    OSError
        If the file is absent, not a regular file, or larger than 256 MB.
    """
    data = read_bounded(path, most_bytes=_MOST_BYTES)
    if data.startswith(b"PAR1"):
        return _from_parquet(data)
    if data.startswith(b"\x1f\x8b"):
        unpacked = zlib.decompressobj(31)
        data = unpacked.decompress(data, _MOST_BYTES)
        if unpacked.unconsumed_tail:
            raise ProfileError(f"the unpacked file has more than {_MOST_BYTES} bytes")
    if data[:1] == b"\x80" and data[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        remedy = (
            "load it in Python, and write the rows with json.dump, or give them to import_trace"
        )
        raise ProfileError(f"this is a pickle, which can run code when it is loaded: {remedy}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProfileError(f"neither parquet nor text in UTF-8 ({error.reason})") from None
    begin = text.lstrip()[:1]
    if begin and begin in "[{" and not _STAMP.match(text.lstrip()[1:]):
        return _from_json(text)
    if REPORT.search(text) and not text.startswith(("@", '"@')):
        return _from_log(text)
    return _from_csv(text)


def lists_answers(path: str | Path) -> bool:
    """Return True if the first line of a CSV names a column that only a list of answers has.

    If the file cannot be read, the result is False.
    """
    try:
        with open_bounded(path, most_bytes=_MOST_BYTES) as file:
            line = file.readline(_MOST_NAMES_BYTES).decode("utf-8-sig", errors="replace")
    except OSError:
        return False
    return not _OF_ANSWERS.isdisjoint(name.strip().strip('"').lower() for name in line.split(","))


# ---- JSON ---------------------------------------------------------------------------------------


def _from_json(text: str) -> TraceRows:
    try:
        value = _parsed(text)
    except RecursionError:
        raise ProfileError("the JSON is nested too deeply") from None
    return _from_records(_records(value))


def _parsed(text: str) -> Any:
    """Return the value of JSON, of JSON lines, or of objects that are joined by commas."""
    try:
        return json.loads(text)
    except ValueError as error:
        first = error
    try:
        return json.loads(f"[{text.strip().rstrip(',')}]")
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        kinds = "neither JSON, nor JSON lines, nor objects joined by commas"
        raise ProfileError(f"{kinds}: {first}") from None


def _records(value: Any) -> Iterable[Any]:
    """Return the records in a JSON value, whatever object is around them."""
    if isinstance(value, list):
        if value and all(_is_fields(each) for each in value):  # results of CloudWatch Insights
            return [{field["field"]: field.get("value") for field in each} for each in value]
        return value
    if not isinstance(value, dict):
        raise ProfileError(f"the JSON is a single {type(value).__name__}, and not rows")
    for name in _WRAPPERS:
        if isinstance(value.get(name), list):
            return _records(value[name])
    inner = list(value.values())
    if inner and all(isinstance(each, list) for each in inner):  # columns
        return _transposed(value, [range(len(each)) for each in inner])
    if inner and all(isinstance(each, dict) for each in inner):
        keys = [list(each) for each in inner]
        if all(each == keys[0] for each in keys) and all(key.isdigit() for key in keys[0]):
            return _transposed(value, keys)  # as pandas writes a table
    return [value]


def _is_fields(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(f, dict) and "field" in f for f in value)


def _transposed(columns: dict[str, Any], keys: Sequence[Sequence[Any]]) -> Iterator[Any]:
    lengths = {len(each) for each in keys}
    if len(lengths) > 1:
        raise ProfileError(f"the columns differ in length: {sorted(lengths)}")
    return ({name: values[key] for name, values in columns.items()} for key in keys[0])


def _from_records(records: Iterable[Any]) -> TraceRows:
    """Return records, each a mapping, as columns; nested mappings get dotted names."""
    columns: dict[str, list[object]] = {}
    count = 0
    for record in records:
        if not isinstance(record, Mapping):
            kind = type(record).__name__
            raise ProfileError(f"record {count} (from 0) is a {kind}, and not an object of columns")
        for name, value in _flat(record):
            column = columns.setdefault(name, [])
            column.extend([None] * (count - len(column)))
            column.append(value)
        count += 1
        if count > _MOST_ROWS:
            raise ProfileError(f"a trace may have at most {_MOST_ROWS} rows")
    for column in columns.values():
        column.extend([None] * (count - len(column)))
    return TraceRows(columns, count)


def _flat(record: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# ---- CSV, parquet, log lines --------------------------------------------------------------------


def _from_csv(text: str) -> TraceRows:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise ProfileError("the file has no rows")
    delimiter = max(",;\t", key=lines[0].count)
    try:
        names, *rows = csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter, strict=True)
    except csv.Error as error:
        raise ProfileError(f"not a CSV: {error}") from None
    names = [name.strip() for name in names]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ProfileError(f"two columns of the CSV are named {twice!r:.40}")
    for number, row in enumerate(rows):
        if len(row) != len(names):
            counts = f"{len(row)} cells, and the first line has {len(names)}"
            raise ProfileError(f"row {number} (from 0) of the CSV has {counts}")
    if len(rows) > _MOST_ROWS:
        raise ProfileError(f"a trace may have at most {_MOST_ROWS} rows")
    columns = {
        name: [None if (cell := row[i].strip()).lower() in MISSING else cell for row in rows]
        for i, name in enumerate(names)
    }
    return TraceRows(columns, len(rows))


def _from_parquet(data: bytes) -> TraceRows:
    try:
        from pyarrow import parquet
    except ImportError:
        remedy = "pip install 'seqgc[parquet]'"
        raise ProfileError(f"a parquet file needs pyarrow: {remedy}") from None
    try:
        table = parquet.read_table(io.BytesIO(data))
    except Exception as error:  # pyarrow raises its own types
        raise ProfileError(f"not a parquet file that can be read: {error}") from None
    if table.num_rows > _MOST_ROWS:
        raise ProfileError(f"a trace may have at most {_MOST_ROWS} rows; got {table.num_rows}")
    return _from_records(table.to_pylist()) if _nested(table) else rows_of(table.to_pydict())


def _nested(table: Any) -> bool:
    return any(str(kind).startswith("struct") for kind in table.schema.types)


def _from_log(text: str) -> TraceRows:
    """Return the REPORT lines of AWS Lambda, with the time stamp and log stream before each."""
    records = []
    for line in text.splitlines():
        if (found := REPORT.search(line)) is None:
            continue
        before = line[: found.start()]
        stamp, stream = _STAMP.search(before), _STREAM.search(before)
        records.append(
            {
                "@timestamp": stamp[0] if stamp else None,
                "@logStream": stream[0] if stream else None,
                "@message": found[0],
            }
        )
    return _from_records(records)
