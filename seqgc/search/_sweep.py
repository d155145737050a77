"""`sweep`: replays of several settings on several profiles, with intervals, as one table."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeAlias, Unpack

import numpy as np
import xxhash

from seqgc._durable import replacing
from seqgc._tabular import columns, csv_text
from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray, Table
from seqgc.profiles import GENERATORS
from seqgc.progress import working
from seqgc.rounds import PolicyDefence, Setting
from seqgc.runs import ProfileSource
from seqgc.schemes import Deal, Defence
from seqgc.search._rehearsal import Rehearsal, ReplaySettings
from seqgc.search._replay import replay
from seqgc.search._tuning import bootstrap_total, round_totals

__all__ = ["SWEEP_FIELDS", "ResultTable", "latex_table", "mean_interval", "sweep"]

_CONFIDENCE: Final = 0.95
_RESAMPLES: Final = 2000
_KEYS: Final = (
    "profile", "digest", "scheme", "mu", "wait_out", "jobs_per_round", "alpha_s_per_load",
    "base_load", "options", "seeds",
)  # fmt: skip
SWEEP_FIELDS: Final = (
    *_KEYS, "jobs", "job_s", "low_s", "high_s", "interval", "over_bound", "runs_s",
)  # fmt: skip
"""The columns of a table of `sweep`. The first ten identify a row."""

_TEX: Final = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX_ESCAPED: Final = "_%&#${}"

SweepProgress: TypeAlias = Callable[[str, float], None]
"""A function that is called with the name of the next row, and the progress from 0 to 1."""


class ResultTable:
    """A CSV file with results, to which rows are added as soon as they are known.

    The first ``keys`` of its ``fields`` identify a case: ``case in table`` is True if the file has
    a row of the case. Cells are compared as text. Each write replaces the file as a whole, so that
    an interruption leaves a valid file.

    Raises
    ------
    ParameterError
        If the file exists and has other columns.
    """

    def __init__(self, path: Path, fields: Sequence[str], *, keys: int) -> None:
        self.path, self._fields, self._keys = path, tuple(fields), tuple(fields[:keys])
        self._rows = self._read()
        self._present = {self._case(row) for row in self._rows}

    def _read(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
        if tuple(reader.fieldnames or ()) != self._fields or any(None in row for row in rows):
            rule = f"must be a new file, or have the columns {', '.join(self._fields[:3])}, ..."
            raise ParameterError("output", rule, str(self.path))
        return rows

    def _case(self, row: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(row[name] for name in self._keys)

    def __contains__(self, case: tuple[object, ...]) -> bool:
        return tuple(map(str, case)) in self._present

    def append(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add the rows of a case, and write the file."""
        for row in rows:
            if unknown := set(row) - set(self._fields):
                raise ParameterError("rows", "must have no other columns", sorted(unknown))
            text = {name: _as_text(row[name]) for name in self._fields}
            self._rows.append(text)
            self._present.add(self._case(text))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        table = columns(self._rows, names=self._fields)
        with replacing(self.path) as file:
            file.write(csv_text(table).encode())

    def rows(self) -> list[dict[str, str]]:
        """Return all rows of the file, as text."""
        return list(self._rows)


def _as_text(cell: Any) -> str:
    """Return a cell as text; a missing number is empty."""
    return "" if cell is None or cell != cell else str(cell)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SweepCase:
    """A row to compute: a setting on the profiles of all seeds."""

    key: tuple[str, ...]
    setting: Setting
    rehearsals: tuple[Rehearsal, ...]


def sweep(
    settings: Sequence[Setting | Defence | str],
    profiles: Sequence[ProfileSource] | Mapping[str, ProfileSource],
    *,
    seeds: int = 1,
    output: str | Path | None = None,
    progress: SweepProgress | None = None,
    quiet: bool = False,
    **options: Unpack[ReplaySettings],
) -> Table:
    """Replay every setting on every profile, and return the mean times with their intervals.

    ``profiles`` is a list, or a mapping of names; each profile is anything that `seqgc.replay`
    accepts. A generator, such as ``"lambda-cnn:workers=16"``, makes a profile for each of the seeds
    0, 1, ..., ``seeds`` - 1. If the cost of load is unknown, a profile has two rows, one for each
    extreme (`Rehearsal.alpha_cases`). ``options`` are the settings of the replays.

    The table has a row for each setting on each profile. ``job_s`` is the run time divided by the
    number of jobs, as a mean over the seeds; ``runs_s`` are the run times of all seeds, separated
    by spaces. ``over_bound`` is the run time divided by the run time of a master that knows all
    delays in advance. ``low_s`` and ``high_s`` are the ends of the 95 % interval of ``job_s``. If
    there are several seeds, the interval is a bootstrap over the seeds (``interval`` is
    ``"seeds"``; bias corrected and accelerated, Efron 1987). Otherwise it is a moving-block
    bootstrap over the recorded rounds (``"rounds"``, see `bootstrap_total`). If the run has other
    rounds than the recording, as with `deal`, there is no interval.

    If ``output`` names a file, each row is written there as soon as it is known, and rows that the
    file already has are not computed again. A `.csv` file holds the table. A `.tex` file shows it
    (`latex_table`), and the `.csv` file beside it holds it. ``progress`` is called before each row.
    If it is None, a terminal or notebook shows the progress, unless ``quiet`` is True.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or a setting does not fit a profile. No row is computed.

    Examples
    --------
    >>> from seqgc.profiles import DelayProfile
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0, 1.0], [3.0, 1.0, 1.5, 1.0]])
    >>> table = sweep(["uncoded", "gc-rep:s=1"], {"mine": profile}, alpha=0.0)
    >>> table["scheme"].tolist(), table["job_s"].tolist()
    (['uncoded', 'gc-rep:s=1'], [4.0, 1.25])
    """
    count = require_int("seeds", seeds, least=1)
    path = None if output is None else _csv_path(Path(output))
    cases = list(_cases(settings, _by_name(profiles), seeds=count, options=options))
    table = None if path is None else ResultTable(path, SWEEP_FIELDS, keys=len(_KEYS))
    with working("sweep", quiet=quiet or progress is not None) as shown:
        rows = _rows(cases, table, progress or shown)
    result = columns([_typed(row) for row in rows], names=SWEEP_FIELDS)
    if output is not None and Path(output).suffix == ".tex":
        with replacing(Path(output)) as file:
            file.write(latex_table(result).encode())
    return result


def _rows(
    cases: Sequence[_SweepCase], table: ResultTable | None, tell: SweepProgress
) -> Sequence[Mapping[str, object]]:
    """Compute the rows that the table lacks; return the rows of all cases."""
    rows = list[dict[str, object]]()
    for done, case in enumerate(cases):
        tell(f"{case.setting.label} on {case.key[0]}", done / len(cases))
        if table is None or case.key not in table:
            rows.append(dict(zip(_KEYS, case.key, strict=True)) | _measured(case))
            if table is not None:
                table.append(rows[-1:])
    tell("sweep", 1.0)
    if table is None:
        return rows
    of_case = {tuple(row[name] for name in _KEYS): row for row in table.rows()}
    return [of_case[case.key] for case in cases]


def _csv_path(output: Path) -> Path:
    if output.suffix not in (".csv", ".tex"):
        raise ParameterError("output", "must end in .csv or .tex", str(output))
    return output.with_suffix(".csv")


def _by_name(
    profiles: Sequence[ProfileSource] | Mapping[str, ProfileSource],
) -> dict[str, ProfileSource]:
    if isinstance(profiles, Mapping):
        return dict(profiles)
    listed = [profiles] if isinstance(profiles, str | Path) else list(profiles)
    named = {
        str(each) if isinstance(each, str | Path) else f"profile {place}": each
        for place, each in enumerate(listed)
    }
    if len(named) < len(listed):
        raise ParameterError("profiles", "must differ", [str(each) for each in listed])
    return named


def _cases(
    settings: Sequence[Setting | Defence | str],
    profiles: Mapping[str, ProfileSource],
    *,
    seeds: int,
    options: ReplaySettings,
) -> Iterator[_SweepCase]:
    """Yield the rows of the table; raise `ParameterError` if a setting does not fit a profile."""
    if isinstance(settings, str):
        settings = [settings]
    for name, value in (("settings", settings), ("profiles", profiles)):
        if not value:
            raise ParameterError(name, "must name at least one", list(value))
    seen = set[tuple[str, ...]]()
    for name, source in profiles.items():
        drawn = [Rehearsal.of(each, **options) for each in _seeded(source, seeds)]
        for same in zip(*(each.alpha_cases() for each in drawn), strict=True):
            for given in settings:
                setting = Setting.of(given, n=same[0].profile.num_workers)
                key = _key(name, setting, same)
                if key not in seen:
                    same[0].jobs(setting.scheme, jobs_per_round=setting.jobs_per_round)
                    yield _SweepCase(key=key, setting=setting, rehearsals=same)
                seen.add(key)


def _seeded(source: ProfileSource, seeds: int) -> list[ProfileSource]:
    """Return a generator's name once for each seed, and any other source once."""
    name, colon, parameters = str(source).partition(":")
    if not isinstance(source, str | Path) or name not in GENERATORS or "seed=" in parameters:
        return [source]
    return [f"{source}{',' if colon else ':'}seed={seed}" for seed in range(seeds)]


def _key(name: str, setting: Setting, rehearsals: Sequence[Rehearsal]) -> tuple[str, ...]:
    """Return the cells that identify a row, in the order of `_KEYS`."""
    first, rule = rehearsals[0], setting.rule
    digest = xxhash.xxh3_64()
    for each in rehearsals:
        digest.update(each.profile.times.tobytes())
        digest.update(each.profile.status.tobytes())
    named = {each.name: getattr(first, each.name) for each in fields(first) if each.init}
    usual = {each.name: each.default for each in fields(Rehearsal)}
    chosen = [
        f"{option}={value}"
        for option, value in named.items()
        if option not in ("profile", "alpha", "reading") and value != usual[option]
    ]
    if first.reading != type(first.reading)():
        chosen.append(f"reading={first.reading.label}")
    alpha = "" if first.recorded == "speed" else repr(first.slope)
    load = repr(first.profile.meta.base_load)
    scheme, bundle = setting.scheme.spec, str(setting.jobs_per_round)
    told = (name, digest.hexdigest()[:8], scheme, f"{rule.mu:g}", rule.wait_out, bundle)
    return (*told, alpha, load, " ".join(chosen), str(len(rehearsals)))


def _measured(case: _SweepCase) -> dict[str, object]:
    """Replay a case, and return the cells that do not identify it."""
    setting, first = case.setting, case.rehearsals[0]
    jobs = first.jobs(setting.scheme, jobs_per_round=setting.jobs_per_round)
    runs = [replay(setting, each) for each in case.rehearsals]
    bounds = [each.bound_s(setting) for each in case.rehearsals]
    each_s = np.array([run.runtime_s for run in runs])
    low_s, high_s, interval = np.nan, np.nan, ""
    if len(runs) > 1:
        (low_s, high_s), interval = mean_interval(each_s), "seeds"
    elif _has_recorded_rounds(setting, first):
        totals = round_totals(runs[0].round_seconds, rounds=first.profile.num_rounds)
        (low_s, high_s), interval = bootstrap_total(totals, seed=0), "rounds"
    ratios = each_s / np.array(bounds)
    return {
        "jobs": jobs,
        "job_s": float(each_s.mean()) / jobs,
        "low_s": low_s / jobs,
        "high_s": high_s / jobs,
        "interval": interval,
        "over_bound": float(ratios.mean()) if np.isfinite(ratios).all() else np.nan,
        "runs_s": " ".join(map(repr, each_s.tolist())),
    }


def _has_recorded_rounds(setting: Setting, rehearsal: Rehearsal) -> bool:
    """Return True if each round of the run has the times of one recorded round."""
    is_dealt = isinstance(setting.scheme, Deal | PolicyDefence)
    return not is_dealt and rehearsal.recorded != "speed"


def mean_interval(values: FloatArray) -> tuple[float, float]:
    """Return the 95 % interval of the mean of independent ``values`` (m,), with m >= 2.

    The interval is a bootstrap (`scipy.stats.bootstrap`), bias corrected and accelerated (Efron
    1987). If this method gives no finite interval, the ends are percentiles of the resampled means.
    """
    from scipy.stats import bootstrap  # takes most of a second

    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    for method in ("BCa", "percentile"):
        found = bootstrap(
            (values,),
            np.mean,
            n_resamples=_RESAMPLES,
            confidence_level=_CONFIDENCE,
            method=method,
            random_state=np.random.default_rng(0),
        ).confidence_interval
        if np.isfinite([found.low, found.high]).all():
            break
    return float(found.low), float(found.high)


def _typed(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row with numbers instead of their texts, and None for an empty number."""
    whole = ("jobs_per_round", "seeds", "jobs")
    text = ("profile", "digest", "scheme", "wait_out", "options", "interval", "runs_s")
    typed: dict[str, object] = {}
    for name in SWEEP_FIELDS:
        value: Any = row[name]
        if name in text:
            typed[name] = value
        elif name in whole:
            typed[name] = int(value)
        else:
            typed[name] = float("nan") if value in ("", None) else float(value)
    return typed


def latex_table(table: Table) -> str:
    r"""Return a table of `sweep` in LaTeX: a line for each setting, a column for each profile.

    A cell is the mean of the seconds per job, with its interval in brackets; the least mean of a
    column is bold. The table needs the package booktabs.

    Examples
    --------
    >>> from seqgc.profiles import DelayProfile
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0, 1.0], [3.0, 1.0, 1.5, 1.0]])
    >>> table = sweep(["uncoded", "gc-rep:s=1"], {"mine": profile}, alpha=0.0)
    >>> print(latex_table(table).splitlines()[-3])
    gc-rep:s=1 & \textbf{1.25} [1.25, 1.25] \\
    """
    rows = [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]
    lines = list(dict.fromkeys(_line_of(row, rows) for row in rows))
    heads = list(dict.fromkeys(_head_of(row, rows) for row in rows))
    cells = {(_line_of(row, rows), _head_of(row, rows)): row for row in rows}
    least = {
        head: min(row["job_s"] for (_, at), row in cells.items() if at == head) for head in heads
    }
    body = []
    for line in lines:
        texts = [
            _cell(cells[line, head], least[head]) if (line, head) in cells else "--"
            for head in heads
        ]
        body.append(" & ".join([_escaped(line), *texts]) + r" \\")
    return "\n".join(
        [
            "% seconds per job: mean [95 % interval]; needs \\usepackage{booktabs}",
            rf"\begin{{tabular}}{{l{'r' * len(heads)}}}",
            r"\toprule",
            " & ".join(["setting", *map(_escaped, heads)]) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _line_of(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of a setting, with the parameters in which the rows differ."""
    text = str(row["scheme"])
    for name, label in (("mu", "mu"), ("wait_out", ""), ("jobs_per_round", "jobs")):
        if len({each[name] for each in rows}) > 1:
            value = f"{row[name]:g}" if name == "mu" else str(row[name])
            text += f", {label}={value}" if label else f", {value}"
    return text


def _head_of(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of a profile, with alpha if the profile has rows of two alphas."""
    alphas = {each["alpha_s_per_load"] for each in rows if each["profile"] == row["profile"]}
    more = f", alpha={row['alpha_s_per_load']:.3g}" if len(alphas) > 1 else ""
    return f"{row['profile']}{more}"


def _cell(row: Mapping[str, Any], least: float) -> str:
    mean = f"{row['job_s']:.4g}"
    mean = rf"\textbf{{{mean}}}" if row["job_s"] == least else mean
    if np.isnan(row["low_s"]):
        return mean
    return f"{mean} [{row['low_s']:.4g}, {row['high_s']:.4g}]"


def _escaped(text: str) -> str:
    parts = (_TEX.get(c) or (f"\\{c}" if c in _TEX_ESCAPED else c) for c in text)
    return "".join(parts)
