"""What tests of whole runs share: one small run, what it comes to, and a deployment."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file

from seqgc.cli import main
from seqgc.deploy import Deployment, write_deployment
from seqgc.ports import Close, Seen
from seqgc.progress import RunProgress

Out = pytest.CaptureFixture[str]

REGION = "us-west-2"
SGD = ["--module", "mlp", "--optimizer", "sgd", "--lr", "0.05", "--precision", "float64"]
TRAIN = ["train", "--models", "2", "--steps", "2", "--batch-size", "64", *SGD]
TRAIN += ["--jobs-per-round", "1"]
"""Whatever the scheme, the workers and the backend: the same weights."""


@pytest.fixture(scope="session")
def local_weights(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """What `TRAIN` comes to on processes of this machine."""
    run = tmp_path_factory.mktemp("local") / "run"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main([*TRAIN, "--scheme", "uncoded", "-n", "2", "--run", str(run)]) == 0
    return weights(run)


def weights(run: Path | str) -> np.ndarray:
    """Return all weights of a run's last checkpoints, one after the other."""
    tensors = [load_file(file) for file in sorted(Path(run, "checkpoints").glob("*.safetensors"))]
    return np.concatenate([np.ravel(t[name]) for t in tensors for name in sorted(t)])


def events(run: str) -> list[dict[str, object]]:
    """Return what a run has logged."""
    return [json.loads(line) for line in Path(run, "events.jsonl").read_text().splitlines()]


def closed_rounds(run: Path | str) -> int:
    """Return how many rounds the log of a run, which may go on, says are closed."""
    log = Path(run, "events.jsonl")
    return log.read_text().count('"event": "close"') if log.exists() else 0


@contextmanager
def signalled(number: signal.Signals, *, after: int) -> Iterator[None]:
    """Send this process a signal when a round of a run closes."""
    show = RunProgress.__call__

    def stop(self: RunProgress, seen: Seen) -> None:
        show(self, seen)
        if isinstance(seen, Close) and seen.record.round == after:
            os.kill(os.getpid(), number)

    with mock.patch.object(RunProgress, "__call__", stop):
        yield


def deploy(
    function_name: str = "seqgc-worker",
    *,
    reaches_s3: bool = True,
    vpc: bool = True,
    snapstart: bool = False,
) -> None:
    """Write what `seqgc deploy` would, where `seqgc train` finds it."""
    made = Deployment(
        stack="seqgc",
        region=REGION,
        alias_arn=f"arn:aws:lambda:{REGION}:123456789012:function:{function_name}:live",
        bucket="a-bucket",
        prefix="runs",
        reaches_s3=reaches_s3,
        mount_path="/mnt/seqgc" if vpc else "",
        file_system_id="fs-1" if vpc else "",
        access_point_id="fsap-1" if vpc else "",
        security_group_id="sg-1" if vpc else "",
        snapstart=snapstart,
        caller_policy_arn="arn:1",
        store_policy_arn="arn:2",
        architecture="x86_64",
        memory_mb=512,
        timeout_s=30,
    )
    write_deployment(Path("seqgc-lambda.toml"), made)
