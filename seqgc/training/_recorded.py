"""Decisions of a run that looks for better settings, on record before anything follows them."""

from __future__ import annotations

from collections.abc import Callable

from seqgc.ports import Event, RoundRecord
from seqgc.rounds import Decision, Setting
from seqgc.training._history import Recorder
from seqgc.training.adaptive import AdaptiveDirector
from seqgc.training.tuner import Answer, Choice

__all__ = ["RecordedDirector"]


class RecordedDirector:
    """A director whose decisions are on record before they are acted on, and are made once."""

    def __init__(
        self,
        director: AdaptiveDirector,
        recorder: Recorder,
        *,
        answers: list[Answer],
        closing: Callable[[], None],
    ) -> None:
        self._director, self._recorder, self._answers = director, recorder, answers
        self._closing = closing
        self._round = -1

    def on(self, event: Event) -> None:
        self._director.on(event)

    def close(self, record: RoundRecord, *, setting: Setting) -> None:
        self._round = record.round
        self._closing()
        self._director.close(record, setting=setting)

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:
        known = self._recorder.history.choices.get(self._round)
        if known is not None:
            self._director.repeat()
            self._answers.append(known)
            return Decision(setting=known.setting)
        if self._round < len(self._recorder.history.answers):
            return None  # on record, and nothing was decided then
        decision = self._director.choose(setting=setting, jobs_left=jobs_left)
        if decision is not None and decision.setting not in {None, setting}:
            choice = next(a for a in reversed(self._answers) if isinstance(a, Choice))
            self._recorder.decide(self._round, choice)
        return decision
