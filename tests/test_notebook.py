"""The example notebook, cell by cell in a kernel: its own classes train on workers."""

from __future__ import annotations

import csv
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "notebook.ipynb"

# A kernel runs cells inside an event loop; the scheduler is another's, reached by its address.
ON_DASK = """
from dataclasses import replace
from distributed import LocalCluster
from seqgc.errors import ParameterError

short = replace(plan, models=models[:2], steps=3)
with LocalCluster(n_workers=1, processes=False, protocol="tcp://", dashboard_address=None) as there:
    by_dask = train(short, workers.dask(4, scheduler=there.scheduler_address), run="by-dask")
with workers.local(4) as four:
    by_processes = train(short, four, run="by-processes", quiet=True)
for name, seen in by_dask.evaluations.items():  # other workers answered first: rounded otherwise
    assert abs(seen.loss - by_processes.evaluations[name].loss) < 1e-4

try:
    train(plan, workers.lambda_local(4))
except ParameterError as error:
    print(error)
"""


def test_classes_of_cells_train_on_workers_and_are_plotted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "is kept without outputs"
    notebook.cells.append(nbformat.v4.new_code_cell(ON_DASK))
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=150, startup_timeout=150, resources=place).execute()
    *_, training, plot, last = (c.outputs for c in notebook.cells if c.cell_type == "code")
    (progress,) = (
        each for each in training if "<progress" in each.get("data", {}).get("text/html", "")
    )
    assert "60 of 60 rounds" in progress.data["text/html"]  # updated to the end
    assert "loss: width-" in progress.data["text/plain"]
    assert sum("display_data" in each.output_type for each in last) == 1  # the other one is quiet
    assert "image/png" in plot[-1].data
    assert "move the code of the script or notebook into a module" in last[-1].text
    (log,) = tmp_path.glob("runs/*/metrics.csv")
    with log.open(newline="") as file:
        rows = list(csv.DictReader(file))
    losses: dict[str, list[float]] = {row["model"]: [] for row in rows}
    for row in rows:
        losses[row["model"]].append(float(row["loss"]))
    assert {len(steps) for steps in losses.values()} == {60}
    assert len(losses) == 4
    assert all(min(steps) < 0.8 * steps[0] for steps in losses.values()), losses
