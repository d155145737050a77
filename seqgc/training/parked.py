"""A model that is trained no further: why, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["FAILURES", "Parked", "Parking"]

Parking: TypeAlias = Literal["diverged", "raised", "crashed", "hung", "stopped early"]
"""Why a model is parked, in one or two words.

Its loss or gradient was not finite or too large (``diverged``); or computing them ``raised``, ended
the processes of workers (``crashed``), or took longer than the time limit (``hung``); or it was
``stopped early`` by a validation or a callback.
"""

FAILURES: Final[frozenset[Parking]] = frozenset({"diverged", "raised", "crashed", "hung"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """What became of a model; its weights are those after ``step`` steps, and stay so.

    Examples
    --------
    >>> parked = Parked(kind="diverged", why="its loss is not finite", step=7)
    >>> str(parked), parked.failed
    ('diverged after 7 steps: its loss is not finite', True)
    """

    kind: Parking
    why: str  # one line; may be empty
    step: int  # how many it has taken

    @property
    def failed(self) -> bool:
        """Whether it could not be trained on."""
        return self.kind in FAILURES

    def __str__(self) -> str:
        steps = f"{self.step} step{'s' * (self.step != 1)}"
        return f"{self.kind} after {steps}" + (f": {self.why}" if self.why else "")
