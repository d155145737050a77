"""What the image and the zip are made of is there. (No container engine: neither is built here.)"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.deploy.kit import ROOT, expanded

HANDLER = "lambda_handlers.gradient_worker.handler.handler"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and arguments, comments gone, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [
        (word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())
    ]


def sources() -> list[str]:
    return [each for word, rest in instructions() if word == "COPY" for each in rest.split()[:-1]]


def test_the_image_starts_from_aws_own_base_for_either_architecture() -> None:
    (base,) = [rest for word, rest in instructions() if word == "FROM"]
    assert base == "public.ecr.aws/lambda/python:${PYTHON_VERSION}${BASE_DIGEST}"
    assert ("ARG", "PYTHON_VERSION=3.13") in instructions()
    assert ("ARG", "BASE_DIGEST=") in instructions()


def test_pytorch_s_index_is_asked_for_torch_alone() -> None:
    (run, _, _) = [rest for word, rest in instructions() if word == "RUN"]
    first, second, _ = (shlex.split(command) for command in run.split(" && "))
    assert first[first.index("--index-url") + 1] == "${TORCH_INDEX}"
    assert first[-1] == "/tmp/build/torch.lock"
    assert "--no-deps" in first
    assert not any("index" in word for word in second)
    assert second[-1] == "/tmp/build/requirements-torch.lock"
    assert "--require-hashes" in second
    assert all("--only-binary=:all:" in command for command in (first, second))


def test_what_own_code_needs_replaces_nothing_that_is_locked() -> None:
    (_, run, _) = [rest for word, rest in instructions() if word == "RUN"]
    freeze, install, _ = (shlex.split(command) for command in run.split(" && "))
    assert freeze[-4:] == ["pip", "freeze", ">", "/tmp/build/locked.txt"]
    assert install[install.index("--constraint") + 1] == "/tmp/build/locked.txt"
    assert install[install.index("--requirement") + 1] == "/tmp/build/requirements.txt"
    assert "--only-binary=:all:" in install


def test_every_source_that_the_image_copies_is_there_and_in_the_context() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignore[0] == "*"
    kept = [each[1:] for each in ignore if each.startswith("!")]
    assert len(sources()) == 6
    for source in sources():
        assert (ROOT / source).exists()
        some = source + "x" if source.endswith("/") else source
        assert any(fnmatch(some, pattern) for pattern in kept)


def test_what_the_image_runs_can_be_imported() -> None:
    (command,) = [rest for word, rest in instructions() if word == "CMD"]
    assert json.loads(command) == [HANDLER]
    module, _, name = HANDLER.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
    assert any(module.replace(".", "/").startswith(each.rstrip("/")) for each in sources())


def test_the_zip_runs_the_same_handler_on_the_image_s_python() -> None:
    function = expanded()["Resources"]["ZipWorker"]["Properties"]
    assert function["Handler"] == HANDLER
    assert ("ARG", f"PYTHON_VERSION={function['Runtime'].removeprefix('python')}") in instructions()


@pytest.mark.parametrize(("architecture", "machine"), [("arm64", "aarch64"), ("x86_64", "x86_64")])
def test_the_zip_s_makefile_asks_for_wheels_of_the_architecture(
    tmp_path: Path, architecture: str, machine: str
) -> None:
    makefile = "lambda_handlers/gradient_worker/Makefile"
    given = [f"ARTIFACTS_DIR={tmp_path}", f"SEQGC_ARCHITECTURE={architecture}"]
    make = ["make", "--dry-run", "--no-print-directory", "-f", makefile, "build-ZipWorker", *given]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
    pip, _, own, _, copy, _ = done.stdout.replace("\\\n", " ").splitlines()
    for words in map(shlex.split, (pip, own)):
        platforms = [words[at + 1] for at, word in enumerate(words) if word == "--platform"]
        assert platforms == [f"manylinux_2_28_{machine}", f"manylinux2014_{machine}"]
        assert (ROOT / words[words.index("--requirement") + 1]).is_file()
    assert shlex.split(own)[-4:-2] == ["--constraint", f"{tmp_path}/locked.txt"]
    assert all((ROOT / each).is_dir() for each in shlex.split(copy)[2:-1])


WORKER = ROOT / "lambda_handlers/gradient_worker"


def wanted(name: str) -> dict[str, Requirement]:
    """Distributions in a requirements file, and in those that it refers to, by name."""
    text = (WORKER / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [Requirement(line) for line in lines if not line.startswith("--")]
    more = [wanted(line.split()[1]) for line in lines if line.startswith("--requirement")]
    return {each.name: each for each in found} | {k: v for held in more for k, v in held.items()}


def locked(name: str) -> dict[str, Version]:
    """What a lock names, by name, every entry with hashes."""
    text = (WORKER / name).read_text(encoding="utf-8").replace("\\\n", " ")
    versions = {}
    for line in text.splitlines():
        pin, *hashes = line.split()
        assert hashes, f"{line}: no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)
        distribution, version = pin.split("==")
        versions[distribution] = Version(version)
    return versions


LOCKS = {
    "requirements.txt": "requirements.lock",
    "requirements-torch.txt": "requirements-torch.lock",
}


@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_covers_what_is_asked_for_and_all_that_it_needs(name: str) -> None:
    held = locked(LOCKS[name])
    assert not {each for each in held if re.match("torch|triton|nvidia|cuda", each)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    named = [Requirement(each) for group in groups for each in group]
    queue = [*wanted(name).values(), *(each for each in named if each.name in held)]
    for each in queue:
        if each.name != "torch":
            assert each.specifier.contains(held[each.name]), each
    seen, queue = set(), list(wanted(name))
    image = {"python_version": "3.13", "python_full_version": "3.13.0", "extra": ""}
    while queue:  # what is installed here tells what each needs
        if (each := queue.pop()) in seen:
            continue
        seen.add(each)
        with suppress(importlib.metadata.PackageNotFoundError):
            for text in importlib.metadata.requires(each) or ():
                needs = Requirement(text)
                if needs.marker is None or needs.marker.evaluate(image):
                    queue.append(canonicalize_name(needs.name))
    assert seen - {"torch"} <= set(held)


def test_torch_is_locked_to_the_version_that_is_tested() -> None:
    pin, *_ = (WORKER / "torch.lock").read_text(encoding="utf-8").split()
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert pin.partition("+")[0] in constraints


def test_locks_are_for_the_image_s_python() -> None:
    (version,) = [rest for _, rest in instructions() if rest.startswith("PYTHON_VERSION=")]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"--python-version {version.partition('=')[2]}\n" in makefile


def test_two_locks_agree_and_the_zip_takes_its_own() -> None:
    small, large = (locked(name) for name in LOCKS.values())
    assert small == {name: large[name] for name in small}
    makefile = (WORKER / "Makefile").read_text(encoding="utf-8")
    assert "--require-hashes --requirement lambda_handlers/gradient_worker/requirements.lock" in (
        makefile
    )


@pytest.mark.parametrize(
    ("modules", "requirements"),
    [
        (["lambda_handlers.gradient_worker.numpy_factories"], "requirements.txt"),
        (["seqgc.models.factories"], "requirements-torch.txt"),
    ],
)
def test_what_a_worker_imports_is_installed(modules: list[str], requirements: str) -> None:
    known = {
        "aws_lambda_powertools": "aws-lambda-powertools",
        "msgspec": "msgspec",
        "numpy": "numpy",
        "pybase64": "pybase64",
        "safetensors": "safetensors",
        "sklearn": "scikit-learn",
        "torch": "torch",
        "xxhash": "xxhash",
    }
    ours = ["aiohttp", "dask", "pydantic", "requests", "rich", "tomli_w", "typer"]
    imported = [HANDLER.rpartition(".")[0], *modules]
    code = f"import sys, {', '.join(imported)}\nprint(*sorted({{*sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    needed = {known[each] for each in loaded & known.keys()}
    least = {"numpy", "aws-lambda-powertools", "msgspec", "pybase64", "xxhash"}
    assert least <= needed <= set(wanted(requirements))
    assert not loaded & set(ours)
