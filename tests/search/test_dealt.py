"""Dealt work on recorded delays: the virtual workers, runs on them, bounds, and the search."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from seqgc.errors import ParameterError, ScheduleError
from seqgc.ports import Arrival, FloatArray, Task, WorkItem
from seqgc.profiles import ByInvocation, DelayProfile, ProfileMeta
from seqgc.rounds import Setting
from seqgc.schemes import Deal, Uncoded
from seqgc.search import (
    Reading,
    Rehearsal,
    SearchSpace,
    deal,
    replay,
    tune,
)
from seqgc.stragglers import clairvoyant_bound
from seqgc.virtual import VirtualBackend

WORK_S = np.array([1.0, 2.0, 4.0])


def random_profile(seed: int, *, rounds: int = 6, workers: int = 12) -> DelayProfile:
    """Exponential tails on a base, and now and then a worker that is five times as slow."""
    rng = np.random.default_rng(seed)
    times = 0.3 + rng.exponential(0.2, size=(rounds, workers))
    times[rng.random(times.shape) < 0.15] *= 5
    return DelayProfile.from_times(times)


# ---- virtual workers ----------------------------------------------------------------------------


def crew(
    before_s: list[list[float]], *, after_s: float = 0.0, silent_s: FloatArray | None = None
) -> VirtualBackend:
    before = np.array(before_s)
    silence = {} if silent_s is None else {"silent_s": silent_s}
    pace = ByInvocation(before_s=before, after_s=np.full_like(before, after_s), rate=1.0, **silence)
    return VirtualBackend(pace.n, pace, message_s=0.25)


def send(
    workers: VirtualBackend, worker: int, *slots: int, round: int = 0, attempt: int = 0
) -> None:
    items, load = tuple(WorkItem(slot=slot, parts=()) for slot in slots), sum(WORK_S[[*slots]])
    task = Task(round=round, worker=worker, attempt=attempt, items=items, load=load)
    workers.dispatch(round, [task])


def answers(workers: VirtualBackend) -> list[tuple[int, int, float]]:
    """Return who answers what from now on, and when."""
    found = []
    while True:
        try:
            answer = workers.receive(math.inf)
        except ScheduleError:
            return found
        assert isinstance(answer, Arrival)
        found.append((answer.worker, answer.attempt, answer.at))


def test_a_worker_comes_and_then_does_one_task_after_the_other() -> None:
    workers = crew([[2.0, 3.0]])
    send(workers, 0)  # a greeting takes what it was said to
    assert workers.receive(math.inf).at == 2.0  # type: ignore[union-attr]
    send(workers, 0, 0, attempt=1)
    send(workers, 0, 1, 2, attempt=2)
    assert answers(workers) == [(0, 1, 2.0 + 0.5 + 1.0), (0, 2, 3.5 + 6.0)]
    assert (workers.now, workers.done.sum(), workers.billed_s) == (9.5, 7.0, 9.5)


def test_what_reaches_a_worker_before_it_is_there_waits_for_it() -> None:
    workers = crew([[2.0]])
    send(workers, 0, 0)
    assert answers(workers) == [(0, 0, 3.0)]


def test_the_way_back_delays_answers_and_not_the_worker() -> None:
    workers = crew([[2.0]], after_s=10.0)
    send(workers, 0)
    assert workers.receive(math.inf).at == 2.0  # type: ignore[union-attr]
    send(workers, 0, 0, attempt=1)
    send(workers, 0, 0, attempt=2)
    assert answers(workers) == [(0, 1, 13.5), (0, 2, 14.5)]


def test_cancelled_tasks_are_not_answered_and_those_behind_them_come_the_sooner() -> None:
    workers = crew([[2.0]])
    for round, slot in enumerate((0, 2, 1)):  # from 1.75 on: till 2.75, till 6.75, till 8.75
        send(workers, 0, slot, round=round)
    workers.cancel(1, [0])
    assert [at for *_, at in answers(workers)] == [3.0, 5.0]
    assert workers.done.sum() == 3.0


def test_a_task_that_has_begun_runs_to_its_end_though_it_is_cancelled() -> None:
    workers = crew([[2.0]])
    send(workers, 0, 2, round=0)
    send(workers, 0, 0, round=1)
    assert workers.receive(2.0) is None
    workers.cancel(0, [0])
    assert answers(workers) == [(0, 0, 7.0)]
    assert workers.done.sum() == 5.0
    send(workers, 0, 0, round=2)
    workers.cancel(2, [0])  # it has not begun, and what has is over
    assert answers(workers) == []


def test_every_row_invokes_the_workers_anew() -> None:
    workers = crew([[2.0], [1.0]])
    send(workers, 0, 2)
    assert workers.receive(3.0) is None
    send(workers, 0, 0, round=1)
    assert answers(workers) == [(0, 0, 5.0)]
    # The first would have been busy until 5.75.
    assert workers.billed_s == pytest.approx(5.75 + 2.0)


def test_a_worker_that_stops_answers_nothing_more() -> None:
    workers = crew([[2.0, 2.0]], silent_s=np.array([[3.0, math.inf]]))
    for worker in (0, 1):
        send(workers, worker, 0)
        send(workers, worker, 0, attempt=1)
    assert answers(workers) == [(0, 0, 3.0), (1, 0, 3.0), (1, 1, 4.0)]


# ---- runs ---------------------------------------------------------------------------------------


def test_a_hand_worked_run() -> None:
    # Two pieces, a second each. Worker 0 is there first and does both: 1 to 2, 2 to 3. In the other
    # round both do one, and worker 1 the later one.
    profile = DelayProfile.from_times([[1.0, 9.0], [2.0, 2.5]])
    rehearsal = Rehearsal(profile=profile, alpha=2.0, reading=Reading(rtt_s=0.0))
    run = deal(Setting(scheme=Deal(n=2, pieces=2)), rehearsal)
    assert run.replay.round_seconds.tolist() == [3.0, 3.5]
    assert run.replay.responded.tolist() == [[True, False], [True, True]]
    assert run.replay.job_finish_round.tolist() == [0, 1]
    assert run.computed_load == 1.0
    assert run.billed_worker_s == 3.0 + 9.0 + 3.5 + 3.5


def test_resident_workers_come_once() -> None:
    profile = DelayProfile.from_times([[1.0, 1.0], [2.0, 2.5]])
    reading = Reading(rtt_s=0.0, resident=True)
    rehearsal = Rehearsal(profile=profile, alpha=2.0, reading=reading, num_jobs=5)
    setting = Setting(scheme=Deal(n=2, pieces=2))
    run = deal(setting, rehearsal)
    assert run.replay.round_seconds.tolist() == [2.0, 1.0, 1.0, 1.0, 1.0]
    assert rehearsal.bound_s(setting) == 5.0
    assert run.billed_worker_s == 2 * 6.0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("after", [0.0, 0.5])
def test_no_run_beats_its_bound_and_little_is_done_twice(seed: int, after: float) -> None:
    profile = random_profile(seed)
    rehearsal = Rehearsal(
        profile=profile,
        alpha=3.0,
        reading=Reading(rtt_s=0.01, after=after),
        num_jobs=12,
        repeat=True,
    )
    setting = Setting(scheme=Deal(n=12), jobs_per_round=2)
    run = deal(setting, rehearsal)
    bound = clairvoyant_bound(profile.times, alpha=3.0, jobs_per_round=2)
    assert (run.replay.round_seconds > bound).all()
    assert rehearsal.bound_s(setting) == pytest.approx(bound.sum())
    assert 1.0 - 1e-9 < run.computed_load < 1.5
    resident = replace(rehearsal, reading=Reading(rtt_s=0.01, resident=True), models=4)
    stayed = deal(setting, resident)
    assert rehearsal.slope * 12 / 12 < stayed.replay.runtime_s < run.replay.runtime_s
    assert resident.in_flight(setting) == 2


def test_a_worker_that_dies_costs_a_copy_of_what_it_had() -> None:
    profile = random_profile(7, rounds=1)
    silent_s = np.where(np.arange(12) == np.argmin(profile.times), profile.times + 1e-3, np.inf)
    rehearsal = Rehearsal(profile=profile, alpha=3.0)
    setting = Setting(scheme=Deal(n=12, pieces=48))
    alive, dead = deal(setting, rehearsal), deal(setting, rehearsal, silent_s=silent_s)
    assert alive.replay.runtime_s < dead.replay.runtime_s < 2 * alive.replay.runtime_s
    assert dead.computed_load > 1.0


def test_pieces_that_take_less_than_a_message_wait_for_each_other_at_the_worker() -> None:
    # 200 pieces of 10 ms for two workers, and 100 ms to send one: a second of work for each, and
    # two messages, if neither ever waits for the next piece.
    profile = DelayProfile.from_times([[1.0, 1.0]] * 3)
    rehearsal = Rehearsal(profile=profile, alpha=2.0, reading=Reading(rtt_s=0.1))
    run = deal(Setting(scheme=Deal(n=2, pieces=200)), rehearsal)
    assert run.replay.round_seconds[-1] == pytest.approx(1.0 + 0.1 + 1.0, abs=0.05)


def test_work_is_not_left_with_those_whose_answers_take_long() -> None:
    # Half of each time passes after the work: who comes late answers late. From the second round on
    # that is known, and they get no more than they can do in time: hardly any work is done twice.
    profile = random_profile(1, rounds=8, workers=24)
    rehearsal = Rehearsal(profile=profile, alpha=6.0, reading=Reading(rtt_s=0.01, after=0.5))
    run = deal(Setting(scheme=Deal(n=24)), rehearsal)
    bound = clairvoyant_bound(profile.times, alpha=6.0)[1:]
    assert run.replay.round_seconds[1:].sum() < 1.15 * bound.sum()
    assert run.computed_load < 1.05


def test_a_batch_is_charged_as_it_is_cut() -> None:
    # Three points in four pieces: one is empty, and is not dealt.
    profile = DelayProfile.from_times([[1.0, 1.0]])
    rehearsal = Rehearsal(profile=profile, alpha=3.0, batch=3, reading=Reading(rtt_s=0.0))
    assert deal(Setting(scheme=Deal(n=2, pieces=4)), rehearsal).replay.runtime_s == 3.0


def test_what_cannot_be_read_is_refused_in_one_line() -> None:
    with pytest.raises(ParameterError, match="`after` must satisfy 0 <= after <= 1"):
        Reading(after=1.5)
    with pytest.raises(ParameterError, match="`rtt` must be a finite number >= 0"):
        Reading(rtt_s=-1.0)
    profile = random_profile(0)
    reading = Reading(resident=True)
    rehearsal = Rehearsal(profile=profile, alpha=1.0, models=3, reading=reading)
    with pytest.raises(
        ParameterError, match="`jobs_per_round` must divide the number of models, 3"
    ):
        deal(Setting(scheme=Deal(n=12), jobs_per_round=2), rehearsal)
    with pytest.raises(ParameterError, match="must be one that deals its work"):
        deal(Setting(scheme=Uncoded(n=12)), rehearsal)


# ---- the search ---------------------------------------------------------------------------------


def test_work_is_dealt_in_a_search_to_workers_that_stay_only() -> None:
    profile = random_profile(3)
    space = SearchSpace(families=("deal", "gc-rep"), mus=(0.0,), wait_outs=("feasible",))
    for provider, deals in (
        ("", False),
        ("lambda", False),
        ("lambda-local", False),
        ("dask", True),
    ):
        meta = ProfileMeta(provider=provider)
        on = Rehearsal(profile=replace(profile, meta=meta), alpha=1.0)
        found = tune(on, space=space)
        names = {row.setting.scheme.spec.partition(":")[0] for row in found.ranking}
        assert ("deal" in names) == deals, provider
        assert found.left_out == (() if deals else ("deal",))
        stay = replace(on, reading=Reading(resident=True))
        assert isinstance(tune(stay, space=space).best.setting.scheme, Deal)
    with pytest.raises(ParameterError, match=r"`schemes` must be able to run .*--resident"):
        tune(Rehearsal(profile=profile, alpha=1.0), space=SearchSpace(families=("deal",)))


def test_resident_workers_are_ranked_by_what_they_come_to() -> None:
    profile = random_profile(3)
    space = SearchSpace(families=("deal", "gc-rep"), mus=(0.0,), wait_outs=("feasible",))
    reading = Reading(resident=True)
    stay = Rehearsal(profile=profile, alpha=1.0, reading=reading, models=4)
    ranking = tune(stay, space=space, holdout=0.5).ranking
    assert ranking[0].reading.resident
    assert [row.runtime_s for row in ranking] == sorted(row.runtime_s for row in ranking)
    for row in ranking:
        on = replace(stay, reading=row.reading, num_jobs=12, repeat=True)
        on = replace(on, profile=profile.select_rounds(0, stop=3))
        assert row.runtime_s == replay(row.setting, on).runtime_s
        assert row.ideal_s == on.bound_s(row.setting)


def specs(on: Rehearsal, *jobs_per_round: int, coarse: bool = False) -> list[str]:
    """Return the candidates that a search ranks of work that is dealt, without a bound."""
    space = SearchSpace(families=("deal",), jobs_per_round=jobs_per_round, coarse=coarse)
    return [row.setting.scheme.spec for row in tune(on, space=space, prune=False).ranking]


def test_the_number_of_pieces_is_searched() -> None:
    on = Rehearsal(profile=random_profile(3), alpha=1.0, reading=Reading(resident=True))
    numbers = {f"deal:pieces={12 * each}" for each in (1, 3, 6, 10, 20)}
    assert sorted(specs(on, 1)) == sorted(numbers)  # the default is one of them
    assert set(specs(replace(on, models=4), 1)) == numbers | {"deal:pieces=3"}
    assert specs(replace(on, models=4), 1, coarse=True) == ["deal:pieces=3"]
    few = replace(on, batch=100)  # points
    assert sorted(specs(few, 1)) == [
        "deal:pieces=12",
        "deal:pieces=36",
        "deal:pieces=72",
    ]
    wide = Rehearsal(
        profile=random_profile(3, rounds=1, workers=700), alpha=1.0, reading=on.reading
    )
    assert sorted(specs(wide, 1)) == ["deal:pieces=2100", "deal:pieces=4000", "deal:pieces=700"]


def test_equal_messages_decide_how_many_pieces_are_best() -> None:
    # Work of 12 s is shared by workers of very different speed: few pieces leave the slow ones at
    # work, and many pieces that take less than a message keep all of them waiting.
    meta = ProfileMeta(base_load=1 / 12, provider="local")
    speeds = np.random.default_rng(1).lognormal(0, 0.6, 12)
    profile = DelayProfile.from_times(np.tile(speeds, (4, 1)), meta=meta)
    space = SearchSpace(families=("deal",), jobs_per_round=(1,))
    best = {}
    for rtt_s in (0.002, 0.5):
        on = Rehearsal(profile=profile, recorded="speed", reading=Reading(rtt_s=rtt_s))
        scheme = tune(on, space=space).best.setting.scheme
        assert isinstance(scheme, Deal)
        best[rtt_s] = scheme.pieces or 0
    assert best[0.002] > best[0.5], best


def test_work_is_dealt_in_a_search_in_bundles_that_can_win_only() -> None:
    on = Rehearsal(profile=random_profile(3), alpha=1.0, reading=Reading(rtt_s=0.001))
    on = replace(on, profile=replace(on.profile, meta=ProfileMeta(provider="local")))
    space = SearchSpace(families=("deal",), jobs_per_round=(1, 4))
    every, found = tune(on, space=space, prune=False), tune(on, space=space)
    assert found.best.setting == every.best.setting
    assert found.evaluated + found.pruned == every.evaluated == 10
    assert {row.setting.jobs_per_round for row in found.ranking} == {4}


def test_only_what_deals_may_be_searched() -> None:
    profile = replace(random_profile(5), meta=ProfileMeta(provider="local"))
    found = tune(
        Rehearsal(profile=profile, alpha=1.0), space=SearchSpace(families=("deal",)), pareto=True
    )
    assert {row.setting.scheme.spec.partition(":")[0] for row in found.ranking} == {"deal"}
    assert found.evaluated == len(found.ranking)
    assert found.best in found.pareto
