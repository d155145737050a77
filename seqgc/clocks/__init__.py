"""Workers that go on by themselves, each at its own clock, no further ahead than is allowed.

Why, and how long that takes: `seqgc.clocks.Clocks`, and what it is registered as.
"""

from seqgc.clocks._bound import Bound as Bound
from seqgc.clocks._defence import Clocks as Clocks
from seqgc.clocks._policy import ClockPolicy as ClockPolicy
from seqgc.clocks._state import ClockState as ClockState
