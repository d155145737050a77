"""A local worker that is late reads its weights when they are gone: that is no failed task."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seqgc import workers
from seqgc.backends import LocalBackend
from seqgc.ports import FloatArray, WeightedPoints
from seqgc.training import TrainingPlan, train
from seqgc.worker import ComputeFactory
from tests.training.reference import make_model

N, VERSION = 4, 3
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Late:
    """Makes computing that, for whoever is first asked for a version, begins when that is gone."""

    factory: ComputeFactory
    run: Path

    def __call__(self) -> Callable[[tuple[WeightedPoints, ...]], FloatArray]:
        compute = self.factory()

        def computed(parts: tuple[WeightedPoints, ...]) -> FloatArray:
            version = parts[0].weights.version
            if version == VERSION and self._is_first():
                self._wait_for_the_end_of(version)
            return compute(parts)

        return computed

    def _is_first(self) -> bool:
        try:
            (self.run.parent / "late").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _wait_for_the_end_of(self, version: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        (file,) = self.run.glob(f"weights/*@{version:010}.npy")
        while file.exists():
            assert time.monotonic() < deadline, "the weights stay"
            time.sleep(0.005)
        (self.run.parent / "gone").write_text(str(os.getpid()))


def test_a_late_local_worker_that_finds_its_weights_gone_has_not_failed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    crew = workers.custom(N, lambda n, factory: LocalBackend(n, Late(factory, run)))
    model = make_model("net", batch_size=12)
    plan = TrainingPlan(models=[model], scheme="gc-rep:s=1", steps=40)
    result = train(plan, crew, run=run)
    assert (tmp_path / "gone").exists(), "nobody was late"
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert {event["event"] for event in events}.isdisjoint({"failure", "restart"})
    assert result.counts.failures == 0
    (straggled,) = [e for e in events if e["event"] == "close" and e["round"] == VERSION]
    assert straggled["stragglers"]
