"""The search for a better setting during a run, by default in a background process.

A run with an `Adaptation` sends its questions to a `Tuner`. This is a `BackgroundTuner`, unless the
user gives another ``tuner`` to `train`.
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
REPLAYED_JOBS = 60  # number of replayed jobs, unless the profile has more rounds, or the run ends
NICE = 10  # low priority, so that the search does not slow down the workers
LONGEST_DELAY = 10  # largest delay of candidates, in rounds
WEIGHING_UP_TO = 32  # most workers for which codes that decode by weighted sums are candidates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """The input of a search."""

    profile: DelayProfile
    current: Setting
    jobs_left: int  # number of remaining jobs, each with a bundle of models of the current size
    max_delay: int  # largest delay of a candidate, in rounds
    batch: int | None = None  # number of points in a batch, if all models have the same number


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The result of a search: the ``current`` setting, and the best setting that was ``found``.

    The found setting is chosen if it is clearly faster for the remaining jobs, although leaving the
    current scheme takes extra rounds. The run continues during the search. Therefore ``jobs_left``
    must be updated with `dataclasses.replace` when the search has ended.

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
        """The predicted seconds for the remaining jobs in the current setting."""
        return self.current_s * (self.jobs_left + self.current.scheme.delay)

    @property
    def predicted_s(self) -> float:
        """The predicted seconds for the remaining jobs in the chosen setting.

        If the found setting is chosen, the time of the switch is included.
        """
        return self.predicted_current_s if self.setting is self.current else self._switched_s

    @property
    def prediction(self) -> dict[str, object]:
        """The comparison of both settings, as fields for a line of ``events.jsonl``."""
        return {
            "from": self.current.label,
            "to": self.setting.label,
            "predicted_s": {"from": self.predicted_current_s, "to": self.predicted_s},
            "searched": self.searched,
        }

    @property
    def fields(self) -> dict[str, object]:
        """The fields of the answer's line in ``events.jsonl``."""
        outcome = "stay" if self.setting == self.current else "switch"
        return {"outcome": outcome} | self.prediction

    @property
    def _switched_s(self) -> float:
        drain_s = self.current_s * self.current.scheme.delay
        return drain_s + self.found_s * (self.jobs_left + self.found.scheme.delay)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFailure:
    """A search that has failed. The run continues in its current setting."""

    reason: str

    @property
    def fields(self) -> dict[str, object]:
        """The fields of the answer's line in ``events.jsonl``."""
        return {"outcome": "failed", "reason": self.reason}


Answer: TypeAlias = Choice | SearchFailure


class Tuner(Protocol):
    """An object that searches for settings while the training continues, one question at a time.

    No method may wait for a search to end.
    """

    def submit(self, question: Question) -> None:
        """Begin the search for an answer. Drop the previous question, if it is not answered."""

    def result(self) -> Answer | None:
        """Return the answer if it is known, and None otherwise. Return each answer only once."""

    def close(self) -> None:
        """End the search. The run calls this method when it ends."""


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
            answer = SearchFailure(reason="the process of the search ended without an answer")
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
    """Send the answer to one question. This is the main function of the background process."""
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

    The candidates are schemes that run in rounds. Codes that decode by weighted sums are candidates
    only for few workers. For many workers the decoding may be ill-conditioned, which a replay does
    not show. The `Choice` includes the cost of a switch: the last jobs of the current scheme need
    as many additional rounds as the scheme's delay.

    Raises
    ------
    ProfileError
        If the load of a candidate, with the profile's ``alpha``, makes a time negative.
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
    result = tune(rehearsal, space=space, top=1, quiet=True)
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
