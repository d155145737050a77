"""`Conditions`: how all candidates of a batch are run."""

from __future__ import annotations

from dataclasses import dataclass

from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import Scheme
from seqgc.search._recorded_run import Replay, replay
from seqgc.search._rehearsal import Rehearsal

__all__ = ["Conditions"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conditions:
    """What all candidates of a batch share."""

    rehearsal: Rehearsal
    rule: ClosingRule
    jobs_per_round: int

    @property
    def feasible(self) -> bool:
        """Whether rounds wait only until no job is lost, and nobody asks what conforms."""
        return self.rule.wait_out == "feasible"

    @property
    def bursty_only(self) -> bool:
        """Whether the bursty model alone conforms."""
        return self.rehearsal.conformity == "bursty"

    def setting(self, scheme: Scheme) -> Setting:
        """Return a candidate, as a setting."""
        return Setting(scheme=scheme, rule=self.rule, jobs_per_round=self.jobs_per_round)

    def bundles(self, scheme: Scheme) -> int:
        """Return how many jobs a run of the scheme has."""
        return self.rehearsal.bundles(self.setting(scheme))

    def replay(self, scheme: Scheme) -> Replay:
        """Replay one scheme in general."""
        return replay(self.setting(scheme), self.rehearsal)
