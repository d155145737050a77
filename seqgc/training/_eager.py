"""Optimizers without PyTorch's compiler, whose import takes longer than a short run's first rounds.

Every optimizer imports ``torch._dynamo`` when it is made and when it steps, to tell it what not to
compile (`torch.optim.optimizer`, `torch._compile`): more than a second of processor time, for
nobody, as nothing is compiled here. Meanwhile a module stands in that lets everything through, and
hands over to the real one as soon as anybody asks for more.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final, ParamSpec, TypeVar

import torch

__all__ = ["without_compiler"]

_NAME: Final = "torch._dynamo"
_P = ParamSpec("_P")
_T = TypeVar("_T")


@contextmanager
def without_compiler() -> Iterator[None]:
    """Let optimizers be made and step without importing the compiler, unless it is there."""
    if _NAME in sys.modules:
        yield
        return
    stand_in = _NoCompiler(_NAME)
    sys.modules[_NAME] = stand_in
    setattr(torch, "_dynamo", stand_in)  # noqa: B010 (unknown to type checkers)
    try:
        yield
    finally:
        stand_in.leave()


class _NoCompiler(ModuleType):
    """What an optimizer calls of the compiler, doing nothing."""

    def graph_break(self) -> None:
        pass

    def disable(self, fn: Callable[_P, _T], *options: object, **more: object) -> Callable[_P, _T]:
        """Return ``fn``, which torch keeps for good: hidden from a compiler that comes later."""

        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            real = sys.modules.get(_NAME, self)
            if isinstance(real, _NoCompiler):
                return fn(*args, **kwargs)
            hidden: Callable[_P, _T] = real.disable(fn, *options, **more)
            return hidden(*args, **kwargs)

        return call

    def leave(self) -> None:
        """Make way for the real module."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
            delattr(torch, "_dynamo")

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # what the import system looks for
            raise AttributeError(name)
        self.leave()
        return getattr(importlib.import_module(_NAME), name)
