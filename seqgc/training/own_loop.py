"""Gradients from workers for a training loop that the user writes: `gradients`.

Each job has three steps. The weights of the user's modules are published for the workers. The
workers compute and the master decodes the gradient, as in any run. Then torch adds the gradient to
``p.grad``, as a backward pass does. The user's optimizer changes the weights before the next job.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, cast, get_args
from warnings import warn

import numpy as np
import torch
from torch import Tensor, nn

from seqgc import master, ports
from seqgc._durable import temporary_folder
from seqgc._tabular import Summarised
from seqgc.errors import ParameterError, ScheduleError, require_int, require_number
from seqgc.models.datasets import AugmentedDataset, PointDataset, require_points
from seqgc.models.dropout import dropout_layers
from seqgc.models.losses import Loss
from seqgc.models.model import Model, ParameterVector
from seqgc.models.precision import Autocast, Precision, torch_dtype
from seqgc.ports import (
    Decoding,
    FloatArray,
    IntArray,
    MiniTask,
    Observer,
    Payload,
    ResultForm,
    WeightedPoints,
    WeightStore,
)
from seqgc.rounds import ClosingRule, PausedPolicy, PolicyDefence, policy_of
from seqgc.runs import LOG
from seqgc.runs.folder import EventLog, require_new
from seqgc.schemes import Defence, parse_scheme
from seqgc.training.copied import CopiedData, CopiedState
from seqgc.training.jobs import Share
from seqgc.training.plan import PlannedRun, TrainingPlan
from seqgc.training.published import PublishedWeights
from seqgc.training.results import RunCounts
from seqgc.training.run import started, weight_store
from seqgc.training.work import Workers
from seqgc.training.workload import joined_form, split_results, try_models

__all__ = ["Gradients", "gradients"]

_MOST_JOBS: Final = 2**31 - 1  # the log has no larger number of a job
_REMEDY: Final = "undo the change before the call, or close these gradients and create new ones"
_NO_OPTIMIZER: Final = partial(torch.optim.SGD, lr=0.0)  # a `Model` must have one


class _OwnModel:
    """One of the user's modules, whose weights the user's code changes between two jobs.

    The copies of the module on the workers get new weights only. Therefore everything else that the
    gradient depends on must stay as it is: `require_unchanged`.
    """

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        self.model: Final = model
        self.dtype: Final = dtype
        self.parameters: Final = ParameterVector(model.module)
        self.layout: Final = self.parameters.layout
        self.changes = 0
        self._weights = self.parameters.read()
        self._trained: Final = self._trained_kinds()
        self._modes: Final = self._training_modes()
        self._fixed: Final = {name: t.detach().clone() for name, t in self._fixed_tensors()}
        self._state: Final = CopiedState(model.module)

    def read(self) -> None:
        """Read the weights that the module has now."""
        weights = self.parameters.read()
        if not np.array_equal(weights, self._weights, equal_nan=True):
            self._weights, self.changes = weights, self.changes + 1

    def vector(self) -> FloatArray:
        return self._weights

    def move_to(self, vector: Tensor) -> None:
        """Do nothing: the memory of the user's parameters stays where it is."""

    def move_out(self) -> None:
        """Do nothing, as `move_to` does."""

    def is_in(self, vector: Tensor) -> bool:  # noqa: ARG002 (see `move_to`)
        return False

    def add_gradient(self, gradient: FloatArray, received: Sequence[bool], *, scale: float) -> None:
        """Add ``scale`` times a gradient (P,) to the parameters' ``grad``, as `torch` does it."""
        tensors = self.parameters.tensors
        vector = torch.from_numpy(gradient if scale == 1 else gradient * gradient.dtype.type(scale))
        pieces = vector.split_with_sizes([p.numel() for p in tensors])
        pairs = [
            (p, piece.view(p.shape))
            for p, piece, has_gradient in zip(tensors, pieces, received, strict=True)
            if has_gradient
        ]
        torch.autograd.backward([p for p, _ in pairs], [piece for _, piece in pairs])

    def require_unchanged(self) -> None:
        """Raise `ParameterError` if the module is not the one that the workers have a copy of."""
        if self._trained_kinds() != self._trained:
            rule = "must train the same parameters as at the beginning, of the same shape and dtype"
            self._refuse(rule, "its parameters")
        if self._training_modes() != self._modes:
            name = next(
                name
                for name, part in self.model.module.named_modules()
                if part.training != self._modes.get(name)
            )
            rule = "must be in the mode (train or eval) that it had at the beginning"
            self._refuse(rule, f"submodule {name!r}" if name else "the module")
        for name, tensor in self._fixed_tensors():
            before = self._fixed.get(name)
            if before is None or not torch.equal(tensor, before):
                rule = "must keep its buffers and frozen parameters, which workers have a copy of"
                self._refuse(rule, name)
        if change := self._state.change():
            self._refuse("must be as at the beginning: workers have a copy of it", change)

    def _refuse(self, rule: str, what: str) -> None:
        got = f"{what} of model {self.model.name!r} changed"
        raise ParameterError("model", rule, got, _REMEDY)

    def _trained_kinds(self) -> list[tuple[int, torch.dtype, torch.Size]]:
        trained = [p for p in self.model.module.parameters() if p.requires_grad]
        return [(id(p), p.dtype, p.shape) for p in trained]

    def _training_modes(self) -> dict[str, bool]:
        return {name: part.training for name, part in self.model.module.named_modules()}

    def _fixed_tensors(self) -> list[tuple[str, Tensor]]:
        module = self.model.module
        frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
        return [*frozen, *module.named_buffers()]


class _GivenWorkload:
    """A `seqgc.ports.Workload` whose jobs are batches that the caller gives one by one."""

    def __init__(
        self,
        models: Sequence[_OwnModel],
        defence: Defence,
        *,
        store: WeightStore,
        precision: Precision,
    ) -> None:
        self.models: Final = tuple(models)
        self._defence: Final = defence
        self._published: Final = PublishedWeights(models, store=store)
        self._points: IntArray = np.zeros(0, dtype=np.intp)
        self._shares: tuple[Share, ...] = ()
        self._job = -1
        self._parts: dict[int, FloatArray] = {}
        self.form: Final = joined_form([each.layout for each in models], precision)

    def give(self, points: IntArray) -> None:
        """Set the batch (m,) of the next job, with the present weights of the modules."""
        for each in self.models:
            each.read()
        self._points = points

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (each job ends before the next)
        return False

    def begin(self, job: int) -> None:
        weights = self._published.publish()
        self._published.keep({weights})
        cut, self._job, self._parts = self._defence.cut(len(self._points)), job, {}
        self._shares = tuple(
            Share(
                model=each.model.name,
                weights=weights,
                span=span,
                points=self._points,
                starts=np.concatenate([[0], np.cumsum(cut)]).astype(np.intp),
                batch_size=len(self._points),
                pieces=each.layout.pieces,
            )
            for each, span in zip(self.models, self._published.spans, strict=True)
        )

    def result_form(self, job: int) -> ResultForm:  # noqa: ARG002 (the same for all jobs)
        return self.form

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        if mini_task.job != self._job:
            raise ScheduleError(
                f"job {mini_task.job} is not in flight: the last one is {self._job}"
            )
        return tuple(
            share.resolve(mini_task.chunks, mini_task.coefficients) for share in self._shares
        )

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        self._parts[0 if decoding.part is None else decoding.part.index] = gradient

    def add_gradients(self, *, scale: float) -> list[float]:
        """Add the job's gradients to the parameters' ``grad``; return each model's mean loss."""
        total = self._parts[0]
        for index in range(1, len(self._parts)):  # in a fixed order, so that the bits are the same
            total = total + self._parts[index]
        results = split_results([each.layout for each in self.models], total)
        for each, result in zip(self.models, results, strict=True):
            each.add_gradient(result.gradient, result.received.tolist(), scale=scale)
        return [result.sums.mean for result in results]

    def discard_weights(self) -> None:
        self._published.keep(set())


class Gradients(Summarised):
    """The gradients that `gradients` returns. Leaving the ``with`` block ends the workers."""

    def __init__(
        self,
        run: PlannedRun,
        workers: Workers,
        *,
        loss: object,
        single: bool,
        folder: Path | None,
        observers: Sequence[Observer],
    ) -> None:
        self.counts: Final = RunCounts()
        """The numbers of rounds, stragglers and failures so far."""
        self._run, self._single = run, single
        self._job = self._round = 0
        self._policy: PausedPolicy | None = None
        plan = run.plan
        with ExitStack() as stack:
            if folder is None:
                path = stack.enter_context(temporary_folder("seqgc-gradients-"))
            else:
                (path := folder).mkdir(parents=True)
                observers = [*observers, stack.enter_context(closing(EventLog(path / LOG)))]
            work = run.work(path)
            workers.check(work)
            for text in run.shortcomings():
                warn(text, stacklevel=4)
            crew = stack.enter_context(workers.open(work))
            store, retires = stack.enter_context(weight_store(crew, rounds=0))
            self._observe = partial(_tell_all, [*retires, *observers, self.counts])
            dtype = torch_dtype(plan.precision)
            models = [_OwnModel(model, dtype) for model in plan.models]
            data = CopiedData(plan.models[0].dataset, dtype)
            self._copies: dict[str, CopiedState | CopiedData]
            self._copies = {"loss": CopiedState(loss), "data": data}
            self._workload = _GivenWorkload(
                models, run.setting.scheme, store=store, precision=plan.precision
            )
            stack.callback(self._workload.discard_weights)
            self._backend = stack.enter_context(started(crew, workers, observers=[self._observe]))
            header = run.header(jobs=1, provider=workers.provider)
            header["batch"] = None  # it differs from call to call
            self._observe(ports.Notice(kind="run", fields=header))
            ended = ports.Notice(kind="end", fields={"outcome": "finished"})
            stack.callback(self._observe, ended)
            # Workers end with this process, too, if the user forgets `close`.
            self._end: Callable[[], object] = weakref.finalize(self, stack.pop_all().close)

    def summary(self) -> dict[str, object]:
        setting = self._run.setting
        return {
            "scheme": setting.scheme.spec,
            "workers": setting.scheme.n,
            "rounds": self.counts.rounds,
            "stragglers": self.counts.stragglers,
            "failures": self.counts.failures,
        }

    def backward(self, indices: Any, *, scale: float = 1.0) -> Tensor | list[Tensor]:
        """Add the gradient of the mean loss over some data points to ``p.grad``.

        This does the same as ``(scale * loss(model(x), y)).backward()`` for the batch of these
        points, with a loss that is a mean over the points. Parameters that the loss does not use,
        and frozen ones, get no gradient.

        ``indices`` (m,) are the indices of the points, as a list, array or tensor of integers; a
        point may occur several times. If the data are an `AugmentedDataset`, or the model has
        `Dropout` layers, item ``i`` in epoch ``e`` has the index ``e * len(data) + i``. If
        gradients of several batches are accumulated, ``scale`` is the weight of the batch.

        Return the mean loss of the batch, a tensor (), which is not multiplied by ``scale``. For
        several models, return a list.

        Raises
        ------
        ParameterError
            If the indices are wrong, or if the loss, the data, or anything in the model except the
            values of its trained parameters has changed since the workers got their copies.
        ModelError
            If the model's code raises an error on two workers, or a result is not finite.
        WorkerError
            If the workers cannot complete the round. ``backward`` may be called again.
        """
        points = self._points(indices)
        require_number("scale", scale)
        if torch.is_autocast_enabled("cpu") and self._run.plan.models[0].autocast == "off":
            rule = "must be given to gradients(): torch.autocast has no effect on workers"
            remedy = "pass autocast='bfloat16' to gradients(), or call backward outside of autocast"
            raise ParameterError("autocast", rule, "off", remedy)
        for each in self._workload.models:
            each.require_unchanged()
        for argument, copied in self._copies.items():
            if change := copied.change():
                rule = "must be as at the beginning: workers have a copy of it"
                raise ParameterError(argument, rule, f"{change} changed", _REMEDY)
        self._workload.give(points)
        if self._policy is None:
            self._policy = self._new_policy()
        try:
            self._policy.allow(self._job)
            expelled = frozenset(self.counts.expelled)
            held = master.Held(begun=self._job, jobs=(), expelled=expelled)
            limit = self._run.plan.max_norm
            master.run(
                self._policy,
                self._backend,
                self._workload,
                observe=self._observe,
                held=held,
                max_norm=np.inf if limit is None else limit,
            )
        except BaseException:
            self._abandon(self._policy)
            raise
        self._job += 1
        losses = [torch.tensor(loss, dtype=each.dtype) for loss, each in self._losses(scale)]
        return losses[0] if self._single else losses

    def close(self) -> None:
        """End the workers. Closing again does nothing."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _losses(self, scale: float) -> list[tuple[float, _OwnModel]]:
        losses = self._workload.add_gradients(scale=scale)
        return list(zip(losses, self._workload.models, strict=True))

    def _points(self, indices: Any) -> IntArray:
        if not self._end.alive:  # type: ignore[attr-defined]
            raise ParameterError("gradients", "must be open", "closed", "create new ones")
        points = np.asarray(indices)
        if points.ndim != 1 or not len(points) or points.dtype.kind not in "iu":
            got = f"an array of shape {points.shape} of {points.dtype}"
            raise ParameterError("indices", "must be integers (m,), at least one", got)
        model = self._run.plan.models[0]
        if len(points) > model.batch_size:
            rule = f"must be at most {model.batch_size}, the batch_size of these gradients"
            raise ParameterError("indices", rule, len(points))
        by_epoch = isinstance(model.dataset, AugmentedDataset) or any(
            dropout_layers(each.module) for each in self._run.plan.models
        )
        least, most = int(points.min()), int(points.max())
        size = len(model.dataset)
        if least < 0 or (most >= size and not by_epoch):
            rule = f"must be at least 0 and below {size}, the number of data points"
            raise ParameterError("indices", rule, least if least < 0 else most)
        points = points.astype(np.intp)
        points.setflags(write=False)
        return points

    def _new_policy(self) -> PausedPolicy:
        sizes = [model.batch_size for model in self._run.plan.models]
        policy = policy_of(
            self._run.setting,
            num_jobs=_MOST_JOBS,
            batches=sizes,
            payload=self._run.plan.payload,
        )
        if self._round:
            cast("Any", policy).skip_to(self._job, round=self._round)
        return PausedPolicy(policy, first_job=self._job)

    def _abandon(self, policy: PausedPolicy) -> None:
        """Forget an unfinished job, so that the next call begins with a new round."""
        self._policy = None
        everyone = range(self._run.setting.scheme.n)
        self._job, self._round = self._job + 1, policy.rounds + 1
        with suppress(Exception):  # the first error matters more
            self._backend.cancel(self._round - 1, everyone)


def gradients(
    model: nn.Module | Sequence[nn.Module],
    loss: Loss | str,
    data: PointDataset,
    *,
    workers: Workers,
    scheme: str | Defence,
    rule: ClosingRule | None = None,
    batch_size: int | None = None,
    payload: Payload | None = None,
    autocast: Autocast = "off",
    seed: int = 0,
    run: str | Path | None = None,
    observers: Sequence[Observer] = (),
) -> Gradients:
    """Let workers compute the gradients of a PyTorch loop of your own.

    The workers get a copy of the model, the loss and the data, and start at once. Each call of
    `Gradients.backward` is a job: the workers read the parameters that the model has then, and the
    decoded gradient is added to ``p.grad``. Optimizer, schedule and clipping remain in your loop.

    Parameters
    ----------
    model
        The module that your optimizer trains, on the CPU, with parameters of float32 or float64. Or
        a list of modules, whose gradients for the same points are computed in one job.
    loss
        As for a `Model`: a torch loss that computes a mean, or a function
        ``(output, target) -> values`` with one value for each point.
    data
        A map-style dataset: ``data[i]`` is ``(x, y)``, the same on every read. The module is called
        with ``x``.
    workers, scheme, rule, payload, autocast, observers
        As for `TrainingPlan`, `Model` and `train`. The scheme must give an exact gradient before
        the next job begins.
    batch_size
        The largest number of points in a call. The default is ``len(data)``.
    seed
        The seed of the masks of `Dropout` layers.
    run
        A new folder for the log of the rounds, which `seqgc.read_run` and ``seqgc report`` read.
        Workers on other machines must be able to read it. By default no log is kept.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or the model's gradient is not a sum over points. Also if
        the scheme's gradients are approximate, late, or computed on older weights.

    Examples
    --------
    >>> import torch
    >>> from seqgc import gradients, workers
    >>> from seqgc.training import digits, make_module
    >>> model, (data, _) = make_module("mlp", seed=0), digits()
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loss = torch.nn.CrossEntropyLoss()
    >>> with (
    ...     workers.local(2) as w,
    ...     gradients(model, loss, data, workers=w, scheme="gc-rep:s=1") as g,
    ... ):
    ...     for start in (0, 64, 128):
    ...         optimizer.zero_grad()
    ...         value = g.backward(range(start, start + 64))
    ...         optimizer.step()
    >>> value.shape, g.counts.rounds
    (torch.Size([]), 3)
    """
    single = isinstance(model, nn.Module)
    modules = [model] if isinstance(model, nn.Module) else list(model)
    require_points("data", data)
    size = len(data) if batch_size is None else require_int("batch_size", batch_size, least=1)
    models = [
        Model(
            name="model" if single else f"model-{number}",
            module=module,
            loss=loss,
            dataset=data,
            optimizer=_NO_OPTIMIZER,
            batch_size=size,
            seed=seed,
            autocast=autocast,
        )
        for number, module in enumerate(modules)
    ]
    if not models:
        raise ParameterError("model", "must be a module, or a list of at least one", model)
    precision = _require_cpu(models)
    plan = TrainingPlan(
        models=models,
        scheme=_require_at_once(scheme, n=workers.n),
        steps=1,
        rule=rule,
        jobs_per_round=len(models),
        precision=precision,
        payload=payload,
    )
    planned = plan.on(workers.n)
    folder = None if run is None else Path(run)
    if folder is not None:
        require_new(folder)
    try_models(models, precision=precision)
    return Gradients(planned, workers, loss=loss, single=single, folder=folder, observers=observers)


def _require_at_once(scheme: str | Defence, *, n: int) -> Defence:
    """Return the defence; raise `ParameterError` unless a job's gradient is complete at its end."""
    defence = parse_scheme(scheme, n=n) if isinstance(scheme, str) else scheme
    rule, remedy = "", "take gc-rep:s=1, or deal if your workers stay"
    if defence.delay:
        rule = f"must give a gradient at once; that of {defence.spec} comes {defence.delay} rounds "
        rule += "later"
        remedy += f"; or train several models by seqgc.train, which {defence.spec} is made for"
    elif defence.kind != "exact":
        rule = f"must be exact; gradients are {defence.kind} with {defence.spec}"
        remedy += "; or use seqgc.train"
    elif isinstance(defence, PolicyDefence) and defence.jobs_per_task > 1:
        rule = f"must compute one job at a time; a task of {defence.spec} has several"
    if rule:
        raise ParameterError("scheme", rule, defence.spec, remedy)
    return defence


def _require_cpu(models: Sequence[Model]) -> Precision:
    """Return the precision of the parameters, which must be the same for all, on the CPU."""
    tensors = [p for model in models for p in ParameterVector(model.module).tensors]
    for tensor in tensors:
        if tensor.device.type != "cpu":
            rule, remedy = "must be on the CPU, where the workers compute", "call model.cpu()"
            raise ParameterError("model", rule, str(tensor.device), remedy)
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
    if len(kinds) != 1 or kinds[0] not in get_args(Precision):
        rule = f"must have parameters of one dtype: {' or '.join(get_args(Precision))}"
        raise ParameterError("model", rule, ", ".join(kinds), "call model.float()")
    return cast("Precision", kinds[0])


def _tell_all(observers: Sequence[Observer], seen: ports.Seen) -> None:
    for observer in observers:
        observer(seen)
