"""`Doubts`: whose fault it is that a model's part of an answer is of no use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set

from seqgc.ports import Arrival, Park

__all__ = ["Doubts"]


class Doubts:
    """Which workers' newest answers say that a model has failed, and which models have.

    Two workers have to say so, or all that there are: one alone may err.

    Examples
    --------
    >>> from seqgc.ports import Flaw
    >>> doubts, flaws = Doubts(), {"net": Flaw(kind="diverged", why="it holds NaN")}
    >>> answers = [
    ...     Arrival(round=0, worker=i, attempt=0, at=1.0, results={}, flaws=flaws) for i in range(2)
    ... ]
    >>> doubts.judge(answers[0], members=2), doubts.suspects(answers[0])
    (None, {'net'})
    >>> list(doubts.judge(answers[1], members=2).flaws), doubts.suspects(answers[1])
    (['net'], set())
    """

    def __init__(self) -> None:
        self.failed: set[str] = set()  # models
        self._accusers: defaultdict[str, set[int]] = defaultdict(set)  # by model, workers

    def judge(self, answer: Arrival, *, members: int) -> Park | None:
        """Take note of what an answer says; return the models that are now known to have failed.

        There are so many ``members`` who can say it.
        """
        if not (answer.flaws or self._accusers):
            return None
        for model in self._accusers.keys() - answer.flaws.keys():
            self._accusers[model].discard(answer.worker)
        for model in (suspects := self.suspects(answer)):
            self._accusers[model].add(answer.worker)
        most = min(2, members)
        agreed = {m: answer.flaws[m] for m in sorted(suspects) if len(self._accusers[m]) >= most}
        self.failed |= agreed.keys()
        return Park(flaws=agreed, answers=()) if agreed else None

    def suspects(self, answer: Arrival) -> Set[str]:
        """Return the models that an answer has flaws of and that are not known to have failed."""
        return answer.flaws.keys() - self.failed
