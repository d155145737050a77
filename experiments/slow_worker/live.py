"""Train live while one worker of eight is four times as slow as the others.

python -m experiments.slow_worker.live [--workers 8] [--steps 120] [--share 0.05]

The worker is slow in one of two ways. *In its work*: each point takes it four times as long, so
that a smaller share of the batch helps (`lb-bsp`). *Before its work*: it sleeps before every task,
whatever its share, until it is replaced (`antdt-nd`, or `antdt-nd-asp` for asynchronous workers).
The delays are injected into real worker processes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from seqgc import registered_model, workers
from seqgc.ports import Restart, Seen
from seqgc.training import TrainingPlan, train

SLOW = 0  # the worker
CASES = (
    ("work", "uncoded"),
    ("work", "lb-bsp"),
    ("before", "uncoded"),
    ("before", "antdt-nd:trans=1,per=3,act=1"),
    ("before", "asp"),
    ("before", "asp-dds"),
    ("before", "antdt-nd-asp:per=3,act=1"),
)


@dataclass(slots=True)
class OneSlow:
    """Delays of ``share_s`` for an equal share of a batch, four times that for one worker."""

    n: int
    share_s: float
    kind: str  # slow in its "work", or "before" it
    restarted: list[int] = field(default_factory=list)

    def delay(self, _round: int, worker: int, load: float) -> float:
        """Return the seconds that a task takes in addition to its computing."""
        work_s = self.share_s * load * self.n
        if worker != SLOW or worker in self.restarted:
            return work_s
        return 4 * work_s if self.kind == "work" else work_s + 3 * self.share_s

    def see(self, seen: Seen) -> None:
        """Record a replaced worker."""
        if isinstance(seen, Restart):
            self.restarted.append(seen.worker)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--share", type=float, default=0.05, help="seconds of an equal share")
    given = parser.parse_args(arguments)
    sgd = partial(torch.optim.SGD, lr=0.2)
    print("slow in, defence, seconds, of uncoded, test accuracy, replaced")
    uncoded_s = 0.0
    for kind, spec in CASES:
        slow = OneSlow(given.workers, given.share, kind)
        model = registered_model("net", module="mlp", optimizer=sgd)
        plan = TrainingPlan(models=[model], scheme=spec, steps=given.steps)
        with (
            tempfile.TemporaryDirectory() as folder,
            workers.local(given.workers, delays=slow.delay) as crew,
        ):
            result = train(plan, crew, run=Path(folder, "run"), observers=[slow.see])
        uncoded_s = result.seconds if spec == "uncoded" else uncoded_s
        accuracy = result.evaluations["net"].accuracy or 0.0
        print(
            f"{kind}, {spec}, {result.seconds:.2f}, {result.seconds / uncoded_s:.2f}, "
            f"{accuracy:.4f}, {len(slow.restarted)}"
        )


if __name__ == "__main__":
    main()
