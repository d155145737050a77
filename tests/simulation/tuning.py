"""A tuner that finds what the scenario says, by how many jobs are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seqgc.schemes import parse_scheme
from seqgc.training.adaptive import Choice, Question


class ScriptedTuner:
    """A `seqgc.training.Tuner`; ``best`` are (jobs left, scheme), falling: best from then on."""

    def __init__(self, best: Sequence[tuple[int, str]]) -> None:
        self._best = best
        self._question: Question | None = None

    def submit(self, question: Question) -> None:
        self._question = question

    def result(self) -> Choice | None:
        question = self._question
        if question is None:
            return None
        current, left = question.current, question.jobs_left
        spec = next((s for jobs, s in reversed(self._best) if left <= jobs), current.scheme.spec)
        stay = spec == current.scheme.spec
        found = current if stay else replace(current, scheme=parse_scheme(spec, n=current.scheme.n))
        return Choice(
            current=current,
            found=found,
            current_s=1000.0,
            found_s=1000.0 if stay else 1.0,
            jobs_left=left,
            searched=1,
        )

    def close(self) -> None:
        """Nothing goes on."""
