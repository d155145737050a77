"""Looking for a better setting while training goes on (paper, Appendix K.2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from seqgc.errors import ParameterError, ProfileError
from seqgc.ports import Event, RoundRecord
from seqgc.rounds import Decision, Setting
from seqgc.training._seen import SeenRounds
from seqgc.training._tuner import Answer, Choice, Question, SearchFailure, Tuner

__all__ = ["Adaptation", "AdaptiveDirector", "SearchFailure", "Switch", "answer_fields"]

Note: TypeAlias = Callable[[Answer], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """When a run looks for a better setting.

    Parameters
    ----------
    probe
        Rounds before the first search; ``retune`` of them unless given.
    retune
        Rounds from one search to the next; None: one search only.
    alpha
        What another load would cost: seconds per unit of load (docs/mathematics.md, section 7).

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or neither ``probe`` nor ``retune`` is given.

    Examples
    --------
    >>> Adaptation(probe=20, retune=50, alpha=1.12).window
    50
    """

    probe: int | None = None
    retune: int | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        for name, rounds in (("probe", self.probe), ("retune", self.retune)):
            if rounds is not None and (isinstance(rounds, bool) or rounds < 1):
                raise ParameterError(name, "must be >= 1 round", rounds)
        if self.probe is None and self.retune is None:
            raise ParameterError("probe", "or `retune` must be given", None)
        if self.alpha is None or not 0 <= self.alpha < math.inf:
            raise ParameterError(
                "alpha",
                "must be a finite number >= 0, seconds per unit of load, to compare schemes",
                self.alpha,
                "measure it with `seqgc profile`, at several loads",
            )

    @property
    def first_search(self) -> int:
        """Rounds before the first search."""
        return self.probe or self.retune or 1

    @property
    def window(self) -> int:
        """The latest rounds that a search looks at: as many as probed or, if more, retuned on."""
        return max(self.probe or 1, self.retune or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A change of setting: where the new one begins, and why it was chosen."""

    first_job: int
    first_round: int
    choice: Choice

    @property
    def before(self) -> Setting:
        """What was left."""
        return self.choice.current

    @property
    def after(self) -> Setting:
        """What was switched to."""
        return self.choice.setting

    @property
    def fields(self) -> dict[str, object]:
        """The switch as a line of ``events.jsonl``."""
        return {"round": self.first_round, "job": self.first_job} | _fields(self.choice)


def _fields(choice: Choice) -> dict[str, object]:
    return {
        "from": choice.current.label,
        "to": choice.setting.label,
        "predicted_s": {"from": choice.predicted_current_s, "to": choice.predicted_s},
        "searched": choice.searched,
    }


def answer_fields(answer: Answer) -> dict[str, object]:
    """Return a search's answer as a line of ``events.jsonl``."""
    if isinstance(answer, SearchFailure):
        return {"outcome": "failed", "reason": answer.reason}
    stays = answer.setting == answer.current
    return {"outcome": "stay" if stays else "switch"} | _fields(answer)


class AdaptiveDirector:
    """Searches on the rounds seen while the next ones go on; a `seqgc.rounds.Director`.

    After the first search's rounds, and then every ``retune`` rounds, it asks the tuner, and
    between rounds looks, without waiting, whether there is an answer. A search that fails changes
    nothing.

    Parameters
    ----------
    adaptation
        When to search.
    n : int
        Workers.
    max_delay : int
        Largest delay, in rounds, that a scheme may have.
    tuner
        Searches.
    note
        Told every answer, at once.
    batch : int, optional
        The size of all models' batches, if they have one size; else loads are nominal.
    """

    def __init__(
        self,
        adaptation: Adaptation,
        *,
        n: int,
        max_delay: int,
        tuner: Tuner,
        note: Note,
        batch: int | None = None,
    ) -> None:
        self._adaptation, self._tuner, self._note = adaptation, tuner, note
        self._batch = batch
        self._max_delay = max_delay
        self._seen = SeenRounds(n, window=adaptation.window)
        self._rounds_to_search: int | None = adaptation.first_search
        self._searching = False

    def on(self, event: Event) -> None:
        self._seen.on(event)

    def close(self, record: RoundRecord, *, setting: Setting) -> None:
        loads = setting.scheme.loads_of(self._batch)
        self._seen.close(record, load=setting.jobs_per_round * loads)
        if self._rounds_to_search is not None:
            self._rounds_to_search -= 1

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:
        if self._searching:
            return self._answered(jobs_left)
        if self._rounds_to_search is not None and self._rounds_to_search <= 0:
            self._rounds_to_search = self._adaptation.retune
            self._search(setting, jobs_left)
        return None

    def _search(self, setting: Setting, jobs_left: int) -> None:
        try:
            profile = self._seen.profile(alpha=self._adaptation.alpha or 0.0)
        except ProfileError as error:
            self._note(SearchFailure(reason=f"alpha={self._adaptation.alpha}: {error}"))
            return
        question = Question(
            profile=profile,
            current=setting,
            jobs_left=jobs_left,
            max_delay=self._max_delay,
            batch=self._batch,
        )
        self._tuner.submit(question)
        self._searching = True

    def _answered(self, jobs_left: int) -> Decision | None:
        answer = self._tuner.result()
        if answer is None:
            return None
        self._searching = False
        if isinstance(answer, Choice):
            answer = answer.repriced(jobs_left=jobs_left)
        self._note(answer)
        return Decision(setting=answer.setting) if isinstance(answer, Choice) else None
