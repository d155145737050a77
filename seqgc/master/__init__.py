"""The only loop: events to the policy, its actions to the backend and the workload."""

from seqgc.master._gathering import Gatherer as Gatherer
from seqgc.master._loop import run as run
