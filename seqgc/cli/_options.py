"""Options that several verbs have, and what their words come to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar, cast

import typer

from seqgc.errors import ParameterError
from seqgc.profiles import read_profile
from seqgc.search import Conformity, Rehearsal

__all__ = [
    "AsJson", "NumWorkers", "ProfileFile", "Region", "RehearsalOptions", "numbers", "words",
]  # fmt: skip

ProfileFile = Annotated[Path, typer.Argument(help="Delay profile, .npz or .csv.")]
AsJson = Annotated[bool, "--json", "Print one JSON object."]
NumWorkers = Annotated[int, "-n", "--workers", "Number of workers."]
Region = Annotated[str | None, "AWS region; by default the AWS configuration's."]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalOptions:
    """On what a replay, or all those of a search, run."""

    jobs: Annotated[int | None, "Gradients to compute; as many as the profile holds."] = None
    alpha: Annotated[float | None, "Seconds per unit of load; the profile's own."] = None
    base_load: Annotated[float | None, "Load the profile was recorded at; its own."] = None
    batch: Annotated[
        int | None, "Points in a model's batch, cut to whole ones; else loads are nominal."
    ] = None
    repeat: Annotated[bool, "Begin the profile again when it ends."] = False
    conformity: Annotated[str, "What conforms: scheme, or bursty alone."] = "scheme"

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
            conformity=cast("Conformity", self.conformity),
        )


_Number = TypeVar("_Number", int, float)


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
