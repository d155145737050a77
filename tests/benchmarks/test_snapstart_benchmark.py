"""Processor time of an environment from its start to the end of its first task, on PyTorch.

An environment that is restored from a snapshot is compared with an environment that starts from
nothing. The restored environment is a fork of the local service, whose processor time is counted
from the fork; Lambda's own restoring of memory is not in it.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqgc.local_lambda import DeployedAs, LocalLambda
from seqgc.models.factories import workload_of
from seqgc.stores import DirectoryStore
from seqgc.training import registered_model
from seqgc.wire import ResultMessage, StoreRef, decode, encode, from_json, to_json
from tests.benchmarks.test_environments_benchmark import tree
from tests.local_lambda.calling import client
from tests.worker.asking import invocation, task_of

ROOT = Path(__file__).resolve().parents[2]
HANDLER = "lambda_handlers.gradient_worker.handler.handler"
MOST_S = 0.3  # of a restored environment; 0.05 measured
TIMES = 3
FRESH = """
import json, sys
from lambda_handlers.gradient_worker.handler import handler
handler(json.loads(sys.stdin.read()), None)
"""


def first_task(folder: Path) -> bytes:
    """Return an invocation for one gradient of a network with 28,000 parameters."""
    model = registered_model("a", module="mlp", optimizer=partial(torch.optim.SGD, lr=0.1))
    size = sum(parameter.numel() for parameter in model.module.parameters())
    ref = DirectoryStore(folder / "run-9").publish("a", 0, np.zeros(size, dtype=np.float32))
    message = invocation(
        name="models",
        settings=workload_of([model], precision="float32").settings,
        store=StoreRef(kind="directory", location="run-9"),
        task=task_of(ref),
    )
    return to_json(encode(message, run_id="run-9"))


def processor_s(pid: int) -> float:
    """Return the processor time of all threads of a process, in seconds."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


def restored_s(folder: Path, payload: bytes) -> float:
    deployed = DeployedAs(snapstart=True)
    with LocalLambda(HANDLER, concurrency=1, mount=folder, deployed=deployed) as service:
        aws = client(service)
        answer = aws.invoke(FunctionName=service.function_name, Payload=payload)["Payload"].read()
        _, _, environment = tree(service.pid)
        seconds = processor_s(environment)
        aws.close()
    assert isinstance(decode(from_json(answer), run_id="run-9"), ResultMessage)
    return seconds


def started_s(folder: Path, payload: bytes) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment: dict[str, Any] = {"SEQGC_MOUNT": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", FRESH]
    subprocess.run(
        command, input=payload, env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only on Linux")
def test_a_restored_environment_begins_its_first_task_almost_at_once(tmp_path: Path) -> None:
    payload = first_task(tmp_path)
    restored = [restored_s(tmp_path, payload) for _ in range(TIMES)]
    started = [started_s(tmp_path, payload) for _ in range(TIMES)]
    figures = {
        "restored_s": statistics.median(restored),
        "started_s": statistics.median(started),
        "most_restored_s": max(restored),
    }
    print("\n" + json.dumps({name: round(value, 3) for name, value in figures.items()}))
    assert figures["restored_s"] < MOST_S < figures["started_s"]
