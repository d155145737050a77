"""The compute function travels to a worker process by value."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from seqgc.errors import ParameterError
from seqgc.ports import MiniTask, WeightedPoints
from seqgc.stores import DirectoryStore, MemoryStore
from seqgc.training import TorchCompute, TorchComputeFactory, TorchWorkload
from tests.kit import decoded
from tests.training.reference import Chunks, make_model

DEEP = 300  # tensors: more than a fork server passes file descriptors


def serve(factory: TorchComputeFactory, end: Connection) -> None:
    compute = factory()
    while (parts := end.recv()) is not None:
        end.send((compute(parts), torch.get_num_threads()))
    end.close()


def deep() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6) for _ in range(DEEP // 2)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), *layers, nn.Linear(6, 10))


def test_a_fork_server_process_computes_what_this_one_does_at_the_weights_of_the_task(
    tmp_path: Path,
) -> None:
    store = DirectoryStore(tmp_path)
    models = [make_model("deep", module=deep()), make_model("mlp", seed=1)]
    workload = TorchWorkload(models, scheme=Chunks(), store=store, jobs_per_round=2)
    here = TorchCompute([model.objective for model in models], store=store)
    factory = TorchComputeFactory(models=models, store=store)
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(factory, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        for job in range(3):  # the weights change here, in place, under the worker
            workload.begin(job)
            task = MiniTask(job=job, slot=0, chunks=np.arange(4), coefficients=np.ones(4))
            parts: tuple[WeightedPoints, ...] = workload.resolve(task)
            expected = here(parts)
            ours.send(parts)
            assert ours.poll(120), "the worker does not answer"
            result, threads = ours.recv()
            np.testing.assert_array_equal(result, expected)
            assert threads == 1
            workload.finish(decoded(job), result)
        ours.send(None)
    finally:
        process.join(20)
        process.kill()
        process.join()
        ours.close()
    assert process.exitcode == 0


def test_models_that_share_a_dataset_share_it_in_the_parcel() -> None:
    data = make_model().dataset
    sizes = [
        len(
            pickle.dumps(
                TorchComputeFactory(
                    models=[make_model(f"m{i}", dataset=data) for i in range(count)],
                    store=MemoryStore(),
                )
            )
        )
        for count in (1, 2)
    ]
    dataset_bytes = data.tensors[0].nbytes + data.tensors[1].nbytes
    module_bytes = sum(p.nbytes for p in make_model().module.parameters())
    assert sizes[1] - sizes[0] < module_bytes + dataset_bytes / 2


def test_datasets_that_are_views_of_the_same_memory_are_sent_once() -> None:
    x, y = torch.randn(2_000, 64), torch.randint(0, 10, (2_000,))
    models = [
        make_model(f"m{i}", dataset=torch.utils.data.TensorDataset(x[i : i + 900], y[i : i + 900]))
        for i in range(10)
    ]
    sizes = [
        len(pickle.dumps(TorchComputeFactory(models=models[:count], store=MemoryStore())))
        for count in (1, 10)
    ]
    assert sizes[1] - sizes[0] < x.nbytes


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_large_data_give_the_same_bits_after_a_pickle(protocol: int, tmp_path: Path) -> None:
    rows = torch.randn(1_000, 96, dtype=torch.float64)
    np.save(tmp_path / "y.npy", np.arange(1_000) % 10)
    y = np.load(tmp_path / "y.npy", mmap_mode="r")
    points = [(rows.t()[16:80].t()[i], int(y[i])) for i in range(1_000)]
    data = torch.utils.data.TensorDataset(rows.t()[16:80].t(), torch.from_numpy(y.copy()))
    store = MemoryStore()
    models = [make_model("list", dataset=points), make_model("views", dataset=data)]
    workload = TorchWorkload(models, scheme=Chunks(), store=store, jobs_per_round=2)
    workload.begin(0)
    task = MiniTask(job=0, slot=0, chunks=np.arange(4), coefficients=np.ones(4))
    factory = TorchComputeFactory(models=models, store=store)
    threads = torch.get_num_threads()
    sent = pickle.loads(pickle.dumps(factory, protocol))()
    torch.set_num_threads(threads)
    here = TorchCompute([model.objective for model in models], store=store)
    parts = workload.resolve(task)
    np.testing.assert_array_equal(sent(parts), here(parts))


def test_what_cannot_be_pickled_is_named_with_the_remedy() -> None:
    lock = threading.Lock()

    def locked(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with lock:
            return (output - target[:, None]) ** 2

    rule = r"`models` must be picklable.*'_thread.lock' object.*'net'"
    with pytest.raises(ParameterError, match=rule):
        TorchComputeFactory(models=[make_model(loss=locked)], store=MemoryStore())

    class Locked(MemoryStore):
        def __reduce__(self) -> str:
            raise OSError("not today")

    with pytest.raises(
        ParameterError, match=r"`store` must be picklable.*OSError: not today.*'Locked'"
    ):
        TorchComputeFactory(models=[make_model()], store=Locked())


def test_an_optimizer_factory_need_not_be_pickled() -> None:
    model = make_model(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    factory = TorchComputeFactory(models=[model], store=MemoryStore())
    threads = torch.get_num_threads()
    assert isinstance(factory(), TorchCompute)
    torch.set_num_threads(threads)
