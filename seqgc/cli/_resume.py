"""``seqgc resume``: a run whose master has ended goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqgc.cli._options import AsJson, with_plugins
from seqgc.cli._run import make_delays, make_workers, prepare
from seqgc.cli._train import show_result
from seqgc.cli.config import read_run_config, validated


@with_plugins
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    accept_changes: Annotated[
        bool,
        "--accept-changes",
        "State what has changed since the run began, and continue if its state can be loaded.",
    ] = False,
    max_usd: Annotated[
        float | None, "Another budget for the whole run, in USD, than it was begun with."
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that has ended early, from its last checkpoint, to the same weights."""
    settings = validated(read_run_config(run))
    if max_usd is not None:
        settings = settings.model_copy(update={"max_usd": max_usd})
    delays = make_delays(settings)
    with make_workers(settings, delays=delays) as workers:
        prepared = prepare(settings, workers)
        result = prepared.resume(run, accept_changes=accept_changes)
    show_result(result, as_json=as_json)
