"""Workers in virtual time: a backend on which every policy runs as fast as it can be simulated."""

from seqgc.virtual._backend import VirtualBackend as VirtualBackend
from seqgc.virtual._backend import WorkerKind as WorkerKind
from seqgc.virtual._computing import Compute as Compute
from seqgc.virtual._computing import answer as answer
from seqgc.virtual._conduct import Conduct as Conduct
from seqgc.virtual._faults import Fault as Fault
from seqgc.virtual._faults import Faults as Faults
from seqgc.virtual._faults import RandomFaults as RandomFaults
