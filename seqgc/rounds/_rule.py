"""When a round closes, and how rounds are run: what gate, search and results agree on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.schemes import Scheme

WaitOut: TypeAlias = Literal["all", "conform", "feasible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRule:
    """When a round closes, and when it is given up; see `RoundGate`.

    A round stays open until ``(1 + mu)`` times its first answer's time, ``mu`` >= 0; then
    ``wait_out`` says what it waits for if its answers do not suffice. After ``timeout_s`` > 0
    seconds whatever loses no job does; if nothing does, those who are silent are asked again, and
    after the same time once more the run ends. The task of a worker that the round can do without
    is sent ``max_attempts`` >= 1 times at most; of one that it cannot, 20 times.

    Examples
    --------
    >>> ClosingRule(mu=1.0, wait_out="all").label
    'mu=1, all'
    """

    mu: float = 0.0
    wait_out: WaitOut = "feasible"
    timeout_s: float = math.inf
    max_attempts: int = 3

    def __post_init__(self) -> None:
        require_number("mu", self.mu, least=0)
        if self.wait_out not in get_args(WaitOut):
            rule = f"must be one of {', '.join(get_args(WaitOut))}"
            raise ParameterError("wait_out", rule, self.wait_out)
        if not self.timeout_s > 0:
            raise ParameterError("timeout_s", "must be > 0 seconds", self.timeout_s)
        attempts = require_int("max_attempts", self.max_attempts, least=1)
        object.__setattr__(self, "max_attempts", attempts)

    @property
    def label(self) -> str:
        """The rule in a few words, for people."""
        return f"mu={self.mu:g}, {self.wait_out}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How rounds are run: who computes what, when they close, and how many models' gradients.

    One job computes the gradients of a bundle of ``jobs_per_round`` >= 1 models.

    Examples
    --------
    >>> from seqgc.schemes import GC
    >>> Setting(scheme=GC(n=4, s=1, family="rep")).label
    'gc-rep:s=1, mu=0, feasible'
    """

    scheme: Scheme
    rule: ClosingRule = field(default_factory=ClosingRule)
    jobs_per_round: int = 1

    def __post_init__(self) -> None:
        bundle = require_int("jobs_per_round", self.jobs_per_round, least=1, most=10**9)
        object.__setattr__(self, "jobs_per_round", bundle)

    @property
    def label(self) -> str:
        """The setting in one line, for people."""
        bundle = f", {self.jobs_per_round} jobs a round" if self.jobs_per_round > 1 else ""
        return f"{self.scheme.spec}, {self.rule.label}{bundle}"
