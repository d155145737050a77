"""What runs a master in production: its unit file and its image.

There is no container engine here: of the image it is looked at what it is made of, file by file.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import tomllib
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

import pytest

from seqgc.cli import main
from tests.cli.inside import Status
from tests.cli.kit import signalled, weights
from tests.deploy.kit import ROOT
from tests.kit import interrupts

UNIT = ROOT / "master" / "seqgc@.service"
IMAGE = ROOT / "master" / "Dockerfile"
PLAN = 'scheme = "uncoded"\nworkers = 2\nsteps = 8\n[[models]]\nname = "a"\nmodule = "mlp"\n'


def directives() -> dict[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


def test_the_unit_s_command_stops_with_a_checkpoint_and_goes_on_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = directives()["ExecStart"]
    program, *words = shlex.split(command.replace("%i", "mine"))
    assert Path(program).name == "seqgc"
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(PLAN)
    assert main(["train", "mine.toml", "--run", "whole"]) == 0
    with signalled(signal.SIGTERM, after=3), interrupts():
        stopped = main(words)
    assert [str(stopped)] == directives()["SuccessExitStatus"]
    shutil.copytree("runs/mine", "elsewhere")  # as the runbook has it
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "runs/mine"
    assert weights("runs/mine").tobytes() == weights("whole").tobytes()
    assert main(["resume", "elsewhere"]) == 0
    assert weights("elsewhere").tobytes() == weights("whole").tobytes()
    # What has changed since is refused and named, and the unit does not try again.
    Path("mine.toml").write_text(PLAN.replace("steps = 8", "steps = 9"))
    assert main(words) == Status.WRONG
    assert "steps" in capsys.readouterr().err
    assert main(["train", "mine.toml", "--or-resume"]) == Status.WRONG


def test_the_unit_leaves_alone_what_would_end_the_same_way() -> None:
    (never,), (when,) = directives()["RestartPreventExitStatus"], directives()["Restart"]
    assert when == "on-failure"
    assert set(map(int, never.split())) == {Status.WRONG, Status.BUDGET}
    assert directives()["KillMode"] == ["mixed"]  # its workers are the master's to end


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    if (verify := shutil.which("systemd-analyze")) is None:
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / "seqgc@.service"
    text = UNIT.read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/seqgc/bin/seqgc", shutil.which("true") or "/bin/true"))
    ran = subprocess.run(
        [verify, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    ours = [line for line in ran.stderr.splitlines() if "seqgc@" in line]
    assert ours == []


def test_all_that_the_image_copies_is_there_and_in_its_context() -> None:
    text = re.sub(r"\\\n\s*", " ", IMAGE.read_text(encoding="utf-8"))
    lines = re.findall(r"^COPY (.+)$", text, re.MULTILINE)
    copied = [source for line in lines for source in line.split()[:-1]]
    first, *rest = (ROOT / "master" / "Dockerfile.dockerignore").read_text().split()
    assert first == "*"
    kept = [each[1:] for each in rest if each.startswith("!")]
    assert len(copied) == 11
    for source in copied:
        assert (ROOT / source).exists()
        some = source + "x" if source.endswith("/") else source
        assert any(fnmatch(some, pattern) for pattern in kept), source
    # What its build reads: `hatchling` wants the files that pyproject.toml names.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    wanted |= {f"{package}/" for package in wheel["packages"]} | set(wheel.get("force-include", {}))
    assert wanted <= set(copied)
    assert re.search(r'^ENTRYPOINT \["seqgc"\]$', text, re.MULTILINE)
    assert re.search(r"^STOPSIGNAL SIGTERM$", text, re.MULTILINE)
    assert re.search(r"^USER seqgc$", text, re.MULTILINE)
