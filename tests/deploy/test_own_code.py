"""Own code in the build context: what comes along, where it is then, and what is refused.

There is no container engine here: the context is compared file by file with what the Dockerfile and
the zip's Makefile copy. The zip's recipe is run, with a stand-in for pip, which needs the network.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from seqgc.cli import main
from seqgc.deploy import DeployOptions, OwnCode, context_files, deploy, write_context
from seqgc.errors import ParameterError
from tests.deploy.kit import ROOT
from tests.deploy.test_deploy import Sam, parameters_of
from tests.deploy.test_image import instructions, sources


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder outside the repository, with a package and its data, in which one works."""
    files = {
        "mine/__init__.py": "",
        "mine/nets.py": "def net(): ...\n",
        "mine/data/points.npy": "numbers",
        "mine/__pycache__/nets.cpython-313.pyc": "built",
        "mine/.mypy_cache/x": "built",
        "r.txt": "einops>=0.8\n",
    }
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


OWN = OwnCode(include=("mine",), requirements="r.txt")
NETS = DeployOptions(factories=("mine.nets",))


def built(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def code_of(package: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", package], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(listed.stdout.split())


def test_the_context_is_complete_and_has_nothing_else(project: Path, tmp_path: Path) -> None:
    write_context(context_files(NETS, OWN), tmp_path / "context")
    own = {"own/mine/__init__.py", "own/mine/nets.py", "own/mine/data/points.npy"}
    shipped = {"template.yaml", "Dockerfile", ".dockerignore"}
    packages = {path for path in built(tmp_path / "context") if path.startswith(("seqgc/", "lamb"))}
    assert packages >= code_of("seqgc") | code_of("lambda_handlers")
    assert not [path for path in packages if path.endswith(".pyc")]
    found = built(tmp_path / "context")
    assert found - packages == own | shipped | {"own/requirements.txt"}
    assert (tmp_path / "context/own/requirements.txt").read_text() == "einops>=0.8\n"
    for name in shipped:
        assert (tmp_path / "context" / name).read_bytes() == (ROOT / name).read_bytes()
    for source in sources():  # what the Dockerfile copies is there
        assert source in found or any(path.startswith(source) for path in found)
    copies = [rest.split() for word, rest in instructions() if word == "COPY"]
    assert ["own/", "${LAMBDA_TASK_ROOT}/"] in copies
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "context/own").rglob("*.py")} == {
        0o644
    }
    assert project.is_dir()


def test_a_context_of_before_that_lies_inside_is_left_out(project: Path) -> None:
    everything = replace(OWN, include=(".",))
    first = project / "first"
    write_context(context_files(NETS, everything), first)
    (project / "mine" / "Dockerfile").write_text("FROM scratch\n")  # which alone is no context
    write_context(context_files(NETS, everything), project / "second")
    own = {path.removeprefix("own/") for path in built(project / "second") if path[:4] == "own/"}
    assert own == {path.removeprefix("own/") for path in built(first) if path[:4] == "own/"} | {
        "mine/Dockerfile"
    }


def test_without_own_code_the_context_still_has_what_the_image_copies(tmp_path: Path) -> None:
    write_context(context_files(DeployOptions(), OwnCode()), tmp_path)
    assert {path for path in built(tmp_path) if path.startswith("own")} == {"own/requirements.txt"}


@pytest.mark.usefixtures("project")
def test_the_zip_has_own_code_beside_seqgc(tmp_path: Path) -> None:
    write_context(context_files(NETS, OWN), tmp_path / "context")
    calls = tmp_path / "calls"
    pip = tmp_path / "python"
    pip.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')  # it installs nothing
    pip.chmod(0o755)
    makefile = "lambda_handlers/gradient_worker/Makefile"
    given = [f"ARTIFACTS_DIR={tmp_path}/zip", f"PYTHON={pip}"]
    (tmp_path / "zip").mkdir()
    subprocess.run(
        ["make", "--silent", "-f", makefile, "build-ZipWorker", *given],
        cwd=tmp_path / "context",
        check=True,
    )
    zipped = built(tmp_path / "zip")
    assert zipped >= {"mine/nets.py", "mine/data/points.npy", "seqgc/__init__.py"}
    assert "lambda_handlers/gradient_worker/handler.py" in zipped
    locked, _, own = map(shlex.split, calls.read_text().splitlines())
    assert "--require-hashes" in locked
    assert own[-2:] == ["--requirement", "own/requirements.txt"]


def test_places_are_those_below_the_working_directory(project: Path) -> None:
    outside = project.parent / "elsewhere" / "helpers"
    outside.mkdir(parents=True)
    (outside / "more.py").write_text("")
    given = OwnCode(
        include=("mine/nets.py", "../elsewhere/helpers", str(project / "mine" / "data"))
    )
    assert set(given.files()) == {"mine/nets.py", "helpers/more.py", "mine/data/points.npy"}
    assert set(OwnCode(include=(".",)).files()) == {
        "mine/__init__.py",
        "mine/nets.py",
        "mine/data/points.npy",
        "r.txt",
    }


SECRETS = {
    ".env": "x",
    "mine/.env.local": "x",
    "mine/server.pem": "x",
    "mine/credentials": "x",
    ".aws/config": "x",
    "id_rsa": "x",
    "id_ed25519.pub": "x",
    "my-credentials.json": "x",
    "mine/notes.txt": "-----BEGIN RSA PRIVATE KEY-----",
    "mine/settings.py": "KEY = 'AKIAIOSFODNN7EXAMPLE'",
    "mine/setup.cfg": "aws_secret_access_key = x",
    "r.txt": "--index-url https://me:token@example.org/simple\n",
}


@pytest.mark.parametrize("secret", SECRETS)
def test_what_looks_like_a_secret_is_refused_unless_forced(
    secret: str, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / secret
    path.parent.mkdir(exist_ok=True)
    path.write_text(SECRETS[secret])
    context = tmp_path / "context"
    words = ["deploy", "--dry-run", "--include", ".", "--context", str(context)]
    words += ["--requirements", "r.txt"] if secret == "r.txt" else []
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(
        r"seqgc: `(include|requirements)` must not look like a secret \(.*\); got", line
    )
    assert Path(secret).name in line
    assert "with --force" in line
    assert not context.exists()
    assert main([*words, "--force"]) == 0
    assert secret in {path.removeprefix("own/") for path in built(context)}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--include", "nowhere"], "`include` must be an existing file or folder; got 'nowhere'"),
        (["--include", "link"], "`include` must contain only files and folders"),
        (["--include", "linked"], "`include` must contain only files and folders"),
        (["--include", "mine", "--factories", "mine.data"], "`factories` must be modules among"),
        (["--factories", "mine.nets"], "`factories` must be modules among the included files"),
        (["--include", "mine", "--factories", "mine/nets.py"], "`factories` must be names of modu"),
        (["--include", "seqgc"], "`include` must not replace the package seqgc"),
        (["--requirements", "none.txt"], "`requirements` must be a file; got 'none.txt'"),
        (["--include", "mine", "--image-uri", "x"], "`image_uri` must be left out with include"),
        (
            ["--include", "large", "--package", "zip"],
            "`include` must have at most 262144000 bytes as package zip",
        ),
        (["--include", "larger"], "`include` must have at most 10737418240 bytes as package image"),
        (["--template", "large"], "`template` must have at most 1048576 bytes (CloudFormation)"),
        (["--include", "mine", "--context", "full"], "`context` must be a new or an empty folder"),
    ],
)
def test_what_cannot_be_included_is_one_line_and_nothing_is_made(
    words: list[str], says: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "link").symlink_to("/etc/hostname")
    for folder in ("seqgc", "full", "linked"):
        (project / folder).mkdir()
        (project / folder / "x").write_text("")
    (project / "linked" / "y").symlink_to("/etc")
    for name, most in (("large", 250 << 20), ("larger", 10 << 30)):
        with (project / name).open("wb") as file:  # all of it a hole: it takes no room
            file.truncate(most + 1)
    before = built(project)
    context = [] if "--context" in words else ["--context", "new"]
    assert main(["deploy", "--dry-run", *words, *context]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"seqgc: {says}")
    assert built(project) == before
    assert not (project / "new").exists()


def test_a_context_that_cannot_be_filled_is_left_empty(project: Path, tmp_path: Path) -> None:
    files = context_files(NETS, OWN)
    (project / "mine/nets.py").unlink()
    with pytest.raises(FileNotFoundError):
        write_context(files, tmp_path / "context")
    assert list((tmp_path / "context").iterdir()) == []


def test_modules_that_requirements_install_may_be_factories(project: Path) -> None:
    options = DeployOptions(factories=("einops",))
    assert "own/requirements.txt" in context_files(options, OWN)
    with pytest.raises(ParameterError, match="`factories` must be modules among"):
        context_files(options, OwnCode(include=("mine",)))
    assert project.is_dir()


def test_functions_are_told_of_the_factories_and_so_is_the_master(
    account: object, project: Path, tmp_path: Path
) -> None:
    seen: list[set[str]] = []

    class Looking(Sam):
        def __call__(self, command, folder, environment):  # type: ignore[no-untyped-def]
            seen.append(built(folder))
            return super().__call__(command, folder, environment)

    sam = Looking()
    made = deploy(NETS, OWN, session=account, run=sam)  # type: ignore[arg-type]
    assert made.factories == "mine.nets"
    assert parameters_of(sam.commands[-1])["Factories"] == "mine.nets"
    assert all("own/mine/nets.py" in each for each in seen)
    assert not sam.folders[0].exists()
    assert project.is_dir()
    assert tmp_path.is_dir()


# ---- from the wheel alone ------------------------------------------------------------------------

NETS_PY = """
import os
from pathlib import Path
import numpy as np, torch
from torch.utils.data import TensorDataset

if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:  # not the one beside the configuration
    assert Path(__file__).parts[-3] == "task", __file__

def net(inputs=3):
    return torch.nn.Linear(inputs, 1)

def points(inputs):
    table = np.load(Path(__file__).with_name("points.npy"))
    x, y = torch.tensor(table[:, :inputs]), torch.tensor(table[:, inputs:])
    return TensorDataset(x, y), TensorDataset(x, y)

class Power:
    def __init__(self, exponent):
        self.exponent = exponent

    def __call__(self, output, target):
        return (output - target) ** self.exponent
"""
RUN_TOML = """
scheme = "gc-rep:s=1"
workers = 2
steps = 2
precision = "float64"
[[models]]
name = "a"
module = "mine.nets:net"
module_args = { inputs = 3 }
data = "mine.nets:points"
data_args = { inputs = 3 }
loss = "mine.nets:Power"
loss_args = { exponent = 2 }
optimizer = "sgd"
lr = 0.1
batch_size = 4
[[models]]
name = "b"
module = "mine.nets:net"
data = "points"
loss = "mse"
optimizer = "sgd"
lr = 0.1
batch_size = 4
"""
PROGRAM = """
import zipfile
from pathlib import Path
import numpy as np
import seqgc
from seqgc.cli import main

rows = np.random.default_rng(0).normal(size=(12, 4))
np.save("mine/points.npy", rows)
np.savez("points.npz", x=rows[:, :3], y=rows[:, 3:])
assert main(["data", "put", "points", "points.npz"]) == 0
own = ["--include", "mine", "--factories", "mine.nets", "--package", "zip"]
assert main(["deploy", "--dry-run", *own, "--context", "context"]) == 0
with zipfile.ZipFile("own.zip", "w") as file:
    for part in ("seqgc", "lambda_handlers", "own"):
        for path in Path("context", part).rglob("*"):
            file.write(path, path.relative_to("context/own" if part == "own" else "context"))
with zipfile.ZipFile("own.zip") as file:
    file.extractall("task")
code = ["--backend", "lambda-local", "--code", "task"]
assert main(["train", "run.toml", *code, "--run", "functions", "--json"]) == 0

import torch
from safetensors.torch import load_file
from seqgc.training import batch_indices

torch.manual_seed(0)
line, rows = torch.nn.Linear(3, 1).double(), torch.tensor(rows)
sgd = torch.optim.SGD(line.parameters(), lr=0.1)
for step in range(2):
    batch = rows[torch.tensor(batch_indices(12, batch_size=4, seed=0, step=step))]
    sgd.zero_grad()
    torch.nn.functional.mse_loss(line(batch[:, :3]), batch[:, 3:]).backward()
    sgd.step()
for model in "ab":
    trained = load_file(f"functions/checkpoints/{model}.safetensors")
    for name, value in line.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=0, atol=1e-12)
print(seqgc.__file__)
"""


def installed_from_the_sdist(folder: Path) -> Path:
    """Build the sdist, the wheel from it, and install that; return the new environment's programs.

    The environment borrows what seqgc needs from this one: nothing is downloaded in tests.
    """

    def build(target: str, where: Path) -> None:
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
        subprocess.run(command, cwd=where, check=True, capture_output=True)

    build("sdist", ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        file.extractall(folder / "sdist")  # without a filter: older 3.11 has none, and we made it
    (source,) = (folder / "sdist").iterdir()
    assert built(source) - {"PKG-INFO"} == code_of("."), "the files of the checkout, and no others"
    build("wheel", source)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "fresh", with_pip=False)
    programs = folder / "fresh" / "bin"
    (site,) = (folder / "fresh").glob("lib/python3*/site-packages")
    for part in Path(sysconfig.get_path("purelib")).iterdir():
        if "seqgc" not in part.name:
            (site / part.name).symlink_to(part)
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    return programs


def test_from_sdist_and_wheel_alone_own_code_reaches_functions_on_this_machine(
    tmp_path: Path,
) -> None:
    """Two models train on the same points: of a module's function, and of `seqgc data put`.

    Slow for its size: it is the one that starts processes.
    """
    programs, work = installed_from_the_sdist(tmp_path), tmp_path / "work"
    (work / "mine").mkdir(parents=True)
    (work / "mine/nets.py").write_text(NETS_PY)
    (work / "run.toml").write_text(RUN_TOML)
    environment = {name: value for name, value in os.environ.items() if "SEQGC" not in name}
    done = subprocess.run(
        [programs / "python", "-c", PROGRAM],
        cwd=work,
        env=environment | {"SEQGC_DATA": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, report, where = done.stdout.splitlines()
    assert Path(where).is_relative_to(tmp_path / "fresh")
    assert Path(programs, "seqgc").exists()
    assert (json.loads(report)["jobs"], json.loads(report)["failures"]) == (2, 0)
