"""Logs of runs whose times are known, written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from seqgc.ports import TaskPhases


def header(scheme: str, workers: int, *, jobs: int, bundle: int = 1, pieces: int = 0) -> object:
    return {
        "event": "run", "at_s": 0.0, "schema": 1, "started_at": "2026-01-01T00:00:00+00:00",
        "scheme": scheme, "workers": workers, "jobs": jobs, "rounds": jobs, "pieces": pieces,
        "mu": 0.0, "wait_out": "feasible", "models": [f"m{i}" for i in range(bundle)],
        "batch": 256, "provider": "local", "sizes": {"models": bundle},
    }  # fmt: skip


def write_run(
    folder: Path,
    seconds: Sequence[Sequence[float]],
    *,
    scheme: str = "uncoded",
    needed: int | None = None,
    loads: Sequence[Sequence[float]] | None = None,
    failed: Mapping[tuple[int, int], float] | None = None,
    bundle: int = 1,
    master_s: float = 0.0,
    notices: Sequence[Mapping[str, object]] = (),
    phases: TaskPhases | None = None,
) -> Path:
    """Write the folder of a run in rounds of these seconds (rounds, n).

    A round closes after ``needed`` answers, and the other tasks are cancelled. After each round,
    the master takes ``master_s`` seconds. ``failed`` has the seconds of failures by round, worker.
    """
    n, now = len(seconds[0]), 0.0
    lines = [header(scheme, n, jobs=len(seconds), bundle=bundle)]
    lines += [{"at_s": 0.0, **notice} for notice in notices]
    for round, row in enumerate(seconds):
        load = [1 / n] * n if loads is None else list(loads[round])
        about = {"round": round, "attempt": 0, "jobs": [round], "mini_tasks": 1}
        mean = sum(load) / n
        lines.append({"event": "dispatch", "at_s": now, **about, "load": mean, "loads": load})
        gone = {w: s for (r, w), s in (failed or {}).items() if r == round}
        order = sorted((s, w) for w, s in enumerate(row) if w not in gone)
        used = order[: n if needed is None else needed]
        ends = used[-1][0]
        for s, w in sorted([*used, *((s, w) for w, s in gone.items())]):
            kind = "failure" if w in gone else "arrival"
            more = {"reason": "gone"} if w in gone else {}
            times = {"elapsed_s": s, "took_s": s} | (phases._asdict() if phases else {})
            place = {"round": round, "worker": w, "attempt": 0}
            lines.append({"event": kind, "at_s": now + s, **place, **times, **more})
        late = sorted(set(range(n)) - {w for _, w in used} - set(gone))
        lines.append(
            {
                "event": "close", "at_s": now + ends, "round": round, "reason": "everyone",
                "kappa_s": used[0][0], "duration_s": ends, "waited_out": False,
                "stragglers": late,
            }
        )  # fmt: skip
        if late:
            lines.append({"event": "cancel", "at_s": now + ends, "round": round, "workers": late})
        lines.append({"event": "decode", "at_s": now + ends, "job": round, "error": 0.0})
        now += ends + master_s
    lines.append({"event": "end", "at_s": now, "outcome": "finished"})
    return _written(folder, lines)


def write_tasks(
    folder: Path, tasks: Sequence[tuple[int, int, float, float]], *, pieces: int, n: int = 2
) -> Path:
    """Write the folder of a run that deals work: each task is round, worker, left, arrived."""
    lines: list[tuple[float, object]] = []
    attempts: dict[int, int] = {}
    for round, worker, left, arrived in tasks:
        attempt = attempts[round] = attempts.get(round, -1) + 1
        place = {"round": round, "attempt": attempt}
        sent = {"jobs": [round], "mini_tasks": 1, "workers": [worker], "loads": 1 / pieces}
        lines.append((left, {"event": "dispatch", "at_s": left, **place, **sent}))
        took = {"worker": worker, "elapsed_s": arrived, "took_s": arrived - left}
        lines.append((arrived, {"event": "arrival", "at_s": arrived, **place, **took}))
    jobs, before = max(task[0] for task in tasks) + 1, 0.0
    for round in range(jobs):
        ends = max(task[3] for task in tasks if task[0] == round)
        closed = {"round": round, "reason": "dealt", "duration_s": ends - before}
        lines.append((ends, {"event": "close", "at_s": ends, **closed}))
        before = ends
    first = header(f"deal:pieces={pieces}", n, jobs=jobs, pieces=pieces)
    ordered = [line for _, line in sorted(lines, key=lambda each: each[0])]
    return _written(folder, [first, *ordered])


def _written(folder: Path, lines: Sequence[object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "events.jsonl").write_text(text)
    return folder
