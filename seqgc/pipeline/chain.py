"""The profile of a network that is a chain of layers: times and sizes, and its file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from seqgc._durable import replacing
from seqgc.errors import ParameterError, require_int, require_number

_FORMAT = 1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a chain, for one minibatch.

    Parameters
    ----------
    name
        Name of the layer in the network.
    forward_s, backward_s
        Seconds of the forward and of the backward pass. Their sum is the paper's T_l.
    activation_bytes
        Size of the output, and of the gradient that comes back for it (a_l).
    weight_bytes
        Size of the weights (w_l).
    """

    name: str
    forward_s: float
    backward_s: float
    activation_bytes: int
    weight_bytes: int

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "activation_bytes", "weight_bytes"):
            require_number(name, getattr(self, name), least=0)

    @property
    def seconds(self) -> float:
        """Seconds of both passes (T_l)."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The names from which a network, its data and its loss are made, as in `registered_model`."""

    module: str
    data: str = "digits"
    loss: str = "cross-entropy"
    batch_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        require_int("batch_size", self.batch_size, least=1)
        require_int("seed", self.seed, least=0)


@dataclass(frozen=True, slots=True)
class Chain:
    """A network as a chain of layers. ``source`` is absent if the profile was not measured here."""

    layers: tuple[Layer, ...]
    source: Source | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise ParameterError("layers", "must have at least one layer", 0)

    def __len__(self) -> int:
        return len(self.layers)


def write_chain(chain: Chain, path: Path) -> None:
    """Write a profile as a JSON file, which `read_chain` reads."""
    value = {
        "format": _FORMAT,
        "source": None if chain.source is None else asdict(chain.source),
        "layers": [asdict(layer) for layer in chain.layers],
    }
    with replacing(path) as file:
        file.write((json.dumps(value, indent=1) + "\n").encode())


def read_chain(path: Path) -> Chain:
    """Read a profile that `write_chain` wrote, or one written by hand in the same form.

    Raises
    ------
    ParameterError
        If the file is not such a profile. The message names the layer and the field.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        rule = f"must be a file that can be read ({error.strerror})"
        raise ParameterError("file", rule, str(path)) from None
    except ValueError as error:
        raise ParameterError("file", f"must be JSON ({error})", str(path)) from None
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        rule = f"must be a profile of format {_FORMAT}, made by `seqgc pipeline profile`"
        raise ParameterError("file", rule, str(path))
    source, layers = value.get("source"), value.get("layers")
    if not isinstance(layers, list):
        raise ParameterError("layers", "must be a list", layers)
    return Chain(
        tuple(_record(Layer, f"layer {at}", each) for at, each in enumerate(layers, 1)),
        None if source is None else _record(Source, "source", source),
    )


def _record(kind: Callable[..., _T], where: str, value: object) -> _T:
    """Return a record made from a JSON object, or raise `ParameterError` that says where."""
    known = {each.name: each.type for each in fields(cast("Any", kind))}
    if not isinstance(value, Mapping) or not set(value) <= set(known):
        raise ParameterError(where, f"must be an object with the fields {', '.join(known)}", value)
    for name, each in value.items():
        wanted = {"str": (str,), "int": (int,), "float": (int, float)}[str(known[name])]
        if isinstance(each, bool) or not isinstance(each, wanted):
            raise ParameterError(f"{where}: {name}", f"must be of type {known[name]}", each)
    try:
        return kind(**value)
    except TypeError:
        rule = f"must be an object with the fields {', '.join(known)}"
        raise ParameterError(where, rule, dict(value)) from None
    except ParameterError as error:
        name = f"{where}: {error.argument}"
        raise ParameterError(name, error.rule, error.value, error.remedy) from None
