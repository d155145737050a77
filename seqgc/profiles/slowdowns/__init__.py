"""Patterns of slowness that the papers on stragglers inject, each as a pace.

Theory
------
Without slowness, there are ``n`` equal workers, and each does its n-th part of a batch in
``clock_s`` seconds. This is a *clock* of the worker. A pattern determines which workers are slower,
when, and by how much. Patterns differ in the cause of the slowness, which determines the best
defence:

- The *work* (`SlowPeriods`, `PowerLawClocks`, `Uneven`): the inner loop sleeps. Waiting does not
  avoid the sleeps. A worker that takes over some of the work does it at its own rate.
- The *time* (`Disrupters`): another program runs on the machine, and ends after a while.
- The *task* (`RotatingSleep`, `SleepWindows`): a worker sleeps before each task, however small the
  task is. Smaller tasks do not shorten the sleep.

The random draws of a worker, or of a machine, depend only on the seed and its number. Each pattern
begins again after its last row. A specification is frozen and can be sent to live
workers: `Slowdown.sleep_s` returns the seconds that a worker must sleep.

Sources: Harlap et al., Addressing the straggler problem for iterative convergent parallel ML, SoCC
2016; Cui et al., Exploiting bounded staleness to speed up big data analytics, USENIX ATC 2014;
AntDT: a self-adaptive distributed training framework for leader and straggler nodes, 2024.
"""

from seqgc.profiles.slowdowns._by_task import RotatingSleep as RotatingSleep
from seqgc.profiles.slowdowns._by_task import SleepWindows as SleepWindows
from seqgc.profiles.slowdowns._by_time import Disrupters as Disrupters
from seqgc.profiles.slowdowns._by_work import PowerLawClocks as PowerLawClocks
from seqgc.profiles.slowdowns._by_work import SlowPeriods as SlowPeriods
from seqgc.profiles.slowdowns._by_work import Uneven as Uneven
from seqgc.profiles.slowdowns._slowdown import Slowdown as Slowdown
