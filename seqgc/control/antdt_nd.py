"""AntDT-ND: give slow workers less; replace those that stay slow.

AntDT: a self-adaptive distributed training framework for leader and straggler nodes (2024), its
controller for non-dedicated clusters. Two kinds of slowness are told apart by how long they last:

- A *transient* straggler's time of a batch, on average over the latest ``trans`` seconds, is
  ``lam`` times everyone's or more. Shares are adjusted to speeds (ADJUST_BS, its Eq. 3).
- A *persistent* one's is so over the latest ``per`` seconds. It is replaced (KILL_RESTART), unless
  the cluster is busy, where a fresh one would be long in coming.

It acts every ``act`` seconds. What the paper leaves open is decided so:

- Shares that are uneven are adjusted each time it acts, too, or a straggler that has recovered
  would have its small share for ever: its batches take little time, and nobody else's take long.
- What is known of a worker that is replaced is forgotten. It keeps its share, as if nothing had
  happened, until the first answer has come that a fresh worker's start is not in, and then shares
  are adjusted at once. So nothing is lost where the backend cannot replace workers, as functions:
  the run goes on by shares alone, and a warning says so. With ``back``, its share is the others'
  for so many seconds, as long as a fresh worker is in coming.

Slowness in proportion to the work is nobody's end: with a smaller share such a worker's batches
take no longer than the others'. Replaced is who is slow before it computes, as with a sleep. With
``per`` below the length of a transient, every such transient is persistent, and replaced in vain:
the paper's own 600 s are, beside slow periods of 900 s.
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
    """Shares for transient stragglers, fresh workers for persistent ones; seconds, see this module.

    ``lam`` >= 1 is how many times as slow as the average a straggler is; ``trans`` and ``per`` > 0
    the windows, ``act`` > 0 the time between two decisions, ``back`` >= 0 that of a restart.
    `ParameterError`: one of them breaks its rule.

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

    def persistence(self, busy: Callable[[], bool] = lambda: False) -> Persistence:
        """Return the rule by which workers are replaced; ``busy``: see there."""
        return Persistence(lam=self.lam, per=self.per, act=self.act, busy=busy)

    def first(self, parts: int) -> Balanced:
        return Balanced.of(balance(np.ones(self.n), parts).tolist())

    def director(self, parts: int) -> AntDTNDDirector:
        return AntDTNDDirector(self, parts=parts)


class AntDTNDDirector:
    """The controller of one run of `AntDTND`; a `seqgc.rounds.Director`.

    ``busy``: see `Persistence`.

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
        self._back_at: dict[int, float] = {}  # of workers that are being replaced, who have nothing
        self._unknown: set[int] = set()  # workers that were replaced, and are not known yet

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
        """Return the shares that suit what is known; who is not known keeps the present one."""
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
