"""`Conditions`: how to run, whichever the candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seqgc.profiles import DelayProfile
from seqgc.rounds import WaitOut
from seqgc.schemes import MSGC, SRSGC, Scheme
from seqgc.search._replay import Replay, replay
from seqgc.stragglers import Bursty, StragglerModel

__all__ = ["Conditions", "Conformity", "conformity_model"]

Conformity = Literal["scheme", "bursty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What all candidates share: the arguments of `batch_replay`."""

    profile: DelayProfile
    num_jobs: int
    mu: float
    wait_out: WaitOut
    alpha: float | None
    jobs_per_round: int
    repeat: bool
    conformity: Conformity

    @property
    def bundles(self) -> int:
        return self.num_jobs // self.jobs_per_round

    def replay(self, scheme: Scheme) -> Replay:
        """Replay one scheme in general."""
        return replay(
            scheme,
            self.profile,
            num_jobs=self.num_jobs,
            mu=self.mu,
            wait_out=self.wait_out,
            alpha=self.alpha,
            jobs_per_round=self.jobs_per_round,
            repeat=self.repeat,
            conformity=conformity_model(scheme, self.conformity),
        )


def conformity_model(scheme: Scheme, conformity: Conformity) -> StragglerModel | None:
    """Return what `replay` is to be given as ``conformity``; None: the scheme's own model.

    ``bursty`` judges SR-SGC and M-SGC by the (B, W, lam)-bursty model alone.

    Examples
    --------
    >>> conformity_model(MSGC(n=4, B=1, W=2, lam=2), "bursty")
    Bursty(B=1, W=2, lam=2)
    """
    if conformity == "bursty" and isinstance(scheme, SRSGC | MSGC):
        return Bursty(B=scheme.B, W=scheme.W, lam=scheme.lam)
    return None
