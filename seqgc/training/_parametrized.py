"""Parametrized modules (`torch.nn.utils.parametrize`) on their way to another process.

torch gives each parametrized module a class of its own, in which the parametrized tensor is a
property, and which refuses to be pickled. The class holds nothing that the module does not: so a
module travels with its original class, and gets the properties back where it arrives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

__all__ = ["picklable", "restore"]


def picklable(module: nn.Module) -> nn.Module:
    """Return the module, or a copy of it that can be pickled if any part is parametrized.

    Until `restore` was called with the copy, it computes nothing.

    Examples
    --------
    >>> import torch
    >>> from seqgc._by_value import dumps, loads
    >>> from torch.nn.utils.parametrizations import weight_norm
    >>> module = weight_norm(nn.Linear(3, 2))
    >>> arrived = loads(dumps(picklable(module)))
    >>> restore(arrived)
    >>> bool((arrived(torch.ones(1, 3)) == module(torch.ones(1, 3))).all())
    True
    """
    if not any(map(is_parametrized, module.modules())):
        return module
    module = copy.deepcopy(module)
    for part in filter(is_parametrized, module.modules()):
        part.__class__ = type(part).__bases__[0]
    return module


def restore(module: nn.Module) -> None:
    """Make a module of `picklable` that was pickled, or the copy itself, compute as before."""
    for part in filter(is_parametrized, module.modules()):
        base, names = type(part), list(part.parametrizations)  # type: ignore[arg-type]
        properties = {name: property(_computed(name)) for name in names}
        part.__class__ = type(f"Parametrized{base.__name__}", (base,), properties)


def _computed(name: str) -> Callable[[nn.Module], Tensor]:
    def compute(part: nn.Module) -> Tensor:
        tensor: Tensor = part.parametrizations[name]()  # type: ignore[index, operator]
        return tensor

    return compute
