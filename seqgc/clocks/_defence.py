"""The defences without rounds: bulk synchronous, stale synchronous and asynchronous parallel.

Theory
------
All defences process the same data: job t is one step on batch t, and worker p computes the p-th
part of this batch. The defences differ in *when* a part is computed. A worker that never waits for
other workers is never delayed by them, but it computes gradients at old weights. The older the
weights, the more steps training takes. Two numbers bound how far a worker may be ahead of other
workers (Cui et al. 2014, 2.3):

- the *work per clock* ``wpc``: the number of jobs after which a worker sends its results, and may
  have to wait;
- the *slack* s: the number of clocks by which a worker may be ahead of the slowest one.

When job t is computed, the weights may lack the updates of at most ``wpc * (s + 1) - 1`` of the
jobs before t. This bound is the staleness. Several pairs of ``wpc`` and s have the same staleness.
Among them, a larger slack helps more than a larger ``wpc``. With slack, a worker that is slow from
time to time can catch up while the other workers continue. With longer clocks and no slack, every
clock still takes as long as its slowest worker. The rule of thumb of Cui et al. (5.2) is a slack of
1, and a ``wpc`` of half the staleness that the training tolerates.

Let ``T[t, i]`` be the seconds that worker i computes in clock t, and ``end[t, i]`` the time at
which it has completed t clocks. Without failures,

    end[t + 1, i] = max(end[t, i], max_j end[t - s, j]) + T[t, i]        (end = 0 if t <= 0).

With s = 0 the run takes the sum, over all clocks, of the slowest worker's time, as an uncoded run
does. Without a bound it takes as long as the worker whose own times have the largest sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from seqgc.clocks._barrier import Slack
from seqgc.clocks._clock_defence import ClockDefence
from seqgc.errors import ParameterError
from seqgc.schemes import register

__all__ = ["Clocks"]

_MOST = 10**9
"""The largest ``slack`` and ``wpc`` that are accepted: more than the jobs of any run."""


@register("asp", slack=None)
@register("ssp")
@register("a-bsp", slack=0)
@register("bsp", slack=0, wpc=1)
@dataclass(frozen=True, kw_only=True)
class Clocks(ClockDefence):
    """A defence without rounds: each worker is at most ``slack`` clocks ahead of the slowest one.

    A clock is ``wpc`` jobs. With ``bsp``, a worker waits for all workers after every job, with
    ``a-bsp`` after every clock. With ``ssp``, it waits for workers that are more than ``slack``
    clocks behind it. With ``asp`` (slack None), it never waits. The load is ``1/n``: nothing is
    computed twice. `seqgc.clocks.ClockPolicy` is the policy. Section 10 of docs/mathematics.md has
    the formula of the run time.

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
            rule = f"must satisfy 0 <= slack <= {_MOST} (clocks)"
            remedy = "for no bound, use `asp`"
            raise ParameterError("slack", rule, self.slack, remedy)

    @property
    def barrier(self) -> Slack:
        return Slack(slack=self.slack)

    @property
    def tolerates(self) -> str:
        if self.slack is None:
            waits = "no worker waits for a slower one"
        elif self.slack == 0:
            waits = "all workers wait for the slowest"
        else:
            clocks = f"{self.slack} clock{'' if self.slack == 1 else 's'}"
            waits = f"a worker waits only for workers more than {clocks} behind it"
        return f"{waits}; the parts of a worker that fails go to other workers until it is back"
