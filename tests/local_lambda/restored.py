"""A function with hooks of SnapStart that write down what happens, and a workload that draws."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from snapshot_restore_py import register_after_restore, register_before_snapshot

from seqgc.wire import Json
from seqgc.worker import Compute, FetchWeights, register

_happened: list[tuple[str, int]] = []


def note(what: str) -> None:
    _happened.append((what, os.getpid()))
    if os.environ.get("FAILS") == what:
        raise ValueError(f"on purpose {what}")


for each in ("first", "second"):
    register_before_snapshot(note, f"before, {each}")
    register_after_restore(note, f"after, {each}")


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:  # noqa: ARG001
    return {
        "happened": _happened,
        "pid": os.getpid(),
        "drawn": [random.random(), float(np.random.random())],  # noqa: NPY002 (global state)
        "variables": dict(os.environ),
    }


@register("draw")
def draw(settings: Mapping[str, Json], fetch_weights: FetchWeights) -> Compute:  # noqa: ARG001
    """Return numbers from every global generator, the process id, and whether S3 is imported."""
    import torch

    def compute(parts: object, /) -> Any:  # noqa: ARG001
        drawn = [random.random(), np.random.random(), float(torch.rand(()))]  # noqa: NPY002
        return np.array([*drawn, os.getpid(), "boto3" in sys.modules], dtype=np.float64)

    return compute
