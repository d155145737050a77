"""A small search for the page of a profile: as much of the grid as a few seconds allow.

`seqgc.search.tune` finds the best of a grid, which among hundreds of workers takes minutes. A page
is to show what parameters do to the time, and for that a part of the grid, evenly spread, will do.
It is searched again and again, four times as finely each time, for as long as there is time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Final

from seqgc.schemes import Scheme, registered
from seqgc.search import Ranked, Rehearsal, SearchSpace, Tuning, tune

__all__ = ["SEARCH_S", "TOLERANCE", "Search", "search"]

SEARCH_S: Final = 10.0  # what a page may take

TOLERANCE: Final = 1.0  # the paper's mu, on the whole page
_MOST_CELLS: Final = 2**14  # rounds × workers that are replayed
_FEWEST_ROUNDS: Final = 10
_FIRST, _FINER = 4, 4  # schemes of a name, and how many times as many the next time
_FINE_UP_TO: Final = 64  # workers; among more, the grid itself is thinned out
_EVERYTHING: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What was searched, and what was found; ``complete``: every scheme of the grid was looked at.

    ``dealt`` is the run of a scheme that deals work out, which has no parameters; None: it cannot
    run on the recorded workers.
    """

    rehearsal: Rehearsal
    tuning: Tuning
    dealt: Ranked | None
    complete: bool

    @property
    def says(self) -> str:
        """What was searched, in sentences."""
        profile, found = self.rehearsal.profile, self.tuning
        whole = "every scheme of a grid" if self.complete else "schemes evenly spread over a grid"
        return (
            f"Searched: {found.evaluated:,} candidates, {whole}, one model a round, rounds that "
            f"close at (1 + {TOLERANCE:g}) times their first answer or when every job can still "
            f"finish; each replayed for {found.num_jobs:,} jobs on {profile.num_rounds:,} recorded "
            "rounds. "
            "seqgc tune searches closing rules and bundles as well, and judges on held-out rounds."
        )


def search(rehearsal: Rehearsal, *, seconds: float) -> Search:
    """Search schemes that work by rounds for about so many seconds, then the one that deals.

    The first, coarsest search is always finished.

    Raises
    ------
    ParameterError, ProfileError
        If the profile cannot be searched on.
    """
    rehearsal = _cut(rehearsal)
    workers = rehearsal.profile.num_workers
    by_rounds = [name for name, each in registered().items() if issubclass(each.kind, Scheme)]
    space = SearchSpace(
        families=tuple(by_rounds),
        mus=(TOLERANCE,),
        wait_outs=("feasible",),
        jobs_per_round=(1,),
        coarse=workers > _FINE_UP_TO,
        most=_FIRST,
    )
    dealt = None
    if rehearsal.can_deal:
        dealt = _tune(rehearsal, replace(space, families=("deal",))).best
    began = lap = time.monotonic()
    found = _tune(rehearsal, space)
    complete = False
    while not complete:
        now = time.monotonic()
        if now - began + _FINER * (now - lap) > seconds:
            break
        lap, before = now, found.evaluated
        space = replace(space, most=_FINER * (space.most or 1))
        found = _tune(rehearsal, space)
        complete = found.evaluated == before
    return Search(rehearsal=rehearsal, tuning=found, dealt=dealt, complete=complete)


def _cut(rehearsal: Rehearsal) -> Rehearsal:
    profile = rehearsal.profile
    rounds = max(_FEWEST_ROUNDS, _MOST_CELLS // profile.num_workers)
    if rounds >= profile.num_rounds:
        return rehearsal
    return replace(rehearsal, profile=profile.select_rounds(0, stop=rounds))


def _tune(rehearsal: Rehearsal, space: SearchSpace) -> Tuning:
    return tune(rehearsal, space=space, top=_EVERYTHING, prune=False, pareto=True)
