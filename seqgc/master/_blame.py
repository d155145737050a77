"""Search for a model whose computation kills worker processes, or never ends.

Theory of operation ------------------- A task may contain several models, and one of them may call
``os._exit``, end with a segmentation fault, or hang. The master then sees only a `Failure` that
reports the death of a process, or a worker that is replaced because it exceeded the time limit.
Because any worker may die of another cause at any time, one such loss proves nothing. The task is
sent again unchanged.

Losses are counted by question and model. A question is a mini-task, whichever worker receives it.
When the question is answered, its losses are forgotten. If a question has been lost `_DEATHS` times
at the same model, or `_TIME_OUTS` times because the model hung, the model is *left out* of the next
task with this question: the model's parts are sent without data points, and the worker returns
zeros for them. The master then adds a `Flaw` of the model to the answer, as if the model's code had
raised an error. The policy asks another worker; when the answers of two workers have the flaw, it
parks the model, which is then no longer trained.

If the backend does not know at which of several models a process died, one model after the other is
left out. If the task is then answered, the model that was left out is to blame.

If the same happens to most models, no model is at fault: for example, memory or disk space has run
out. Therefore no further model is left out if more than half of the models would then be left out
since a model was last computed. The run then ends as it does whenever workers fail repeatedly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from seqgc.ports import Computing, Failure, Flaw, WeightedPoints, WorkItem

__all__ = ["Address", "Blame", "Question"]

_DEATHS: Final = 3
_TIME_OUTS: Final = 2

Question: TypeAlias = tuple[int, ...]
Address: TypeAlias = tuple[int, int, int]  # round, worker, attempt
_Loss: TypeAlias = Literal["crashed", "hung"]


@dataclass(slots=True, kw_only=True)
class _SentTask:
    """An unanswered task: ``models`` by question, and the flaws of models that were left out."""

    models: dict[Question, tuple[str, ...]]
    left_out: dict[str, Flaw]

    @property
    def only_model(self) -> str:
        """The only model of the task; empty if the task has several models, or none."""
        return _only(model for models in self.models.values() for model in models)


@dataclass(slots=True, kw_only=True, eq=False)
class Blame:
    """Counter of the losses of each question; see the docstring of this module.

    ``names`` are the models of the run that are known before the first task; tasks add more.
    """

    names: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)  # models that are no longer computed
    # By round and worker, then by attempt: a `Cancel` ends all attempts.
    _sent: dict[tuple[int, int], dict[int, _SentTask]] = field(default_factory=dict)
    _losses: Counter[tuple[Question, str, _Loss]] = field(default_factory=Counter)
    _reasons: dict[str, str] = field(default_factory=dict)  # reason of the latest loss, by model
    _blamed: set[str] = field(default_factory=set)  # left out since a model was computed

    @property
    def only_model(self) -> str:
        """The model of all tasks in flight; empty if they have several, or the run has only one."""
        if len(self.names) < 2:
            return ""
        out = (sent for attempts in self._sent.values() for sent in attempts.values())
        return _only(model for sent in out for models in sent.models.values() for model in models)

    def send(
        self, address: Address, questions: Sequence[Question], items: Sequence[WorkItem]
    ) -> tuple[WorkItem, ...]:
        """Record a task with an item for each question; return the items that are to be sent.

        In the returned items, the parts of models that are left out have no data points.
        """
        models = {
            question: tuple(part.model for part in item.parts if len(part.points))
            for question, item in zip(questions, items, strict=True)
        }
        self.names.update(*models.values())
        left_out = self._to_leave_out(models) if self._losses else {}
        without = self._failed | left_out.keys()
        for question, those in models.items() if without else ():
            models[question] = tuple(model for model in those if model not in without)
        round, worker, attempt = address
        sent = _SentTask(models=models, left_out=left_out)
        self._sent.setdefault((round, worker), {})[attempt] = sent
        return tuple(_without(item, without) for item in items) if without else tuple(items)

    def answered(self, address: Address) -> Mapping[str, Flaw]:
        """Forget the losses of an answered task; return the flaws of the models it left out."""
        if (sent := self._ended(address)) is None:
            return {}
        if any(sent.models.values()):
            self._blamed.clear()
        if self._losses:
            own = {(q, model) for q, models in sent.models.items() for model in models}
            for loss in [each for each in self._losses if each[:2] in own]:
                del self._losses[loss]
        return sent.left_out

    def failed(self, failure: Failure) -> None:
        """Count a failure if the process that computed the task has died."""
        sent = self._ended((failure.round, failure.worker, failure.attempt))
        if sent is not None and failure.model is not None:
            self._lose(sent, failure.model or sent.only_model, "crashed", failure.reason)

    def silenced(self, worker: int, computing: Computing) -> str:
        """Count a time-out of a worker; return the model at which it hung, empty if unknown.

        The task remains in flight: its failure or its answer will still arrive.
        """
        sent = self._sent.get((computing.round, worker), {}).get(computing.attempt)
        if sent is None or not computing.is_stuck:
            return ""
        model = computing.model or sent.only_model
        if model:
            self._lose(sent, model, "hung", "")
        return model

    def cancel(self, round: int, workers: Iterable[int]) -> None:
        """Forget tasks whose answers are not needed."""
        for worker in workers:
            self._sent.pop((round, worker), None)

    def park(self, flaws: Mapping[str, Flaw]) -> None:
        """Leave models that have crashed or hung out of all future tasks."""
        self._failed.update(m for m, flaw in flaws.items() if flaw.kind in ("crashed", "hung"))
        self.names.difference_update(flaws)
        for loss in [each for each in self._losses if not each[1]]:
            del self._losses[loss]  # a parked model may have caused it

    def _ended(self, address: Address) -> _SentTask | None:
        """Forget a task; return it unless it was forgotten before."""
        round, worker, attempt = address
        attempts = self._sent.get((round, worker), {})
        sent = attempts.pop(attempt, None)
        if not attempts:
            self._sent.pop((round, worker), None)
        return sent

    def _lose(self, sent: _SentTask, model: str, kind: _Loss, reason: str) -> None:
        self._reasons[model] = reason
        for question, models in sent.models.items():
            if model in models or not model:
                self._losses[question, model, kind] += 1

    def _to_leave_out(self, models: Mapping[Question, Sequence[str]]) -> dict[str, Flaw]:
        """Return the models to leave out of a task with these questions, each with its flaw."""
        left_out, tried = dict[str, Flaw](), dict[str, Flaw]()
        for question, those in models.items():
            able = [model for model in those if model not in self._failed]
            for model in able:
                if (times := self._losses[question, model, "crashed"]) >= _DEATHS:
                    why = f"{self._reasons[model]}, {times} times in a row"
                    left_out[model] = Flaw(kind="crashed", why=why)
                elif (times := self._losses[question, model, "hung"]) >= _TIME_OUTS:
                    why = f"its part of a task exceeded the time limit {times} times"
                    left_out[model] = Flaw(kind="hung", why=why)
            unknown = self._losses[question, "", "crashed"]
            if len(able) > 1 and unknown >= _DEATHS:
                why = f"worker processes end during tasks that contain it: {self._reasons['']}"
                tried[able[(unknown - _DEATHS) % len(able)]] = Flaw(kind="crashed", why=why)
        at_fault = self._blamed | left_out.keys()
        if 2 * len(at_fault) > len(self.names | self._blamed):
            return {model: flaw for model, flaw in left_out.items() if model in self._blamed}
        self._blamed |= left_out.keys()
        return left_out or tried


def _only(models: Iterable[str]) -> str:
    several = set(models)
    return several.pop() if len(several) == 1 else ""


def _without(item: WorkItem, models: Collection[str]) -> WorkItem:
    """Return an item in which the parts of these models have no data points."""
    if not any(part.model in models for part in item.parts):
        return item
    parts = [_emptied(part) if part.model in models else part for part in item.parts]
    return replace(item, parts=tuple(parts))


def _emptied(part: WeightedPoints) -> WeightedPoints:
    return replace(part, points=part.points[:0], coefficients=part.coefficients[:0])
