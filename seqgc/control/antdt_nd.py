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
from seqgc.control._monitor import Means, Monitor
from seqgc.control._shares import balance
from seqgc.errors import require_number
from seqgc.ports import BoolArray, Event, RoundRecord
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
        require_number("lam", self.lam, least=1)
        for name, value in (("trans", self.trans), ("per", self.per), ("act", self.act)):
            require_number(name, value, above=0)
        require_number("back", self.back, least=0)

    def first(self, parts: int) -> Balanced:
        return Balanced.of(balance(np.ones(self.n), parts).tolist())

    def director(self, parts: int) -> AntDTNDDirector:
        return AntDTNDDirector(self, parts=parts)


class AntDTNDDirector:
    """The controller of one run of `AntDTND`; a `seqgc.rounds.Director`.

    ``busy`` says, whenever somebody is to be replaced, whether the cluster has no room for fresh
    workers now: then nobody is.

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
        self._defence, self._parts, self._busy = defence, parts, busy
        self._monitor = Monitor(defence.n, window_s=max(defence.trans, defence.per))
        self._acts_at = defence.act
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
        if now >= self._acts_at:
            self._acts_at = now + self._defence.act
            slow, restart = self._stragglers()
            adjusts |= bool(slow.any()) or len(set(scheme.parts.tolist())) > 1
        for worker in restart:
            self._replace(worker)
        if adjusts or (restart and self._back_at):
            scheme = self._adjusted(scheme)
        if restart or scheme != setting.scheme:
            reason = f"{self._defence.lam:g} times as slow as others for {self._defence.per:g} s"
            setting = replace(setting, scheme=scheme)
            return Decision(setting=setting, restart=restart, optional=True, reason=reason)
        return None

    def _some_are_known_again(self) -> bool:
        if not self._unknown:
            return False
        known = self._monitor.speeds(self._defence.trans).known
        again = {worker for worker in self._unknown if known[worker]}
        self._unknown -= again
        return bool(again)

    def _stragglers(self) -> tuple[BoolArray, tuple[int, ...]]:
        """Return who is slow now (n,), and who has been for so long that it is to be replaced."""
        lam, monitor = self._defence.lam, self._monitor
        slow = _slow(monitor.seconds(self._defence.trans), lam)
        long = monitor.seconds(self._defence.per)
        known = long.known & (monitor.up_s >= self._defence.per)
        persistent = np.flatnonzero(_slow(Means(long.values, known), lam)).tolist()
        return slow, () if persistent and self._busy() else tuple(persistent)

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


def _slow(seconds: Means, lam: float) -> BoolArray:
    """Return who takes ``lam`` times as long as those who are known do on average, (n,)."""
    if not seconds.known.any():
        return seconds.known
    average = float(seconds.values[seconds.known].mean())
    return seconds.known & np.greater_equal(seconds.values, lam * average)
