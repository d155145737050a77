"""Refuse an install of torch that would bring CUDA's gigabytes, before they are downloaded.

The program asks pip what it would install (`pip install --dry-run --report`) and reads its output.
It stops pip as soon as pip collects a package of the CUDA family, or fetches a torch wheel that is
too large for a CPU build. (If an index publishes wheels' metadata, a dry run is cheap. If not, pip
fetches the whole wheel even for a dry run, and waiting for the report would be too late.)
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

CPU_WHEEL_LIMIT_MB = 300.0  # CPU wheels are below 200 MB, CUDA wheels above 500 MB
CUDA_FAMILY = re.compile(r"(nvidia|cuda|triton|pytorch-triton)([-_.]|$)", re.IGNORECASE)
COLLECTING = re.compile(r"\s*Collecting ([A-Za-z0-9._-]+)")
FETCHING = re.compile(r"\s*(?:Downloading|Using cached) \S*?(torch-\S+\.whl) \(([\d.]+) ([kMG])B\)")
MB_PER_UNIT = {"k": 1e-3, "M": 1.0, "G": 1e3}

REMEDY = """\
Choose one:
  - the CPU build: point pip at PyTorch's index of CPU wheels (pytorch.org, "Get started", Compute
    Platform: CPU) and repeat:  PIP_EXTRA_INDEX_URL=<that index> make ...
  - another build of your choice: install torch=={pinned} into .venv yourself and repeat
  - whatever pip finds, CUDA's gigabytes included:  make ... TORCH=any"""


def pinned_version(constraints: str) -> str:
    """Return the version that the text of a constraints file pins torch to."""
    match = re.search(r"^torch==(\S+)", constraints, re.MULTILINE)
    if match is None:
        raise SystemExit("constraints.txt does not pin torch (expected a line torch==VERSION)")
    return match[1]


def is_installed(pinned: str) -> bool:
    """Return whether this environment has that version, of any build; pip then keeps it."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return False
    return version.partition("+")[0] == pinned


def objection_to_line(line: str) -> str | None:
    """Return why a line of pip's output shows another build than the CPU one, or None."""
    if (collecting := COLLECTING.match(line)) and CUDA_FAMILY.match(collecting[1]):
        return f"it collects {collecting[1]}"
    if fetching := FETCHING.match(line):
        size_mb = float(fetching[2]) * MB_PER_UNIT[fetching[3]]
        if size_mb > CPU_WHEEL_LIMIT_MB:
            return f"{fetching[1]} has {size_mb:.0f} MB"
    return None


def objection_to_plan(versions: Mapping[str, str]) -> str | None:
    """Return why an install (name → version) is not the CPU build, or None."""
    for name in versions:
        if CUDA_FAMILY.match(name):
            return f"it installs {name}"
    local = versions.get("torch", "").partition("+")[2]
    return None if local in ("", "cpu") else f"it installs torch {versions['torch']}"


def planned_versions(report: Path) -> dict[str, str]:
    """Return the packages that a report of pip lists."""
    items = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in items}


def first_objection(lines: Iterable[str], seen: list[str]) -> str | None:
    """Return the first objection to a line; append the lines to ``seen``."""
    for line in lines:
        seen.append(line)
        if objection := objection_to_line(line):
            return objection
    return None


def objection_to_pip(command: Sequence[str]) -> str | None:
    """Run pip's dry run and return why its build of torch is not the CPU one, or None."""
    with tempfile.TemporaryDirectory(prefix="seqgc-torch-") as folder:
        report = Path(folder) / "report.json"
        env = {k: v for k, v in os.environ.items() if k not in ("PIP_QUIET", "PIP_VERBOSE")}
        pip = subprocess.Popen(
            [*command, "--report", str(report)],
            env=env | {"TMPDIR": folder, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        seen: list[str] = []
        with pip:  # wait for pip, so that it does not write to a folder that is being removed
            assert pip.stdout is not None
            if objection := first_objection(pip.stdout, seen):
                pip.kill()
                return objection
        if pip.returncode != 0:
            raise SystemExit("pip cannot resolve torch:\n" + "".join(seen[-20:]))
        return objection_to_plan(planned_versions(report))


def main() -> int:
    """Check, and explain a refusal on stderr."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", choices=["cpu", "any"], default="cpu")
    parser.add_argument("--constraints", type=Path, required=True)
    args = parser.parse_args()
    pinned = pinned_version(args.constraints.read_text(encoding="utf-8"))
    if args.build == "any" or is_installed(pinned):
        return 0
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--progress-bar", "off"]
    objection = objection_to_pip([*pip, "--constraint", str(args.constraints), "torch"])
    if objection is None:
        return 0
    print(
        f"Refused: pip would not take the CPU build of torch {pinned}: {objection}.\n"
        + REMEDY.format(pinned=pinned),
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
