"""The check that keeps `make` from downloading CUDA's gigabytes unasked."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "torch_build.py"


@pytest.fixture(scope="module")
def torch_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torch_build", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pip_that_prints(*lines: str, report: str = "", status: int = 0) -> list[str]:
    """A command that stands in for pip: prints, writes its report, ends."""
    code = (
        "import pathlib, sys\n"
        f"print({chr(10).join(lines)!r}, flush=True)\n"
        f"pathlib.Path(sys.argv[-1]).write_text({report!r})\n"
        f"sys.exit({status})"
    )
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("Collecting torch==2.13.0", False),
        ("Collecting sympy>=1.13.3 (from torch==2.13.0)", False),
        ("Collecting nvidia-cudnn-cu13==9.20.0.48 (from torch==2.13.0)", True),
        ("Collecting cuda-toolkit[cublas]==13.0.3 (from torch==2.13.0)", True),
        ("Collecting triton==3.7.1 (from torch==2.13.0)", True),
        ("  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (526.6 MB)", True),
        ("  Using cached torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (1.1 GB)", True),
        ("  Downloading torch-2.13.0-cp311-cp311-linux_x86_64.whl.metadata (29 kB)", False),
        ("  Downloading https://a.example/torch-2.13.0%2Bcpu-cp311-linux.whl (191.8 MB)", False),
    ],
)
def test_a_line_of_pip_is_refused_when_it_shows_another_build(
    torch_build: ModuleType, line: str, refused: bool
) -> None:
    assert (torch_build.objection_to_line(line) is not None) is refused


@pytest.mark.parametrize(
    ("versions", "refused"),
    [
        ({"torch": "2.13.0+cpu", "sympy": "1.14.0"}, False),
        ({"torch": "2.13.0", "sympy": "1.14.0"}, False),  # macOS: no local version, no CUDA
        ({"torch": "2.13.0+cu130"}, True),
        ({"torch": "2.13.0", "nvidia-cublas": "13.1.1.3"}, True),
    ],
)
def test_a_plan_is_refused_when_it_brings_cuda(
    torch_build: ModuleType, versions: dict[str, str], refused: bool
) -> None:
    assert (torch_build.objection_to_plan(versions) is not None) is refused


def test_pip_is_stopped_at_the_first_objection(torch_build: ModuleType) -> None:
    pip = pip_that_prints("Collecting torch", "Collecting nvidia-nccl-cu13", status=1)
    assert torch_build.objection_to_pip(pip) == "it collects nvidia-nccl-cu13"


def test_the_report_of_pip_is_read(torch_build: ModuleType) -> None:
    cpu = '{"install": [{"metadata": {"name": "torch", "version": "2.13.0+cpu"}}]}'
    assert torch_build.objection_to_pip(pip_that_prints(report=cpu)) is None
    cuda = cpu.replace("+cpu", "+cu130")
    assert torch_build.objection_to_pip(pip_that_prints(report=cuda)) is not None


def test_a_failing_pip_is_shown_not_swallowed(torch_build: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no route to index"):
        torch_build.objection_to_pip(pip_that_prints("no route to index", status=1))


def test_constraints_without_torch_are_refused(torch_build: ModuleType) -> None:
    assert torch_build.pinned_version("# torch\ntorch==1.2\n") == "1.2"
    with pytest.raises(SystemExit, match="does not pin torch"):
        torch_build.pinned_version("numpy==2\n")
