"""Names to factories: what an image knows, and nothing that a payload could add."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgc.errors import ParameterError
from seqgc.worker import Registry


def ones(_: Any, __: Any) -> Any:
    return lambda _: np.ones(1)


def zeros(_: Any, __: Any) -> Any:
    return lambda _: np.zeros(1)


def test_a_name_is_given_once() -> None:
    registry = Registry()
    registry.register("a")(ones)
    registry.register("a")(ones)  # its module was imported again
    with pytest.raises(ParameterError, match=r"`name` must be new; tests\.worker.*\.ones is regis"):
        registry.register("a")(zeros)
    assert registry.find("a") is ones


def module(folder: Path, name: str, content: str) -> str:
    (folder / f"{name}.py").write_text(content)
    return name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


REGISTERING = """
import tests.worker.test_registry as here
here.CURRENT.register({name!r})(here.ones)
"""
CURRENT = Registry()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry()
    monkeypatch.setattr(sys.modules[__name__], "CURRENT", made)
    # How the modules below reach it, whatever the name under which pytest imported this one.
    monkeypatch.setitem(sys.modules, "tests.worker.test_registry", sys.modules[__name__])
    return made


def test_modules_are_imported_in_turn_and_only_when_a_name_is_missing(
    folder: Path, registry: Registry
) -> None:
    names = ["seqgc_first", "seqgc_second"]
    for name in names:
        module(folder, name, REGISTERING.format(name=name))
    registry.add_modules(names)
    registry.register("there")(ones)
    registry.find("there")
    assert not {*names} & {*sys.modules}
    registry.find("seqgc_first")
    assert {*names} & {*sys.modules} == {"seqgc_first"}
    assert registry.find("seqgc_second") is ones


def test_modules_that_the_image_lists_are_imported_at_once(
    folder: Path, registry: Registry
) -> None:
    module(folder, "seqgc_listed", REGISTERING.format(name="seqgc_listed"))
    registry.list_modules(["seqgc_listed"])
    assert "seqgc_listed" in sys.modules
    assert registry.listed == ["seqgc_listed"]
    with pytest.raises(ParameterError, match=r"`SEQGC_FACTORIES` .*no_such"):
        registry.list_modules(["no_such"])
    assert registry.listed == ["seqgc_listed"]


def test_a_module_that_cannot_be_imported_is_named_each_time(
    folder: Path, registry: Registry
) -> None:
    module(folder, "seqgc_broken", "import no_such_module_at_all")
    registry.add_modules(["seqgc_broken"])
    for _ in range(2):
        with pytest.raises(ParameterError, match=r"`SEQGC_FACTORIES` .*no_such_module.*seqgc_bro"):
            registry.find("anything")


def test_an_unknown_name_comes_with_the_nearest_and_a_remedy() -> None:
    registry = Registry()
    with pytest.raises(
        ParameterError, match=r"as are none; got 'models' .*image's SEQGC_FACTORIES"
    ):
        registry.find("models")
    registry.register("models")(ones)
    with pytest.raises(ParameterError, match=r"as are models; .*did you mean 'models'"):
        registry.find("model")
