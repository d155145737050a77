"""Workers that go on by themselves, each at its own clock, no further ahead than is allowed.

Why, and how long that takes: `seqgc.clocks.Clocks`, and what it is registered as.
"""

from seqgc.clocks._barrier import Barrier as Barrier
from seqgc.clocks._barrier import Slack as Slack
from seqgc.clocks._clock_defence import ClockDefence as ClockDefence
from seqgc.clocks._defence import Clocks as Clocks
from seqgc.clocks._global_clock import GlobalClock as GlobalClock
from seqgc.clocks._policy import ClockPolicy as ClockPolicy
from seqgc.clocks._state import ClockState as ClockState
