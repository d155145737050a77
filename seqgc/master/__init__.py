"""The master's loop, which passes events to a policy, and executes the actions that it returns."""

from seqgc.master._gathering import Gatherer as Gatherer
from seqgc.master._gathering import HeldJob as HeldJob
from seqgc.master._held import PackedJob as PackedJob
from seqgc.master._held import pack_held as pack_held
from seqgc.master._held import unpack_held as unpack_held
from seqgc.master._loop import Held as Held
from seqgc.master._loop import Holding as Holding
from seqgc.master._loop import run as run
