"""What `check_code` and `check_scheme` share: one line for whatever is wrong, and values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from seqgc.errors import IllConditionedError

__all__ = ["calling", "check_value", "complaining", "refuses"]

_Value = TypeVar("_Value")


@contextmanager
def complaining(subject: str, remark: str = "") -> Iterator[None]:
    """Say in every failed assertion what it is about."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{subject}: {error}{remark}") from error.__cause__


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Turn any error in a call that must succeed, bad conditioning aside, into one line."""
    try:
        yield
    except (AssertionError, IllConditionedError):
        raise
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error


def refuses(name: str, call: Callable[[], object], error: type[Exception]) -> None:
    """Require that a call raises this error and nothing else."""
    try:
        call()
    except error:
        return
    except Exception as other:
        line = f"{name} raises {type(other).__name__}, not {error.__name__}: {other}"
        raise AssertionError(line) from other
    raise AssertionError(f"{name} raises no {error.__name__}")


def check_value(
    value: _Value, names: Mapping[str, object], *, field: str
) -> Iterator[tuple[str, _Value]]:
    """Require a frozen value that its repr, its pickle and its copy give again; yield these."""
    with calling("eval of its repr"):
        printed = eval(repr(value), dict(names))
    with calling("pickling"):
        pickled = pickle.loads(pickle.dumps(value))
    copied = copy.deepcopy(value)
    for name, clone in (("its repr", printed), ("its pickle", pickled), ("its copy", copied)):
        assert clone == value, f"{name} gives {clone!r}, which is not equal"
        assert hash(clone) == hash(value), f"{name} has another hash"
        yield name, clone
    refuses(
        f"setting {field}", lambda: setattr(value, field, getattr(value, field)), AttributeError
    )
