"""Looking for a better setting while training goes on (paper, Appendix K.2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from seqgc.errors import ParameterError, ProfileError, require_int
from seqgc.ports import Event, RoundRecord
from seqgc.rounds import Decision, Setting
from seqgc.training._seen import SeenRounds
from seqgc.training._tuner import Answer, Choice, Question, SearchFailure, Tuner

__all__ = ["Adaptation", "AdaptiveDirector", "SearchFailure", "Switch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """When a run looks for a better setting.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or neither ``probe`` nor ``retune`` is given.

    Examples
    --------
    >>> Adaptation(probe=20, retune=50, alpha=1.12).window
    50
    """

    probe: int | None = None  # rounds before the first search; `retune` of them unless given
    retune: int | None = None  # rounds from one search to the next; None: one search only
    # What another load would cost: seconds per unit of load (docs/mathematics.md, section 7).
    alpha: float | None = None

    def __post_init__(self) -> None:
        for name, rounds in (("probe", self.probe), ("retune", self.retune)):
            if rounds is not None:
                object.__setattr__(self, name, require_int(name, rounds, least=1))
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
    def after(self) -> Setting:
        """What was switched to."""
        return self.choice.setting

    @property
    def fields(self) -> dict[str, object]:
        """The switch as a line of ``events.jsonl``."""
        return {"round": self.first_round, "job": self.first_job} | self.choice.prediction


class AdaptiveDirector:
    """Searches on the rounds seen while the next ones go on; a `seqgc.rounds.Director`.

    After the first search's rounds, and then every ``retune`` rounds, it asks the tuner, and
    between rounds looks, without waiting, whether there is an answer. A search that fails changes
    nothing.

    ``note`` is told every answer at once; ``max_delay`` is the largest, rounds, that a scheme may
    have; ``batch`` the size of all models' batches, if they have one size: else loads are nominal.
    """

    def __init__(
        self,
        adaptation: Adaptation,
        *,
        n: int,
        max_delay: int,
        tuner: Tuner,
        note: Callable[[Answer], None],
        batch: int | None = None,
    ) -> None:
        self._adaptation, self._tuner, self._note = adaptation, tuner, note
        self._batch, self._max_delay = batch, max_delay
        self._seen = SeenRounds(n, window=adaptation.window)
        self._rounds_to_search = adaptation.probe or adaptation.retune
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
        alpha = self._adaptation.alpha or 0.0
        try:
            profile = self._seen.profile(alpha=alpha)
        except ProfileError as error:
            self._note(SearchFailure(reason=f"alpha={alpha}: {error}"))
            return
        self._tuner.submit(
            Question(
                profile=profile,
                current=setting,
                jobs_left=jobs_left,
                max_delay=self._max_delay,
                batch=self._batch,
            )
        )
        self._searching = True

    def _answered(self, jobs_left: int) -> Decision | None:
        answer = self._tuner.result()
        if answer is None:
            return None
        self._searching = False
        if isinstance(answer, Choice):
            answer = replace(answer, jobs_left=jobs_left)
        self._note(answer)
        return Decision(setting=answer.setting) if isinstance(answer, Choice) else None
