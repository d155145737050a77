"""Patterns of slowness that the papers on stragglers inject, each as a pace.

Theory
------
All start from ``n`` equal workers, each of which does its n-th part of a batch in ``clock_s``
seconds, a *clock*, and say who is slower, when, and by how much. They differ in what slowness goes
with, and that decides which defence looks good:

- with the *work* (`SlowPeriods`, `PowerLawClocks`, `Uneven`): sleeps in the inner loop. Whoever
  waits does not get past them, and another worker that takes some of the work takes it at its own
  rate.
- with the *time* (`Disrupters`): another program runs on the machine. Who waits lets it pass.
- with the *task* (`RotatingSleep`, `SleepWindows`): a sleep before the work, however little work
  that is. Sharing out the work does not shorten it.

They are drawn worker by worker, by ``[seed, worker]``: another number of workers changes nothing of
the first ones. Each covers a span of its own, then the pattern begins again. A specification is
frozen and can be sent to live workers: `Slowdown.sleep_s` says how long one is to sleep.

Sources: Harlap et al., Addressing the straggler problem for iterative convergent parallel ML, SoCC
2016 [F]; Cui et al., Exploiting bounded staleness to speed up big data analytics, USENIX ATC 2014
[L]; AntDT: a self-adaptive distributed training framework for leader and straggler nodes, 2024 [A].
"""

from seqgc.profiles.slowdowns._by_task import RotatingSleep as RotatingSleep
from seqgc.profiles.slowdowns._by_task import SleepWindows as SleepWindows
from seqgc.profiles.slowdowns._by_time import Disrupters as Disrupters
from seqgc.profiles.slowdowns._by_work import PowerLawClocks as PowerLawClocks
from seqgc.profiles.slowdowns._by_work import SlowPeriods as SlowPeriods
from seqgc.profiles.slowdowns._by_work import Uneven as Uneven
from seqgc.profiles.slowdowns._slowdown import Slowdown as Slowdown
