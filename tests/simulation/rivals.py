"""Masters at work on one run at once, each in a thread of which one goes on at a time.

Which one goes on is drawn from a seed at every *instant*: whenever a master is shown an event, and
before and after each system call that makes files last. So a schedule is a seed, as elsewhere in
the simulator. The file system may be one that keeps no locks: then a number alone says who may go
on, and it is looked at before each dispatch and each line of the journal, not at once with them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

from seqgc import workers
from seqgc.errors import ParameterError, SeqgcError
from seqgc.ports import Backend, Dispatched, MiniTask, Seen
from seqgc.training import resume, train
from tests.simulation.backend import SimulatedBackend
from tests.simulation.faults import Scenario
from tests.simulation.ledger import Address, Ledger
from tests.simulation.promises import is_plain
from tests.simulation.runs import Trained, compare, fault_free, plan, read, read_weights
from tests.simulation.seams import replaced
from tests.simulation.world import Violation, World

MASTERS = 3
_TURN_ENDS = 0.06  # at an instant


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of the masters, in their order: None if it ended well; what each did, in order.

    A deed is a master's number and "claim", "dispatch" or "line".
    """

    errors: list[Exception | None] = field(default_factory=lambda: [None] * MASTERS)
    deeds: list[tuple[int, str]] = field(default_factory=list)
    accepted: dict[Address, MiniTask] = field(default_factory=dict)  # answers, by any of them
    fault: str | None = None


class _Baton:
    """Lets one of several threads go on; a generator says which."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 6])
        self._changed = threading.Condition()
        self._waiting = set(range(MASTERS))
        self.turn = 0

    def run(self, lives: list[Callable[[], None]]) -> None:
        threads = [threading.Thread(target=self._live, args=each) for each in enumerate(lives)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def instant(self) -> None:
        """Perhaps let another one go on, until it is this one's turn again."""
        if self._rng.random() < _TURN_ENDS:
            self._pass_on(self.turn)

    def _live(self, number: int, life: Callable[[], None]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.turn == number)
        try:
            life()
        finally:
            self._waiting.discard(number)
            self._pass_on(None)

    def _pass_on(self, me: int | None) -> None:
        with self._changed:
            if self._waiting:
                self.turn = int(self._rng.choice(sorted(self._waiting)))
            self._changed.notify_all()
            if me is not None:
                self._changed.wait_for(lambda: self.turn == me)


class _System:
    """Stands for the module ``os`` in `seqgc._durable`: before and after a call is an instant."""

    def __init__(self, baton: _Baton, outcome: Outcome) -> None:
        self._baton, self._outcome = baton, outcome

    def write(self, descriptor: int, data: memoryview) -> int:
        self._baton.instant()
        if _name(descriptor) == "journal.jsonl":
            self._outcome.deeds.append((self._baton.turn, "line"))
        written = os.write(descriptor, data)
        self._baton.instant()
        return written

    def fsync(self, descriptor: int) -> None:
        if _name(descriptor) == "masters":
            self._outcome.deeds.append((self._baton.turn, "claim"))
        self._baton.instant()

    def replace(self, *arguments: object, **named: object) -> None:
        self._baton.instant()
        os.replace(*arguments, **named)  # type: ignore[call-overload] # noqa: PTH105
        self._baton.instant()


def compete(scenario: Scenario, *, locks: bool) -> Outcome:
    """Let `MASTERS` be at one run, and another one end it if none of them does."""
    outcome, baton, world = Outcome(), _Baton(scenario.seed), World(scenario)
    expected = fault_free(scenario)
    with (
        tempfile.TemporaryDirectory(prefix="simulation-") as root,
        mock.patch("fcntl.flock", fcntl.flock if locks else _no_locks),
    ):
        run = Path(root, "run")

        def master(number: int) -> Callable[[], None]:
            def life() -> None:
                try:
                    _master(number, run, scenario, world, baton, outcome)
                except (SeqgcError, OSError, AssertionError) as error:
                    outcome.errors[number] = error

            return life

        system = _System(baton, outcome)
        with replaced(clock=world.clock, system=system, at_rest=lambda *_: None):
            baton.run([master(number) for number in range(MASTERS)])
            outcome.fault = _fault(outcome, run, scenario, expected, locks=locks)
    return outcome


def _master(
    number: int, run: Path, scenario: Scenario, world: World, baton: _Baton, outcome: Outcome
) -> None:
    ledger = Ledger(world, outcome.accepted)

    def backend(_: int, factory: object) -> Backend:
        assert callable(factory)
        return SimulatedBackend(world, ledger, factory())

    def observe(seen: Seen) -> None:
        if isinstance(seen, Dispatched):  # the tasks have left
            outcome.deeds.append((number, "dispatch"))
        baton.instant()

    crew, observers = workers.custom(scenario.shape.n, backend), [ledger, observe]
    if number == 0:
        train(plan(scenario), crew, run=run, observers=observers)
    else:
        resume(run, plan(scenario), crew, observers=observers)


def _fault(
    outcome: Outcome, run: Path, scenario: Scenario, expected: Trained, *, locks: bool
) -> str | None:
    try:
        _check(outcome, locks=locks)
        if not any(error is None for error in outcome.errors):
            world = World(scenario)
            crew = workers.custom(
                scenario.shape.n,
                lambda _, factory: SimulatedBackend(world, Ledger(world), factory()),
            )
            resume(run, plan(scenario), crew)
        shape = scenario.shape
        weights = read(run, {}, shape).weights if locks else read_weights(run, shape)
        compare(weights, expected, exact=is_plain(scenario.spec), but=set())
    except (SeqgcError, OSError, AssertionError) as error:
        begun = any(deed == "dispatch" for _, deed in outcome.deeds)
        if begun or "has no beginning" not in str(error):
            return f"{type(error).__name__}: {error}"
    return None


def _check(outcome: Outcome, *, locks: bool) -> None:
    for error in outcome.errors:
        if isinstance(error, AssertionError):
            raise error
    claims = [at for at, (_, deed) in enumerate(outcome.deeds) if deed == "claim"]
    for claim in claims:
        claimant, late = outcome.deeds[claim][0], list[tuple[int, str]]()
        for number, deed in outcome.deeds[claim + 1 :]:
            if deed == "claim":
                break
            late += [(number, deed)] if number != claimant else []
        if len(late) != len(set(late)) or (locks and late):
            raise Violation(f"after master {claimant} took over, there were {late}")
    if locks:
        refused = [e for e in outcome.errors if e is not None and not isinstance(e, ParameterError)]
        if refused:
            raise Violation(f"a master ended with {refused[0]!r}")


def _name(descriptor: int) -> str:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name  # noqa: PTH115


def _no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
