"""Work that a backend cannot do is refused before anything is started or written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from seqgc import workers
from seqgc.errors import ParameterError
from seqgc.ports import Payload, RestartingBackend
from seqgc.profiles import ByRound
from seqgc.rounds import ClosingRule
from seqgc.schemes import register
from seqgc.shards import AspDds, ShardPolicy
from seqgc.training import TrainingPlan, train
from seqgc.virtual import VirtualBackend
from tests.training.reference import make_model


class NeedyPolicy(ShardPolicy):
    """Of no use where nobody can be replaced."""

    needs = frozenset({"restart"})


@register("needs-restart")
@dataclass(frozen=True, kw_only=True)
class Needy(AspDds):
    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,  # noqa: ARG002 (a plain sum has none)
    ) -> ShardPolicy:
        loads = self.loads_of_batches(batches)
        return NeedyPolicy(self.n, rule, num_jobs=num_jobs, M=self.M, loads=loads)


@pytest.mark.parametrize("kind", ["lambda-local", "dask"])
def test_workers_that_cannot_be_replaced_are_refused_if_they_must_be(
    kind: str, tmp_path: Path
) -> None:
    crew = (
        workers.lambda_local(2)
        if kind == "lambda-local"
        else workers.dask(2, scheduler="127.0.0.1:1")  # nobody is asked
    )
    plan = TrainingPlan(models=[make_model()], scheme=Needy(n=2), steps=2)
    with crew as made:
        for refused in (
            lambda: train(plan, made, run=tmp_path / "run"),
            lambda: made.forecast(plan),
        ):
            with pytest.raises(ParameterError) as caught:
                refused()
            assert str(caught.value) == (
                "`backend` must be able to replace its workers: the policy needs it; got "
                f"'{kind}' (use local processes, resident functions (--resident), or another "
                "defence)"
            )
    assert not (tmp_path / "run").exists()


def test_where_they_can_be_it_trains(tmp_path: Path) -> None:
    plan = TrainingPlan(models=[make_model()], scheme=Needy(n=2), steps=2)
    with workers.local(2) as made:
        assert made.forecast(plan) is None
        assert train(plan, made, run=tmp_path / "run").jobs == 2


def test_of_virtual_workers_residents_can_be_replaced() -> None:
    pace = ByRound(latencies_s=[[1.0]], rates=[[1.0]])
    kinds = ("resident", "function")
    able = [isinstance(VirtualBackend(1, pace, workers=k), RestartingBackend) for k in kinds]
    assert able == [True, False]
