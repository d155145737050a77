"""A pipeline of processes on this machine: 1F1B with weight stashing over gloo.

Each process trains one stage. It makes the passes of `one_f_one_b` in order; activations go to the
next stage and gradients to the stage before, in the order of the minibatches. Every
``checkpoint_every`` minibatches a stage writes a checkpoint without waiting for the other stages
(`StageTrainer`). If a process ends, all end, and the run can be continued from the last minibatch
for which every stage has a checkpoint, to the same bits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final, cast

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from torch import distributed as dist

from seqgc._durable import replacing
from seqgc._fault import fault_of
from seqgc.backends import follow_master, fork_process, start_fork_server
from seqgc.errors import DamageError, ParameterError, WorkerError, require_int, require_number
from seqgc.models.provenance import differences
from seqgc.pipeline.chain import Chain
from seqgc.pipeline.network import Network, profiled_network
from seqgc.pipeline.planner import PlannedStage, require_cover, require_straight
from seqgc.pipeline.stage import StageTrainer, weights_in
from seqgc.pipeline.timetable import one_f_one_b
from seqgc.runs.packing import pack, unpack

_SETTINGS: Final = "pipeline.json"
_WEIGHTS: Final = "weights.safetensors"
_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MOST_AXES: Final = 8
_GRACE_S = 5.0
_MESSAGE_S = 3600.0  # a stage waits as long for a message; the end of a process shows at once


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """The settings of a run; its results depend on nothing else.

    Parameters
    ----------
    chain
        The profile of the network, which names it.
    stages
        The stages, each on one worker.
    minibatches
        Number of minibatches.
    optimizer, lr
        Name of a class of torch.optim, and its learning rate. Each stage has its own optimizer.
    vertical_sync
        If true, a minibatch uses the same version of the weights in all stages.
    precision
        Number format of weights and activations: ``float32`` or ``float64``.
    checkpoint_every
        Number of minibatches between two checkpoints of a stage.
    """

    chain: Chain
    stages: tuple[PlannedStage, ...]
    minibatches: int = 100
    optimizer: str = "SGD"
    lr: float = 0.05
    vertical_sync: bool = False
    precision: str = "float32"
    checkpoint_every: int = 50

    def __post_init__(self) -> None:
        require_cover(self.stages, self.chain)
        require_straight(self.stages)
        require_int("minibatches", self.minibatches, least=1)
        require_int("checkpoint_every", self.checkpoint_every, least=1)
        require_number("lr", self.lr, above=0)
        if self.precision not in ("float32", "float64"):
            raise ParameterError("precision", "must be float32 or float64", self.precision)

    def network(self) -> Network:
        """Return a new network, or raise `ParameterError` if its layers have changed."""
        return profiled_network(self.chain, dtype=getattr(torch, self.precision))

    def trainer(self, network: Network, index: int) -> StageTrainer:
        """Return the trainer of one stage."""
        return StageTrainer(
            network,
            self.stages,
            index,
            optimizer=getattr(torch.optim, self.optimizer),
            lr=self.lr,
            vertical_sync=self.vertical_sync,
        )


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The losses of all minibatches, the versions that each stage held, and the weights' file."""

    losses: tuple[float, ...]
    versions_held: tuple[int, ...]
    weights: Path


def run_pipeline(run: PipelineRun, folder: Path, *, or_resume: bool = False) -> PipelineResult:
    """Train a network with one process for each stage, and write its weights into ``folder``.

    With ``or_resume``, an existing run with these settings continues; it may have been given more
    minibatches.

    Raises
    ------
    ParameterError
        If the folder exists and ``or_resume`` is false, or if it is the folder of another run.
    WorkerError
        If a process ends or fails. The run can be continued.
    """
    folder = folder.absolute()
    network = run.network()  # raise errors of the user's modules before the folder is made
    _claim(run, network, folder, or_resume=or_resume)
    start = _last_common(folder, len(run.stages))
    store = folder / f"rendezvous-{os.urandom(6).hex()}"
    # The first optimizer of a process imports torch._dynamo, which takes a second.
    start_fork_server(["seqgc.pipeline.running", "torch._dynamo"])
    processes: list[ForkServerProcess] = []
    messages: list[Connection] = []
    try:
        for index in range(len(run.stages)):
            ours, theirs = Pipe(duplex=False)
            messages.append(ours)
            with theirs:
                arguments = run, index, folder, start, store, theirs
                name = f"seqgc-stage-{index + 1}"
                processes.append(fork_process(_main, arguments, name=name))
        _await_end(processes, messages)
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
        for each in messages:
            each.close()
        store.unlink(missing_ok=True)
    return _result(run, folder)


def _await_end(processes: Sequence[ForkServerProcess], messages: Sequence[Connection]) -> None:
    """Wait until every process has ended; raise `WorkerError` with the cause if one has failed."""
    running = {process.sentinel: process for process in processes}
    timeout_s = None
    while running and (ended := wait(list(running), timeout_s)):
        for sentinel in ended:
            process = running.pop(cast("int", sentinel))
            process.join()
            if process.exitcode != 0:
                timeout_s = _GRACE_S  # for the other stages, which lose their neighbour
    for stage, (process, message) in enumerate(zip(processes, messages, strict=True), 1):
        if process.exitcode is not None and process.exitcode < 0:
            raise WorkerError(f"stage {stage} was killed by signal {-process.exitcode}")
        if message.poll():
            with suppress(EOFError):
                raise WorkerError(f"stage {stage}: {message.recv()}")
    if failed := [at for at, each in enumerate(processes, 1) if each.exitcode != 0]:
        raise WorkerError(f"stage {failed[0]} lost its connection to another stage")


# ---- the folder of a run -------------------------------------------------------------------------


def _claim(run: PipelineRun, network: Network, folder: Path, *, or_resume: bool) -> None:
    """Make the folder and write the settings, or check that it has the same settings."""
    settings = {
        **asdict(run),
        "chain": {
            "source": asdict(run.chain)["source"],
            "layers": [layer.name for layer in run.chain.layers],
        },
        "stages": ",".join(map(str, run.stages)),
        "code": network.fingerprint(),
    }
    path = folder / _SETTINGS
    if not folder.exists():
        folder.mkdir(parents=True)
    elif not or_resume:
        rule = "must not exist: a run never overwrites another"
        raise ParameterError("run", rule, str(folder), "continue it with --or-resume")
    elif not path.exists():
        raise ParameterError("run", f"must be the folder of a run, with {_SETTINGS}", str(folder))
    else:
        known = json.loads(path.read_text("utf-8"))
        for name in settings.keys() - {"minibatches", "checkpoint_every", "code"}:
            if known.get(name) != settings[name]:
                rule = f"must be {known.get(name)!r}, as in the run that continues"
                raise ParameterError(name, rule, settings[name])
        if skew := differences(known["code"], network.fingerprint(), words=("run", "now")):
            rule = "must have the code and data of the run that continues"
            raise ParameterError(
                "run", rule, "; ".join(skew), "undo the change, or begin a new run"
            )
        if run.minibatches < known["minibatches"]:
            rule = f"must be at least {known['minibatches']}, as in the run that continues"
            raise ParameterError("minibatches", rule, run.minibatches)
    with replacing(path) as file:
        file.write((json.dumps(settings, indent=1) + "\n").encode())


def _checkpoints(folder: Path, index: int) -> dict[int, Path]:
    """Return the checkpoints of a stage by the number of their minibatches."""
    paths = folder.glob(f"stage-{index + 1}-*.safetensors")
    return {int(path.stem.rpartition("-")[2]): path for path in paths}


def _checkpoint_path(folder: Path, index: int, minibatches: int) -> Path:
    return folder / f"stage-{index + 1}-{minibatches:08d}.safetensors"


def _last_common(folder: Path, stages: int) -> int:
    """Return the last number of minibatches for which all stages have a checkpoint, or 0."""
    found = [set(_checkpoints(folder, index)) for index in range(stages)]
    return max(set.intersection(*found), default=0)


def _read(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            state = json.loads(file.metadata()["state"])
        checkpoint = cast("dict[str, Any]", unpack(state, tensors))
    except Exception as error:
        raise DamageError(f"the checkpoint {path} is damaged: {fault_of(error)}") from None
    return checkpoint


def _result(run: PipelineRun, folder: Path) -> PipelineResult:
    weights: dict[str, Tensor] = {}
    held = []
    losses: list[float] = []
    for index in range(len(run.stages)):
        checkpoint = _read(_checkpoint_path(folder, index, run.minibatches))
        weights |= weights_in(checkpoint)
        held.append(len(checkpoint["versions"]))
        losses = checkpoint["losses"]
    state = run.network().state_with(weights)
    path = folder / _WEIGHTS
    with replacing(path) as file:
        file.write(save(state))
    return PipelineResult(tuple(losses), tuple(held), path)


# ---- the process of a stage ----------------------------------------------------------------------


class _LostError(Exception):
    """A neighbouring stage has ended."""


class _Neighbours:
    """The messages to and from the stages before and after this one."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._sent: list[tuple[dist.Work, Tensor]] = []  # a tensor must live until it has been sent

    def send_output(self, minibatch: int, version: int, output: Tensor) -> None:
        """Send the output of a minibatch, with its version of the weights, to the next stage."""
        shape = [*output.shape, *[0] * (_MOST_AXES - output.ndim)]
        kind = _DTYPES.index(output.dtype)
        self._send(torch.tensor([minibatch, version, kind, output.ndim, *shape]), self._index + 1)
        self._send(output.contiguous(), self._index + 1)

    def receive_output(self, minibatch: int) -> tuple[Tensor, int]:
        """Return the output of the stage before, and the version that its minibatch uses."""
        header = torch.zeros(4 + _MOST_AXES, dtype=torch.int64)
        self._receive(header, self._index - 1)
        number, version, kind, axes, *shape = header.tolist()
        assert number == minibatch, (number, minibatch)
        value = torch.empty(shape[:axes], dtype=_DTYPES[kind])
        self._receive(value, self._index - 1)
        return value, version

    def send_gradient(self, gradient: Tensor) -> None:
        self._send(gradient.contiguous(), self._index - 1)

    def receive_gradient(self, gradient: Tensor) -> Tensor:
        """Return the gradient of an output of this stage, which is written into ``gradient``."""
        self._receive(gradient, self._index + 1)
        return gradient

    def finish(self) -> None:
        """Wait until everything has been sent and all stages are done."""
        try:
            for work, _ in self._sent:
                work.wait()
        except RuntimeError as error:
            raise _LostError from error
        with suppress(RuntimeError):  # another stage has left the barrier, so that all had entered
            dist.barrier()

    def _send(self, tensor: Tensor, to: int) -> None:
        try:
            work = dist.isend(tensor, to)
        except RuntimeError as error:
            raise _LostError from error
        assert work is not None
        self._sent = [each for each in self._sent if not each[0].is_completed()]
        self._sent.append((work, tensor))

    def _receive(self, tensor: Tensor, source: int) -> None:
        try:
            dist.recv(tensor, source)
        except RuntimeError as error:
            raise _LostError from error


def _main(
    run: PipelineRun, index: int, folder: Path, start: int, store: Path, messages: Connection
) -> None:
    """Train one stage; this is the main function of a process."""
    follow_master()
    torch.set_num_threads(1)  # as in `simulate_delayed`: the last bits depend on it
    try:
        network = run.network()
        trainer = run.trainer(network, index)
        if start:
            trainer.restore(_read(_checkpoint_path(folder, index, start)))
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=index,
                world_size=len(run.stages),
                timeout=timedelta(seconds=_MESSAGE_S),
            )
        except RuntimeError as error:
            raise _LostError from error
        _train(run, network, trainer, index, folder, start)
        dist.destroy_process_group()
    except _LostError:
        os._exit(1)  # another stage reports the cause
    except BaseException as error:
        messages.send(fault_of(error))
        os._exit(1)


def _train(
    run: PipelineRun, network: Network, trainer: StageTrainer, index: int, folder: Path, start: int
) -> None:
    neighbours = _Neighbours(index)
    passes = one_f_one_b(range(start, run.minibatches), in_flight=len(run.stages) - index)
    for kind, minibatch in passes:
        if kind == "forward":
            version = trainer.version_of(minibatch)
            if index == 0 or trainer.is_last:
                value, target = network.minibatch(minibatch)
            if index > 0:
                value, sent = neighbours.receive_output(minibatch)
                version = sent if run.vertical_sync else version
            output = trainer.forward(
                minibatch, value, target if trainer.is_last else None, version=version
            )
            if not trainer.is_last:
                neighbours.send_output(minibatch, version, output)
            continue
        gradient = None
        if not trainer.is_last:
            gradient = neighbours.receive_gradient(trainer.empty_gradient(minibatch))
        back = trainer.backward(minibatch, gradient)
        if index > 0:
            neighbours.send_gradient(back)
        if trainer.version % run.checkpoint_every == 0 or trainer.version == run.minibatches:
            _write(run, trainer, index, folder)
    neighbours.finish()


def _write(run: PipelineRun, trainer: StageTrainer, index: int, folder: Path) -> None:
    """Write a checkpoint, and remove the checkpoints that no stage needs any more."""
    with replacing(_checkpoint_path(folder, index, trainer.version)) as file:
        tensors: dict[str, Tensor] = {}
        state = json.dumps(pack(trainer.checkpoint(), tensors, name="stage"))
        file.write(save(tensors, metadata={"state": state}))
    paths = _checkpoints(folder, index)
    common = trainer.version - len(run.stages)  # every stage has written its checkpoints up to here
    needed = max((each for each in paths if each <= common), default=0)
    for minibatches, path in paths.items():
        if minibatches < needed:
            path.unlink(missing_ok=True)
