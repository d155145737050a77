"""Defences whose workers compute the parts of a batch one by one: `Clocks`, and `Hedge`.

With `Clocks`, each worker goes through the batches by itself, up to a slack ahead of the slowest.
With `Hedge`, all workers compute the same batch, and late tasks are sent to a second worker.
"""

from seqgc.clocks._barrier import Barrier as Barrier
from seqgc.clocks._barrier import Slack as Slack
from seqgc.clocks._clock_defence import ClockDefence as ClockDefence
from seqgc.clocks._defence import Clocks as Clocks
from seqgc.clocks._flexrr import FlexRR as FlexRR
from seqgc.clocks._flexrr import FlexRRPolicy as FlexRRPolicy
from seqgc.clocks._global_clock import GlobalClock as GlobalClock
from seqgc.clocks._hedging import Hedge as Hedge
from seqgc.clocks._hedging import HedgePolicy as HedgePolicy
from seqgc.clocks._policy import ClockPolicy as ClockPolicy
from seqgc.clocks._policy import ClockState as ClockState
