"""Straggler models and the load that they cost at least; stragglers of recorded profiles."""

from seqgc.stragglers._busy import busy_seconds as busy_seconds
from seqgc.stragglers._busy import never_idle_seconds as never_idle_seconds
from seqgc.stragglers._busy import over_bound as over_bound
from seqgc.stragglers._statistics import SmallestLam as SmallestLam
from seqgc.stragglers._statistics import StragglerStats as StragglerStats
from seqgc.stragglers._statistics import clairvoyant_bound as clairvoyant_bound
from seqgc.stragglers._statistics import count_bursts as count_bursts
from seqgc.stragglers._statistics import straggler_pattern as straggler_pattern
from seqgc.stragglers._statistics import straggler_stats as straggler_stats
from seqgc.stragglers._straggler_models import AnyOf as AnyOf
from seqgc.stragglers._straggler_models import Arbitrary as Arbitrary
from seqgc.stragglers._straggler_models import Bursty as Bursty
from seqgc.stragglers._straggler_models import EveryGroup as EveryGroup
from seqgc.stragglers._straggler_models import PerRound as PerRound
from seqgc.stragglers._straggler_models import StragglerModel as StragglerModel
