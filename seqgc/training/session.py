"""`TrainingSession`, one pass of the master's loop with its checkpoints, files and signals.

Theory of operation
-------------------
When a checkpoint is taken, or a signal ends the run, the state must be *consistent*: the policy,
the journal and the models agree about the jobs that have finished.

- The state becomes consistent when the loop is at rest: all decoded gradients have been passed to
  the models, and the outputs of their steps have been written and reported. Checkpoints are taken,
  and waiting signals delivered, only at this moment. The state is also consistent when tasks are
  about to be sent.
- The state becomes inconsistent when a round closes: the policy has moved to the next round, but
  the journal does not yet have the decision or the answers that were used, and the jobs are not
  decoded. It also becomes inconsistent when an audit expels a worker, because the job with the
  compared results has not been passed to the models. If the policy changes with every answer, the
  state becomes inconsistent at every answer, failure and tick.
- If the run ends in a consistent state, a last checkpoint is taken, even after an error. Otherwise
  the run can be resumed from the previous checkpoint.

A signal that arrives while the state is inconsistent waits; a second signal is delivered at once
(`Interrupts`).
"""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
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
from seqgc.runs.headcount import forget_headcount
from seqgc.runs.metrics import MetricsLog
from seqgc.runs.packing import pack_held, unpack_held
from seqgc.runs.snapshots import Snapshot, SnapshotFolder
from seqgc.training.adaptive import Switch
from seqgc.training.callbacks import Validated
from seqgc.training.checkpointer import Checkpointer, RandomState, RunSnapshot, RunState
from seqgc.training.history import ChoiceState, Recorder
from seqgc.training.plan import PlannedRun
from seqgc.training.results import RunCounts
from seqgc.training.strategies import ControlledStrategy, PolicyStrategy, SchemeStrategy, Strategy
from seqgc.training.tuner import Answer, Tuner
from seqgc.training.workload import FLIGHT, ModelsWorkload, TorchWorkload

__all__ = ["Interrupts", "TrainingSession"]

_Handler = Callable[[int, FrameType | None], object]
_STEPS = ports.Arrival | ports.PartialArrival | ports.Failure | ports.Tick


class Interrupts:
    """A gate for SIGINT, SIGTERM and SIGHUP: the first signal waits for `admit`.

    A second signal is delivered at once, unless it is SIGHUP: when a terminal is closed, two of
    these signals arrive, one from the shell and one from the system. Signals without a Python
    handler are not changed.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, _Handler] = {}
        self._waiting: list[tuple[int, FrameType | None]] = []
        self.admitted = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Make signals wait during this block. Signals that still wait at its end are dropped."""
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
                if signal.getsignal(each) == self._take:  # unless a handler has set another one
                    signal.signal(each, handler)

    def admit(self) -> None:
        """Deliver the waiting signals. From now on, deliver every signal at once."""
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


class TrainingSession:
    """One pass of the loop by one master, from the beginning of the run or from a checkpoint.

    ``snapshot`` is the checkpoint from which the run continues, or None. ``provider`` is the kind
    of the workers. ``recorder`` has the
    rounds that closed after the checkpoint. If the plan has an ``adaptation``, ``tuner`` searches
    for better settings. Each switch is appended to ``switches``.
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
        provider: str,
        snapshot: RunSnapshot | None = None,
    ) -> None:
        self._provider = provider
        self.counts = RunCounts() if snapshot is None else snapshot.state.counts
        self._workload, self._run = workload, run
        self._recorder, self._snapshot = recorder, snapshot
        self._hold: master.Holding | None = None
        self._interrupts = Interrupts()
        self._consistent = False
        self._announced: int | None = None  # the latest checkpoint passed to callbacks
        self._announced_parked: set[str] = set()  # the parked models reported to observers
        self._warned_unremoved = False
        self._began = 0.0
        self._strategy: Strategy
        scheme = run.setting.scheme
        if isinstance(scheme, Controlled):
            by_scheme = cast("TorchWorkload", workload)  # as `PlannedRun.workload` has made it
            self._strategy = ControlledStrategy(by_scheme, scheme, run=run)
        elif isinstance(scheme, PolicyDefence):
            self._strategy = PolicyStrategy(workload, scheme, run=run)
        else:
            self._strategy = SchemeStrategy(
                cast("TorchWorkload", workload),
                run=run,
                switches=switches,
                tuner=tuner,
                recorder=recorder,
                before_decision=self._begin_step,
                notify=self._notify,
            )
        recorder.repeats = self._strategy.repeats
        self._users, self._observers = tuple(observers), tuple[ports.Observer, ...]()

    @property
    def answers(self) -> Sequence[Answer]:
        """The results of the searches for a better setting."""
        return self._strategy.answers

    @property
    def num_jobs(self) -> int:
        """The number of jobs of the run. It is smaller than planned if models stop early."""
        return self._strategy.policy.num_jobs

    def run(
        self, backend: ports.Backend, directory: RunDirectory, *, warnings: Sequence[str] = ()
    ) -> float:
        """Run the loop to its end; return the duration of training by all masters, in seconds.

        The ``warnings`` are reported to the observers first.
        """
        self._directory = directory
        path, before, warnings = directory.path, self._snapshot, list(warnings)
        held = self._restore(warnings)
        directory.save_config()
        if self._recorder.history.num_workers != self._run.setting.scheme.n:
            forget_headcount(path)
        self._recorder.write_begin()  # only now, because the checkpoint has been restored
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
            # Each event and action passes these in order, before the policy or backend gets it.
            self._observers = (
                *self._users,  # the user's: progress bars, logs, budgets
                self._recorder,  # the journal
                self._strategy.follow,  # tells the policy how many jobs the models still need
                self.counts,
                Forgiving(events, warn=self.warn),  # events.jsonl
                losses,  # metrics.csv
                *self._strategy.observers,  # the watch for slowdowns
            )
            self._checkpoints = Checkpointer(
                snapshots,
                every_s=self._run.plan.checkpoint_every_s,
                warn=self.warn,
            )
            stack.enter_context(closing(self._checkpoints))
            header = self._run.header(jobs=self.num_jobs, provider=self._provider)
            self._notify("run" if self._recorder.master == 1 else "resume", header)
            if self._recorder.master == 1 and self._run.plan.predicted_round_s is not None:
                self._notify("prediction", self._prediction(self._run.plan.predicted_round_s))
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
                    observe=self._observe,
                    rest=self._at_rest,
                    held=held,
                    max_norm=self._run.plan.max_norm or math.inf,
                    audit=self._run.plan.audit,
                )
                self._interrupts.hold()
                self._workload.flush()
                self._hand_over()
                outcome = "finished"
            except Exception as error:
                self._consistent &= not isinstance(error, AuditError)  # a decoded job is lost
                verb = "stopped" if isinstance(error, BudgetError) else "failed"
                outcome = one_line(f"{verb}: {error}")
                raise
            except BaseException:
                self._consistent = self._interrupts.admitted
                raise
            finally:
                self._interrupts.hold()
                seconds = self._seconds
                unwritten = self._end(directory, outcome)
            if unwritten:
                raise StoreError("; ".join(unwritten))
            self._interrupts.admit()
        self._workload.after_step.callbacks.require_none_failed()
        return seconds

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _restore(self, warnings: list[str]) -> master.Held:
        """Restore the snapshot, if there is one; return the state of the loop in the snapshot.

        Warnings are appended to ``warnings``. A worker that was expelled at any time is expelled
        from the first round on. Its answers are not used, even if the run repeats a round that
        used an answer of this worker.
        """
        snapshot, n = self._snapshot, self._run.setting.scheme.n
        expelled = frozenset(each for each in self._recorder.history.expelled if each < n)
        self.counts.expelled = sorted(expelled)
        if snapshot is None:
            return master.Held(begun=0, jobs=(), expelled=expelled)
        if text := self._strategy.restore(snapshot):
            warnings.append(text)
        state, flight = snapshot.state, snapshot.files[FLIGHT]
        state.random.restore()
        jobs = [unpack_held(job, flight) for job in state.held]
        parked = self._workload.parked.items()
        failed = {name: each.kind for name, each in parked if each.kind != "stopped early"}
        return master.Held(begun=state.begun, jobs=jobs, expelled=expelled, failed=failed)

    # ---- while the loop runs --------------------------------------------------------------------

    def _observe(self, seen: ports.Seen) -> None:
        """Pass an event or action to all observers; record whether the state is consistent."""
        self._interrupts.hold()
        if isinstance(seen, _STEPS):
            if not self._strategy.changes_only_at_close:
                self._begin_step()
        elif isinstance(seen, ports.Close):
            self._begin_step()
            if self._recorder.contradicts(seen.record):
                self.warn(
                    f"round {seen.record.round} closed on other answers than before the run was "
                    "resumed: from here on, the results of the run may differ in the last bits"
                )
        elif isinstance(seen, ports.Dispatch):
            self._recorder.lease.check()
            self._consistent = True
        elif isinstance(seen, ports.Notice) and seen.kind == "expelled":
            self._begin_step()
        for observer in self._observers:
            observer(seen)

    def _begin_step(self) -> None:
        """Mark the state as inconsistent until the loop is at rest (see the module docstring)."""
        self._consistent = False

    def _at_rest(self, hold: master.Holding) -> None:
        """Take a checkpoint if one is due. The loop calls this when it is at rest.

        Raises
        ------
        ModelError
            If all models have failed, or if one model has failed and the plan has
            ``on_failure="stop"``.
        CallbackError
            If a callback has failed.
        """
        self._hold, self._consistent = hold, True
        self._hand_over()
        failed = {name: str(each) for name, each in self._workload.parked.items() if each.failed}
        enough = 1 if self._run.plan.on_failure == "stop" else len(self._workload.names)
        if len(failed) >= enough:
            raise ModelError(failed)
        self._checkpoints.report_failure()
        if self._checkpoints.due and (held := hold()) is not None:
            self._recorder.lease.check()  # the process may have been stopped for a long time
            self._checkpoints.begin(partial(self._take_snapshot, held))
        self._interrupts.admit()

    def _hand_over(self) -> None:
        """Write and report the outputs of the models' steps. If a callback has failed, raise."""
        self._hand_over_outputs()
        after_step = self._workload.after_step
        if self._checkpoints.latest not in (None, self._announced):
            self._announced = self._checkpoints.latest
            path = self._directory.checkpoints / str(self._announced)
            after_step.apply_stop(after_step.callbacks.call("on_checkpoint", path))
        after_step.callbacks.require_none_failed()

    def _hand_over_outputs(self) -> None:
        outputs = self._workload.after_step.outputs
        while outputs:  # popped first, so that an error of an observer does not lose the rest
            output = outputs.pop(0)
            try:
                if isinstance(output, Validated):
                    self._notify("validation", output.fields)
                else:
                    output.write(self._directory.saved)
            except OSError as error:
                which = f"model {output.model} after step {output.step}"
                self.warn(f"weights of {which} could not be written: {error.strerror or error}")
        if (why := self._workload.unremoved) and not self._warned_unremoved:
            self._warned_unremoved = True
            self.warn(f"{why}; the removal is tried again later")
        for name, parked in self._workload.parked.items():
            if name not in self._announced_parked:
                self._announced_parked.add(name)
                about = {"step": parked.step, "why": parked.why, "cause": parked.kind}
                self._notify("parked", {"model": name, **about})

    def warn(self, text: str) -> None:
        """Report a warning of one line to the observers."""
        self._notify("warning", {"text": one_line(text)})

    def _notify(self, kind: str, fields: dict[str, object]) -> None:
        self._observe(ports.Notice(kind=kind, fields=fields))

    def _prediction(self, round_s: float) -> dict[str, object]:
        """Return the fields of the predicted time of the run, from the seconds of a round."""
        scheme = self._run.setting.scheme
        predicted_s = round_s * num_rounds(scheme, self.num_jobs)
        return {"scheme": scheme.spec, "predicted_s": predicted_s}

    # ---- checkpoints and the end ----------------------------------------------------------------

    def _take_snapshot(self, held: master.Held) -> RunSnapshot:
        rounds = self._strategy.policy.rounds
        journal = self._recorder.mark(rounds)
        with suppress(OSError):  # the checkpoint contains losses that could not be written
            self._metrics.update(sync=True)
        state, files = self._workload.snapshot()
        flight, strategy = dict(files[FLIGHT]), self._strategy.snapshot()
        jobs = [pack_held(job, flight) for job in held.jobs]
        return Snapshot(
            rounds=rounds,
            state=RunState(
                begun=held.begun,
                held=jobs,
                workload=state,
                counts=copy.deepcopy(self.counts),
                seconds=self._seconds,
                metrics=self._metrics.lasting,
                director=strategy.director,
                random=RandomState.now(),
                unwritten=self._metrics.unwritten,
                slowdown=strategy.slowdown,
                policy=strategy.policy,
                journal=journal,
                choices=[ChoiceState.of(choice) for choice in strategy.choices],
                switches=[(each.first_job, each.first_round) for each in strategy.switches],
            ),
            files=files | {FLIGHT: flight},
        )

    def _end(self, directory: RunDirectory, outcome: str) -> list[str]:
        """If the state is consistent, write a last checkpoint, the trained weights and all losses.

        Return a text for each file that could not be written. Such a failure does not prevent the
        other files from being written. If another master has taken over the run, no further file is
        written.
        """
        lost_now = self._recorder.lease.lost
        if lost := lost_now():
            return [lost]
        unwritten, outputs = list[str](), self._workload.after_step.outputs
        self._checkpoints.settle()
        if self._consistent and self._hold is not None:
            if (held := self._hold()) is not None:
                with suppress(ParameterError, CallbackError):  # the checkpoint before stays
                    self._checkpoints.end(partial(self._take_snapshot, held))
                if lost := lost_now():
                    return [lost]
                if outcome == "finished":
                    with suppress(CallbackError):  # it is raised after all files are written
                        self._hand_over()
            if outcome != "finished":  # the resumed run will call them
                self._workload.after_step.callbacks.disable()
            kept_outputs = [] if held is None else list(outputs)  # of steps in the checkpoint
            with suppress(ScheduleError):  # raised if jobs are in flight
                self._workload.flush()
            with suppress(StoreError):  # another master has taken over the run
                unwritten = [*self._write_trained(directory.checkpoints), *self._write_losses()]
            outputs[:] = kept_outputs
            self._hand_over_outputs()
        for text in unwritten:
            self.warn(text)
        if outcome == "finished" and self._snapshot is None and self._checkpoints.latest is None:
            why = self._checkpoints.failure or "none could be taken"
            unwritten.append(f"trained to the end, but without a checkpoint ({why})")
        with suppress(StoreError):  # the error that ended the run matters more
            self._recorder.write("stop", outcome=outcome)
        if not (lost := lost_now()):
            self._notify("end", {"outcome": outcome})
        return [*unwritten, *filter(None, [lost])]

    def _write_trained(self, folder: Path) -> Iterator[str]:
        """Write the trained and the best weights; yield a text for each failure."""
        trained = {name: self._workload.module(name).state_dict() for name in self._workload.names}
        best = {f"{name}.best": tensors for name, (_, tensors) in self._workload.best().items()}
        return save_states(folder, trained | best, check=self._recorder.lease.check)

    def _write_losses(self) -> Iterator[str]:
        """Write the losses that are not in the file yet; yield a text if this fails.

        The last checkpoint also contains these losses, so that a resumed run can write them.
        """
        try:
            self._metrics.update(sync=True)
        except OSError as error:
            if count := len(self._metrics.unwritten):
                why = error.strerror or error
                yield f"{self._metrics.path}: {count} losses could not be written: {why}"
