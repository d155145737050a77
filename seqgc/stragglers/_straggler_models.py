"""Straggler models: which patterns a design promises to tolerate (paper, section 2.1).

A pattern is a boolean array (rounds, n): ``pattern[t, i]`` is true when worker ``i`` straggles in
round ``t``. Every model judges windows of consecutive rounds, cut at the first and last round.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import BoolArray

__all__ = ["AnyOf", "Arbitrary", "Bursty", "EveryGroup", "PerRound", "StragglerModel"]


class StragglerModel(ABC):
    """A promise about every window of ``window`` consecutive rounds."""

    @property
    @abstractmethod
    def window(self) -> int:
        """Rounds in a window."""

    @abstractmethod
    def admits(self, window: BoolArray) -> bool:
        """Whether one window (at most `window` rounds, n), on its own, fits the model."""

    @abstractmethod
    def load_lower_bound(self, n: int, *, delay: int) -> float:
        """Lower bound on the load of any exact scheme of ``n`` workers that keeps the promise.

        ``delay`` is how many rounds late a job may be decoded. Infinite: no load suffices. The load
        is the largest of any worker in any round. With a delay the bound is for runs of any number
        of jobs: a run of only a few jobs may need less (docs/mathematics.md, section 4).

        Raises
        ------
        ParameterError
            If the model cannot be of ``n`` workers.
        """

    @abstractmethod
    def describe(self) -> str:
        """Say the promise in a few words."""

    def conforms(self, pattern: BoolArray) -> bool:
        """Whether every window of a pattern (rounds, n) fits the model.

        Raises
        ------
        ParameterError
            If `pattern` is not a boolean matrix, or has no rounds.
        """
        if not isinstance(pattern, np.ndarray) or pattern.ndim != 2 or pattern.dtype != np.bool_:
            value = (getattr(pattern, "dtype", type(pattern).__name__), np.shape(pattern))
            raise ParameterError("pattern", "must be a boolean array (rounds, n)", value)
        if not len(pattern):
            raise ParameterError("pattern", "must have at least one round", pattern.shape)
        return self._admits_each(pattern)

    def _admits_each(self, pattern: BoolArray) -> bool:
        """`conforms`, of what is known to be a pattern."""
        last = len(pattern) - self.window
        if last <= 0:
            return self.admits(pattern)
        return all(self.admits(pattern[t : t + self.window]) for t in range(last + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PerRound(StragglerModel):
    """At most ``s`` stragglers in each round.

    Examples
    --------
    >>> PerRound(s=1).conforms(np.array([[True, False], [False, True]]))
    True
    """

    s: int
    window: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _keep_integers(self, ("s", 0))

    def admits(self, window: BoolArray) -> bool:
        return bool((window.sum(axis=1) <= self.s).all())

    def load_lower_bound(self, n: int, *, delay: int) -> float:
        """``(s+1)/n`` without a delay (Tandon et al. 2017, Theorem 1), else ``1/(n-s)``.

        With a delay the same s workers may straggle in every round: the others do all the work.
        """
        if self.s >= n:
            raise ParameterError("s", f"must satisfy 0 <= s < n, n={n}", self.s)
        return (self.s + 1) / n if delay == 0 else 1 / (n - self.s)

    def describe(self) -> str:
        return f"at most {self.s} stragglers in each round"


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryGroup(StragglerModel):
    """In each round somebody answers in every group of ``size`` workers.

    Of ``n`` workers those with the same number modulo ``n / size`` are a group.

    Examples
    --------
    >>> EveryGroup(size=2).conforms(np.array([[True, True, False, False]]))
    True
    """

    size: int
    window: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _keep_integers(self, ("size", 1))

    def admits(self, window: BoolArray) -> bool:
        groups = window.reshape(len(window), self.size, -1)
        return not bool(groups.all(axis=1).any())

    def load_lower_bound(self, n: int, *, delay: int) -> float:  # noqa: ARG002 (the same with any)
        """``size / n``: one worker of each group may be all that ever answers."""
        if n < self.size or n % self.size:
            raise ParameterError("size", f"must divide the n={n} workers", self.size)
        return self.size / n

    def describe(self) -> str:
        return f"one answer in every group of {self.size} workers in each round"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursty(StragglerModel):
    """The (B, W, lam)-bursty model (paper, section 2.1).

    In every window of W rounds at most lam distinct stragglers, and each worker's first and last
    straggling round at most B - 1 apart.

    Examples
    --------
    >>> pattern = np.array([[True, False], [False, False], [True, False]])
    >>> Bursty(B=1, W=2, lam=1).conforms(pattern), Bursty(B=1, W=3, lam=1).conforms(pattern)
    (True, False)
    """

    B: int
    W: int
    lam: int

    def __post_init__(self) -> None:
        _keep_integers(self, ("B", 1), ("W", 1), ("lam", 0))
        if self.B > self.W:
            raise ParameterError("B", f"must satisfy 1 <= B <= W (bursty), W={self.W}", self.B)

    @property
    def window(self) -> int:
        return self.W

    def admits(self, window: BoolArray) -> bool:
        straggled = np.logical_or.reduce(window)
        distinct = np.count_nonzero(straggled)
        if distinct > self.lam or not distinct:
            return not distinct
        rounds = window[:, straggled]
        first, from_last = rounds.argmax(axis=0), rounds[::-1].argmax(axis=0)
        return int((first + from_last).min()) >= len(window) - self.B

    def load_lower_bound(self, n: int, *, delay: int) -> float:
        """``(W-1+B) / (n (W-1) + B (n-lam))`` (paper, Theorem F.1): M-SGC's arbitrary model's."""
        arbitrary = Arbitrary(N=self.B, W=self.W - 1 + self.B, lam=self.lam)
        return arbitrary.load_lower_bound(n, delay=delay)

    def describe(self) -> str:
        promise = f"in every {self.W} rounds at most {self.lam} distinct stragglers"
        return f"{promise}, each in a burst of at most {self.B}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arbitrary(StragglerModel):
    """The (N, W, lam)-arbitrary model (paper, section 2.1).

    In every window of W rounds at most lam distinct stragglers, each in at most N of them.

    Examples
    --------
    >>> Arbitrary(N=2, W=3, lam=1).conforms(np.array([[True], [False], [True]]))
    True
    """

    N: int
    W: int
    lam: int

    def __post_init__(self) -> None:
        _keep_integers(self, ("N", 0), ("W", 1), ("lam", 0))
        if self.N > self.W:
            raise ParameterError("N", f"must satisfy 0 <= N <= W (arbitrary), W={self.W}", self.N)

    @property
    def window(self) -> int:
        return self.W

    def admits(self, window: BoolArray) -> bool:
        straggled = np.logical_or.reduce(window)
        distinct = np.count_nonzero(straggled)
        if distinct > self.lam or not distinct:
            return not distinct
        return int(window[:, straggled].sum(axis=0).max()) <= self.N

    def load_lower_bound(self, n: int, *, delay: int) -> float:  # noqa: ARG002 (the same with any)
        """``W / (n (W-N) + N (n-lam))`` (paper, Theorem F.2)."""
        if self.lam > n:
            raise ParameterError("lam", f"must satisfy 0 <= lam <= n, n={n}", self.lam)
        workable = n * (self.W - self.N) + self.N * (n - self.lam)
        return self.W / workable if workable else math.inf

    def describe(self) -> str:
        promise = f"in every {self.W} rounds at most {self.lam} distinct stragglers"
        return f"{promise}, each in at most {self.N} of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyOf(StragglerModel):
    """Every window of ``span`` rounds, on its own, conforms to one of the ``models``.

    Examples
    --------
    >>> mixture = AnyOf(span=2, models=(PerRound(s=1), Bursty(B=1, W=2, lam=2)))
    >>> mixture.conforms(np.array([[True, True], [False, False]]))
    True
    """

    span: int
    models: tuple[StragglerModel, ...]

    def __post_init__(self) -> None:
        _keep_integers(self, ("span", 1))
        if not self.models:
            raise ParameterError("models", "must name at least one model", self.models)
        if self.span < max(model.window for model in self.models):
            rule = "must be at least the widest window of its models"
            raise ParameterError("span", rule, self.span)

    @property
    def window(self) -> int:
        return self.span

    def admits(self, window: BoolArray) -> bool:
        return any(model._admits_each(window) for model in self.models)

    def load_lower_bound(self, n: int, *, delay: int) -> float:
        """Return the largest of its models': patterns of each alone are among those promised."""
        return max(model.load_lower_bound(n, delay=delay) for model in self.models)

    def describe(self) -> str:
        options = ", or ".join(model.describe() for model in self.models)
        return f"every {self.span} rounds on their own: {options}"


def _keep_integers(model: StragglerModel, *least: tuple[str, int]) -> None:
    """Make the named fields of a model ints; each has a least value."""
    for name, bound in least:
        object.__setattr__(model, name, require_int(name, getattr(model, name), least=bound))
