"""Parameter search: which scheme, parameters and closing rule suit a delay profile."""

from seqgc.search._ideal import ideal_seconds as ideal_seconds
from seqgc.search._replay import Replay as Replay
from seqgc.search._replay import ReplayBackend as ReplayBackend
from seqgc.search._replay import replay as replay
from seqgc.search._replay import times_for as times_for
from seqgc.search._search import Progress as Progress
from seqgc.search._space import FAMILIES as FAMILIES
from seqgc.search._space import Rule as Rule
from seqgc.search._space import SearchSpace as SearchSpace
from seqgc.search._statistics import hold_out as hold_out
from seqgc.search._tune import Lead as Lead
from seqgc.search._tune import Ranked as Ranked
from seqgc.search._tune import Tuning as Tuning
from seqgc.search._tune import tune as tune
from seqgc.search.kernel import BatchReplay as BatchReplay
from seqgc.search.kernel import Conformity as Conformity
from seqgc.search.kernel import batch_replay as batch_replay
from seqgc.search.kernel import conformity_model as conformity_model
