"""What the README shows is so."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from seqgc.cli._config import validated
from seqgc.schemes import parse_scheme

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_in_the_readme_runs() -> None:
    failed, attempted = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert attempted >= 8
    assert failed == 0


def test_the_loads_and_delays_in_the_readme_are_the_schemes() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (0\.\d+) \| (\d) \|$", README, flags=re.MULTILINE)
    assert len(rows) == 4
    for spec, load, delay in rows:
        scheme = parse_scheme(spec, n=256)
        assert scheme.normalized_load == pytest.approx(float(load), abs=5e-7)
        assert scheme.delay == int(delay)


def test_the_config_in_the_readme_is_valid() -> None:
    import tomllib

    (text,) = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)
    config = validated(tomllib.loads(text))
    assert [model.name for model in config.models] == ["slow", "fast"]
