"""The contestants of `tests.benchmarks.alternatives`: ways to train many models on two cores.

Every contestant is a function of a `Problem` that returns the trained weights. The functions and
classes are in an importable module, because loky, Ray and dask send them by name.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

if TYPE_CHECKING:  # a contestant that does not use seqgc must not pay for its import
    from seqgc.ports import FloatArray, IntArray

WORKERS, LR = 2, 1e-3


@dataclass(frozen=True)
class Problem:
    """The networks to train, their points, and the stalls of workers."""

    width: int  # of `digits-cnn`
    steps: int
    batch_size: int
    x: FloatArray  # (points, 1, 8, 8)
    y: IntArray  # (points,)
    initial: FloatArray  # (models, parameters)
    order: IntArray  # (models, steps, batch_size), the points of each step
    stall_probability: float
    stall_s: float

    @property
    def num_models(self) -> int:
        return len(self.initial)

    def network(self, model: int) -> nn.Module:
        width = self.width
        module = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * width, 10),
        )
        vector_to_parameters(torch.from_numpy(self.initial[model]).clone(), module.parameters())
        return module

    def batch(self, model: int, step: int, worker: int | None = None) -> Any:
        """Return the images and digits of a step, or a worker's share of them."""
        points = self.order[model, step]
        if worker is not None:
            points = np.array_split(points, WORKERS)[worker]
        return torch.from_numpy(self.x[points]), torch.from_numpy(self.y[points])

    def stall(self, step: int, worker: int) -> float:
        """Return the least seconds that a worker takes for a step. All contestants use this."""
        if not self.stall_probability:
            return 0.0
        stalls = np.random.default_rng([0, step, worker]).random() < self.stall_probability
        return self.stall_s if stalls else 0.0

    def save(self, path: Path) -> None:
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> Problem:
        with np.load(path) as file:
            values = {name: file[name] for name in file.files}
        return cls(**{name: v if v.ndim else v.item() for name, v in values.items()})


def _take_at_least(seconds: float, begun: float) -> None:
    time.sleep(max(0.0, begun + seconds - time.perf_counter()))


def _weights(module: nn.Module) -> FloatArray:
    vector: FloatArray = parameters_to_vector(module.parameters()).detach().numpy()
    return vector


# ---- whole models --------------------------------------------------------------------------------


def train_models(problem: Problem, models: Sequence[int], worker: int) -> FloatArray:
    """Train models one after the other; return their weights, (models, parameters).

    A worker may stall once in each of its ``steps`` shares of the work.
    """
    torch.set_num_threads(1)
    trained, count = [], 0
    for model in models:
        module = problem.network(model)
        optimizer = torch.optim.Adam(module.parameters(), lr=LR)
        for step in range(problem.steps):
            begun = time.perf_counter()
            x, y = problem.batch(model, step)
            optimizer.zero_grad()
            cross_entropy(module(x), y).backward()
            optimizer.step()
            if count % len(models) == 0:
                _take_at_least(problem.stall(count // len(models), worker), begun)
            count += 1
        trained.append(_weights(module))
    return np.stack(trained)


def plain_loop(problem: Problem) -> FloatArray:
    return train_models(problem, range(problem.num_models), 0)


def _shares(problem: Problem) -> list[list[int]]:
    shares = [list(range(worker, problem.num_models, WORKERS)) for worker in range(WORKERS)]
    return [share for share in shares if share]


def _in_order(problem: Problem, trained: Iterable[FloatArray]) -> FloatArray:
    weights = np.empty_like(problem.initial)
    for share, some in zip(_shares(problem), trained, strict=True):
        weights[share] = some
    return weights


def joblib_models(problem: Problem) -> FloatArray:
    joblib = import_module("joblib")
    calls = [
        joblib.delayed(train_models)(problem, share, worker)
        for worker, share in enumerate(_shares(problem))
    ]
    return _in_order(problem, joblib.Parallel(n_jobs=WORKERS)(calls))


# ---- batches divided among the workers -----------------------------------------------------------


class GradientActor:
    """An actor that computes its share of the gradients of all models, step by step."""

    def __init__(self, path: str, worker: int) -> None:
        torch.set_num_threads(1)
        self._problem, self._worker = Problem.load(Path(path)), worker
        self._modules = [self._problem.network(m) for m in range(self._problem.num_models)]

    def gradients(self, step: int, weights: FloatArray) -> FloatArray:
        """Return the sums of the gradients of this worker's points, (models, parameters)."""
        begun, result = time.perf_counter(), np.empty_like(weights)
        for model, module in enumerate(self._modules):
            vector_to_parameters(torch.from_numpy(weights[model].copy()), module.parameters())
            module.zero_grad()
            x, y = self._problem.batch(model, step, self._worker)
            cross_entropy(module(x), y, reduction="sum").backward()
            grads = [p.grad for p in module.parameters() if p.grad is not None]
            result[model] = parameters_to_vector(grads).numpy()
        _take_at_least(self._problem.stall(step, self._worker), begun)
        return result


def _train_by_rounds(
    problem: Problem, ask: Callable[[int, FloatArray], list[FloatArray]]
) -> FloatArray:
    """Train all models by rounds; ``ask(step, weights)`` returns each worker's gradients."""
    torch.set_num_threads(1)
    rows = [torch.from_numpy(row.copy()) for row in problem.initial]
    optimizer = torch.optim.Adam(rows, lr=LR)  # its step is elementwise: right for every model
    for step in range(problem.steps):
        total = np.sum(ask(step, torch.stack(rows).numpy()), axis=0) / problem.batch_size
        for row, gradient in zip(rows, torch.from_numpy(total), strict=True):
            row.grad = gradient
        optimizer.step()
    return torch.stack(rows).numpy()


def ray_actors(problem: Problem) -> FloatArray:
    ray = import_module("ray")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        problem.save(path)
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
        ray.init(num_cpus=WORKERS, _temp_dir=folder, **quiet)
        try:
            actor = ray.remote(num_cpus=1)(GradientActor)
            actors = [actor.remote(str(path), worker) for worker in range(WORKERS)]

            def ask(step: int, weights: FloatArray) -> list[FloatArray]:
                shared = ray.put(weights)
                answers = [each.gradients.remote(step, shared) for each in actors]
                return list(ray.get(answers))

            return _train_by_rounds(problem, ask)
        finally:
            ray.shutdown()


def dask_actors(problem: Problem, *, direct: bool = False) -> FloatArray:
    distributed = import_module("distributed")
    cluster = distributed.LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None
    )
    client = distributed.Client(cluster, direct_to_workers=direct)
    with cluster, client, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        problem.save(path)
        addresses = list(client.scheduler_info()["workers"])
        actors = [
            client.submit(GradientActor, str(path), worker, actor=True, workers=[address]).result()
            for worker, address in enumerate(addresses)
        ]

        def ask(step: int, weights: FloatArray) -> list[FloatArray]:
            answers = [each.gradients(step, weights) for each in actors]
            return [answer.result() for answer in answers]

        return _train_by_rounds(problem, ask)


def _ddp_worker(worker: int, path: str, folder: str) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    problem = Problem.load(Path(path))
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=worker, world_size=WORKERS)
    trained, count = [], 0
    for model in range(problem.num_models):
        module = DistributedDataParallel(problem.network(model))
        optimizer = torch.optim.Adam(module.parameters(), lr=LR)
        for step in range(problem.steps):
            begun = time.perf_counter()
            x, y = problem.batch(model, step, worker)
            optimizer.zero_grad()
            loss = cross_entropy(module(x), y)
            if count % problem.num_models == 0:  # before the backward pass, which synchronises
                _take_at_least(problem.stall(count // problem.num_models, worker), begun)
            loss.backward()
            optimizer.step()
            count += 1
        trained.append(_weights(module))
    if worker == 0:
        np.save(Path(folder) / "weights.npy", np.stack(trained))
    dist.destroy_process_group()


def ddp_gloo(problem: Problem) -> FloatArray:
    if problem.batch_size % WORKERS:
        raise ValueError("DDP averages the workers' means, so their shares must be equal")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        problem.save(path)
        context = multiprocessing.get_context("spawn")
        processes = [
            context.Process(target=_ddp_worker, args=(worker, str(path), folder))
            for worker in range(WORKERS)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        weights: FloatArray = np.load(Path(folder) / "weights.npy")
        return weights


# ---- seqgc ---------------------------------------------------------------------------------------


def seqgc_scheme(problem: Problem, *, scheme: str) -> FloatArray:
    from seqgc import TrainingPlan, registered_model, train, workers
    from seqgc.training import grid

    def net(seed: int) -> Any:
        return registered_model(
            "net",
            module="digits-cnn",
            module_args={"width": problem.width},
            optimizer=partial(torch.optim.Adam, lr=LR),
            batch_size=problem.batch_size,
            seed=seed,
        )

    torch.set_num_threads(1)
    models = grid(net, {"seed": problem.num_models})
    plan = TrainingPlan(models=models, scheme=scheme, steps=problem.steps)
    rounds_per_step = max(1, plan.on(WORKERS).num_jobs // problem.steps)
    stalled: set[tuple[int, int]] = set()

    def delays(round_number: int, worker: int, _load: float) -> float:
        """A worker may stall once in a step, however many tasks the step has."""
        occasion = (round_number // rounds_per_step, worker)
        if occasion in stalled:
            return 0.0
        stalled.add(occasion)
        return problem.stall(*occasion)

    injected = delays if problem.stall_probability else None
    with (
        tempfile.TemporaryDirectory() as folder,
        workers.local(WORKERS, delays=injected) as crew,
    ):
        result = train(plan, crew, run=Path(folder) / "run")
    return np.stack([_weights(result.modules[model.name]) for model in models])


CONTESTANTS: dict[str, Callable[[Problem], FloatArray]] = {
    "plain": plain_loop,
    "joblib": joblib_models,
    "ray": ray_actors,
    "dask": dask_actors,
    "dask-direct": partial(dask_actors, direct=True),
    "ddp": ddp_gloo,
    "seqgc-uncoded": partial(seqgc_scheme, scheme="uncoded"),
    "seqgc-gc-rep": partial(seqgc_scheme, scheme="gc-rep:s=1"),
    "seqgc-deal": partial(seqgc_scheme, scheme="deal"),
}
