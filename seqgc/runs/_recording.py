"""`read_run`: a recorded run as tables, whoever recorded it and whatever has become of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seqgc.errors import one_line
from seqgc.ports import Table
from seqgc.runs._log import Gaps, RunHeader, read_run_log
from seqgc.runs._losses import read_losses
from seqgc.runs._tables import LogTables

__all__ = ["RecordedRun", "read_run"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedRun:
    """A recorded run, as far as its folder tells; made by `read_run`.

    ``scheme`` is the spec that it began with, ``workers`` how many it had, ``started_at`` when, in
    ISO 8601, and ``outcome`` how it ended; None where it goes on or was killed. ``gaps`` are
    sentences on what of it cannot be shown. Seconds named ``…_s`` that say when something happened
    are of the run's clock: from 0, without the time between a master and the one that resumed it.
    """

    path: Path
    scheme: str
    workers: int
    started_at: str
    outcome: str | None
    gaps: tuple[str, ...]
    _tables: dict[str, Table]

    def rounds(self) -> Table:
        """Return a row for each closed round, in ascending order.

        ``round``; ``master``, who closed it, from 1; ``began_s`` and ``closed_s``; ``kappa_s``,
        from its beginning to its first answer; ``duration_s``, by the closing rule's clock;
        ``reason``, why it closed then (see `seqgc.ports.RoundRecord`); ``waited_out``, whether it
        stayed open beyond (1+mu) kappa; ``stragglers``, how many workers it went without; ``load``,
        the mean share of a job's batch that a worker had, NaN where work is dealt.
        """
        return dict(self._tables["rounds"])

    def answers(self) -> Table:
        """Return a row for each task that was answered or given up, by round and time.

        ``round``, ``worker``, ``attempt``; ``master``; ``at_s``, when; ``elapsed_s``, since the
        round's first task left; ``took_s``, since its own left; ``outcome``: ``used``, ``dropped``,
        because others had come before, ``failed``, or ``unanswered``, and then ``took_s`` is until
        it was given up; ``late``, whether its round had closed before.
        """
        return dict(self._tables["answers"])

    def jobs(self) -> Table:
        """Return a row for each finished job: ``job``, ``finished_s``, ``error``.

        The error bounds what an approximate decoding leaves out (`seqgc.ports.Decoding`).
        """
        return dict(self._tables["jobs"])

    def models(self) -> Table:
        """Return a row for each step that a model took: its loss before that step.

        ``model``, ``step`` (from 0), ``job``, ``loss``, NaN where it is not finite, and ``at_s``,
        when the job was decoded, NaN where the log does not say.
        """
        return dict(self._tables["models"])

    def notices(self) -> Table:
        """Return what the run did beside its rounds: ``at_s``, ``kind``, ``text``."""
        return dict(self._tables["notices"])


def read_run(folder: str | Path) -> RecordedRun:
    """Read a recorded run from its folder: one that is over, was killed, or goes on.

    Nothing that the folder names is imported, and texts in it are made one printable line each.
    Whatever cannot be read is left out, and told in `RecordedRun.gaps`.

    Raises
    ------
    ParameterError
        If it is no run's folder, or one of another version.

    Examples
    --------
    >>> import tempfile
    >>> log = '''{"event": "run", "at_s": 0.0, "schema": 1, "workers": 2, "scheme": "uncoded"}
    ... {"event": "dispatch", "at_s": 0.1, "round": 0, "attempt": 0, "jobs": [0]}
    ... {"event": "arrival", "at_s": 0.6, "round": 0, "worker": 1, "attempt": 0, "took_s": 0.5}
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "events.jsonl").write_text(log)
    ...     run = read_run(folder)
    >>> run.scheme, run.answers()["took_s"].tolist(), run.answers()["outcome"].tolist()
    ('uncoded', [0.5, 0.5], ['used', 'unanswered'])
    >>> run.gaps
    ('There are no losses: metrics.csv: No such file or directory.',)
    """
    path, gaps = Path(folder), Gaps()
    header, events = read_run_log(path, gaps=gaps)
    log = LogTables(header.workers, gaps=gaps)
    log.read(events)
    tables = log.tables()
    tables["models"] = read_losses(path, tables["jobs"], gaps=gaps)
    return RecordedRun(
        path=path,
        scheme=one_line(header.scheme, limit=100),
        workers=header.workers,
        started_at=_started_at(header),
        outcome=log.outcome,
        gaps=tuple(gaps),
        _tables=tables,
    )


def _started_at(header: RunHeader) -> str:
    return one_line(header.started_at, limit=40)
