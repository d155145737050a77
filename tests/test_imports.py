"""`import seqgc` is light, and what it promises is there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import seqgc

HEAVY = {
    "boto3", "botocore", "jinja2", "matplotlib", "pydantic", "requests", "rich", "safetensors",
    "scipy.stats", "sklearn", "torch", "typer",
}  # fmt: skip


def modules_after(statement: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


def test_import_seqgc_loads_no_heavy_package() -> None:
    loaded = modules_after("import seqgc")
    assert "seqgc" in loaded
    assert not loaded & HEAVY


def test_every_public_name_is_there_and_needs_neither_torch_nor_boto3() -> None:
    assert seqgc.__all__ == sorted(seqgc.__all__)
    loaded = modules_after("from seqgc import *")
    assert not loaded & {"torch", "boto3", "botocore"}


@pytest.mark.parametrize("handler", ["lambda_handlers"])
def test_cloud_handlers_load_no_scipy_torch_or_boto3(handler: str) -> None:
    assert not modules_after(f"import {handler}") & {"boto3", "botocore", "scipy", "torch"}


def test_the_testing_kit_needs_no_extra_and_pytest_for_its_contracts_only() -> None:
    loaded = modules_after("import seqgc.testing; seqgc.testing.HandWoundClock()")
    assert not loaded & {"torch", "boto3", "botocore", "pytest"}
    loaded = modules_after("from seqgc.testing import BackendContract, StoreContract")
    assert "pytest" in loaded
    assert not loaded & {"torch", "boto3", "botocore"}
