"""Batched replay: the same results as `seqgc.search.replay`, for thousands of schemes at a time."""

from seqgc.search.kernel import _gc, _m_sgc, _ra_sgc, _sr_sgc  # noqa: F401
from seqgc.search.kernel._batch import BatchReplay as BatchReplay
from seqgc.search.kernel._batch import batch_replay as batch_replay
from seqgc.search.kernel._dispatch import Need as Need
from seqgc.search.kernel._dispatch import adds_results as adds_results
from seqgc.search.kernel._dispatch import least_loads as least_loads
from seqgc.search.kernel._dispatch import necessary_answers as necessary_answers
from seqgc.search.kernel._thresholds import Covers as Covers
