"""Signals that end a run wait until no step is half done."""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import cast

from seqgc import master, ports
from seqgc.control import Controlled
from seqgc.errors import (
    AuditError,
    BudgetError,
    CallbackError,
    ModelError,
    ParameterError,
    ScheduleError,
    StoreError,
    one_line,
)
from seqgc.rounds import PolicyDefence, num_rounds
from seqgc.runs.checkpoints import save_states
from seqgc.runs.folder import EventLog, Forgiving, RunDirectory
from seqgc.runs.metrics import MetricsLog
from seqgc.runs.packing import pack_held, unpack_held
from seqgc.runs.snapshots import Snapshot, SnapshotFolder
from seqgc.schemes import Deal
from seqgc.training.adaptive import Switch
from seqgc.training.callbacks import Validated
from seqgc.training.checkpointer import Checkpointer, RandomState, RunSnapshot, RunState
from seqgc.training.history import Recorder
from seqgc.training.plan import PlannedRun
from seqgc.training.results import RunCounts
from seqgc.training.strategies import ControlledStrategy, PolicyStrategy, SchemeStrategy, Strategy
from seqgc.training.tuner import Answer, Tuner
from seqgc.training.workload import FLIGHT, ModelsWorkload, TorchWorkload

__all__ = ["Interrupts", "Session"]

_Handler = Callable[[int, FrameType | None], object]


class Interrupts:
    """A gate for SIGINT, SIGTERM and SIGHUP: a signal waits for `admit`, a second one does not.

    A second SIGHUP waits too: a shell and the system both send one when a terminal is closed.
    Signals that have no handler in Python are left alone.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, _Handler] = {}
        self._waiting: list[tuple[int, FrameType | None]] = []
        self.admitted = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Make signals wait in this block; drop those that still wait at its end."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._take)
        try:
            yield
        finally:
            for each, handler in self._handlers.items():
                if signal.getsignal(each) == self._take:  # unless the handler chose another one
                    signal.signal(each, handler)

    def admit(self) -> None:
        """Deliver the signals that wait, and from now on each at once."""
        self.admitted = True
        while self._waiting:
            self._deliver(*self._waiting.pop(0))

    def hold(self) -> None:
        """Make signals wait again."""
        self.admitted = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.admitted or (self._waiting and number != signal.SIGHUP):
            self._deliver(number, frame)
        else:
            self._waiting.append((number, frame))

    def _deliver(self, number: int, frame: FrameType | None) -> None:
        self._handlers[number](number, frame)


class Session:
    """One pass of the loop, with everything about it on record.

    ``run`` says how the run begins; ``switches`` is appended to as it takes other settings, which
    a ``tuner`` finds if the plan says so. ``recorder`` knows the rounds that are over already, and
    ``snapshot`` is where to go on from.
    """

    def __init__(
        self,
        workload: ModelsWorkload,
        *,
        run: PlannedRun,
        switches: list[Switch],
        tuner: Tuner | None,
        observers: Sequence[ports.Observer],
        recorder: Recorder,
        snapshot: RunSnapshot | None = None,
    ) -> None:
        self.counts = RunCounts() if snapshot is None else snapshot.state.counts
        self._workload, self._run = workload, run
        self._recorder, self._snapshot = recorder, snapshot
        self._observers: tuple[ports.Observer, ...]
        self._observers = (*observers, recorder, self._follow, self.counts)
        self._hold: master.Holding | None = None
        self._interrupts = Interrupts()
        self._whole = False
        self._told: int | None = None  # the checkpoint of which callbacks have been told
        self._parked: set[str] = set()  # models, of which the observers have been told
        self._unremoved = ""  # weights, of which they have been told
        self._began = 0.0
        self._strategy: Strategy
        scheme = run.setting.scheme
        if isinstance(scheme, Controlled):
            whole = cast("TorchWorkload", workload)  # as `PlannedRun.workload` has made it
            self._strategy = ControlledStrategy(whole, scheme, run=run)
        elif isinstance(scheme, PolicyDefence):
            self._strategy = PolicyStrategy(workload, scheme, run=run)
        else:
            self._strategy = SchemeStrategy(
                cast("TorchWorkload", workload),
                run=run,
                switches=switches,
                tuner=tuner,
                recorder=recorder,
                closing=self._begin_step,
                tell=self._tell,
            )

    @property
    def answers(self) -> Sequence[Answer]:
        """What the searches for a better setting have come to."""
        return self._strategy.answers

    def run(
        self, backend: ports.Backend, directory: RunDirectory, *, warnings: Sequence[str] = ()
    ) -> float:
        """Drive the loop to its end, whatever it is; return its seconds, all masters' together.

        The ``warnings`` are told first.
        """
        self._directory = directory
        path, before, warnings = directory.path, self._snapshot, list(warnings)
        held = self._go_on(warnings)
        self._recorder.go_on()  # not if the checkpoint does not fit: then it is what it was
        number, since = self._recorder.master, None if before is None else before.rounds
        lost, root = self._recorder.lease.lost, directory.checkpoints
        snapshots = SnapshotFolder(root, RunState, master=number, since=since, lost=lost)
        with ExitStack() as stack:
            stack.enter_context(self._interrupts.deferred())
            events = stack.enter_context(closing(EventLog(path / "events.jsonl")))
            self._metrics = MetricsLog(
                path / "metrics.csv",
                metrics=self._workload.take_metrics,
                before=None if before is None else before.state.metrics,
                warn=warnings.append,
                unwritten=() if before is None else before.state.unwritten,
            )
            stack.enter_context(closing(self._metrics))
            later = "is tried again with the next checkpoint, and at the end"
            losses = Forgiving(self._metrics, warn=self.warn, then=later)
            self._observers += (Forgiving(events, warn=self.warn), losses)
            self._observers += tuple(self._strategy.observers)
            self._checkpoints = Checkpointer(
                snapshots,
                every_s=self._run.plan.checkpoint_every_s,
                warn=self.warn,
            )
            stack.enter_context(closing(self._checkpoints))
            self._tell("run" if self._recorder.master == 1 else "resume", self._header())
            for text in warnings:
                self.warn(text)
            self._began = time.perf_counter()
            if before is not None:
                self._began -= before.state.seconds
            outcome = "interrupted"
            try:
                master.run(
                    self._strategy.policy,
                    backend,
                    self._workload,
                    observe=self._show,
                    rest=self._rest,
                    held=held,
                    max_norm=self._run.plan.max_norm or math.inf,
                    audit=self._run.plan.audit,
                )
                self._interrupts.hold()
                self._workload.flush()
                self._hand_over()
                outcome = "finished"
            except Exception as error:
                self._whole &= not isinstance(error, AuditError)  # a decoded job has been lost
                how = "stopped" if isinstance(error, BudgetError) else "failed"
                outcome = one_line(f"{how}: {error}")
                raise
            except BaseException:
                self._whole = self._interrupts.admitted
                raise
            finally:
                self._interrupts.hold()
                seconds = self._seconds
                unwritten = self._end(directory, outcome)
            if unwritten:
                raise StoreError("; ".join(unwritten))
            self._interrupts.admit()
        self._workload.aftermath.callbacks.require_none_failed()
        return seconds

    @property
    def num_jobs(self) -> int:
        """How many jobs the run has: fewer than planned if models are done before."""
        return self._strategy.policy.num_jobs

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _go_on(self, warnings: list[str]) -> master.Held:
        """If there is a snapshot, go back to it, and return what the loop held then.

        What is worth a warning is added to the ``warnings``.
        Whoever was expelled stays so, from the first round on: what a known liar says is not used,
        even where the journal has a round closed on its answer.
        """
        history, snapshot = self._recorder.history, self._snapshot
        expelled = frozenset(history.expelled)
        self.counts.expelled = sorted(expelled)
        if snapshot is None:
            return master.Held(begun=0, jobs=(), expelled=expelled)
        if text := self._strategy.restore(snapshot, history):
            warnings.append(text)
        state, flight = snapshot.state, snapshot.files[FLIGHT]
        state.random.restore()
        jobs = [unpack_held(job, flight) for job in state.held]
        return master.Held(begun=state.begun, jobs=jobs, expelled=expelled)

    def _rest(self, hold: master.Holding) -> None:
        """Take a checkpoint if it is time for one: everything decoded has been handed over.

        ModelError if every model has failed, or one where the plan says to stop then.
        """
        self._hold, self._whole = hold, True
        self._hand_over()
        failed = {name: str(each) for name, each in self._workload.parked.items() if each.failed}
        enough = 1 if self._run.plan.on_failure == "stop" else len(self._workload.names)
        if len(failed) >= enough:
            raise ModelError(failed)
        self._checkpoints.look()
        if self._checkpoints.due and (held := hold()) is not None:
            self._recorder.lease.check()  # it may have been stopped for long
            self._checkpoints.begin(partial(self._copied, held))
        self._interrupts.admit()

    def _hand_over(self) -> None:
        """Tell and write what has come of the models' steps; raise what a callback has raised."""
        self._hand_over_news()
        aftermath = self._workload.aftermath
        if self._checkpoints.latest not in (None, self._told):
            self._told = self._checkpoints.latest
            path = self._directory.checkpoints / str(self._told)
            aftermath.obey(aftermath.callbacks.call("on_checkpoint", path))
        aftermath.callbacks.require_none_failed()

    def _hand_over_news(self) -> None:
        news = self._workload.aftermath.news
        while news:  # an observer that raises keeps none of the others back
            item = news.pop(0)
            try:
                if isinstance(item, Validated):
                    self._tell("validation", item.fields)
                else:
                    item.write(self._directory.saved)
            except OSError as error:
                which = f"{item.model} after step {item.step}"
                self.warn(f"weights of {which} could not be written: {error.strerror or error}")
        if (why := self._workload.unremoved) and not self._unremoved:
            self._unremoved = why
            self.warn(f"{why}; such weights are tried again later, and take room until then")
        for name, parked in self._workload.parked.items():
            if name not in self._parked:
                self._parked.add(name)
                about = {"step": parked.step, "why": parked.why, "cause": parked.kind}
                self._tell("parked", {"model": name, **about})

    def _copied(self, held: master.Held) -> RunSnapshot:
        with suppress(OSError):  # the checkpoint holds what could not be written
            self._metrics.update(sync=True)
        state, files = self._workload.snapshot()
        flight, course = dict(files[FLIGHT]), self._strategy.snapshot()
        jobs = [pack_held(job, flight) for job in held.jobs]
        return Snapshot(
            rounds=self._strategy.policy.rounds,
            state=RunState(
                jobs=self.num_jobs,
                begun=held.begun,
                held=jobs,
                workload=state,
                counts=copy.deepcopy(self.counts),
                seconds=self._seconds,
                metrics=self._metrics.lasting,
                director=course.director,
                random=RandomState.now(),
                unwritten=self._metrics.unwritten,
                slowdown=course.slowdown,
                policy=course.policy,
            ),
            files=files | {FLIGHT: flight},
        )

    def _end(self, directory: RunDirectory, outcome: str) -> list[str]:
        """Leave a last checkpoint, the trained weights, and all losses, if the state is whole.

        Returns what could not be written: one failure does not keep the others back. A run that is
        lost, or is so once the disk has answered, is left to the next master.
        """
        lost_now = self._recorder.lease.lost
        if lost := lost_now():
            return [lost]
        unwritten, news = list[str](), self._workload.aftermath.news
        self._checkpoints.settle()
        if self._whole and self._hold is not None:
            if (held := self._hold()) is not None:
                with suppress(ParameterError, CallbackError):  # the checkpoint before stands
                    self._checkpoints.end(partial(self._copied, held))
                if lost := lost_now():
                    return [lost]
                if outcome == "finished":
                    with suppress(CallbackError):  # it is raised once all is written
                        self._hand_over()
            if outcome != "finished":  # a resumed run will call them
                self._workload.aftermath.callbacks.mute()
            due = [] if held is None else list(news)  # of steps that are not taken again
            with suppress(ScheduleError):  # jobs in flight, and what waits for them
                self._workload.flush()
            with suppress(StoreError):  # it is lost by now
                unwritten = [*self._write_trained(directory.checkpoints), *self._write_losses()]
            news[:] = due
            self._hand_over_news()
        for text in unwritten:
            self.warn(text)
        if outcome == "finished" and self._snapshot is None and self._checkpoints.latest is None:
            why = self._checkpoints.failure or "none could be taken"
            unwritten.append(f"trained to the end, but without a checkpoint ({why})")
        with suppress(StoreError):  # whatever ended the run is more to the point
            self._recorder.write("stop", outcome=outcome)
        if not (lost := lost_now()):
            self._tell("end", {"outcome": outcome})
        return [*unwritten, *filter(None, [lost])]

    def _write_trained(self, folder: Path) -> Iterator[str]:
        """Write the trained weights, and the best; yield what could not be written, and why."""
        trained = {name: self._workload.module(name).state_dict() for name in self._workload.names}
        best = {f"{name}.best": tensors for name, (_, tensors) in self._workload.best().items()}
        return save_states(folder, trained | best, check=self._recorder.lease.check)

    def _write_losses(self) -> Iterator[str]:
        """Write the losses that the disk has had no room for; yield what it has none for still.

        The last checkpoint has these, and a resumed run writes them.
        """
        try:
            self._metrics.update(sync=True)
        except OSError as error:
            if count := len(self._metrics.unwritten):
                why = error.strerror or error
                yield f"{self._metrics.path}: {count} losses could not be written: {why}"

    def warn(self, text: str) -> None:
        """Tell the observers, in one line, of what went wrong and does not end the run."""
        self._tell("warning", {"text": one_line(text)})

    def _show(self, seen: ports.Seen) -> None:
        self._interrupts.hold()
        if isinstance(seen, ports.Arrival | ports.Failure | ports.Tick):
            if not self._strategy.whole_between_rounds:  # it is about to change
                self._begin_step()
        elif isinstance(seen, ports.Close):
            self._begin_step()
            if self._strategy.repeats and self._recorder.overrules(seen.record):
                self.warn(
                    f"round {seen.record.round} closed on other answers than before the run was "
                    "resumed: from here on its results may differ in the last bits"
                )
        elif isinstance(seen, ports.Dispatch):
            self._recorder.lease.check()
            self._whole = True
        elif isinstance(seen, ports.Notice) and seen.kind == "expelled":
            self._begin_step()
        for observer in self._observers:
            observer(seen)

    def _begin_step(self) -> None:
        """No checkpoint from now on, until the step has been made.

        A round closes: the policy has gone on, and its decision or its survivors are not on record
        yet, nor its jobs decoded. Or results are compared: their job has not been handed over. Or
        an update may be in the policy's state, and not in the weights.
        """
        self._whole = False

    def _tell(self, kind: str, fields: dict[str, object]) -> None:
        self._show(ports.Notice(kind=kind, fields=fields))

    def _header(self) -> dict[str, object]:
        setting = self._run.setting
        return {
            "scheme": setting.scheme.spec,
            "workers": setting.scheme.n,
            "jobs": self.num_jobs,
            "rounds": num_rounds(setting.scheme, self.num_jobs),
            "mu": setting.rule.mu,
            "wait_out": setting.rule.wait_out,
            "payload": self._run.plan.payload,
            "models": list(self._workload.names),
            "pieces": (setting.scheme.pieces or 0) if isinstance(setting.scheme, Deal) else 0,
            "sizes": asdict(self._run.sizes),
        }

    def _follow(self, seen: ports.Seen) -> None:
        self._strategy.follow(seen)
