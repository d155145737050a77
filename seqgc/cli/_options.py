"""Options that several verbs have, and what their words come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar, get_args

import typer

from seqgc.errors import ParameterError
from seqgc.profiles import DelayProfile, read_profile
from seqgc.rounds import WaitOut
from seqgc.search import Conformity

__all__ = [
    "Alpha",
    "AsJson",
    "BaseLoad",
    "Batch",
    "ConformityName",
    "Jobs",
    "ProfileFile",
    "Repeat",
    "as_conformity",
    "as_wait_out",
    "numbers",
    "open_profile",
    "words",
]

ProfileFile = Annotated[Path, typer.Argument(help="Delay profile, .npz or .csv.")]
Jobs = Annotated[
    int | None, typer.Option(help="Gradients to compute; as many as the profile holds.")
]
Alpha = Annotated[float | None, typer.Option(help="Seconds per unit of load; the profile's own.")]
BaseLoad = Annotated[float | None, typer.Option(help="Load the profile was recorded at; its own.")]
Batch = Annotated[
    int | None,
    typer.Option(help="Points in a model's batch, cut to whole ones; else loads are nominal."),
]
Repeat = Annotated[bool, typer.Option(help="Begin the profile again when it ends.")]
ConformityName = Annotated[str, typer.Option(help="What conforms: scheme, or bursty alone.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_Name = TypeVar("_Name", bound=str)
_Number = TypeVar("_Number", int, float)


def open_profile(path: Path, *, base_load: float | None) -> DelayProfile:
    """Read a profile; ``base_load`` replaces what it says of itself."""
    profile = read_profile(path)
    if base_load is None:
        return profile
    return replace(profile, meta=replace(profile.meta, base_load=base_load))


def as_wait_out(word: str) -> WaitOut:
    """Return the wait-out rule of that name, or raise `ParameterError`."""
    known: tuple[WaitOut, ...] = get_args(WaitOut)
    return _one_of("wait_out", word, known)


def as_conformity(word: str) -> Conformity:
    """Return the conformity of that name, or raise `ParameterError`."""
    known: tuple[Conformity, ...] = get_args(Conformity)
    return _one_of("conformity", word, known)


def words(text: str) -> tuple[str, ...]:
    """Return what stands between commas, without the spaces around it."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(argument: str, text: str, kind: type[_Number]) -> tuple[_Number, ...]:
    """Return the numbers between commas, ``int`` or ``float``, or raise `ParameterError`."""
    found = []
    for word in words(text):
        try:
            found.append(kind(word))
        except ValueError:
            rule = f"must be {'integers' if kind is int else 'numbers'}, separated by commas"
            raise ParameterError(argument, rule, word) from None
    return tuple(found)


def _one_of(argument: str, word: str, known: Sequence[_Name]) -> _Name:
    for name in known:
        if name == word:
            return name
    raise ParameterError(argument, f"must be one of {', '.join(known)}", word)
