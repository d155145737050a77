"""Straggler models: the patterns that a design promises to tolerate (paper, section 2.1).

A pattern is a boolean array (rounds, n): ``pattern[t, i]`` is true if worker ``i`` straggles in
round ``t``. Each model checks all windows of consecutive rounds in the pattern. A pattern that is
shorter than a window is checked as one window.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import BoolArray


class StragglerModel(ABC):
    """A promise about the stragglers in every window of `window` consecutive rounds."""

    @property
    @abstractmethod
    def window(self) -> int:
        """The number of rounds in a window."""

    @abstractmethod
    def admits(self, window: BoolArray) -> bool:
        """Return True if a single window (at most `window` rounds, n) fits the model."""

    @abstractmethod
    def load_lower_bound(self, n: int, *, delay: int) -> float:
        """Return a lower bound on the load of any exact scheme of ``n`` workers with this promise.

        The load is the largest load of any worker in any round. The bound is infinite if no load
        suffices. Jobs are decoded at most ``delay`` rounds late. If there is a delay, the bound is
        for schemes that work for runs of any length: a run of a few jobs may need a smaller load
        (docs/mathematics.md, section 4).

        Raises
        ------
        ParameterError
            If the model does not fit ``n`` workers.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return a short description of the promise, for messages."""

    def conforms(self, pattern: BoolArray) -> bool:
        """Return True if every window of a pattern (rounds, n) fits the model.

        Raises
        ------
        ParameterError
            If ``pattern`` is not a boolean matrix, or has no rounds.
        """
        if not isinstance(pattern, np.ndarray) or pattern.ndim != 2 or pattern.dtype != np.bool_:
            value = (getattr(pattern, "dtype", type(pattern).__name__), np.shape(pattern))
            raise ParameterError("pattern", "must be a boolean array (rounds, n)", value)
        if not len(pattern):
            raise ParameterError("pattern", "must have at least one round", pattern.shape)
        return self._admits_each(pattern)

    def _admits_each(self, pattern: BoolArray) -> bool:
        """Return `conforms` without a check of the pattern."""
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
        """Return ``(s+1)/n`` if ``delay`` is 0 (Tandon et al. 2017, Theorem 1), else ``1/(n-s)``.

        With a delay, the worst case is that the same s workers straggle in every round, and the
        other workers do all the work.
        """
        if self.s >= n:
            raise ParameterError("s", f"must satisfy 0 <= s < n, n={n}", self.s)
        return (self.s + 1) / n if delay == 0 else 1 / (n - self.s)

    def describe(self) -> str:
        return f"at most {self.s} stragglers in each round"


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryGroup(StragglerModel):
    """At least one answer in every group of ``size`` workers in each round.

    Workers whose numbers are equal modulo ``n / size`` form a group.

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
        """Return ``size / n``: in the worst case, one worker of each group does all its work."""
        if n < self.size or n % self.size:
            raise ParameterError("size", f"must divide n={n}, the number of workers", self.size)
        return self.size / n

    def describe(self) -> str:
        return f"one answer in every group of {self.size} workers in each round"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursty(StragglerModel):
    """The (B, W, lam)-bursty model (paper, section 2.1).

    In every window of W rounds there are at most lam distinct stragglers, and the first and last
    straggling round of each worker are at most B - 1 apart.

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
        """Return ``(W-1+B) / (n (W-1) + B (n-lam))`` (paper, Theorem F.1).

        This is the bound of the (B, W - 1 + B, lam)-arbitrary model.
        """
        arbitrary = Arbitrary(N=self.B, W=self.W - 1 + self.B, lam=self.lam)
        return arbitrary.load_lower_bound(n, delay=delay)

    def describe(self) -> str:
        promise = f"in every {self.W} rounds at most {self.lam} distinct stragglers"
        return f"{promise}, each in a burst of at most {self.B}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arbitrary(StragglerModel):
    """The (N, W, lam)-arbitrary model (paper, section 2.1).

    In every window of W rounds there are at most lam distinct stragglers, each in at most N rounds.

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
        """Return ``W / (n (W-N) + N (n-lam))`` (paper, Theorem F.2)."""
        if self.lam > n:
            raise ParameterError("lam", f"must satisfy 0 <= lam <= n, n={n}", self.lam)
        workable = n * (self.W - self.N) + self.N * (n - self.lam)
        return self.W / workable if workable else math.inf

    def describe(self) -> str:
        promise = f"in every {self.W} rounds at most {self.lam} distinct stragglers"
        return f"{promise}, each in at most {self.N} of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyOf(StragglerModel):
    """A model in which each window of ``span`` rounds conforms to at least one of the ``models``.

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
            raise ParameterError("models", "must contain at least one model", self.models)
        if self.span < (least := max(model.window for model in self.models)):
            rule = f"must be >= {least}, the longest window of the models (rounds)"
            raise ParameterError("span", rule, self.span)

    @property
    def window(self) -> int:
        return self.span

    def admits(self, window: BoolArray) -> bool:
        return any(model._admits_each(window) for model in self.models)

    def load_lower_bound(self, n: int, *, delay: int) -> float:
        """Return the largest bound of the models: a scheme must tolerate the patterns of each."""
        return max(model.load_lower_bound(n, delay=delay) for model in self.models)

    def describe(self) -> str:
        options = ", or ".join(model.describe() for model in self.models)
        return f"every {self.span} rounds on their own: {options}"


def _keep_integers(model: StragglerModel, *least: tuple[str, int]) -> None:
    """Convert the named fields of a model to ints, and check the least value of each."""
    for name, bound in least:
        object.__setattr__(model, name, require_int(name, getattr(model, name), least=bound))
