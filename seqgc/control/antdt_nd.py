"""AntDT-ND: give slow workers smaller shares, and replace workers that stay slow.

AntDT: a self-adaptive distributed training framework for leader and straggler nodes (2024), its
controller for non-dedicated clusters. There are two kinds of stragglers:

- *Transient*: the worker's mean time of a batch over the latest ``trans`` seconds is at least
  ``lam`` times the average of all workers. The shares are adapted to the speeds (ADJUST_BS, the
  paper's Eq. 3).
- *Persistent*: the same holds over the latest ``per`` seconds. The worker is replaced
  (KILL_RESTART), unless the cluster is busy, because then a new worker would take long to start.

The controller acts every ``act`` seconds. Two decisions that the paper leaves open:

- If the shares are unequal, they are also adapted each time that the controller acts. Otherwise a
  straggler that has recovered would keep its small share, because its batches then take little
  time, and no worker is a straggler.
- If a worker is replaced, its measurements are forgotten. The new worker keeps the share of the old
  one until its first answer whose time does not include its start. Then the shares are adapted.
  So if the backend cannot replace workers (functions, for example), the run continues with shares
  alone, and a warning says so. With ``back`` > 0, a replaced worker has no share for ``back``
  seconds, the time that a new worker takes to start, and the other workers compute its part.

*What to expect.* A worker whose time is proportional to its work is seldom replaced, because with
an adapted share its batches take as long as the batches of other workers. A worker that is slow
before it computes, for example because it sleeps, is replaced. If ``per`` is shorter than the slow
periods of transient stragglers, these stragglers are replaced in vain. With the paper's own numbers
this happens: its ``per`` is 600 s, and its slow periods last 900 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from seqgc.control._controlled import Controlled
from seqgc.control._monitor import Monitor
from seqgc.control._persistence import Persistence
from seqgc.control._shares import balance
from seqgc.errors import require_number
from seqgc.ports import Event, RoundRecord
from seqgc.rounds import Decision, Setting
from seqgc.schemes import Balanced, register

__all__ = ["AntDTND", "AntDTNDDirector"]


@register("antdt-nd")
@dataclass(frozen=True, kw_only=True)
class AntDTND(Controlled):
    """A defence that adapts shares to transient stragglers and replaces persistent ones.

    A worker is a straggler if its mean time of a batch is at least ``lam`` >= 1 times the average.
    All other fields are in seconds: ``trans`` > 0 and ``per`` > 0 are the windows in which
    transient and persistent stragglers are measured, ``act`` > 0 is the time between two decisions,
    and ``back`` >= 0 is the time that a new worker takes to start. The docstring of this module
    describes the controller.

    Raises
    ------
    ParameterError
        If a field breaks its rule.

    Examples
    --------
    >>> AntDTND(n=20, lam=1.3, act=60.0).spec
    'antdt-nd:lam=1.3,act=60.0'
    """

    n: int
    lam: float = 1.5
    trans: float = 300.0
    per: float = 600.0
    act: float = 300.0
    back: float = 0.0

    def __post_init__(self) -> None:
        self._keep_integers("n")
        self.persistence()
        require_number("trans", self.trans, above=0)
        require_number("back", self.back, least=0)

    @property
    def tolerates(self) -> str:
        return f"{super().tolerates}; a worker that is {self.persistence().reason} is replaced"

    def persistence(self, busy: Callable[[], bool] = lambda: False) -> Persistence:
        """Return a new rule by which workers are replaced; see `Persistence` for ``busy``."""
        return Persistence(lam=self.lam, per=self.per, act=self.act, busy=busy)

    def first(self, parts: int) -> Balanced:
        return Balanced.of(balance(np.ones(self.n), parts).tolist())

    def director(self, parts: int) -> AntDTNDDirector:
        return AntDTNDDirector(self, parts=parts)


class AntDTNDDirector:
    """The controller of one run of `AntDTND`; a `seqgc.rounds.Director`.

    For ``busy`` see `Persistence`.

    Examples
    --------
    Worker 0 is four times as slow as the others, until it is replaced:

    >>> from seqgc.master import run
    >>> from seqgc.ports import Restart
    >>> from seqgc.profiles.slowdowns import SleepWindows
    >>> from seqgc.rounds import ClosingRule
    >>> from seqgc.virtual import VirtualBackend
    >>> defence = AntDTND(n=4, trans=5.0, per=10.0, act=5.0)
    >>> policy = defence.policy(ClosingRule(), num_jobs=12, batches=[64])
    >>> slow = SleepWindows(n=4, intensity=0.75, probability=0.0)
    >>> seen = []
    >>> run(policy, VirtualBackend(4, slow.pace()), observe=seen.append)
    >>> [action.worker for action in seen if isinstance(action, Restart)]
    [0]
    """

    def __init__(
        self, defence: AntDTND, *, parts: int, busy: Callable[[], bool] = lambda: False
    ) -> None:
        self._defence, self._parts = defence, parts
        self._rule = defence.persistence(busy)
        self._monitor = Monitor(defence.n, window_s=max(defence.trans, defence.per))
        self._back_at: dict[int, float] = {}  # by worker without a share: when it gets one again
        self._unknown: set[int] = set()  # replaced workers whose speed is not known yet

    def on(self, event: Event) -> None:
        self._monitor.on(event)

    def close(self, record: RoundRecord, *, setting: Setting) -> None:  # noqa: ARG002 (the protocol's)
        self._monitor.close(record)

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:  # noqa: ARG002
        scheme, now = setting.scheme, self._monitor.now
        if not isinstance(scheme, Balanced):
            return None
        returned = [worker for worker, at in self._back_at.items() if at <= now]
        for worker in returned:
            del self._back_at[worker]
        adjusts = bool(returned or self._some_are_known_again())
        restart: tuple[int, ...] = ()
        if self._rule.is_due(now):
            slow = self._rule.slow(self._monitor.seconds(self._defence.trans))
            adjusts |= bool(slow.any()) or len(set(scheme.parts.tolist())) > 1
            restart = self._rule.persistent(self._monitor)
        for worker in restart:
            self._replace(worker)
        if adjusts or (restart and self._back_at):
            scheme = self._adjusted(scheme)
        if restart or scheme != setting.scheme:
            setting = replace(setting, scheme=scheme)
            reason = self._rule.reason
            return Decision(setting=setting, restart=restart, reason=reason)
        return None

    def _some_are_known_again(self) -> bool:
        if not self._unknown:
            return False
        known = self._monitor.speeds(self._defence.trans).known
        again = {worker for worker in self._unknown if known[worker]}
        self._unknown -= again
        return bool(again)

    def _replace(self, worker: int) -> None:
        self._monitor.forget(worker)
        self._unknown.add(worker)
        if self._defence.back > 0:
            self._back_at[worker] = self._monitor.now + self._defence.back

    def _adjusted(self, scheme: Balanced) -> Balanced:
        """Return shares adapted to the known speeds; workers of unknown speed keep their shares."""
        speeds, parts = self._monitor.speeds(self._defence.trans), scheme.parts
        gone = np.zeros(len(parts), dtype=np.bool_)
        gone[list(self._back_at)] = True
        kept = np.where(gone, 0, np.maximum(parts, min(1, self._parts // len(parts))))
        if not (speeds.known & ~gone).any():
            return scheme
        fixed = gone | ~speeds.known
        shares = balance(
            np.where(fixed, 1.0, speeds.values),
            self._parts,
            least=np.where(fixed, kept, min(1, self._parts // len(parts))),
            most=np.where(fixed, kept, self._parts),
        )
        return Balanced.of(shares.tolist())
