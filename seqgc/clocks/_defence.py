"""The defences without rounds: bulk synchronous, stale synchronous and asynchronous parallel.

Theory
------
The data are the same for all defences: job t is one step on batch t, and worker p computes its p-th
part. What differs is *when*. A worker that waits for nobody is never held up, but what it computes
is then the gradient of old weights, and the staler these are the more steps training takes. Two
numbers say how far a worker may go on by itself (Cui et al. 2014, 2.3):

- the *work per clock* ``wpc``: after how many jobs it hands in what it has, and may have to wait;
- the *slack* s: how many clocks it may be ahead of the slowest.

No update lacks more than ``wpc * (s + 1) - 1`` jobs before its own. So several pairs have one
bound, and of these a slack is worth more than work per clock: who is slow now and then catches up
while others go on, and a longer clock costs everybody its slowest worker's time all the same. That
is Cui et al.'s rule of thumb (5.2): slack 1, and half the bound that training bears as ``wpc``.

Without failures, where ``T[t, i]`` are the seconds of worker i's clock t,

    end[t + 1, i] = max(end[t, i], max_j end[t - s, j]) + T[t, i]        (0 for clocks before 0).

With s = 0 that is the sum of all clocks' slowest workers, as uncoded; without a bound it is the
slowest worker's sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from seqgc.clocks._barrier import Slack
from seqgc.clocks._clock_defence import ClockDefence
from seqgc.errors import ParameterError
from seqgc.schemes import register

__all__ = ["Clocks"]

_MOST = 10**9
"""Clocks, jobs: more than any run has."""


@register("asp", slack=None)
@register("ssp")
@register("a-bsp", slack=0)
@register("bsp", slack=0, wpc=1)
@dataclass(frozen=True, kw_only=True)
class Clocks(ClockDefence):
    """Each worker at its own clock, of ``wpc`` jobs, at most ``slack`` ahead of the slowest one.

    ``bsp`` waits for everybody in every job; ``a-bsp`` after several; ``ssp`` for those who are
    more than ``slack`` clocks behind; ``asp`` (slack None) for nobody. The load is ``1/n``: nothing
    is computed twice. `seqgc.clocks.ClockPolicy` runs it; the formula of its run time is in
    `seqgc.clocks`.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> from seqgc.schemes import parse_scheme
    >>> ssp = parse_scheme("ssp:slack=1,wpc=2", n=8)
    >>> ssp, ssp.staleness, ssp.kind
    (Clocks(n=8, slack=1, wpc=2), 3, 'stale')
    >>> [Clocks(n=8, slack=slack, wpc=wpc).spec for slack, wpc in ((0, 1), (0, 2), (None, 1))]
    ['bsp', 'a-bsp:wpc=2', 'asp']
    """

    n: int
    slack: int | None
    wpc: int = 1

    def __post_init__(self) -> None:
        self._keep_integers("n", "wpc")
        if not 1 <= self.wpc <= _MOST:
            raise ParameterError("wpc", f"must satisfy 1 <= wpc <= {_MOST} (jobs)", self.wpc)
        if self.slack is None:
            return
        self._keep_integers("slack")
        if not 0 <= self.slack <= _MOST:
            rule, remedy = f"must satisfy 0 <= slack <= {_MOST} (clocks)", "asp has no bound"
            raise ParameterError("slack", rule, self.slack, remedy)

    @property
    def barrier(self) -> Slack:
        return Slack(slack=self.slack)

    @property
    def tolerates(self) -> str:
        behind = f" at most {self.slack} clock{'' if self.slack == 1 else 's'} behind"
        if self.slack is None:
            behind = " behind"
        waits = f"nobody waits for who is{behind}" if self.slack != 0 else "all wait for the last"
        return f"{waits}; the parts of a worker that fails go to others until it is back"
