"""Decide whether a worker or a model is to blame for a result that cannot be used.

Theory of operation
-------------------
*Answers with flaws.* A part of a result may be too large or not finite, or its computation may have
raised an error. Either the model is at fault or the worker that computed it. The first report
proves nothing: the answer becomes a `Failure`, and the policy asks another worker, or the same one
if there is no other. The report is stored until the job ends. It is about a *question*, which is
the result that a mini-task requests; several workers may be asked the same question. A model has
*failed* if a second report of the same job comes from another worker, or is about the same
question. The model is then no longer trained, and its parts of all results are zeros. Answers that
were failures only because of failed models are used after all. If a worker answers a question
without flaws, earlier reports about this question are removed.

*Losses.* A model may also call ``os._exit``, end with a segmentation fault, or hang. The master
then sees only a `Failure` that reports the death of a process, or a worker that is replaced because
it exceeded the time limit. Because any worker may die of another cause at any time, one such *loss*
proves nothing. The task is sent again unchanged.

Losses are counted by question and model. When the question is answered, its losses are forgotten.
If workers died `_DEATHS` times, or hung `_TIME_OUTS` times, while they computed the same model for
the same question, the model is *left out* of the next task with this question: the model's parts
are sent without data points, and the worker returns zeros for them. The answer then counts as a
report that the model has a flaw. If one worker has caused all losses, this worker may be at fault,
and any other worker is still sent the whole task.

If the backend does not know which of several models a process was computing when it died, one model
after the other is left out, never two in the same task. If the task is then answered, the model
that was left out is to blame. If processes die whichever model is left out, the task is sent
unchanged from then on.

If most models crash or hang, no model is at fault: for example, memory or disk space has run out.
Therefore the master counts the models that were left out since a worker last computed a model. If
these would become more than half of the models, no further model is left out. The run then ends as
it does whenever workers fail repeatedly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, TypeAlias

from seqgc.ports import (
    Arrival,
    Computing,
    Failure,
    Flaw,
    FlawKind,
    MiniTask,
    WeightedPoints,
    WorkItem,
)

__all__ = ["Blame", "Judgement"]

_DEATHS: Final = 3
_TIME_OUTS: Final = 2

Question: TypeAlias = tuple[int, ...]
Address: TypeAlias = tuple[int, int, int]  # round, worker, attempt
_Loss: TypeAlias = Literal["crashed", "hung", "tried"]  # "tried": a crash with one model left out
_Reports: TypeAlias = dict[Question, set[int]]  # workers that reported a flaw, by question


class Judgement(NamedTuple):
    """The conclusions from an answer with flaws.

    ``failed`` are the models, each with its flaw, that this answer proves to have failed.
    ``doubted`` are the flaws, by model, for which either the worker or the model may be to blame.
    If there are any, the answer is a failure. ``usable`` are earlier answers that counted as
    failures only because of models that have now failed; they can be used.
    """

    failed: Mapping[str, Flaw]
    doubted: Mapping[str, Flaw]
    usable: Sequence[Arrival]


@dataclass(slots=True, kw_only=True)
class _SentTask:
    """A task that has not been answered.

    ``models`` are the models to compute, by question. ``left_out`` are the models that were left
    out of the task, each with the flaw to report if the task is answered. If ``is_trial`` is True,
    the master left out one model to find out if this model crashes the workers.
    """

    models: dict[Question, tuple[str, ...]]
    left_out: dict[str, Flaw]
    is_trial: bool

    @property
    def only_model(self) -> str:
        """The only model of the task; empty if the task has another number, or is a trial."""
        models = (model for models in self.models.values() for model in models)
        return "" if self.is_trial else _only(models)


@dataclass(slots=True, kw_only=True, eq=False)
class Blame:
    """Judge of flaws and losses; see the docstring of this module.

    ``names`` are the models of the run that are known before the first task; tasks add more.
    ``failed`` are the models that have failed, each with its kind of flaw.
    """

    names: set[str] = field(default_factory=set)
    failed: dict[str, FlawKind] = field(default_factory=dict)
    _reports: dict[int, dict[str, _Reports]] = field(default_factory=dict)  # by job and model
    # Answers that are failures because of flaws, by round and worker.
    _doubted: dict[tuple[int, int], Arrival] = field(default_factory=dict)
    # By round and worker, then by attempt: a `Cancel` ends all attempts.
    _sent: dict[tuple[int, int], dict[int, _SentTask]] = field(default_factory=dict)
    # The workers of the losses, each as often as it caused one.
    _losses: dict[tuple[Question, str, _Loss], list[int]] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)  # reason of the latest loss, by model
    _blamed: set[str] = field(default_factory=set)  # left out since a model was computed

    @property
    def only_model(self) -> str:
        """The model of all tasks in flight; empty if there are several models, or only one ever."""
        if len(self.names) < 2:
            return ""
        out = [sent for attempts in self._sent.values() for sent in attempts.values()]
        if any(sent.is_trial for sent in out):
            return ""
        return _only(model for sent in out for models in sent.models.values() for model in models)

    def send(
        self, address: Address, mini_tasks: Sequence[MiniTask], items: Sequence[WorkItem]
    ) -> tuple[WorkItem, ...]:
        """Record a task with an item for each mini-task; return the items that are to be sent.

        In the returned items, the parts of models that are left out have no data points.
        """
        models = {
            _question(address, mini_task): tuple(p.model for p in item.parts if len(p.points))
            for mini_task, item in zip(mini_tasks, items, strict=True)
        }
        self.names.update(*models.values())
        self.names.difference_update(self.failed)
        round, worker, attempt = address
        left_out = self._to_leave_out(models, worker) if self._losses else {}
        is_trial = not left_out
        if is_trial and self._losses:
            left_out = self._to_try_without(models, worker)
        without = self._not_computed | left_out.keys()
        for question, names in models.items() if without else ():
            models[question] = tuple(model for model in names if model not in without)
        sent = _SentTask(models=models, left_out=left_out, is_trial=is_trial and bool(left_out))
        self._sent.setdefault((round, worker), {})[attempt] = sent
        return tuple(_without(item, without) for item in items) if without else tuple(items)

    def judge(self, answer: Arrival) -> Judgement:
        """Judge the flaws of an answer, and of the models that were left out of its task.

        Losses of the questions that are answered are forgotten. If some flaws are `doubted`, the
        answer is stored until it can be used or its task is cancelled.
        """
        round, worker = answer.round, answer.worker
        sent = self._ended((round, worker, answer.attempt))
        if sent is not None:
            self._forget_losses(sent)
        questions = [] if sent is None else list(sent.models)
        flaws = {**answer.flaws, **({} if sent is None else sent.left_out)}
        flaws = {model: flaw for model, flaw in flaws.items() if model not in self.failed}
        failed = {m: flaws[m] for m in sorted(flaws) if self._is_second(m, worker, questions)}
        doubted = {model: flaw for model, flaw in flaws.items() if model not in failed}
        for question in questions if doubted or self._reports else ():
            reports = self._reports.setdefault(question[0], {})
            for model in reports.keys() - doubted.keys():
                reports[model].pop(question, None)
            for model in doubted:
                reports.setdefault(model, {}).setdefault(question, set()).add(worker)
        self._fail(failed)
        if doubted:
            self._doubted[round, worker] = replace(answer, flaws=flaws)
        elif self._doubted:
            self._doubted.pop((round, worker), None)
        return Judgement(failed, doubted, self._usable() if failed else ())

    def clear_part(self, address: Address, mini_tasks: Iterable[MiniTask]) -> bool:
        """Clear mini-tasks of a task that have been answered without flaws before its end.

        Their losses and earlier reports are forgotten. Return False, and do nothing, if models were
        left out of the task: only the whole answer can then be judged (`judge`).
        """
        sent = self._sent.get(address[:2], {}).get(address[2])
        if sent is None or sent.left_out:
            return sent is None
        for question in [_question(address, mini_task) for mini_task in mini_tasks]:
            part = replace(sent, models={question: sent.models.pop(question, ())})
            self._forget_losses(part)
            for reports in self._reports.get(question[0], {}).values():
                reports.pop(question, None)
        return True

    def _is_second(self, model: str, worker: int, questions: Iterable[Question]) -> bool:
        """Return True if another worker, or an answer to a question, has reported the model."""
        for question in questions:
            reports = self._reports.get(question[0], {}).get(model, {})
            if question in reports or any(workers - {worker} for workers in reports.values()):
                return True
        return False

    def _usable(self) -> list[Arrival]:
        """Forget and return the doubted answers whose flaws all belong to failed models."""
        doubted = self._doubted.values()
        usable = [each for each in doubted if self.failed.keys() >= each.flaws.keys()]
        for each in usable:
            del self._doubted[each.round, each.worker]
        return usable

    def _forget_losses(self, sent: _SentTask) -> None:
        if any(sent.models.values()):
            self._blamed.clear()
        if self._losses:
            unknown = () if sent.left_out else ("",)
            own = {(q, each) for q, models in sent.models.items() for each in (*models, *unknown)}
            for loss in [each for each in self._losses if each[:2] in own]:
                del self._losses[loss]

    def close(self, jobs: Iterable[int]) -> None:
        """Forget the reports of jobs that have ended."""
        for job in jobs if self._reports else ():
            self._reports.pop(job, None)

    def lost(self, failure: Failure) -> None:
        """Count a failure if the process that computed the task has died."""
        sent = self._ended((failure.round, failure.worker, failure.attempt))
        if sent is not None and failure.model is not None:
            model = failure.model or sent.only_model
            kind: _Loss = "tried" if sent.is_trial and not model else "crashed"
            self._lose(sent, model, failure.worker, kind, failure.reason)

    def silenced(self, worker: int, computing: Computing) -> str:
        """Count a time-out of a worker, and return the model that hung; empty if it is unknown.

        The task remains in flight: its failure or its answer will still arrive.
        """
        sent = self._sent.get((computing.round, worker), {}).get(computing.attempt)
        if sent is None or not computing.is_stuck:
            return ""
        model = computing.model or sent.only_model
        if model:
            self._lose(sent, model, worker, "hung", "")
        return model

    def cancel(self, round: int, workers: Iterable[int]) -> None:
        """Forget tasks whose answers are not needed."""
        for worker in workers:
            self._sent.pop((round, worker), None)
            self._doubted.pop((round, worker), None)

    @property
    def _not_computed(self) -> set[str]:
        """The models that are left out of all tasks, because they would crash or hang again."""
        return {model for model, kind in self.failed.items() if kind in ("crashed", "hung")}

    def _fail(self, flaws: Mapping[str, Flaw]) -> None:
        if not flaws:
            return
        self.failed.update({model: flaw.kind for model, flaw in flaws.items()})
        self.names.difference_update(flaws)
        for loss in [each for each in self._losses if not each[1]]:
            del self._losses[loss]  # a failed model may have caused it

    def _ended(self, address: Address) -> _SentTask | None:
        """Forget a task; return it unless it was forgotten before."""
        round, worker, attempt = address
        attempts = self._sent.get((round, worker), {})
        sent = attempts.pop(attempt, None)
        if not attempts:
            self._sent.pop((round, worker), None)
        return sent

    def _lose(self, sent: _SentTask, model: str, worker: int, kind: _Loss, reason: str) -> None:
        self._reasons[model] = reason
        for question, models in sent.models.items():
            if model in models or not model:
                self._losses.setdefault((question, model, kind), []).append(worker)

    def _to_leave_out(
        self, models: Mapping[Question, Sequence[str]], worker: int
    ) -> dict[str, Flaw]:
        """Return the models to leave out of a worker's task, with the flaws to report for them.

        ``models`` are the models of each question of the task.
        """
        left_out = dict[str, Flaw]()
        for question, names in models.items():
            for model in self._able(names):
                if times := self._times(worker, (question, model, "crashed"), least=_DEATHS):
                    why = f"{self._reasons[model]}, {times} times with the same task"
                    left_out[model] = Flaw(kind="crashed", why=why)
                elif times := self._times(worker, (question, model, "hung"), least=_TIME_OUTS):
                    why = f"its part of a task exceeded the time limit {times} times"
                    left_out[model] = Flaw(kind="hung", why=why)
        at_fault = self._blamed | left_out.keys()
        if 2 * len(at_fault) > len(self.names | self._blamed):
            return {model: flaw for model, flaw in left_out.items() if model in self._blamed}
        self._blamed |= left_out.keys()
        return left_out

    def _to_try_without(
        self, models: Mapping[Question, Sequence[str]], worker: int
    ) -> dict[str, Flaw]:
        """Return the model to leave out of a trial, with its flaw.

        Trials are made if the backend does not know which of several models crashed.
        """
        lost = [q for q in models if self._times(worker, (q, "", "crashed"), least=_DEATHS)]
        able = list(dict.fromkeys(model for q in lost for model in self._able(models[q])))
        if len(able) < 2:
            return {}
        tries = max(len(self._losses.get((question, "", "tried"), ())) for question in lost)
        if tries >= len(able):  # a trial without each model has crashed: no single one is to blame
            return {}
        why = f"worker processes end during tasks that contain it: {self._reasons['']}"
        return {able[tries]: Flaw(kind="crashed", why=why)}

    def _able(self, models: Iterable[str]) -> list[str]:
        return [model for model in models if model not in self._not_computed]

    def _times(self, worker: int, loss: tuple[Question, str, _Loss], *, least: int) -> int:
        """Return the number of losses, or 0 if they are no reason to change the worker's task.

        There is no reason if there were fewer than ``least`` losses, or if one other worker had all
        of them.
        """
        workers = self._losses.get(loss, [])
        is_proof = worker in workers or len(set(workers)) > 1
        return len(workers) if is_proof and len(workers) >= least else 0


def _question(task: Address, mini_task: MiniTask) -> Question:
    """Return a key of the result of a mini-task; mini-tasks with equal results have equal keys."""
    round, worker, _ = task
    own = (round, worker, mini_task.slot)
    return mini_task.job, *(own if mini_task.cover is None else (mini_task.cover, mini_task.place))


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
