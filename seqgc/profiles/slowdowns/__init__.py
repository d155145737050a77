"""Patterns of slowness that the papers on stragglers inject, each as a pace.

Theory
------
All start from ``n`` equal workers, each of which does its n-th part of a batch in ``clock_s``
seconds, a *clock*, and say which workers are slower, when, and by how much. They differ in the
cause of the slowness, which decides the defence that looks best:

- the *work* (`SlowPeriods`, `PowerLawClocks`, `Uneven`): sleeps in the inner loop. Waiting does not
  avoid them. A worker that takes over some of the work does it at its own rate.
- the *time* (`Disrupters`): another program runs on the machine, and ends after a while.
- the *task* (`RotatingSleep`, `SleepWindows`): a sleep before each task, however small. Sharing out
  the work does not shorten it.

The draws of a worker depend on ``[seed, worker]`` only: the number of workers does not change the
first ones. Each pattern repeats after its span. A specification is frozen and can be sent to live
workers: `Slowdown.sleep_s` returns the seconds that a worker must sleep.

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
