"""The batched kernel: what `seqgc.search.replay` decides, for thousands of schemes at once."""

from seqgc.search.kernel._batch import batch_replay as batch_replay
from seqgc.search.kernel._conditions import Conformity as Conformity
from seqgc.search.kernel._conditions import conformity_model as conformity_model
from seqgc.search.kernel._covers import Covers as Covers
from seqgc.search.kernel._result import BatchReplay as BatchReplay
