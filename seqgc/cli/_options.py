"""Options that several verbs have, and what their words come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar, get_args

import typer

from seqgc.errors import ParameterError
from seqgc.profiles import read_profile
from seqgc.rounds import WaitOut
from seqgc.search import Conformity, Rehearsal

__all__ = ["AsJson", "ProfileFile", "RehearsalOptions", "as_wait_out", "numbers", "words"]

ProfileFile = Annotated[Path, typer.Argument(help="Delay profile, .npz or .csv.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalOptions:
    """On what a replay, or all those of a search, run."""

    jobs: Annotated[
        int | None, typer.Option(help="Gradients to compute; as many as the profile holds.")
    ] = None
    alpha: Annotated[
        float | None, typer.Option(help="Seconds per unit of load; the profile's own.")
    ] = None
    base_load: Annotated[
        float | None, typer.Option(help="Load the profile was recorded at; its own.")
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(help="Points in a model's batch, cut to whole ones; else loads are nominal."),
    ] = None
    repeat: Annotated[bool, typer.Option(help="Begin the profile again when it ends.")] = False
    conformity: Annotated[str, typer.Option(help="What conforms: scheme, or bursty alone.")] = (
        "scheme"
    )

    def of(self, path: Path) -> Rehearsal:
        """Return what the profile and the options come to, or raise `ParameterError`."""
        profile = read_profile(path)
        if self.base_load is not None:
            profile = replace(profile, meta=replace(profile.meta, base_load=self.base_load))
        return Rehearsal(
            profile=profile,
            num_jobs=self.jobs,
            alpha=self.alpha,
            batch=self.batch,
            repeat=self.repeat,
            conformity=_one_of("conformity", self.conformity, get_args(Conformity)),
        )


_Name = TypeVar("_Name", bound=str)
_Number = TypeVar("_Number", int, float)


def as_wait_out(word: str) -> WaitOut:
    """Return the wait-out rule of that name, or raise `ParameterError`."""
    known: tuple[WaitOut, ...] = get_args(WaitOut)
    return _one_of("wait_out", word, known)


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
