"""Explanations of runs and traces: where the time went, and how long other ways would have taken.

`explain` is the entry point. Other ways, such as a code, are replayed on the recorded times.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from seqgc._tabular import Summarised, columns, number
from seqgc.errors import ParameterError, ProfileError, ScheduleError
from seqgc.explanation._whatif import WhatIf, typical_times
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile, longest_known
from seqgc.rounds import ClosingRule, Setting, WaitOut
from seqgc.runs import (
    Prediction,
    ProfileSource,
    RecordedRun,
    delays_of,
    read_delays,
    read_predictions,
    read_run,
)
from seqgc.schemes import Scheme, parse_scheme, registered
from seqgc.search import SearchSpace, bootstrap_totals, tune

__all__ = [
    "Counterfactual",
    "Explanation",
    "Observed",
    "PhaseShare",
    "RoundShare",
    "WorkerShare",
    "explain",
    "explain_observed",
]

_SLOW: Final = 1.1  # a worker is slow in a round if it takes 1.1 times the median of the others
_ALWAYS: Final = 0.75  # of the rounds of both halves of the recording
_LITTLE: Final = 0.05  # of the time: less waiting is not worth a remedy
_BUSY_MASTER: Final = 0.25  # of the time: more is worth a sentence
_ROUGH: Final = 1.15  # a replay that differs from the run by this factor is worth a sentence
_ROUNDS_SHOWN: Final = 5
_FEWEST: Final = 5  # rounds of which a bootstrap says something
_MOST_WORKERS: Final = 32  # replayed one by one; of more, those with the longest times
_MOST_CELLS: Final = 2**14  # rounds × workers with the full number of draws
_DRAWS: Final = 10  # of the censored times
_RESAMPLES: Final = 200  # of the rounds, for each draw
_CONFIDENCE: Final = 0.95
_STAYING: Final = frozenset({"local", "custom", "dask"})  # providers whose workers stay
_ASK_ALPHA: Final = (
    "All recorded tasks had the same load, so the recording does not show how much longer a task "
    "takes with more load (alpha). The times of a code, deal, hedge and ssp depend on it. To find "
    "alpha, measure it with seqgc profile --loads 0,0.5,1, or train a few rounds with m-sgc. If "
    "you know it, give --alpha, in seconds per unit of load."
)
_NO_DEAL: Final = (
    "deal is left out, because nothing says that these workers stay from one round to the next. If "
    "they do, seqgc tune ranks it: with --backend local for processes, with --resident for "
    "functions."
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """The facts about a recorded run that an explanation needs.

    ``profile`` has the times of the run, ``setting`` its scheme and closing rule, and ``round_s``
    (rounds,) the seconds of each round. ``master_s`` is the number of seconds between rounds, in
    which the master decodes, updates the models and sends weights. ``phases`` has the seconds
    (rounds, n) of each phase of the tasks, by the name of the phase; unknown times are NaN.
    ``models`` is the number of models, or None if it is unknown.
    """

    profile: DelayProfile
    setting: Setting
    round_s: FloatArray
    master_s: float = 0.0
    phases: Mapping[str, FloatArray] = field(default_factory=dict)
    models: int | None = None
    predictions: tuple[Prediction, ...] = ()
    left_out: int = 0  # rounds with another number of workers, or without an answer

    @classmethod
    def of_profile(cls, profile: DelayProfile, *, alpha: float | None = None) -> Observed:
        """Return the facts about a trace, as if its master had awaited all workers in each round.

        If ``alpha`` is known, the times are converted to an equal share of a batch for each worker.
        Otherwise they are the recorded times.
        """
        n, awaited = profile.num_workers, profile.awaited()
        known = profile.meta.alpha if alpha is None else alpha
        times = awaited.times if known is None else awaited.times_at(1 / n, alpha=known)
        uncoded = Setting(scheme=parse_scheme("uncoded", n=n))
        return cls(profile=profile, setting=uncoded, round_s=times.max(axis=1))

    @classmethod
    def of_run(cls, run: RecordedRun, *, alpha: float | None = None) -> Observed:
        """Return the facts about a recorded run. ``alpha`` is as for `RecordedRun.profile`."""
        delays, header, rounds = delays_of(run, alpha=alpha), run.header, run.rounds()
        if not len(delays.places):
            raise ProfileError("no round of the run has closed: explain it when it has more rounds")
        scheme, rule = parse_scheme(header.scheme, n=run.workers), ClosingRule()
        if isinstance(scheme, Scheme):
            rule = ClosingRule(mu=header.mu, wait_out=cast("WaitOut", header.wait_out))
        return cls(
            profile=delays.profile,
            setting=Setting(scheme=scheme, rule=rule, jobs_per_round=header.bundle),
            round_s=rounds["duration_s"][delays.places],
            master_s=_master_s(run, first=int(delays.places[0])),
            left_out=len(rounds["round"]) - len(delays.places),
            phases=delays.phases,
            models=len(header.models) or None,
            predictions=read_predictions(run.path) if run.path.is_dir() else (),
        )


def _master_s(run: RecordedRun, *, first: int) -> float:
    """Return the seconds of a run, from the ``first`` round on, in which no round was open."""
    jobs = run.jobs()
    rounds = {name: column[first:] for name, column in run.rounds().items()}
    if not len(rounds["round"]):
        return 0.0
    ended_s = max(rounds["closed_s"].max(), jobs["finished_s"].max(initial=0.0))
    return max(0.0, float(ended_s - rounds["began_s"].min() - rounds["duration_s"].sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """The time that a worker cost the run.

    ``factor`` says how slow the worker is: the ratio of its time to the median time of the other
    workers, as a median over the rounds. ``cost_s`` is the time that the run would have saved if
    the worker had been typical, and ``share`` is the same as a fraction of the run. Both are None
    if the run cannot be replayed without the worker. ``always`` is True if the worker was slow in
    three quarters of the rounds, in each half of the run. Then ``constant_s`` is the part of
    ``cost_s`` that its constant factor explains. ``varying_s`` is the rest, which changes from
    round to round.
    """

    worker: int
    factor: float
    cost_s: float | None
    share: float | None
    always: bool
    constant_s: float | None
    varying_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseShare:
    """The time that tasks spent in one phase, such as computing, and what its slow cases cost.

    ``median_s`` and ``mean_s`` are over all tasks. ``share`` is the fraction of the tasks' time
    that they spent in this phase. ``cost_s`` is the time that the run would have saved if no task
    had spent more than the median time in this phase.
    """

    phase: str
    median_s: float
    mean_s: float
    share: float
    cost_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShare:
    """A round that waited for slow workers, with its cost and its slowest worker.

    ``cost_s`` is the time that the round would have saved with nobody slow. ``round`` is the number
    of the round in the recording, from 0.
    """

    round: int
    seconds: float
    cost_s: float
    slowest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """The time that the same run would have taken in another way.

    ``what`` names the way: ``nobody slow``, ``uncoded``, ``code``, ``deal``, ``hedge`` or ``ssp``.
    ``seconds`` is the time of the whole run, with the time of the master. Its 95 % interval is from
    ``low_s`` to ``high_s``: a block bootstrap over rounds, with random draws of the censored times.
    ``saved_s`` is the time of the recorded run minus ``seconds``. If its 95 % interval, of the same
    bootstrap, is above 0, and there are at least five rounds, then ``surely_faster`` is True.
    ``mu`` is the tolerance of the closing rule, whose ``wait_out`` is ``feasible``. ``usd`` is the
    cost of the workers, or None if no price is known.
    """

    what: str
    scheme: str
    mu: float
    seconds: float
    low_s: float
    high_s: float
    saved_s: float
    surely_faster: bool
    usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(Summarised):
    """An explanation of a run or trace.

    ``verdict`` has the sentences to read first. ``seconds`` is the time of the run, which has three
    parts. In ``waiting_s``, the run waited for workers that were slower than the typical worker of
    their round. In ``master_s``, no round was open. ``computing_s`` is the rest.

    ``agreement`` tests the replay: the time of the rounds in a replay of the run, divided by the
    recorded time; None if the run cannot be replayed. All costs and savings are differences of two
    replays, so that time which no replay explains counts as computing. If the replay takes longer
    than the run, all replays are divided by ``agreement``. ``half_in_rounds`` is the
    smallest number of rounds that together have half of the waiting. ``censored`` is the number of
    cancelled tasks, and ``only_bounded`` is the number of them that ran longer than any answer
    took. ``missing`` has sentences about facts that are unknown, and how to find them.
    """

    verdict: tuple[str, ...]
    scheme: str
    workers: int
    rounds: int
    seconds: float
    waiting_s: float
    computing_s: float
    master_s: float
    agreement: float | None
    alpha: float | None
    censored: int
    only_bounded: int
    by_worker: tuple[WorkerShare, ...]
    by_phase: tuple[PhaseShare, ...]
    by_round: tuple[RoundShare, ...]
    half_in_rounds: int
    counterfactuals: tuple[Counterfactual, ...]
    predictions: tuple[Prediction, ...]
    missing: tuple[str, ...]

    def summary(self) -> dict[str, object]:
        return {
            "scheme": self.scheme,
            "workers": self.workers,
            "rounds": self.rounds,
            "time": f"{number(self.seconds)} s",
            "waiting": f"{number(self.waiting_s)} s",
            "verdict": " ".join(self.verdict),
        }

    def summary_table(self) -> dict[str, npt.NDArray[Any]] | None:
        if not self.counterfactuals:
            return None
        return columns(
            {
                "what": row.what,
                "scheme": row.scheme,
                "time, s": row.seconds,
                "saved, s": row.saved_s,
            }
            for row in self.counterfactuals
        )


def explain(
    on: ProfileSource,
    *,
    alpha: float | None = None,
    usd_per_worker_s: float | None = None,
) -> Explanation:
    """Explain a run or trace: where its time went, and what would have been faster.

    ``on`` is a recorded run (`seqgc.read_run`), a profile, a trace, or the path of one of them
    (`seqgc.runs.read_delays`). A profile counts as a run whose master awaited every worker.
    ``alpha`` is the cost of load, in seconds per unit of load. By default it is read from the
    profile, or fitted to the loads of the run. ``usd_per_worker_s`` is the price of a worker for
    one second, in US dollars. docs/explain.md defines all figures.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or the scheme of the run is unknown.
    ProfileError
        If no round of the run has closed, or a round of the profile has no answer.

    Examples
    --------
    >>> times = np.full((20, 4), 1.0) + 0.01 * np.arange(4)
    >>> times[:, 2] = 2.0
    >>> found = explain(DelayProfile.from_times(times))
    >>> print(found.verdict[0])
    49 % of the time was waiting for slow workers. Worker 2 was always slow (2 times as long as \
the others) and cost 48 %: replace it; no code is needed.
    >>> round(found.waiting_s, 2), found.by_worker[0].worker, found.alpha
    (19.8, 2, None)
    """
    if isinstance(on, str | Path) and os.path.isdir(on):  # noqa: PTH112 (raises at some names)
        on = read_run(on)
    if isinstance(on, RecordedRun):
        observed = Observed.of_run(on, alpha=alpha)
    else:
        observed = Observed.of_profile(read_delays(on), alpha=alpha)
    return explain_observed(observed, alpha=alpha, usd_per_worker_s=usd_per_worker_s)


def explain_observed(
    observed: Observed, *, alpha: float | None = None, usd_per_worker_s: float | None = None
) -> Explanation:
    """Return the explanation of a run from the facts about it. Raises like `explain`."""
    profile, setting = observed.profile, observed.setting
    alpha = profile.meta.alpha if alpha is None else profile.slope(alpha)
    by_rounds = isinstance(setting.scheme, Scheme)
    what_if = None
    if by_rounds or alpha is not None:
        what_if = WhatIf(
            setting=setting,
            profile=profile.awaited(),
            alpha=alpha or 0.0,
            num_jobs=_num_jobs(observed),
            models=observed.models,
            stays=profile.meta.provider in _STAYING,
        )
    return _Explainer(observed, what_if, alpha=alpha, usd_per_worker_s=usd_per_worker_s).result()


def _num_jobs(observed: Observed) -> int:
    """Return the number of gradients that the rounds of a run have computed."""
    jobs = len(observed.round_s) - observed.setting.scheme.delay
    if jobs < 1:
        rule = f"must have more than {observed.setting.scheme.delay} rounds, the scheme's delay"
        raise ParameterError("run", rule, len(observed.round_s), "explain it when it has more")
    return jobs * observed.setting.jobs_per_round


class _Explainer:
    """The computation of one explanation, part by part."""

    def __init__(
        self,
        observed: Observed,
        what_if: WhatIf | None,
        *,
        alpha: float | None,
        usd_per_worker_s: float | None,
    ) -> None:
        self._observed, self._what_if = observed, what_if
        self._alpha, self._usd = alpha, usd_per_worker_s
        self._profile = observed.profile
        self._times = observed.profile.awaited().times
        self._typical = typical_times(self._times)
        self._n = observed.profile.num_workers
        self._rounds_s = float(observed.round_s.sum())
        self._seconds = self._rounds_s + observed.master_s
        self._own: FloatArray | None = None  # the rounds of a replay of the run
        self._best: FloatArray | None = None  # the same with nobody slow
        self._agreement: float | None = None
        self._scale = 1.0
        if what_if is not None:
            own = what_if.seconds()
            self._agreement = float(own.sum()) / self._rounds_s
            self._scale = 1 / max(1.0, self._agreement)
            self._own = self._scale * own
            self._best = self._seconds_of(what_if.fixed(self._typical))

    def result(self) -> Explanation:
        workers = self._by_worker()
        waiting_s = self._saved(self._best)
        bounded = longest_known(
            self._profile.times, self._profile.answered, where=self._profile.censored
        )
        counterfactuals = tuple(self._counterfactuals())
        rounds, half = self._by_round()
        explanation = Explanation(
            verdict=(),
            scheme=self._observed.setting.scheme.spec,
            workers=self._n,
            rounds=len(self._observed.round_s),
            seconds=self._seconds,
            waiting_s=waiting_s,
            computing_s=self._rounds_s - waiting_s,
            master_s=self._observed.master_s,
            agreement=self._agreement,
            alpha=self._alpha,
            censored=int(self._profile.censored.sum()),
            only_bounded=int(bounded.sum()),
            by_worker=workers,
            by_phase=tuple(self._by_phase()),
            by_round=rounds,
            half_in_rounds=half,
            counterfactuals=counterfactuals,
            predictions=self._observed.predictions,
            missing=tuple(self._missing(int(bounded.sum()))),
        )
        together_s = self._always_together(workers)
        return replace(explanation, verdict=tuple(_verdict(explanation, together_s)))

    def _seconds_of(self, times: FloatArray, *, setting: Setting | None = None) -> FloatArray:
        """Return the seconds of the rounds of a replay, by default with the scheme of the run.

        If a replay of the run takes longer than the run took, all replays are shortened by this
        factor. If it takes less, the rest is added to all of them, see `_counterfactual`.
        """
        assert self._what_if is not None
        return self._scale * self._what_if.seconds(times, setting=setting)

    def _saved(self, seconds: FloatArray | None) -> float:
        """Return the time that the run would have saved if its rounds had taken ``seconds``."""
        if seconds is None or self._own is None:
            return 0.0
        return max(0.0, float(self._own.sum() - seconds.sum()))

    def _by_worker(self) -> tuple[WorkerShare, ...]:
        """Return the workers, the most expensive first."""
        ratio = self._times / self._typical
        factors, slow = np.median(ratio, axis=0), ratio > _SLOW
        half, always = len(slow) // 2, np.zeros(self._n, dtype=np.bool_)
        if half:  # one round does not tell
            always = (slow[:half].mean(axis=0) >= _ALWAYS) & (slow[half:].mean(axis=0) >= _ALWAYS)
        replayed = set(np.argsort(-self._times.sum(axis=0))[:_MOST_WORKERS].tolist())
        rows = []
        for worker in range(self._n):
            cost_s = constant_s = None
            if self._what_if is not None and worker in replayed:
                fixed = self._what_if.without_worker([worker], self._typical)
                cost_s, constant_s = self._saved(self._seconds_of(fixed)), 0.0
                if always[worker]:
                    steady = self._times.copy()
                    steady[:, worker] /= factors[worker]
                    constant_s = min(cost_s, self._saved(self._seconds_of(steady)))
            rows.append(
                WorkerShare(
                    worker=worker,
                    factor=float(factors[worker]),
                    cost_s=cost_s,
                    share=None if cost_s is None else cost_s / self._seconds,
                    always=bool(always[worker]),
                    constant_s=constant_s,
                    varying_s=None if cost_s is None or constant_s is None else cost_s - constant_s,
                )
            )
        return tuple(sorted(rows, key=lambda row: (-(row.cost_s or 0.0), -row.factor)))

    def _always_together(self, workers: Sequence[WorkerShare]) -> float:
        """Return the time that replacing all workers that are always slow would have saved."""
        always = [row.worker for row in workers if row.always]
        if self._what_if is None or not always:
            return 0.0
        others = [worker for worker in range(self._n) if worker not in always]
        if not others:
            return 0.0
        typical = np.median(self._times[:, others], axis=1, keepdims=True)
        fixed = self._what_if.without_worker(always, np.broadcast_to(typical, self._times.shape))
        return self._saved(self._seconds_of(fixed))

    def _by_phase(self) -> list[PhaseShare]:
        """Return the phases of the tasks, in their order."""
        answered, shares = self._profile.answered, []
        for name, seconds in self._observed.phases.items():
            known = answered & np.isfinite(seconds)
            if not known.any():
                continue
            median_s = float(np.median(seconds[known]))
            cost_s = None
            if self._what_if is not None:
                excess = np.where(known, np.maximum(seconds - median_s, 0.0), 0.0)
                shorter = np.maximum(self._times - excess, np.minimum(self._times, 1e-9))
                cost_s = self._saved(self._seconds_of(shorter))
            shares.append(
                PhaseShare(
                    phase=name,
                    median_s=median_s,
                    mean_s=float(seconds[known].mean()),
                    share=float(seconds[known].sum() / self._profile.times[known].sum()),
                    cost_s=cost_s,
                )
            )
        return shares

    def _by_round(self) -> tuple[tuple[RoundShare, ...], int]:
        """Return the rounds that cost most, and the number of rounds with half of the waiting."""
        seconds = self._observed.round_s
        if self._best is not None and self._own is not None and len(self._own) == len(seconds):
            costs = np.maximum(self._own - self._best, 0.0)
        else:
            costs = np.maximum(seconds - np.median(seconds), 0.0)
        order = np.argsort(-costs, kind="stable")
        half = int(np.searchsorted(np.cumsum(costs[order]), costs.sum() / 2)) + 1
        rows = min(len(seconds), len(self._times))
        shown = [int(k) for k in order[:_ROUNDS_SHOWN] if costs[k] > 0 and k < rows]
        shares = tuple(
            RoundShare(
                round=k,
                seconds=float(seconds[k]),
                cost_s=float(costs[k]),
                slowest=int(np.argmax(self._times[k])),
            )
            for k in shown
        )
        return shares, half if costs.sum() > 0 else 0

    # ---- counterfactuals -------------------------------------------------------------------------

    def _counterfactuals(self) -> list[Counterfactual]:
        """Return the times of the run in other ways, from replays of the recorded times."""
        if self._what_if is None:
            return []
        found = [self._counterfactual("nobody slow", self._what_if.setting, fixed=True)]
        if self._observed.setting.scheme.spec != "uncoded" and self._alpha is not None:
            found.append(self._counterfactual("uncoded", self._setting("uncoded")))
        if self._alpha is None:
            return [each for each in found if each is not None]
        for what, families in (("code", _codes()), ("deal", ("deal",))):
            if (best := self._tuned(families)) is not None:
                found.append(self._counterfactual(what, best))
        found += [
            self._counterfactual(spec.partition(":")[0], self._setting(spec))
            for spec in ("hedge", "ssp:slack=1")
        ]
        return [each for each in found if each is not None]

    def _setting(self, spec: str) -> Setting:
        bundle = self._observed.setting.jobs_per_round
        return Setting(scheme=parse_scheme(spec, n=self._n), jobs_per_round=bundle)

    def _tuned(self, families: tuple[str, ...]) -> Setting | None:
        """Return the best setting of these families on the recorded times."""
        assert self._what_if is not None
        space = SearchSpace(
            families=families,
            mus=(0.0, 1.0),
            wait_outs=("feasible",),
            jobs_per_round=(self._observed.setting.jobs_per_round,),
            coarse=self._times.size > _MOST_CELLS,
            most=16,
        )
        usual = self._setting("deal" if families == ("deal",) else "uncoded")
        try:
            return tune(self._what_if.rehearsal(usual), space=space, top=1).best.setting
        except (ParameterError, ProfileError, ScheduleError):  # none fits these workers
            return None

    def _counterfactual(
        self, what: str, setting: Setting, *, fixed: bool = False
    ) -> Counterfactual | None:
        """Return a counterfactual with its interval, or None if it cannot be replayed.

        It saves the difference of two replays. Therefore the time of the run that no replay
        explains, such as sending tasks, is part of every counterfactual.
        """
        assert self._own is not None
        try:
            point = self._replayed(setting, self._times, fixed=fixed)
            draws = [point]
            if self._profile.censored.any():
                count = _DRAWS if self._times.size <= _MOST_CELLS else _DRAWS // 3
                draws = [
                    self._replayed(setting, self._drawn(seed), fixed=fixed) for seed in range(count)
                ]
        except (ParameterError, ProfileError, ScheduleError):
            return None
        saved_s = float(self._own.sum() - point.sum())
        seconds = self._seconds - saved_s
        other_s = self._seconds - float(self._own.sum())  # the master, and what no replay explains
        low_s, high_s = _interval(draws)
        return Counterfactual(
            what=what,
            scheme=setting.scheme.spec,
            mu=setting.rule.mu,
            seconds=seconds,
            low_s=min(seconds, other_s + low_s),
            high_s=max(seconds, other_s + high_s),
            saved_s=saved_s,
            surely_faster=len(point) >= _FEWEST
            and _interval([self._paired(draw) for draw in draws])[0] > 0,
            usd=None if self._usd is None else self._usd * self._n * seconds,
        )

    def _drawn(self, seed: int) -> FloatArray:
        return self._profile.awaited(rng=np.random.default_rng(seed)).times

    def _replayed(self, setting: Setting, times: FloatArray, *, fixed: bool) -> FloatArray:
        """Return the seconds of the rounds of a setting on these times."""
        assert self._what_if is not None
        if fixed:
            times = np.minimum(times, typical_times(times))
        return self._seconds_of(times, setting=setting)

    def _paired(self, other: FloatArray) -> FloatArray:
        """Return the time that each round of the run's own replay would have saved."""
        assert self._own is not None
        own = self._own
        saved = np.zeros(max(len(own), len(other)))
        saved[: len(own)] += own
        saved[: len(other)] -= other
        count = len(own)
        folded: FloatArray = np.zeros(count)
        np.add.at(folded, np.arange(len(saved)) % count, saved)
        return folded

    def _missing(self, bounded: int) -> list[str]:
        said = []
        if self._alpha is None:
            said.append(_ASK_ALPHA)
        if self._what_if is not None and not self._what_if.stays:
            said.append(_NO_DEAL)
        if left_out := self._observed.left_out:
            said.append(
                f"{left_out} rounds are left out, because they had another number of workers or no "
                "answer: all figures are about the others."
            )
        if self._agreement is not None and not 1 / _ROUGH < self._agreement < _ROUGH:
            said.append(
                f"A replay of the run takes {self._agreement:.2f} times as long as the run took. "
                "Therefore all figures are rough: alpha may be wrong, or rounds waited for "
                "something that the scheme does not need."
            )
        if bounded:
            said.append(
                f"{bounded} cancelled tasks had run longer than any answer took. The replay counts "
                "them as answered at that moment, so ways that wait for everyone look too fast. To "
                "learn the real times, train a few rounds with --scheme uncoded, or use seqgc "
                "profile."
            )
        if not self._observed.phases and "of a run" in self._profile.meta.source:
            said.append(
                "The phases of tasks are unknown, because the workers did not report them: an "
                "older version of seqgc recorded the run, or each mini-task had its own answer."
            )
        return said


def _codes() -> tuple[str, ...]:
    """Return the names of the schemes that work in rounds, without uncoded."""
    entries = registered().items()
    return tuple(n for n, e in entries if issubclass(e.kind, Scheme) and n != "uncoded")


def _interval(draws: Sequence[FloatArray]) -> tuple[float, float]:
    """Return the 95 % interval of the sum of the rounds, of which there are several draws."""
    totals = [
        bootstrap_totals(draw, seed=seed, resamples=_RESAMPLES) for seed, draw in enumerate(draws)
    ]
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(totals), [tail, 1 - tail])
    return float(low), float(high)


# ---- the verdict ---------------------------------------------------------------------------------


def _verdict(found: Explanation, together_s: float) -> list[str]:
    """Return the sentences to read first.

    ``together_s`` is the common cost of all workers that are always slow.
    """
    seconds = found.seconds
    waiting = found.waiting_s / seconds
    said = f"{waiting:.0%} of the time was waiting for slow workers.".replace("%", " %")
    sentences = [said]
    if found.agreement is None:
        said = "The run cannot be replayed without alpha, the cost of load: give --alpha. Therefore"
        sentences = [f"{said} it is unknown how much of the time was waiting."]
    elif waiting < _LITTLE:
        sentences = [
            f"Nothing was slow: only {_percent(waiting)} of the time was waiting for workers."
        ]
        if (best := _best(found)) is not None and best.saved_s >= _LITTLE * seconds:
            sentences.append(f"Nevertheless, {_would_have(found, best)}")
    elif together_s >= _LITTLE * seconds:
        rest = waiting - together_s / seconds  # other workers, or other slowness of the same ones
        always = sorted((r for r in found.by_worker if r.always), key=lambda row: row.worker)
        names = ", ".join(str(row.worker) for row in always)
        factor = float(np.median([row.factor for row in always]))
        who = f"Worker {names} was" if len(always) == 1 else f"Workers {names} were"
        it = "it" if len(always) == 1 else "them"
        sentences[0] += (
            f" {who} always slow ({factor:.2g} times as long as the others) and cost "
            f"{_percent(together_s / seconds)}: replace {it}"
            f"{'; no code is needed.' if rest < _LITTLE else '.'}"
        )
        if rest >= _LITTLE:
            sentences.append(
                f"The other {_percent(rest)} of waiting would remain. {_advice(found)}"
            )
    else:
        sentences[0] += " " + _advice(found)
    if found.master_s / seconds >= _BUSY_MASTER:
        sentences.append(
            f"{_percent(found.master_s / seconds)} of the time passed in the master, between "
            "rounds: it decoded, updated the models and sent weights. No scheme changes that."
        )
    if found.by_phase and waiting >= _LITTLE:
        worst = max(found.by_phase, key=lambda phase: phase.cost_s or 0.0)
        if (worst.cost_s or 0.0) >= found.waiting_s / 2:
            part = (worst.cost_s or 0.0) / seconds
            sentences.append(
                f"Most of the waiting is in one phase of the tasks, “{worst.phase}”: without the "
                f"slow cases of this phase, the run would have taken {_percent(part)} less time."
            )
    return sentences


def _advice(found: Explanation) -> str:
    start = "The slow workers change from round to round"
    best = _best(found)
    if best is None:
        if found.alpha is None:
            return f"{start}, so a code may help. How much depends on the cost of load (alpha)."
        few = _best(found, surely=False)
        if few is not None and few.saved_s >= _LITTLE * found.seconds:
            return (
                f"{start}: {_would_have(found, few)} But another run may save nothing: half of the "
                f"waiting was in {found.half_in_rounds} of {found.rounds} rounds."
            )
        return f"{start}, but no code, and neither deal nor hedge, would surely have been faster."
    return f"{start}: {_would_have(found, best)}"


def _best(found: Explanation, *, surely: bool = True) -> Counterfactual | None:
    """Return the fastest way that is (not) surely faster than the run, with equal gradients."""
    ways = ["code", "deal", "hedge"]
    if not found.only_bounded:  # else waiting for everyone looks too fast
        ways.append("uncoded")
    faster = [
        each
        for each in found.counterfactuals
        if each.what in ways and each.surely_faster == surely and each.saved_s > 0
    ]
    return min(faster, key=lambda each: each.seconds, default=None)


def _would_have(found: Explanation, best: Counterfactual) -> str:
    price = "" if best.usd is None else f", for ${best.usd:.2g}"
    return (
        f"{best.scheme} would have taken {best.seconds:.3g} s instead of {found.seconds:.3g} s "
        f"(95 % interval {best.low_s:.3g} … {best.high_s:.3g} s){price}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if not math.isnan(share) else "–"
