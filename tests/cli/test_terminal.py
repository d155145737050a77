"""What people meet in a terminal: a sign of life, help in groups, 80 columns, what to type next."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from seqgc import __main__, __version__
from seqgc._command_line import Words
from seqgc.cli import main
from seqgc.errors import ParameterError
from seqgc.profiles import DelayProfile, ProfileMeta, write_profile
from seqgc.training import RunDirectory, new_run_path
from tests.cli.inside import command, words

Out = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("line", "terminal", "said"),
    [
        ("train", False, "seqgc: loading seqgc, then PyTorch ...\n"),
        ("tune x.npz", False, "seqgc: loading seqgc ...\n"),
        ("train --help", False, ""),
        ("scheme gc:s=1", False, "seqgc: loading seqgc ...\n"),
        ("scheme gc:s=1", True, "seqgc: loading seqgc ..."),
        ("scheme gc:s=1 --quiet", False, ""),
        ("tune --quiet=no x.npz -- --quiet", False, "seqgc: loading seqgc ...\n"),
        ("data put --quiet NAME", False, ""),
        ("tune x.npz --log-format=text", False, "seqgc: loading seqgc ...\n"),
        ("tune x.npz --log-format text --log-format json", False, ""),
    ],
)
def test_what_is_being_done_is_said_before_anything_is_imported(
    line: str, terminal: bool, said: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["seqgc", *line.split()])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setitem(sys.modules, "seqgc.cli", None)  # importing it fails
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(ImportError):
        __main__.run()
    assert capsys.readouterr().err == said


def ask(line: str, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the environment be that of a shell's script where TAB is pressed."""
    words = shlex.split(line) + [""] * line.endswith(" ")
    variables = {"_SEQGC_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        variables |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        variables["_TYPER_COMPLETE_ARGS"] = line
        variables["_TYPER_COMPLETE_WORD_TO_COMPLETE"] = words[-1]  # powershell
        variables["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


LINES = [
    "seqgc ", "seqgc tr", "seqgc --", "seqgc profile ", "seqgc profile re",
    "seqgc profile record --", "seqgc train --a", "seqgc train --no-a", "seqgc train --scheme --",
    "seqgc train --scheme gc:s=1 -n 4 --j", "seqgc train --scheme gc:s=1 --scheme",
    "seqgc train --plugin x --plu", "seqgc --traceback data --", "seqgc scheme 'gc:s=1' --js",
    "seqgc scheme -- --js", "seqgc scheme gc", "seqgc train --scheme=gc --scheme",
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "shell"),
    [
        *((line, "bash") for line in LINES),
        *itertools.product(
            ["seqgc tr", "seqgc tx", "seqgc profile record --"], ["zsh", "fish", "powershell"]
        ),
    ],
)
def test_a_shell_is_answered_as_by_typer_and_without_the_verbs(
    line: str, shell: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(line, shell, monkeypatch)
    with pytest.raises(SystemExit):
        command()(prog_name="seqgc")
    typers = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["seqgc"])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "seqgc.cli", None)  # importing it fails
    assert __main__.run() == 0
    assert capsys.readouterr() == (typers, "")


@pytest.mark.parametrize("asked", [["--show-completion", "bash"], []])
def test_a_shells_script_is_had_with_status_0(
    asked: list[str], capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not asked:
        monkeypatch.setenv("_SEQGC_COMPLETE", "source_bash")
    assert main([*asked]) == 0
    out, err = capsys.readouterr()
    assert "complete -o default -F" in out
    assert not err


def test_the_table_for_shells_has_the_verbs_and_options_that_there_are() -> None:
    table = json.loads((Path(__main__.__file__).parent / "completion.json").read_text("utf-8"))
    assert table == words(), "python -m tests.cli.inside"


def help_of_verbs(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any, str]]:
    """Yield each verb's name, the verb, and its help at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    verbs: list[tuple[tuple[str, ...], Any]] = [((), command())]
    for path, verb in verbs:
        assert main([*path, "--help"]) == 0
        yield " ".join(path), verb, capsys.readouterr().out
        verbs += [((*path, name), each) for name, each in getattr(verb, "commands", {}).items()]


def test_at_80_columns_no_option_name_is_cut(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for path, verb, shown in help_of_verbs(capsys, monkeypatch):
        assert max(map(len, shown.splitlines())) <= 80, path
        assert not re.search(r"\w\.\.\.$", shown, re.MULTILINE), path
        assert "…" not in shown
        for option in verb.params:
            flags = [*option.opts, *option.secondary_opts]
            names += [flag for flag in flags if flag.startswith("-")]
            for flag in flags if option.param_type_name == "option" else ():
                assert re.search(rf"(?<![\w-]){flag}(?![\w-])", shown), (path, flag)
    assert {"--no-stochastic-rounding", "--reserved-concurrency", "-o"} <= set(names)


def test_an_option_is_of_one_kind_in_all_verbs() -> None:
    kinds: dict[str, set[str]] = {}

    def collect(verb: Words) -> None:
        for flags, (kind, _) in verb["options"].items():
            for flag in re.split("[ /]", flags):
                kinds.setdefault(flag, set()).add(kind.removesuffix("s"))
        for each in verb["verbs"].values():
            collect(each)

    collect(words())
    assert len(kinds) > 100
    assert not {flag: kind for flag, kind in kinds.items() if len(kind) > 1}


def test_the_version_is_told(capsys: Out) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"seqgc {__version__}\n"


def test_an_errors_traceback_comes_before_its_line_if_asked_for(
    capsys: Out, tmp_path: Path
) -> None:
    missing = ["tune", str(tmp_path / "none.npz")]
    assert main(missing) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for asked in (["--traceback", *missing], [*missing, "--traceback"]):
        assert main(asked) == 2
        first, *frames, last = capsys.readouterr().err.splitlines()
        assert first == "Traceback (most recent call last):"
        assert any("seqgc/profiles/_files.py" in frame for frame in frames)
        assert last == line


def test_every_field_of_a_configuration_is_in_a_group_with_its_default() -> None:
    options = [each for each in command().commands["train"].params if each.name[-1] == "_"]
    options = [each for each in options if each.name != "log_format_"]
    groups: dict[str, list[str]] = {}
    for option in options:
        assert option.show_default, option.name
        groups.setdefault(option.rich_help_panel, []).append(option.name)
    assert next(iter(groups)) == "Schemes and rounds"
    assert {"Workers", "Training", "Each model", "Delays to inject"} < set(groups)
    assert max(map(len, groups.values())) <= 16, groups


@pytest.mark.parametrize(
    ("verb", "option", "shown"),
    [
        ("train", "delays_source_", "none"),
        ("profile", "delays_source_", "none"),
        ("profile", "models_batch_size_", "512"),
        ("demo", "steps_", "50"),  # of 4 models: the 200 rounds of the tutorial's table
    ],
)
def test_help_shows_the_defaults_that_a_verb_has(verb: str, option: str, shown: str) -> None:
    (found,) = (each for each in command().commands[verb].params if each.name == option)
    assert found.show_default == shown


def test_tune_fits_80_columns_and_ends_with_a_line_that_trains(
    capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    times = [[1.0, 1.1, 4.0, 1.2], [1.0, 1.3, 1.1, 5.0], [6.0, 1.0, 1.2, 1.1]] * 4
    profile = DelayProfile.from_times(times, meta=ProfileMeta(alpha=0.5))
    write_profile(profile, path=tmp_path / "p.npz")
    search = ["--schemes", "uncoded,gc-rep", "--mu", "0", "--inexact", "--holdout", "0.5"]
    assert main(["tune", "p.npz", "--seed", "1", *search]) == 0
    *shown, last = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80
    assert "closing rule, to wait for answers that a job needs" in " ".join(shown)
    program, *words = shlex.split(last)
    assert program == "seqgc"
    assert main([*words, "--dry-run"]) == 0


@pytest.mark.usefixtures("plugins_are_forgotten")
def test_the_line_that_trains_names_all_that_the_search_was_told(
    capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])  # where examples are found
    times = [[1.0, 1.1, 4.0, 1.2], [1.0, 1.3, 1.1, 5.0], [6.0, 1.0, 1.2, 1.1]] * 2
    for name, provider in (("of my own", "EC2"), ("functions", "lambda-local")):
        meta = ProfileMeta(alpha=0.5, provider=provider)
        write_profile(DelayProfile.from_times(times, meta=meta), path=tmp_path / f"{name}.npz")
    plugins = ["--plugin", "examples.heterogeneous", "--plugin", "examples.stochastic"]
    told = ["--mu", "0.123456789", "--batch", "30", "--models", "6", "--jobs-per-round", "2"]
    stay = ["--schemes", "deal", "--resident", "--jobs", "6", "--repeat"]
    searched = ["tune", str(tmp_path / "of my own.npz"), "--schemes", "het", *told, *plugins]
    assert main(searched) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("seqgc train --scheme het:")
    assert "-n 4 --mu 0.123456789 --wait-out " in line
    assert "--models 6 --jobs-per-round 2 --batch-size 30" in line
    assert line.endswith(shlex.join(plugins))
    assert main([*shlex.split(line)[1:], "--dry-run"]) == 0
    assert main(["tune", str(tmp_path / "functions.npz"), *stay]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.endswith("--backend lambda-local --resident")
    assert main([*shlex.split(line)[1:], "--dry-run"]) == 0


def test_runs_that_start_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    paths = {new_run_path(tmp_path, "gc:s=1") for _ in range(500)}
    assert len(paths) == 500

    def begin(_: int) -> bool:
        try:
            RunDirectory(tmp_path / "one")
        except ParameterError:
            return False
        return True

    with ThreadPoolExecutor(8) as starts:
        assert sum(starts.map(begin, range(32))) == 1
