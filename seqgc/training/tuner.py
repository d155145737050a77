"""The search for a better setting during a run, by default in a background process.

A run that adapts (`Adaptation`) asks a `Tuner`: `BackgroundTuner`, or the ``tuner`` of `train`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Protocol, TypeAlias

from seqgc.backends import fork_process, start_fork_server
from seqgc.profiles import DelayProfile
from seqgc.rounds import Setting
from seqgc.schemes import Scheme, registered
from seqgc.search import Rehearsal, SearchSpace, replay, tune

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

__all__ = ["Answer", "BackgroundTuner", "Choice", "Question", "SearchFailure", "Tuner", "choose"]

LEAST_GAIN = 0.02  # least gain, as a fraction of the predicted run time; less may be noise
REPLAYED_JOBS = 60  # largest number of replayed jobs; longer runs are extrapolated
NICE = 10  # low priority, so that the search does not slow down the workers
LONGEST_DELAY = 10  # largest delay of candidates, in rounds
WEIGHING_UP_TO = 32  # most workers for which codes that decode by weighted sums are candidates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """The input of a search."""

    profile: DelayProfile
    current: Setting
    jobs_left: int  # number of remaining bundles of the setting's size
    max_delay: int
    batch: int | None = None  # the size of all models' batches, if they have one size


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The result of a search: the ``current`` setting, and the best setting ``found``.

    The found setting is chosen if it is clearly better for the remaining jobs. To leave the present
    scheme has a cost; therefore ``jobs_left`` must be updated with `replace` when the search ends.

    Examples
    --------
    >>> from seqgc.rounds import ClosingRule
    >>> from seqgc.schemes import parse_scheme
    >>> rule = ClosingRule(timeout_s=60.0)
    >>> now, other = (
    ...     Setting(scheme=parse_scheme(spec, n=6), rule=rule) for spec in ("uncoded", "gc:s=1")
    ... )
    >>> choice = Choice(
    ...     current=now, found=other, current_s=2.0, found_s=1.5, jobs_left=20, searched=9
    ... )
    >>> choice.setting is other, choice.predicted_current_s, choice.predicted_s
    (True, 40.0, 30.0)
    """

    current: Setting
    found: Setting
    current_s: float  # seconds of a round in the current setting
    found_s: float  # seconds of a round in the found setting
    jobs_left: int
    searched: int  # number of candidates

    @property
    def setting(self) -> Setting:
        """The chosen setting, with which the run continues."""
        well_ahead = self._switched_s < (1 - LEAST_GAIN) * self.predicted_current_s
        return self.found if well_ahead else self.current

    @property
    def predicted_current_s(self) -> float:
        """The predicted seconds for the remaining jobs in the present setting."""
        return self.current_s * (self.jobs_left + self.current.scheme.delay)

    @property
    def predicted_s(self) -> float:
        """The predicted seconds for the remaining jobs in the chosen setting, with the switch."""
        return self.predicted_current_s if self.setting is self.current else self._switched_s

    @property
    def prediction(self) -> dict[str, object]:
        """The comparison of the settings, as a part of a line of ``events.jsonl``."""
        return {
            "from": self.current.label,
            "to": self.setting.label,
            "predicted_s": {"from": self.predicted_current_s, "to": self.predicted_s},
            "searched": self.searched,
        }

    @property
    def fields(self) -> dict[str, object]:
        """The answer as a line of ``events.jsonl``."""
        outcome = "stay" if self.setting == self.current else "switch"
        return {"outcome": outcome} | self.prediction

    @property
    def _switched_s(self) -> float:
        drain_s = self.current_s * self.current.scheme.delay
        return drain_s + self.found_s * (self.jobs_left + self.found.scheme.delay)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFailure:
    """A failed search; the run continues in its setting."""

    reason: str

    @property
    def fields(self) -> dict[str, object]:
        """The answer as a line of ``events.jsonl``."""
        return {"outcome": "failed", "reason": self.reason}


Answer: TypeAlias = Choice | SearchFailure


class Tuner(Protocol):
    """A search that runs in parallel to the training, one question at a time; no call blocks."""

    def submit(self, question: Question) -> None:
        """Begin a search; drop the previous question."""

    def result(self) -> Answer | None:
        """Return the answer once; return None if there is no new answer."""

    def close(self) -> None:
        """End the search, because the run has ended."""


class BackgroundTuner:
    """A tuner that starts a single-threaded process at low priority for each question.

    The process is forked from the fork server of the local workers, and does not receive Ctrl-C.
    """

    def __init__(self) -> None:
        self._process: ForkServerProcess | None = None
        self._answers: Connection | None = None

    def submit(self, question: Question) -> None:
        self.close()
        self._answers, theirs = Pipe(duplex=False)
        with theirs:
            start_fork_server(["seqgc.training"])  # no effect if workers are running already
            self._process = fork_process(_search, (theirs, question), name="seqgc-tuner")

    def result(self) -> Answer | None:
        if self._answers is None or not self._answers.poll():
            return None
        answer: Answer
        try:
            answer = self._answers.recv()
        except (EOFError, OSError):
            answer = SearchFailure(reason="the search's process ended without an answer")
        self.close()
        return answer

    def close(self) -> None:
        if self._answers is not None:
            self._answers.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        self._process = self._answers = None


def _search(answers: Connection, question: Question) -> None:
    """Answer one question; this is the main function of the process."""
    os.nice(NICE)
    answer: Answer
    try:
        answer = choose(question)
    except Exception as error:  # the run reports any error
        answer = SearchFailure(reason=f"{type(error).__name__}: {error}")
    with suppress(OSError):  # the run has ended
        answers.send(answer)


def choose(question: Question) -> Choice:
    """Search for the setting that finishes the remaining jobs soonest.

    Candidates are schemes that run in rounds. Codes that decode by weighted sums are candidates
    only for few workers: for many workers, the decoding may be ill-conditioned, which a replay does
    not show. The cost of a switch is included: the last jobs of the present scheme need as many
    additional rounds as its delay.

    Raises
    ------
    ProfileError
        If alpha makes a time negative.
    """
    current, profile = question.current, question.profile
    jobs = min(question.jobs_left, max(REPLAYED_JOBS, profile.num_rounds))
    num_jobs = jobs * current.jobs_per_round
    rehearsal = Rehearsal(profile=profile, num_jobs=num_jobs, repeat=True, batch=question.batch)
    present = replay(current, rehearsal)
    space = SearchSpace(
        families=_by_rounds(),
        sums_only=current.scheme.n > WEIGHING_UP_TO,
        wait_outs=("feasible", "conform"),
        jobs_per_round=(current.jobs_per_round,),
        max_delay=min(question.max_delay, LONGEST_DELAY),
    )
    result = tune(rehearsal, space=space, top=1)
    best = result.best.setting
    rule = replace(current.rule, mu=best.rule.mu, wait_out=best.rule.wait_out)
    return Choice(
        current=current,
        found=replace(best, rule=rule),
        current_s=present.runtime_s / (jobs + current.scheme.delay),
        found_s=result.best.runtime_s / (jobs + best.scheme.delay),
        jobs_left=question.jobs_left,
        searched=result.evaluated + result.pruned,
    )


def _by_rounds() -> tuple[str, ...]:
    return tuple(name for name, entry in registered().items() if issubclass(entry.kind, Scheme))
