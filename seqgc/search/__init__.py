"""Replay of recorded delays, and the search for the best scheme, parameters and closing rule."""

from seqgc.search._pruned_search import Progress as Progress
from seqgc.search._pruned_search import Ranked as Ranked
from seqgc.search._rehearsal import USUAL_RTT_S as USUAL_RTT_S
from seqgc.search._rehearsal import Conformity as Conformity
from seqgc.search._rehearsal import ProfileReading as ProfileReading
from seqgc.search._rehearsal import Reading as Reading
from seqgc.search._rehearsal import Rehearsal as Rehearsal
from seqgc.search._rehearsal import ReplaySettings as ReplaySettings
from seqgc.search._replay import DealtRun as DealtRun
from seqgc.search._replay import Replay as Replay
from seqgc.search._replay import ReplayBackend as ReplayBackend
from seqgc.search._replay import deal as deal
from seqgc.search._replay import replay as replay
from seqgc.search._space import Closing as Closing
from seqgc.search._space import SearchSpace as SearchSpace
from seqgc.search._tuning import Lead as Lead
from seqgc.search._tuning import Tuning as Tuning
from seqgc.search._tuning import bootstrap_total as bootstrap_total
from seqgc.search._tuning import hold_out as hold_out
from seqgc.search._tuning import tune as tune
from seqgc.search._unbatched_search import MOST_AT_SPEED as MOST_AT_SPEED
from seqgc.search.kernel import BatchReplay as BatchReplay
from seqgc.search.kernel import batch_replay as batch_replay
