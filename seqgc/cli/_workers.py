"""``seqgc workers``, which changes the number of local processes while a run continues."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from seqgc.config._tables import read_run_config, validated
from seqgc.errors import ParameterError
from seqgc.runs import read_run
from seqgc.runs.headcount import set_headcount
from seqgc.runs.lease import has_master


def workers(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    count: Annotated[
        int,
        typer.Argument(
            help="Number of processes that work from now on: from 1 to the --workers of the run."
        ),
    ],
) -> None:
    """Change the number of local processes that work for a run."""
    settings = validated(read_run_config(run))
    if settings.backend != "local":
        rule = "must be a run on local processes"
        remedy = "the workers of a dask cluster come and go with its machines"
        if settings.backend != "dask":
            remedy = f"stop it, and then: seqgc resume {run} --workers {count}"
        raise ParameterError("run", rule, f"{run}, on {settings.backend}", remedy)
    is_running = has_master(run)
    if not is_running and read_run(run).outcome == "finished":
        raise ParameterError("run", "must not be finished", str(run))
    set_headcount(run, count, most=settings.workers)
    when = "from now on" if is_running else f"when the run continues: seqgc resume {run}"
    sys.stdout.write(f"{count} of {settings.workers} workers, {when}\n")
