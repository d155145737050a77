"""The split of a chain into pipeline stages: PipeDream's dynamic programme.

Source: A. Harlap, "Improving ML Applications in Shared Computing Environments", PhD thesis,
Carnegie Mellon University, 2019, section 5.3.1. The symbols here are the thesis's: level k has
``m_k`` components of level k - 1, connected by links of bandwidth ``B_k``; ``A^k(i, j, m)`` is the
time of the slowest stage of the best pipeline of layers i to j on m components.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.pipeline.chain import Chain

CostModel = Literal["paper", "released"]
"""The times that a plan is based on: those of the thesis, or those of the authors' program.

A stage of layers with computation time C and weights W on m components takes, for a minibatch:

- ``paper``: ``max(C, 2 (m - 1) W / B) / m``; a cut after layer s takes ``2 a_s / B``.
- ``released``: ``(C + 4 (m - 1) W / (m B)) / m``. In the first stage of a level, the second term is
  also divided by the number of components of the level below. Cuts take no time.
"""

_Times = NDArray[np.float64]
_MOST_WORKERS: Final = 4096


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the machines: ``size`` components, linked with ``bandwidth`` bytes a second.

    Examples
    --------
    >>> Level.parse("4x12e9")
    Level(size=4, bandwidth=12000000000.0)
    """

    size: int
    bandwidth: float

    def __post_init__(self) -> None:
        require_int("level", self.size, least=1)
        if not self.bandwidth > 0:
            raise ParameterError("level", "must have a bandwidth above 0", self.bandwidth)

    @classmethod
    def parse(cls, text: str) -> Level:
        """Return the level that a text like ``4x12e9`` describes."""
        size, _, bandwidth = text.partition("x")
        try:
            numbers = int(size), float(bandwidth)
        except ValueError:
            rule = "must be COMPONENTSxBYTES_PER_SECOND, for example 4x12e9"
            raise ParameterError("level", rule, text) from None
        return cls(*numbers)


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """The layers ``first`` to ``last`` (counted from 0, both included) on ``replicas`` workers."""

    first: int
    last: int
    replicas: int = 1

    def __str__(self) -> str:
        name = f"{self.first + 1}"
        if self.last > self.first:
            name += f"-{self.last + 1}"
        return name if self.replicas == 1 else f"{name}x{self.replicas}"


def parse_stages(text: str, chain: Chain) -> tuple[PlannedStage, ...]:
    """Return the stages that a text like ``1-13x3,14-16`` describes.

    Layers are counted from 1, and ``x3`` means three replicas.

    Raises
    ------
    ParameterError
        Unless the stages cover the layers of the chain in order.
    """
    stages = []
    for word in text.split(","):
        layers, _, replicas = word.strip().partition("x")
        first, _, last = layers.partition("-")
        try:
            stages.append(PlannedStage(int(first) - 1, int(last or first) - 1, int(replicas or 1)))
        except ValueError:
            rule = "must look like 1-13x3,14-16 (layers, and x replicas)"
            raise ParameterError("stages", rule, text) from None
    require_cover(stages, chain)
    return tuple(stages)


def require_cover(stages: Sequence[PlannedStage], chain: Chain) -> None:
    """Raise `ParameterError` unless the stages cover the layers of the chain in order."""
    starts = [stage.first for stage in stages]
    ends = [0, *(stage.last + 1 for stage in stages)]
    filled = all(each.first <= each.last and each.replicas >= 1 for each in stages)
    if not filled or starts != ends[:-1] or ends[-1] != len(chain):
        rule = f"must cover the layers 1 to {len(chain)} in order"
        raise ParameterError("stages", rule, ",".join(map(str, stages)))


def require_straight(stages: Sequence[PlannedStage]) -> None:
    """Raise `ParameterError` if a stage has several replicas."""
    if any(stage.replicas > 1 for stage in stages):
        rule = "must have one worker each: replicated stages can be planned, but not run here"
        remedy = "plan with --straight"
        raise ParameterError("stages", rule, ",".join(map(str, stages)), remedy)


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline, and its predicted time.

    Parameters
    ----------
    chain
        The profile of the network.
    stages
        The stages in the order of the forward pass.
    seconds
        Predicted time for each minibatch in the steady state, which is that of the slowest stage.
    data_parallel_s
        The same of data parallelism: one stage, with a replica on every worker.
    """

    chain: Chain
    stages: tuple[PlannedStage, ...]
    seconds: float
    data_parallel_s: float

    @property
    def config(self) -> str:
        """The replicas of the stages in the notation of the thesis, for example ``3-1``."""
        return "-".join(str(stage.replicas) for stage in self.stages)

    @property
    def workers(self) -> int:
        """Number of workers of all stages."""
        return sum(stage.replicas for stage in self.stages)

    @property
    def noam(self) -> int:
        """Number of minibatches that each replica of the first stage admits (NOAM)."""
        return self.in_flight(0)

    def in_flight(self, stage: int) -> int:
        """Return the number of minibatches that each replica of a stage holds at once.

        A replica keeps the weights and the activations of this number of minibatches.
        """
        return in_flight(self.stages, stage)

    def memory_bytes(self, stage: int) -> int:
        """Return the size of the weights and activations that a replica of a stage holds."""
        layers = self.chain.layers[self.stages[stage].first : self.stages[stage].last + 1]
        size = sum(layer.weight_bytes + layer.activation_bytes for layer in layers)
        return self.in_flight(stage) * size


def in_flight(stages: Sequence[PlannedStage], stage: int) -> int:
    """Return the workers of a stage and of those after it, divided by its replicas, rounded up."""
    workers = sum(each.replicas for each in stages[stage:])
    return math.ceil(workers / stages[stage].replicas)


def plan(
    chain: Chain,
    levels: Sequence[Level],
    *,
    memory_bytes: float = math.inf,
    model: CostModel = "paper",
    straight: bool = False,
) -> Plan:
    """Return the pipeline with the fastest slowest stage that uses all workers.

    ``levels`` begins with the level of the workers. A level above describes the groups of the one
    below: ``[Level(4, 12e9), Level(2, 1e9)]`` are 2 servers of 4 workers. With equal times, fewer
    stages win. If ``straight``, no stage is replicated.

    The printed recurrence of the thesis never replicates the first stage, because its only initial
    value is ``A^k(i, j, 1)``. As in the authors' program, `plan` also considers one stage on all m
    components, ``A^k(i, j, m) <= T^k(i -> j, m)``.

    Raises
    ------
    ParameterError
        If no pipeline fits into ``memory_bytes`` of a worker, or if there are more workers than
        layers and no stage may be replicated.

    Examples
    --------
    >>> from seqgc.pipeline import Layer
    >>> wide = Layer("convolution", 1.0, 2.0, activation_bytes=2, weight_bytes=1)
    >>> large = Layer("linear", 0.3, 0.6, activation_bytes=1, weight_bytes=9)
    >>> plan(Chain((wide, large)), [Level(4, 8.0)]).config
    '3-1'
    """
    if not levels:
        raise ParameterError("levels", "must have at least one level", levels)
    if model not in get_args(CostModel):
        raise ParameterError("model", f"must be one of {', '.join(get_args(CostModel))}", model)
    require_number("memory_bytes", memory_bytes, above=0) if memory_bytes < math.inf else None
    workers = math.prod(level.size for level in levels)
    require_int("workers", workers, most=_MOST_WORKERS)
    if straight and workers > len(chain):
        rule = f"must be at most the number of layers, {len(chain)}, if no stage is replicated"
        raise ParameterError("workers", rule, workers)
    search = _Search(chain, tuple(levels), memory_bytes, model, straight)
    seconds = float(search.solve(len(levels), Fraction(0))[-1].seconds[0, -1])
    if not math.isfinite(seconds):
        rule = f"must hold a stage of each of the {workers} workers"
        remedy = "use more memory, more workers or smaller minibatches"
        raise ParameterError("memory_bytes", rule, memory_bytes, remedy)
    stages = tuple(search.stages(len(levels), Fraction(0), 0, len(chain) - 1))
    return Plan(chain, stages, seconds, search.data_parallel_s())


@dataclass(frozen=True, slots=True)
class _Best:
    """The best pipelines on a number of components: arrays of shape (N, N) over i and j."""

    seconds: _Times
    split: NDArray[np.int64]  # the last layer before the last stage; -1 if there is one stage
    replicas: NDArray[np.int64]  # components of the last stage


class _Search:
    """The tables ``A^k``, for each number of workers that come after a component.

    A stage holds the more minibatches, the more workers come after it. Within a component of level
    k they are counted for each replica of the component, as a fraction, so that the versions of a
    stage in its level equal those in the complete pipeline.
    """

    def __init__(
        self,
        chain: Chain,
        levels: tuple[Level, ...],
        memory_bytes: float,
        model: CostModel,
        straight: bool,
    ) -> None:
        self._levels, self._memory_bytes = levels, memory_bytes
        self._model, self._straight, self._n = model, straight, len(chain)
        self._activations = np.array([layer.activation_bytes for layer in chain.layers], np.float64)
        self._weights = np.array([layer.weight_bytes for layer in chain.layers], np.float64)
        self._seconds = np.array([layer.seconds for layer in chain.layers], np.float64)
        self._solved: dict[tuple[int, Fraction], list[_Best]] = {}

    @cached_property
    def _stage_weights(self) -> _Times:
        return self._ranges(self._weights, empty=0.0)

    def _ranges(self, values: _Times, *, empty: float = np.inf) -> _Times:
        """Return the sums over layers i to j, shape (N, N); ``empty`` if i > j."""
        sums = np.full((self._n, self._n), empty)
        for i in range(self._n):
            sums[i, i:] = np.cumsum(values[i:])
        return sums

    def data_parallel_s(self) -> float:
        """Return the time for a minibatch if every worker has all layers."""
        seconds = self._ranges(self._seconds)
        for k, level in enumerate(self._levels, 1):
            seconds = self._stage_s(k, level.size, seconds, first=True)
        return float(seconds[0, -1])

    def solve(self, k: int, after: Fraction) -> list[_Best]:
        """Return the best pipelines of level k on 1, 2, ... components.

        ``after`` is the number of workers that come after the level's component.
        """
        if not math.isfinite(self._memory_bytes):
            after = Fraction(0)  # it matters for memory only
        if (k, after) not in self._solved:
            solve = self._solve_worker if k == 0 else self._solve_level
            self._solved[k, after] = solve(k, after)
        return self._solved[k, after]

    def _solve_worker(self, _: int, after: Fraction) -> list[_Best]:
        seconds = self._ranges(self._seconds)
        if math.isfinite(self._memory_bytes):
            size = self._ranges(self._weights + self._activations)
            seconds[size * (1 + math.ceil(after)) > self._memory_bytes] = np.inf
        whole = np.full(seconds.shape, -1)
        return [_Best(seconds, whole, whole + 2)]

    def _solve_level(self, k: int, after: Fraction) -> list[_Best]:
        level, table = self._levels[k - 1], list[_Best]()
        for m in range(1, level.size + 1):
            one = self._stage(k, after, m, m, first=True)
            if self._straight and m > 1:
                one = np.full_like(one, np.inf)
            best = _Best(one, np.full(one.shape, -1), np.full(one.shape, m))
            for r in range(1, 2 if self._straight and m > 1 else m):
                self._try_last_stage(k, after, table[m - r - 1], r, best, m)
            table.append(best)
        return table

    def _try_last_stage(
        self, k: int, after: Fraction, prefix: _Best, r: int, best: _Best, m: int
    ) -> None:
        """Improve ``best`` by pipelines whose last stage has r of the m components."""
        last = self._stage(k, after, m, r, first=False)
        for s in range(self._n - 1):
            cut_s = 0.0
            if self._model == "paper":
                cut_s = 2 * self._activations[s] / self._levels[k - 1].bandwidth
            before = np.maximum(prefix.seconds[: s + 1, s], cut_s)
            seconds = np.maximum(before[:, None], last[s + 1, s + 1 :])
            better = seconds < best.seconds[: s + 1, s + 1 :]
            best.seconds[: s + 1, s + 1 :][better] = seconds[better]
            best.split[: s + 1, s + 1 :][better] = s
            best.replicas[: s + 1, s + 1 :][better] = r

    def _stage(self, k: int, after: Fraction, m: int, r: int, *, first: bool) -> _Times:
        """Return ``T^k(i -> j, r)`` of a last stage, if m components are used up to its end."""
        inside = self.solve(k - 1, self._after(k, after, m, r))[-1].seconds
        return self._stage_s(k, r, inside, first=first)

    def _after(self, k: int, after: Fraction, m: int, r: int) -> Fraction:
        workers = math.prod(level.size for level in self._levels[: k - 1])
        return ((self._levels[k - 1].size - m) * workers + after) / r

    def _stage_s(self, k: int, r: int, inside: _Times, *, first: bool) -> _Times:
        bandwidth = self._levels[k - 1].bandwidth
        if self._model == "paper":
            return np.maximum(inside, 2 * (r - 1) * self._stage_weights / bandwidth) / r
        below = self._levels[k - 2].size if first and k > 1 else 1
        return (inside + 4 * (r - 1) * self._stage_weights / (bandwidth * r * below)) / r

    def stages(
        self, k: int, after: Fraction, i: int, j: int, m: int | None = None
    ) -> Iterator[PlannedStage]:
        """Yield the stages of the best pipeline of layers i to j on m components of level k."""
        if k == 0:
            yield PlannedStage(i, j)
            return
        m = self._levels[k - 1].size if m is None else m
        best = self.solve(k, after)[m - 1]
        split, r = int(best.split[i, j]), int(best.replicas[i, j])
        if split >= 0:
            yield from self.stages(k, after, i, split, m - r)
            i = split + 1
        for each in self.stages(k - 1, self._after(k, after, m, r), i, j):
            yield PlannedStage(each.first, each.last, each.replicas * r)
