"""`ClosingRule`, `Setting` and `Adaptation`: the configuration of how a run closes its rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.schemes import Defence, PendingScheme, Scheme

_ENDINGS = ".best", ".optimizer", ".queue"  # suffixes of a model's files in a checkpoint

TIME_LIMITS: Final = 3
"""The number of time limits for which a round waits for a silent worker. After each of them except
the last, the worker is asked again."""

WaitOut: TypeAlias = Literal["all", "conform", "feasible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRule:
    """The rule for when a round closes, and when it fails (`RoundGate`).

    A round stays open until ``(1 + mu)`` times the time of its first answer, ``mu`` >= 0. If the
    answers do not suffice then, ``wait_out`` decides for which answers the round waits. After
    ``timeout_s`` > 0 seconds the round closes if no job would be lost. Otherwise the silent workers
    are asked again, at most twice, and the run ends after `longest_s`. If the round can close
    without the result of a task that fails, the task is sent at most ``max_attempts`` >= 1 times in
    all. Otherwise it is sent at most 20 times, or ``max_attempts`` times if this is more.

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
    def longest_s(self) -> float:
        """The longest time that a round can take, in seconds, if the master is not interrupted."""
        return TIME_LIMITS * self.timeout_s

    @property
    def label(self) -> str:
        """A short description of the rule, for display."""
        return f"mu={self.mu:g}, {self.wait_out}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The configuration of a run: a scheme, a closing rule, and the number of models in a job.

    The scheme decides which worker computes what. The rule decides when a round closes. One job
    computes the gradients of a bundle of at most ``jobs_per_round`` >= 1 models. The scheme may
    also be given as a spec. Then `on` makes the scheme as soon as the number of workers is known,
    which `seqgc.replay`, `seqgc.compare` and a training plan do by themselves.

    Raises
    ------
    ParameterError
        If the spec is wrong, or an argument breaks its rule.

    Examples
    --------
    >>> setting = Setting(scheme="gc-rep:s=1", rule=ClosingRule(mu=1.0))
    >>> setting.label
    'gc-rep:s=1, mu=1, feasible'
    >>> setting.on(4).scheme
    GC(n=4, s=1, family='rep', allow_error=0.0)
    """

    scheme: Defence
    rule: ClosingRule = field(default_factory=ClosingRule)
    jobs_per_round: int = 1

    if TYPE_CHECKING:  # the attribute is a `Defence`, but the argument may be a spec

        def __init__(
            self,
            *,
            scheme: Defence | str,
            rule: ClosingRule = ...,
            jobs_per_round: int = 1,
        ) -> None: ...

    def __post_init__(self) -> None:
        scheme: object = self.scheme
        if isinstance(scheme, str):
            object.__setattr__(self, "scheme", PendingScheme(scheme))
        elif not isinstance(scheme, Defence | PendingScheme):
            rule = "must be a scheme, another defence, or the spec of one"
            raise ParameterError("scheme", rule, scheme)
        bundle = require_int("jobs_per_round", self.jobs_per_round, least=1, most=10**9)
        object.__setattr__(self, "jobs_per_round", bundle)
        if not isinstance(self.scheme, Scheme | PendingScheme):
            for name in ("mu", "wait_out"):
                value = getattr(self.rule, name)
                if value != getattr(ClosingRule(), name):
                    rule = f"must be left out with {self.scheme.spec}, which has no rounds to close"
                    raise ParameterError(name, rule, value)

    @classmethod
    def of(cls, given: Setting | Defence | str, *, n: int) -> Setting:
        """Return the setting of a spec, a defence or a setting, for ``n`` workers.

        A spec or a defence gets the default rule, and one model in a job. Raises `ParameterError`
        if the spec is wrong, or does not fit the number of workers.
        """
        return (given if isinstance(given, Setting) else cls(scheme=given)).on(n)

    def on(self, n: int) -> Setting:
        """Return the setting with its scheme for ``n`` workers, if only its spec was given.

        A setting whose scheme is known is returned unchanged. Raises `ParameterError` if the scheme
        cannot have this number of workers.
        """
        if isinstance(self.scheme, PendingScheme):
            return replace(self, scheme=self.scheme.on(n))
        return self

    def limited_by(self, rule: ClosingRule) -> Setting:
        """Return a copy with the time limit and the number of attempts of another rule."""
        timeout_s, attempts = rule.timeout_s, rule.max_attempts
        own = replace(self.rule, timeout_s=timeout_s, max_attempts=attempts)
        return replace(self, rule=own)

    @property
    def label(self) -> str:
        """A description of the setting in one line, for display."""
        bundle = f", {self.jobs_per_round} jobs a round" if self.jobs_per_round > 1 else ""
        return f"{self.scheme.spec}, {self.rule.label}{bundle}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingState:
    """A `Setting` as JSON values. ``timeout_s`` is None if there is no time limit."""

    scheme: str
    mu: float
    wait_out: WaitOut
    timeout_s: float | None
    max_attempts: int
    jobs_per_round: int

    @classmethod
    def of(cls, setting: Setting) -> SettingState:
        rule = setting.rule
        return cls(
            scheme=setting.scheme.spec,
            mu=rule.mu,
            wait_out=rule.wait_out,
            timeout_s=None if math.isinf(rule.timeout_s) else rule.timeout_s,
            max_attempts=rule.max_attempts,
            jobs_per_round=setting.jobs_per_round,
        )

    def setting(self, n: int) -> Setting:
        """Return the setting for ``n`` workers; raise `ParameterError` if it is not valid."""
        rule = ClosingRule(
            mu=self.mu,
            wait_out=self.wait_out,
            timeout_s=math.inf if self.timeout_s is None else self.timeout_s,
            max_attempts=self.max_attempts,
        )
        setting = Setting(scheme=self.scheme, rule=rule, jobs_per_round=self.jobs_per_round)
        return setting.on(n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """The times at which a run searches for a better setting.

    ``probe`` is the number of rounds before the first search; if it is None, ``retune`` is used.
    ``retune`` is the number of rounds between two searches; if it is None, there is only one
    search. ``alpha`` is the time that load costs, in seconds per unit of load
    (docs/mathematics.md, section 7), and must be given.

    Raises
    ------
    ParameterError
        If ``probe`` or ``retune`` is not an integer >= 1, if neither of them is given, or if
        ``alpha`` is missing or not a finite number >= 0.

    Examples
    --------
    >>> from seqgc.rounds import Adaptation
    >>> Adaptation(probe=20, retune=50, alpha=1.12)
    Adaptation(probe=20, retune=50, alpha=1.12)
    """

    probe: int | None = None
    retune: int | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        for name, rounds in (("probe", self.probe), ("retune", self.retune)):
            if rounds is not None:
                object.__setattr__(self, name, require_int(name, rounds, least=1))
        if self.probe is None and self.retune is None:
            raise ParameterError("probe", "or `retune` must be given", None)
        if self.alpha is None or not 0 <= self.alpha < math.inf:
            rule = "must be a finite number >= 0, in seconds per unit of load"
            remedy = "measure it with `seqgc profile`, at several loads"
            raise ParameterError("alpha", rule, self.alpha, remedy)


def require_models(
    names: Sequence[str], *, delay: int, jobs_per_round: int, stale: bool = False
) -> None:
    """Check that models can take turns in bundles of at most ``jobs_per_round`` models.

    ``names`` are the names of the models, which are also the names of their files in a checkpoint.
    ``delay`` is the delay of the scheme, in rounds. If ``stale`` is True, gradients may be applied
    ``delay`` rounds late, and any number of bundles is enough.

    Raises
    ------
    ParameterError
        If there is no model, two models have the same name, a name is reserved for another file of
        a checkpoint, or ``jobs_per_round`` is not between 1 and the number of models. Unless
        ``stale`` is True, also if there are fewer than ``delay`` + 1 bundles.
    """
    if not names:
        raise ParameterError("models", "must hold at least one model", names)
    if len(set(names)) < len(names):
        raise ParameterError("models", "must have distinct names", names)
    for name in names:
        if name == "flight" or name.endswith(_ENDINGS):
            endings = ", ".join(f"`{ending}`" for ending in _ENDINGS)
            rule = f"must not be named `flight` or end in {endings}"
            raise ParameterError(
                "models", f"{rule}: other files of a checkpoint have such names", name
            )
    models = len(names)
    if not 1 <= jobs_per_round <= models:
        rule = f"must be >= 1 and at most the number of models, M={models}"
        raise ParameterError("jobs_per_round", rule, jobs_per_round)
    if not stale:
        _require_turns(models, delay=delay, jobs_per_round=jobs_per_round)


def num_bundles(models: int, jobs_per_round: int) -> int:
    """Return the number of bundles of at most ``jobs_per_round`` models each.

    Examples
    --------
    >>> num_bundles(8, 4), num_bundles(41, 21)
    (2, 2)
    """
    return -(-models // jobs_per_round)


def bundles_of(models: int, jobs_per_round: int) -> list[range]:
    """Return the range of models in each bundle.

    The sizes of bundles differ by at most one, and larger bundles come first.

    Examples
    --------
    >>> bundles_of(7, 3)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    count = num_bundles(models, jobs_per_round)
    size, larger = divmod(models, max(1, count))
    starts = [index * size + min(index, larger) for index in range(count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def require_bundles(models: int, *, delay: int, jobs_per_round: int) -> None:
    """Check that the models form equal bundles, and at least ``delay`` + 1 of them.

    A replay needs equal bundles, because its unit of load is a bundle. ``delay`` is the delay of
    the scheme, in rounds.

    Raises
    ------
    ParameterError
        If ``jobs_per_round`` does not divide the number of ``models``, or there are fewer than
        ``delay`` + 1 bundles.

    Examples
    --------
    >>> require_bundles(4, delay=1, jobs_per_round=2)
    >>> require_bundles(4, delay=1, jobs_per_round=3)
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `jobs_per_round` must be >= 1 and divide the number of models, ...
    """
    if jobs_per_round < 1 or models % jobs_per_round:
        rule = f"must be >= 1 and divide the number of models, M={models}"
        raise ParameterError("jobs_per_round", rule, jobs_per_round)
    _require_turns(models, delay=delay, jobs_per_round=jobs_per_round)


def _require_turns(models: int, *, delay: int, jobs_per_round: int) -> None:
    if num_bundles(models, jobs_per_round) <= delay:
        least = delay * jobs_per_round + 1
        raise ParameterError(
            "models",
            f"must number at least T * jobs_per_round + 1 = {least}, because a gradient may "
            f"come T={delay} rounds after its own round",
            models,
            "train more models, choose a smaller jobs_per_round or a scheme with a smaller delay, "
            "or allow gradients that are applied T rounds late (stale)",
        )
