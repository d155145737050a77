"""The batched kernel: what `seqgc.replay.replay` decides, for thousands of schemes at once."""

from seqgc.search.kernel._batch import batch_replay as batch_replay
from seqgc.search.kernel._result import BatchReplay as BatchReplay
from seqgc.search.kernel._rule import Conformity as Conformity
from seqgc.search.kernel._rule import conformity_model as conformity_model
