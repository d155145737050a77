"""The only loop: it passes events to the policy, and actions to the backend and the workload."""

from seqgc.master._gathering import Gatherer as Gatherer
from seqgc.master._gathering import HeldJob as HeldJob
from seqgc.master._loop import Held as Held
from seqgc.master._loop import Holding as Holding
from seqgc.master._loop import run as run
