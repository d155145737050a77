"""Runs that look for a better setting on the way: the weights, the search, what is on record."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from seqgc import master, workers
from seqgc.errors import ParameterError, ProfileError, ScheduleError
from seqgc.ports import (
    Arrival,
    Backend,
    Close,
    Dispatched,
    Failure,
    FloatArray,
    Notice,
    RoundRecord,
    Seen,
    Task,
)
from seqgc.profiles import DelayProfile, ProfileMeta
from seqgc.rounds import ClosingRule, RoundPolicy, Setting
from seqgc.schemes import load_plugins, parse_scheme
from seqgc.search import Rehearsal, ReplayBackend, replay
from seqgc.stores import MemoryStore
from seqgc.testing import eventually
from seqgc.training import TorchWorkload, TrainingPlan, train
from seqgc.training.adaptive import Adaptation, AdaptiveDirector, SeenRounds
from seqgc.training.tuner import (
    Answer,
    BackgroundTuner,
    Choice,
    Question,
    SearchFailure,
    choose,
)
from tests.kit import SOAK, decoded, left
from tests.training.reference import flat, make_model, train_alone

N = 6


def noop(*_: object) -> None: ...


def setting(spec: str, *, mu: float = 0.0, n: int = N) -> Setting:
    return Setting(scheme=parse_scheme(spec, n=n), rule=ClosingRule(mu=mu, wait_out="feasible"))


class HandDriven:
    """A tuner that answers what the test says, when the test says: after so many looks."""

    def __init__(self, *specs: str, looks: int = 1) -> None:
        self._specs, self._looks = iter(specs), looks
        self.questions: list[Question] = []
        self.looked = 0
        self.closed = False

    def submit(self, question: Question) -> None:
        self.questions.append(question)
        self.looked = 0

    def result(self) -> Answer | None:
        self.looked += 1
        if self.looked < self._looks:
            return None
        spec, question = next(self._specs, "stay"), self.questions[-1]
        if spec == "failure":
            return SearchFailure(reason="no such luck")
        return Choice(
            current=question.current,
            found=question.current if spec == "stay" else setting(spec),
            current_s=2.0,
            found_s=2.0 if spec == "stay" else 0.5,
            jobs_left=question.jobs_left,
            searched=3,
        )

    def close(self) -> None:
        self.closed = True


def events(path: Path, kind: str) -> list[dict[str, object]]:
    lines = map(json.loads, (path / "events.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == kind]


def replayed(times: FloatArray) -> partial[Backend]:
    """A backend for `train` that computes, on recorded times."""
    return partial(_replayed, times=times)


def _replayed(n: int, factory: object, *, times: FloatArray) -> Backend:
    assert callable(factory)
    threads = torch.get_num_threads()
    compute = factory()
    torch.set_num_threads(threads)
    return ReplayBackend(times[:, :n], compute=compute)


@pytest.mark.parametrize("per_round", [1, 2] if SOAK else [2])
def test_a_run_that_switches_ends_at_the_weights_of_plain_training(
    per_round: int, tmp_path: Path
) -> None:
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    models = [
        make_model(f"m{i}", seed=i, optimizer=optimizer, batch_size=[16, 5, 40, 1, 9, 30, 7, 2][i])
        for i in range(8)
    ]
    specs = ["m-sgc:B=2,W=3,lam=2", "gc-rep:s=2", "failure", "stay", "sr-sgc:B=1,W=2,lam=2"]
    tuner = HandDriven(*specs, looks=2)
    times = 1 + np.random.default_rng(3).pareto(1.1, size=(100, N))
    plan = TrainingPlan(
        models=models,
        scheme=Setting(scheme=parse_scheme("uncoded", n=N), jobs_per_round=per_round),
        steps=8,
        precision="float64",
        adaptation=Adaptation(probe=3, retune=4, alpha=0.1),
    )
    result = train(plan, workers.custom(N, replayed(times)), run=tmp_path / "run", tuner=tuner)
    assert result.schemes == ("uncoded", *specs[:2], specs[-1])
    assert result.counts.rounds == result.jobs + 3 + 1, "every delay is drained once"
    assert (result.jobs, tuner.closed) == (8 * 8 // per_round, True)
    for model in models:
        alone, _ = train_alone(model, steps=8, dtype=torch.float64)
        trained = torch.nn.utils.parameters_to_vector(alone.parameters()).detach().numpy()
        np.testing.assert_allclose(
            _checkpoint(result.run, model.name), trained, rtol=0, atol=1e-8, err_msg=model.name
        )


def _checkpoint(run: Path, name: str) -> FloatArray:
    from seqgc.training import load_checkpoint

    module = make_model(name).module.double()
    load_checkpoint(run / "checkpoints" / f"{name}.safetensors", module)
    return flat(module)


def test_what_was_searched_and_switched_to_and_why_is_on_record(tmp_path: Path) -> None:
    models = [make_model(f"m{i}", seed=i) for i in range(4)]
    tuner = HandDriven("m-sgc:B=1,W=2,lam=2", "failure", "stay", "gc-rep:s=1", looks=3)
    told: list[tuple[object, object]] = []

    def watch(seen: Seen) -> None:
        if isinstance(seen, Notice) and seen.kind == "switch":
            told.append((seen.fields["round"], seen.fields["job"]))

    plan = TrainingPlan(
        models=models,
        scheme="uncoded",
        jobs_per_round=1,
        steps=10,
        adaptation=Adaptation(probe=5, retune=6, alpha=0.0),
    )
    crew = workers.custom(N, replayed(np.ones((60, N))))
    result = train(plan, crew, run=tmp_path / "run", observers=[watch], tuner=tuner)
    outcomes = [line["outcome"] for line in events(result.run, "search")]
    assert outcomes[:4] == ["switch", "failed", "stay", "switch"]
    first, second = events(result.run, "switch")
    # Asked after 5 rounds, answered at the third look; the next search 6 rounds after the first.
    assert (first["round"], first["job"]) == (8, 8)
    assert (first["from"], first["to"]) == (
        "uncoded, mu=0, feasible",
        "m-sgc:B=1,W=2,lam=2, mu=0, feasible",
    )
    # Of 32 jobs left uncoded, at 2 s a round; or in a scheme of delay 1, at 0.5 s a round.
    assert first["predicted_s"] == {"from": 64.0, "to": 16.5}
    assert (second["round"], second["job"]) == (27, 26), "one round of drain"
    assert told == [(8, 8), (27, 26)]
    question = tuner.questions[0]
    assert (question.jobs_left, question.max_delay, question.current.jobs_per_round) == (35, 3, 1)
    assert (question.profile.num_rounds, question.profile.meta.base_load) == (5, 3 / 16)  # points
    assert tuner.questions[-1].profile.num_rounds == 6, "the window slides"
    log = (result.run / "events.jsonl").read_text().splitlines()
    names = [json.loads(line)["event"] for line in log]
    at = names.index("switch")
    assert names[at + 1] == "dispatch", "on record before its first tasks leave"


def test_a_real_search_in_the_background_is_answered_while_rounds_go_on() -> None:
    question = _question(np.where(np.random.default_rng(0).random((20, N)) < 0.1, 9.0, 1.0))
    tuner = BackgroundTuner()
    try:
        assert tuner.result() is None
        tuner.submit(question)
        answer = _wait_for(tuner)
    finally:
        tuner.close()
    here = choose(question)
    assert isinstance(answer, Choice)
    assert answer == here
    assert here.setting.scheme.spec != "uncoded"


def test_a_search_that_fails_in_the_background_says_why() -> None:
    times = np.ones((3, N))
    profile = DelayProfile.from_times(times, meta=ProfileMeta(base_load=1.0, alpha=5.0))
    tuner = BackgroundTuner()
    try:
        tuner.submit(_question(times, profile=profile))
        answer = _wait_for(tuner)
    finally:
        tuner.close()
    assert isinstance(answer, SearchFailure)
    assert "ProfileError" in answer.reason


def test_closing_ends_a_search_that_is_going_on() -> None:
    tuner = BackgroundTuner()
    tuner.submit(_question(np.ones((20, N)), jobs_left=10**6))
    tuner.close()  # the suite's fixture looks for processes left behind
    assert tuner.result() is None


def _wait_for(tuner: BackgroundTuner) -> Answer:
    # The search gives way to everybody else: on a busy machine it has taken a minute.
    answer = eventually(tuner.result, "an answer", within_s=150)
    assert answer is not None
    return answer


def _question(
    times: FloatArray,
    *,
    current: str = "uncoded",
    max_delay: int = 3,
    jobs_left: int = 20,
    profile: DelayProfile | None = None,
) -> Question:
    meta = ProfileMeta(base_load=1 / N, alpha=0.3)
    return Question(
        profile=profile or DelayProfile.from_times(times, meta=meta),
        current=setting(current),
        jobs_left=jobs_left,
        max_delay=max_delay,
    )


# ---- the search ---------------------------------------------------------------------------------


def test_the_choice_is_as_good_as_its_replay_and_within_the_delay_that_models_allow() -> None:
    times = 1 + np.random.default_rng(1).pareto(1.0, size=(40, N))
    seconds = {}
    for max_delay in (0, 3):
        question = _question(times, max_delay=max_delay)
        choice = choose(question)
        assert choice.setting.scheme.delay <= max_delay
        again = replay(
            Setting(
                scheme=choice.setting.scheme,
                rule=ClosingRule(mu=choice.setting.rule.mu, wait_out="feasible"),
            ),
            Rehearsal(profile=question.profile, num_jobs=question.jobs_left, repeat=True),
        )
        assert choice.predicted_s == pytest.approx(again.runtime_s)
        assert choice.predicted_s < choice.predicted_current_s
        seconds[max_delay] = choice.predicted_s
    assert seconds[3] <= seconds[0]


def test_where_nobody_straggles_it_stays_uncoded() -> None:
    choice = choose(_question(np.ones((10, N))))
    assert choice.setting == choice.current == setting("uncoded")


def test_leaving_a_scheme_with_delay_costs_its_drain() -> None:
    times = np.full((10, N), 0.4)
    longer = choose(_question(times, current="m-sgc:B=2,W=3,lam=6", jobs_left=20))
    shorter = choose(_question(times, current="m-sgc:B=2,W=3,lam=6", jobs_left=2))
    assert longer.setting.scheme.spec == "uncoded", "no straggler: redundancy is a waste"
    assert shorter.setting == shorter.current, "not worth a drain of three rounds"


# ---- the rounds seen ----------------------------------------------------------------------------


def record(round: int, seconds: float, responded: list[bool]) -> RoundRecord:
    return RoundRecord(
        round=round,
        responded=np.array(responded),
        kappa_s=seconds,
        duration_s=seconds,
        reason="tolerance",
        waited_out=False,
    )


def play(
    seen: SeenRounds,
    rounds: list[tuple[float, list[float | None]]],
    *,
    loads: float | FloatArray = 0.5,
) -> None:
    """Rounds of (duration, seconds by worker); None is cancelled, and dispatch is at 100 r."""
    for r, (duration, seconds) in enumerate(rounds):
        seen.on(left(r, len(seconds), at=100.0 * r, loads=loads))
        for worker, after in enumerate(seconds):
            if after is not None:
                at = 100.0 * r + after
                seen.on(Arrival(round=r, worker=worker, attempt=0, at=at, results={}))
        seen.close(record(r, duration, [s is not None for s in seconds]))


def test_a_censored_time_is_the_median_of_the_longer_ones_seen() -> None:
    seen = SeenRounds(3, window=9)
    play(seen, [(9.0, [1.0, 4.0, 9.0]), (2.0, [2.0, 1.0, None]), (5.0, [5.0, None, 5.0])])
    profile = seen.profile(alpha=1.0)
    assert profile.times.tolist() == [[1, 4, 9], [2, 1, 7], [5, 9, 5]]


def test_where_nothing_longer_was_seen_a_censored_time_is_the_rounds_duration() -> None:
    seen = SeenRounds(2, window=9)
    play(seen, [(2.0, [2.0, None])])
    assert seen.profile(alpha=0.0).times.tolist() == [[2, 2]]


def test_each_worker_s_time_is_brought_to_the_smallest_load_from_its_own() -> None:
    seen = SeenRounds(2, window=9)
    loads = np.array([0.75, 0.25])
    play(seen, [(4.0, [4.0, 2.0]), (3.0, [3.0, None])], loads=loads)
    profile = seen.profile(alpha=2.0)
    assert profile.meta.base_load == 0.25
    # Worker 0 has half a unit more, one second; worker 1, cancelled after 3 s, saw none longer:
    # of what was seen at its load only 3 s and 2 s are left, and neither is longer.
    assert profile.times.tolist() == [[3.0, 2.0], [2.0, 3.0]]


def test_a_worker_s_time_starts_when_its_own_task_leaves() -> None:
    seen = SeenRounds(3, window=9)
    seen.on(Dispatched(round=0, attempt=0, workers=(2, 0, 1), left_at=(10.0, 10.5, 11.0)))
    seen.on(Arrival(round=0, worker=2, attempt=0, at=12.0, results={}))
    seen.on(Dispatched(round=0, attempt=1, workers=(0,), left_at=(12.5,)))
    seen.on(Arrival(round=0, worker=0, attempt=1, at=13.0, results={}))
    seen.close(record(0, 3.0, [True, False, True]))
    # Worker 0 took 2.5 s over two attempts. Worker 1 was cancelled after 2 s of its own: of what
    # was seen 2.5 s are longer.
    assert seen.profile(alpha=0.0).times.tolist() == [[2.5, 2.5, 2.0]]


def test_a_late_answer_replaces_the_guess_and_a_failure_does_not() -> None:
    seen = SeenRounds(2, window=9)
    play(seen, [(2.0, [2.0, None])])
    seen.on(left(1, 2, at=100.0))
    seen.on(Failure(round=1, worker=0, attempt=0, at=101.0, reason="gone"))
    seen.on(Arrival(round=0, worker=1, attempt=0, at=103.5, results={}))
    seen.on(Arrival(round=1, worker=1, attempt=0, at=104.0, results={}))
    seen.close(record(1, 4.0, [False, True]))
    profile = seen.profile(alpha=0.0)
    assert profile.times.tolist() == [[2, 103.5], [103.5, 4]]


@pytest.mark.parametrize("clock", [5.0, 90_000.0])
def test_a_late_answer_to_another_master_s_round_has_no_time(clock: float) -> None:
    """It was asked for again when the run was resumed: its task left by another clock."""
    before, seen = SeenRounds(2, window=9), SeenRounds(2, window=9)
    play(before, [(2.0, [2.0, None])])
    seen.restore(before.snapshot())
    seen.on(Dispatched(round=0, attempt=0, workers=(1,), left_at=(clock,), loads=np.full(1, 0.5)))
    seen.on(left(1, 2, at=clock))
    seen.on(Arrival(round=0, worker=1, attempt=0, at=clock + 1, results={}))
    for worker in range(2):
        seen.on(Arrival(round=1, worker=worker, attempt=0, at=clock + 3, results={}))
    seen.close(record(1, 3.0, [True, True]))
    assert seen.profile(alpha=0.0).times.tolist() == [[2, 3], [3, 3]]


def test_rounds_of_several_loads_are_brought_to_the_smallest_and_old_ones_leave() -> None:
    seen = SeenRounds(1, window=2)
    play(seen, [(1.0, [1.0])], loads=0.1)
    play(seen, [(2.0, [2.0])], loads=0.25)
    play(seen, [(5.0, [5.0])], loads=0.5)
    profile = seen.profile(alpha=4.0)
    assert profile.times.tolist() == [[2.0], [4.0]]
    assert (profile.meta.base_load, profile.meta.alpha) == (0.25, 4.0)
    with pytest.raises(ProfileError, match="a time must be 1e-09 to"):
        seen.profile(alpha=40.0)


class Weighed(ReplayBackend):
    """A replay that notes the loads of the tasks that it was sent, round by round."""

    def __init__(self, times: FloatArray) -> None:
        super().__init__(times)
        self.loads: list[list[float]] = []

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        self.loads.append([task.load for task in tasks])
        return super().dispatch(round, tasks)


def test_a_worker_s_time_is_of_what_it_had_in_the_round() -> None:
    """RA-SGC with a chunk for each of four: worker 1 is dealt worker 0's, who was late, as well."""
    scheme, seen = parse_scheme("ra-sgc:s=0,q=0.5,r=1,late=drop", n=4), SeenRounds(4, window=9)
    backend = Weighed(np.array([[9.0, 2.0, 2.0, 2.0], [2.0, 3.0, 2.0, 2.0], [1.0] * 4]))

    def watch(each: Seen) -> None:
        if isinstance(each, Close):
            seen.close(each.record, jobs_per_round=2)
        elif isinstance(each, Dispatched | Arrival):
            seen.on(each)

    master.run(RoundPolicy(scheme.start(2), ClosingRule()), backend, observe=watch)
    assert backend.loads == [[0.25] * 4, [0.25, 0.5, 0.25, 0.25]]
    profile = seen.profile(alpha=2.0)  # half a unit more of two models' batches is a second
    assert profile.meta.base_load == 0.5
    assert profile.times.tolist() == [[2.0] * 4] * 2


# ---- the director, and what is refused ----------------------------------------------------------


@pytest.mark.usefixtures("plugins_are_forgotten")
def test_a_search_is_given_what_each_worker_would_take_at_one_load() -> None:
    load_plugins(["examples.heterogeneous"])
    uneven = Setting(scheme=parse_scheme("het:s=1,fast=2,ratio=3", n=4))  # loads 3/4 and 1/4
    tuner = HandDriven()
    director = AdaptiveDirector(
        Adaptation(probe=1, alpha=2.0), n=4, max_delay=0, tuner=tuner, begin=noop, note=noop
    )
    director.on(left(0, 4, at=0.0, loads=uneven.scheme.worker_loads))
    for worker, after in enumerate([2.5, 2.5, 1.5, 1.5]):  # a second more for the heavier half
        director.on(Arrival(round=0, worker=worker, attempt=0, at=after, results={}))
    director.close(record(0, 2.5, [True] * 4), setting=uneven)
    assert director.choose(setting=uneven, jobs_left=9) is None
    (question,) = tuner.questions
    assert question.profile.meta.base_load == 0.25
    assert question.profile.times.tolist() == [[1.5] * 4]


def test_a_search_under_way_is_asked_for_again_by_whoever_goes_on() -> None:
    tuners = HandDriven(looks=1), HandDriven(), HandDriven()
    first, second, third = (
        AdaptiveDirector(
            Adaptation(probe=1, alpha=0.0),
            n=2,
            max_delay=0,
            tuner=tuner,
            begin=noop,
            note=noop,
        )
        for tuner in tuners
    )
    current = setting("uncoded", n=2)
    first.on(left(0, 2, at=0.0))
    for worker in range(2):
        first.on(Arrival(round=0, worker=worker, attempt=0, at=1.0 + worker, results={}))
    first.close(record(0, 2.0, [True, True]), setting=current)
    assert first.choose(setting=current, jobs_left=9) is None
    second.restore(first.snapshot())
    assert second.choose(setting=current, jobs_left=8) is None
    (asked,), (again,) = (tuner.questions for tuner in tuners[:2])
    assert again.jobs_left == 8
    assert again.profile.times.tolist() == asked.profile.times.tolist() == [[1.0, 2.0]]
    first.choose(setting=current, jobs_left=8)  # here is the answer
    third.restore(first.snapshot())
    assert third.choose(setting=current, jobs_left=7) is None
    assert tuners[2].questions == []


def test_an_alpha_that_makes_times_negative_is_noted_and_the_run_goes_on() -> None:
    notes: list[Answer] = []
    tuner = HandDriven()
    director = AdaptiveDirector(
        Adaptation(retune=2, alpha=100.0),
        n=2,
        max_delay=0,
        tuner=tuner,
        begin=noop,
        note=lambda answer, _: notes.append(answer),
    )
    for r, spec in enumerate(["uncoded", "gc:s=1"]):  # loads 1/2 and 1
        chosen = setting(spec, n=2)
        director.on(left(r, 2, at=0.0, loads=chosen.scheme.worker_loads))
        for worker in range(2):
            director.on(Arrival(round=r, worker=worker, attempt=0, at=1.0, results={}))
        director.close(record(r, 1.0, [True, True]), setting=chosen)
        assert director.choose(setting=chosen, jobs_left=9) is None
    assert tuner.questions == []
    (note,) = notes
    assert isinstance(note, SearchFailure)
    assert note.reason.startswith("alpha=100.0: row 1, column 0")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"probe": 0, "alpha": 1.0}, "`probe` must be an integer >= 1; got 0"),
        ({"retune": -1, "alpha": 1.0}, "`retune` must be an integer >= 1; got -1"),
        ({"alpha": 1.0}, "`probe` or `retune` must be given"),
        ({"probe": 3}, "`alpha` must be a finite number.*got None .*seqgc profile"),
        ({"probe": 3, "alpha": math.inf}, "`alpha` must be a finite number"),
    ],
)
def test_an_adaptation_out_of_range_is_refused(given: dict[str, float], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Adaptation(**given)


def test_stale_gradients_and_a_search_do_not_go_together() -> None:
    adaptation = Adaptation(probe=1, alpha=0.0)
    with pytest.raises(ParameterError, match="`stale` must be off"):
        TrainingPlan(
            models=[make_model()], scheme="uncoded", steps=1, stale=True, adaptation=adaptation
        )


def test_a_workload_changes_schemes_between_jobs_only_and_checks_the_delay() -> None:
    store = MemoryStore()
    models = [make_model(f"m{i}") for i in range(2)]
    workload = TorchWorkload(models, scheme=parse_scheme("uncoded", n=2), store=store)
    workload.begin(0)
    with pytest.raises(ScheduleError, match="the scheme cannot change: job 0 has not finished"):
        workload.switch(parse_scheme("gc:s=1", n=2))
    workload.finish(decoded(0), np.zeros(workload.result_form(0)[1], dtype=np.float32))
    with pytest.raises(ParameterError, match="`models` must number at least"):
        workload.switch(parse_scheme("m-sgc:B=2,W=3,lam=1", n=2))
    workload.switch(parse_scheme("m-sgc:B=1,W=2,lam=1", n=2))
    workload.begin(1)


def test_a_choice_is_priced_again_for_the_jobs_that_are_left_when_it_comes() -> None:
    current = Setting(
        scheme=parse_scheme("m-sgc:B=2,W=3,lam=2", n=4),
        rule=ClosingRule(mu=0.0, wait_out="feasible"),
    )
    found = Setting(
        scheme=parse_scheme("m-sgc:B=1,W=2,lam=1", n=4),
        rule=ClosingRule(mu=0.0, wait_out="feasible"),
    )
    asked = Choice(
        current=current, found=found, current_s=2.0, found_s=1.0, jobs_left=50, searched=7
    )
    # To stay: 50 + 3 rounds of 2 s. To switch: a drain of 3 such rounds, and 50 + 1 of 1 s.
    assert (asked.predicted_current_s, asked.predicted_s, asked.setting) == (106.0, 57.0, found)
    late = replace(asked, jobs_left=1)
    assert (late.predicted_current_s, late.predicted_s, late.setting) == (8.0, 8.0, current)
    barely = replace(asked, jobs_left=2)
    assert (barely.predicted_current_s, barely.predicted_s, barely.setting) == (10.0, 9.0, found)
