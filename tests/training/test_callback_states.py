"""What callbacks remember is in checkpoints: a resumed run decides as it would have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from seqgc.errors import CallbackError, ParameterError
from seqgc.runs.snapshots import Snapshot, SnapshotFolder
from seqgc.training import Callback, Stop, TrainingPlan, train
from seqgc.training.callbacks import CallbackList
from tests.training.inside import RunState
from tests.training.reference import flat, make_model
from tests.training.test_loop import begun, go_on
from tests.training.test_resume import crew

LAST, HALF, SMALL = 40, 17, 1.9


class Smoothed(Callback):
    """Stops a model when the moving average of its loss is small, and remembers in every kind."""

    def __init__(self, start: float = 2.3) -> None:
        self.start, self.steps = start, Counter[str]()
        self.means: dict[str, torch.Tensor] = {}
        self.latest: tuple[str, float] | None = None

    def on_step(self, model: str, step: int, loss: float, _: Mapping[str, float]) -> Stop | None:
        mean = self.means.get(model, torch.tensor(self.start, dtype=torch.float64))
        self.means[model] = 0.7 * mean + 0.3 * loss
        self.steps[model] += 1
        self.latest = model, float("nan") if step % 2 else loss
        return Stop.MODEL if float(self.means[model]) < SMALL else None

    def state_dict(self) -> dict[str, object]:
        return {"steps": self.steps, "means": self.means, "latest": self.latest}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.steps, self.means = Counter(state["steps"]), state["means"]
        self.latest = state["latest"]


def test_a_restored_workload_stops_where_it_would_have() -> None:
    models = [make_model(name, seed=seed) for seed, name in enumerate("ab")]
    callbacks = Smoothed(), Smoothed(start=2.5)
    workload, compute = begun(models, *callbacks)
    go_on(workload, compute, range(HALF))
    state = workload.snapshot()
    go_on(workload, compute, range(HALF, LAST))
    later = Smoothed(), Smoothed()
    again, compute = begun(models, *later)
    again.restore(*state)
    go_on(again, compute, range(HALF, LAST))
    assert {each.kind for each in workload.parked.values()} == {"stopped early"}
    assert dict(again.parked) == dict(workload.parked)
    for one, other in zip(callbacks, later, strict=True):
        assert repr(one.state_dict()) == repr(other.state_dict())
    assert callbacks[0].means != callbacks[1].means
    for name in "ab":
        assert np.array_equal(flat(workload.module(name)), flat(again.module(name)))
    torn = Smoothed(), Smoothed()
    torn[1].load_state_dict = lambda state: state["no such"]  # type: ignore[method-assign]
    again, _ = begun(models, *torn)
    with pytest.raises(ParameterError, match=r"must take back .* got 'Smoothed 2.load_state_dict'"):
        again.restore(*state)


def test_keys_that_give_the_same_name_keep_their_own_tensors(tmp_path: Path) -> None:
    """And those that no file can have as a name."""
    keys = "a.b", "a.b (2)", 0, "0", "0 (2)", "\udcff", "\ufffd"
    state = {key: torch.tensor(float(place)) for place, key in enumerate(keys)}
    state["a"] = {"b": torch.tensor(7.0), "b (2)": torch.tensor(8.0)}
    state["counts"] = Counter({"a": 2, 1: 3})
    tensors, found = dict[str, torch.Tensor](), list[object]()
    states = CallbackList([Keeping(lambda: state)]).snapshot(tensors)
    folder = SnapshotFolder(tmp_path, dict[str, int])
    folder.write(Snapshot(rounds=1, state={}, files={"flight.safetensors": tensors}))
    again = Keeping(dict)
    again.load_state_dict = found.append  # type: ignore[method-assign]
    CallbackList([again]).restore(states, folder.newest()[0].files["flight.safetensors"])
    assert repr(found) == repr([state])


def test_of_all_stops_the_furthest_counts() -> None:
    stops = [Keeping(dict), Keeping(dict), Keeping(dict)]
    for callback, stop in zip(stops, (Stop.MODEL, Stop.RUN, None), strict=True):
        callback.on_step = lambda *_, stop=stop: stop  # type: ignore[method-assign]
    assert CallbackList(stops).call("on_step", "a", 1, 0.0, {}) is Stop.RUN


class Keeping(Callback):
    def __init__(self, state: Callable[[], object]) -> None:
        self.state = state

    def on_step(self, model: str, step: int, loss: float, metrics: Mapping[str, float]) -> None: ...

    def state_dict(self) -> object:
        return self.state()

    def load_state_dict(self, state: object) -> None: ...


class Writing:
    def on_step(self, model: str, step: int, loss: float, metrics: Mapping[str, float]) -> None: ...

    def state_dict(self) -> object: ...


def endless() -> object:
    state: list[object] = []
    return state.append(state) or state


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (Keeping(lambda: 1 / 0), "ZeroDivisionError: division by zero"),
        (Keeping(lambda: {"a": np.ones(3)}), r"`callback.Keeping.a` must contain .* got 'ndarray'"),
        (Keeping(lambda: [print]), r"`callback.Keeping.0` must contain .*'builtin_function"),
        (
            Keeping(lambda: {(1, 2): 3}),
            r"`callback.Keeping` must contain .* with text or numbers as keys; got 'dict'",
        ),
        (Keeping(lambda: torch.eye(2).to_sparse()), "must contain only dense tensors"),
        (Keeping(endless), "RecursionError"),
        (Writing(), "must have both state_dict and load_state_dict, or neither"),
    ],
)
def test_what_no_checkpoint_can_hold_is_refused_at_the_start(callback: object, says: str) -> None:
    with pytest.raises(ParameterError, match=says) as caught:
        begun([make_model()], callback)
    assert str(caught.value).startswith("`callbacks` must ")
    assert type(callback).__name__ in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_state_that_cannot_be_kept_later_ends_the_run_with_the_checkpoint_before(
    tmp_path: Path,
) -> None:
    told = iter([{}, {"first": 1}])
    once = Keeping(lambda: next(told))
    plan = TrainingPlan(models=[make_model()], scheme="gc:s=2", steps=3)
    with pytest.raises(CallbackError, match=r"Keeping.state_dict must .* \(StopIteration"):
        train(plan, crew(), run=tmp_path / "run", callbacks=[once])
    folder = SnapshotFolder(tmp_path / "run" / "checkpoints", RunState)
    (only,) = folder.newest()[0].state.workload.callbacks
    assert (only.name, only.state) == ("Keeping", '{"dict": [["first", 1]]}')
