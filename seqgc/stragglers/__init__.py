"""Straggler models with load bounds, statistics of profiles, and lower bounds on run time.

In docstrings, "the paper" is *Sequential Gradient Coding For Straggler Mitigation*, ICLR 2023.
"""

from seqgc.stragglers._bounds import busy_seconds as busy_seconds
from seqgc.stragglers._bounds import clairvoyant_bound as clairvoyant_bound
from seqgc.stragglers._bounds import never_idle_seconds as never_idle_seconds
from seqgc.stragglers._bounds import over_bound as over_bound
from seqgc.stragglers._statistics import SmallestLam as SmallestLam
from seqgc.stragglers._statistics import StragglerStats as StragglerStats
from seqgc.stragglers._statistics import count_bursts as count_bursts
from seqgc.stragglers._statistics import straggler_pattern as straggler_pattern
from seqgc.stragglers._statistics import straggler_stats as straggler_stats
from seqgc.stragglers._straggler_models import AnyOf as AnyOf
from seqgc.stragglers._straggler_models import Arbitrary as Arbitrary
from seqgc.stragglers._straggler_models import Bursty as Bursty
from seqgc.stragglers._straggler_models import EveryGroup as EveryGroup
from seqgc.stragglers._straggler_models import PerRound as PerRound
from seqgc.stragglers._straggler_models import StragglerModel as StragglerModel
