"""`gradients` takes about as long for a job as `train` does for a step of the same model.

The two are measured in turn, in one process. A plain backward pass of such a small model is far
shorter than any message; its time is shown, and not compared.
"""

from __future__ import annotations

import copy
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import nn

from seqgc import gradients, read_run, workers
from seqgc.training import Model, TrainingPlan, make_module, train
from seqgc.training import digits as digits_data

STEPS, BATCH = 200, 256
MOST_OF_TRAIN = 2.0


def test_a_call_takes_about_as_long_as_a_step_of_a_run(tmp_path: Path) -> None:
    module, (data, _) = make_module("mlp", seed=0), digits_data()
    loss, sgd = nn.CrossEntropyLoss(), partial(torch.optim.SGD, lr=0.1)
    model = Model(
        name="net", module=module, loss=loss, dataset=data, optimizer=sgd, batch_size=BATCH
    )
    plan = TrainingPlan(models=[model], scheme="gc-rep:s=1", steps=STEPS)
    ratios = list[float]()
    for repeat in range(3):
        with workers.local(2) as w:
            run = train(plan, w, run=tmp_path / str(repeat)).run
            durations = read_run(run).rounds()["closed_s"]
            train_s = float(durations[-1] - durations[STEPS // 2]) / (STEPS - 1 - STEPS // 2)
            own = copy.deepcopy(module)
            optimizer = sgd(own.parameters())
            with gradients(own, loss, data, workers=w, scheme="gc-rep:s=1") as g:
                times = list[float]()
                for _ in range(STEPS):
                    indices, began = torch.randint(len(data), (BATCH,)), time.perf_counter()
                    optimizer.zero_grad()
                    g.backward(indices)
                    optimizer.step()
                    times.append(time.perf_counter() - began)
        own_s = sum(times[STEPS // 2 :]) / (STEPS - STEPS // 2)
        plain = list[float]()
        for _ in range(STEPS):
            indices, began = torch.randint(len(data), (BATCH,)), time.perf_counter()
            optimizer.zero_grad()
            x, y = data[indices]
            loss(own(x), y).backward()
            optimizer.step()
            plain.append(time.perf_counter() - began)
        ratios.append(own_s / train_s)
        print(
            f"a call of backward {1e3 * own_s:.2f} ms, a step of train {1e3 * train_s:.2f} ms, "
            f"without workers {1e3 * median(plain):.2f} ms"
        )
    print(f"backward / train: {min(ratios):.2f}")
    assert min(ratios) < MOST_OF_TRAIN
