"""The batched kernel, the general replay and a live loop wound by hand decide alike."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from seqgc import master
from seqgc.codes import GradientCode, make_code
from seqgc.errors import SeqgcError
from seqgc.ports import (
    Arrival,
    BoolArray,
    Close,
    Dispatch,
    Drop,
    FloatArray,
    RoundRecord,
    Tick,
)
from seqgc.profiles import DelayProfile, ProfileMeta
from seqgc.rounds import ClosingRule, RoundPolicy, Setting, WaitOut
from seqgc.schemes import (
    GC,
    MSGC,
    RASGC,
    SRSGC,
    Backup,
    GCSchedule,
    Schedule,
    Scheme,
    Uncoded,
    parse_scheme,
)
from seqgc.schemes.gc import CodedScheme
from seqgc.search import (
    BatchReplay,
    Conformity,
    Rehearsal,
    Replay,
    ReplayBackend,
    batch_replay,
    replay,
)
from seqgc.search.kernel import _batch
from seqgc.search.kernel._arrivals import Arrivals
from seqgc.search.kernel._thresholds import Codes, after_enough
from seqgc.stragglers import StragglerModel
from tests.kit import SOAK, left
from tests.schemes.catalogue import all_schemes

PROFILES = 1000 if SOAK else 16
WAIT_OUTS: tuple[WaitOut, ...] = ("all", "conform", "feasible")
CONFORMITIES: tuple[Conformity, ...] = ("scheme", "bursty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A profile, how to run on it, and one scheme of every kind."""

    profile: DelayProfile
    schemes: list[Scheme]
    num_jobs: int
    jobs_per_round: int
    mu: float
    alpha: float
    conformity: Conformity
    points: int | None  # in a batch; None: loads are nominal

    @property
    def rehearsal(self) -> Rehearsal:
        return Rehearsal(
            profile=self.profile,
            num_jobs=self.num_jobs,
            alpha=self.alpha,
            repeat=True,
            conformity=self.conformity,
            batch=self.points,
        )

    def setting(self, scheme: Scheme, wait_out: WaitOut) -> Setting:
        rule = ClosingRule(mu=self.mu, wait_out=wait_out)
        return Setting(scheme=scheme, rule=rule, jobs_per_round=self.jobs_per_round)

    def batch(self, wait_out: WaitOut, schemes: list[Scheme] | None = None) -> BatchReplay:
        return batch_replay(
            self.schemes if schemes is None else schemes,
            self.rehearsal,
            rule=ClosingRule(mu=self.mu, wait_out=wait_out),
            jobs_per_round=self.jobs_per_round,
        )

    def replay(self, scheme: Scheme, wait_out: WaitOut) -> Replay:
        return replay(self.setting(scheme, wait_out), self.rehearsal)

    def policy(self, scheme: Scheme, wait_out: WaitOut) -> RoundPolicy:
        schedule = self.rehearsal.schedule(self.setting(scheme, wait_out))
        return RoundPolicy(schedule, ClosingRule(mu=self.mu, wait_out=wait_out))

    def times(self, scheme: Scheme) -> FloatArray:
        return self.rehearsal.times(self.setting(scheme, "all"))


def random_times(rng: np.random.Generator, rounds: int, n: int) -> FloatArray:
    """Of one of five worlds: two of them full of ties, one with a heavy tail."""
    shape = (rounds, n)
    match rng.integers(5):
        case 0:
            return 0.1 + rng.exponential(size=shape)
        case 1:
            return rng.integers(1, 4, shape).astype(np.float64)
        case 2:
            return 1 + rng.pareto(1.0, shape)
        case 3:
            stragglers = rng.random(shape) < 0.25
            return 1 + 0.01 * rng.random(shape) + stragglers * rng.integers(1, 5, shape)
        case _:  # apart by one bit, which a load's seconds may or may not round away
            return np.where(rng.random(shape) < 0.5, 1.0, np.nextafter(1.0, 2)) * rng.integers(
                1, 3, shape
            )


@functools.cache
def schemes_by_kind(n: int) -> dict[tuple[str, bool], list[Scheme]]:
    by_kind: dict[tuple[str, bool], list[Scheme]] = {}
    for scheme in all_schemes(n, 5 if n < 7 else 3):
        if isinstance(scheme, RASGC):
            continue  # whose loads are not the same in every round: see below
        # Cyclic codes are of two kinds: with solved weights, and plain sums where s + 1 divides n.
        divides = n % (scheme.tolerated + 1) == 0
        by_kind.setdefault((scheme.spec.partition(":")[0], divides), []).append(scheme)
    return by_kind


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(17, 20)) if seed % 50 == 0 else int(rng.integers(1, 7))
    schemes = [same[rng.integers(len(same))] for same in schemes_by_kind(n).values()]
    if n > 1:  # without coded results there are idle rounds
        burst = int(rng.integers(1, 4))
        schemes.append(MSGC(n=n, B=burst, W=int(rng.integers(burst + 1, 6)), lam=n))
    schemes.append(Backup(n=n, b=int(rng.integers(n))))
    per_round = int(rng.choice([1, 1, 2]))
    return Case(
        profile=DelayProfile.from_times(random_times(rng, int(rng.integers(2, 9)), n)),
        schemes=schemes,
        num_jobs=per_round * int(rng.choice([1, 2, 3, 5])),
        jobs_per_round=per_round,
        mu=float(rng.choice([0.0, 0.0, 0.2, 1.0])),
        alpha=float(rng.choice([0.0, 1.0, 3.7, 1e13])),
        conformity=CONFORMITIES[seed % 2],
        points=int(rng.integers(1, 4 * n)) if seed % 4 == 3 else None,
    )


def answered_by(times: FloatArray, seconds: FloatArray) -> BoolArray:
    """Whose answers count, (rounds, n), given how long the rounds last; 0: idle."""
    responded: BoolArray = (times <= seconds[:, None]) | (seconds[:, None] == 0)
    return responded


def check_row(
    batch: BatchReplay,
    row: int,
    run: Replay,
    times: FloatArray,
    where: str,
    *,
    excused: BoolArray | None = None,
) -> None:
    """Compare one candidate's row with a replay, to the last bit."""
    rounds = int(batch.num_rounds[row])
    seconds = batch.round_seconds[row, :rounds]
    assert seconds.tolist() == run.round_seconds.tolist(), where
    assert not batch.round_seconds[row, rounds:].any(), where
    answered = answered_by(times, seconds) | (False if excused is None else excused)
    assert (answered == run.responded).all(), where
    assert batch.waited_out[row] == np.count_nonzero(run.waited_out), where
    assert batch.runtime_s[row] == run.runtime_s, where


# ---- the live loop, wound by hand ---------------------------------------------------------------


def wind(policy: RoundPolicy, times: FloatArray) -> list[RoundRecord]:
    """Drive a policy with events only, its ticks as late as they can come."""
    records: list[RoundRecord] = []
    actions = list(policy.start())
    while not policy.done:
        round = len(records)
        sent = [action for action in actions if isinstance(action, Dispatch)]
        if sent:
            actions = play_round(policy, round, times[round], asked=set(sent[0].assignment))
        else:
            actions = list(policy.on(Tick(at=policy.wake_at)))
        records += [action.record for action in actions if isinstance(action, Close)]
        assert len(records) == round + 1
    return records


def play_round(
    policy: RoundPolicy, round: int, times: FloatArray, *, asked: set[int]
) -> list[object]:
    policy.on(left(round, 1, at=0.0))
    for instant in np.unique(times[list(asked)]):
        if policy.wake_at < instant and (actions := policy.on(Tick(at=policy.wake_at))):
            late = arrival(round, int(times.argmax()), float(times.max()))
            if not policy.done:
                assert isinstance(policy.on(late)[0], Drop)
            return list(actions)
        for worker in asked & set(np.flatnonzero(times == instant).tolist()):
            policy.on(arrival(round, int(worker), float(instant)))
    return list(policy.on(Tick(at=policy.wake_at)))


def arrival(round: int, worker: int, at: float) -> Arrival:
    return Arrival(round=round, worker=worker, attempt=0, at=at, results={})


@pytest.mark.parametrize("wait_out", WAIT_OUTS)
def test_kernel_replay_and_live_loop_decide_alike(wait_out: WaitOut) -> None:
    idle_rounds = left_out = 0
    for seed in range(PROFILES):
        case = random_case(seed)
        batch = case.batch(wait_out)
        for row, scheme in enumerate(case.schemes):
            where = f"seed {seed}, {scheme!r}, {wait_out}, {case.conformity}, {case.points} points"
            run, times = case.replay(scheme, wait_out), case.times(scheme)
            schedule = case.rehearsal.schedule(case.setting(scheme, wait_out))
            check_row(batch, row, run, times, where, excused=schedule.excused)
            left_out += schedule.leaves_out
            records = wind(case.policy(scheme, wait_out), times)
            assert run.round_seconds.tolist() == [r.duration_s for r in records], where
            assert (run.responded == [r.responded for r in records]).all(), where
            assert run.waited_out.tolist() == [r.waited_out for r in records], where
            idle_rounds += run.reasons.count("idle")
    assert idle_rounds > 0, "the cases must contain rounds in which nobody has anything to do"
    assert left_out > 20, "the cases must contain batches smaller than the number of chunks"


# ---- loads that follow from who was late before -------------------------------------------------


def random_ra_sgc(rng: np.random.Generator, n: int) -> RASGC:
    return RASGC(
        n=n,
        s=int(rng.integers(n)),
        q=float(rng.choice([0.2, 0.5, 0.75, 1.0])),
        r=min(int(rng.geometric(0.5)), n),  # few, or nothing is dealt in parts
        p=int(rng.integers(1, min(n, 3) + 1)),
        late=str(rng.choice(["take", "drop"])),
    )


@pytest.mark.parametrize("wait_out", WAIT_OUTS)
def test_ra_sgc_is_decided_alike_with_others_alone_and_event_by_event(wait_out: WaitOut) -> None:
    late = dealt = 0
    for seed in range(300 if SOAK else 15):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 9))
        schemes = [random_ra_sgc(rng, n) for _ in range(3)]
        schemes += [replace(each, p=1 + each.p % min(n, 3)) for each in schemes]  # with the others
        case = replace(random_case(seed), schemes=schemes)
        profile = DelayProfile.from_times(random_times(rng, int(rng.integers(2, 9)), n))
        case = replace(case, profile=profile)
        batch = case.batch(wait_out)
        for row, scheme in enumerate(case.schemes):
            where = f"seed {seed}, {scheme!r}, {wait_out}, {case.points} points"
            run, rounds = case.replay(scheme, wait_out), int(batch.num_rounds[row])
            assert batch.round_seconds[row, :rounds].tolist() == run.round_seconds.tolist(), where
            assert batch.waited_out[row] == np.count_nonzero(run.waited_out), where
            assert batch.runtime_s[row] == run.runtime_s, where
            busy = run.round_seconds > 0
            assert batch.loads[row, :rounds][busy].tolist() == run.loads[busy].tolist(), where
            dealt += len(set(run.loads[busy].tolist())) > 1
            setting, seen = case.setting(scheme, wait_out), list[RoundRecord]()
            schedule = case.rehearsal.schedule(setting)
            times = functools.partial(case.rehearsal.times_of, setting, schedule)
            master.run(
                RoundPolicy(schedule, setting.rule),
                ReplayBackend(lambda _, times=times: times()),
                observe=lambda e, seen=seen: (
                    seen.append(e.record) if isinstance(e, Close) else None
                ),
            )
            assert [record.duration_s for record in seen] == run.round_seconds.tolist(), where
            assert [record.responded.tolist() for record in seen] == run.responded.tolist(), where
            late += sum(len(record.late) for record in seen)
    if wait_out == "feasible":
        assert late > 0
        assert dealt > 0


# ---- recorded profiles --------------------------------------------------------------------------

RECORDING = "cnn-canada-batch2048-load0.000-30rounds-d.csv"
ALPHA = 1.1217530061354162
PUBLISHED: dict[str, float] = {
    "uncoded": 31.5164,
    "gc:s=14": 25.8292,
    "gc:s=15": 26.0001,
    "sr-sgc:B=1,W=2,lam=22": 25.4769,
    "sr-sgc:B=1,W=2,lam=23": 25.4874,
    "m-sgc:B=1,W=2,lam=26": 27.1192,
    "m-sgc:B=1,W=2,lam=27": 27.1196,
    "m-sgc:B=2,W=3,lam=27": 29.4542,
}


def recorded(folder: Path, workers: int) -> DelayProfile:
    times = np.loadtxt(folder / RECORDING, delimiter=",")[:, :workers]
    return DelayProfile.from_times(times, meta=ProfileMeta(alpha=ALPHA))


def test_the_kernel_reproduces_the_rule_of_the_paper(recorded_profiles: Path) -> None:
    profile = recorded(recorded_profiles, 256)
    schemes = [parse_scheme(spec, n=256) for spec in PUBLISHED]
    batch = batch_replay(
        schemes, Rehearsal(profile=profile, num_jobs=20), rule=ClosingRule(mu=1.0, wait_out="all")
    )
    assert batch.runtime_s.tolist() == pytest.approx(list(PUBLISHED.values()), abs=1e-4)
    bursty = batch_replay(
        schemes[-1:],
        Rehearsal(profile=profile, num_jobs=20, conformity="bursty"),
        rule=ClosingRule(mu=1.0, wait_out="all"),
    )
    assert bursty.runtime_s.tolist() == pytest.approx([30.7264], abs=1e-4)


@pytest.mark.parametrize("wait_out", ["conform", "feasible"])
def test_the_kernel_decides_like_replay_on_recorded_delays(
    recorded_profiles: Path, wait_out: WaitOut
) -> None:
    n = 60
    schemes: list[Scheme] = [
        MSGC(n=n, B=2, W=4, lam=19),
        MSGC(n=n, B=3, W=4, lam=14, family="rep"),
        SRSGC(n=n, B=2, W=5, lam=11),
        SRSGC(n=n, B=2, W=3, lam=9, family="rep"),
        GC(n=n, s=6, family="binary"),
        GC(n=n, s=5),
        SRSGC(n=n, B=2, W=3, lam=10),
        MSGC(n=n, B=2, W=4, lam=19, family="binary"),
        MSGC(n=n, B=1, W=3, lam=16, family="binary"),
    ]
    profile = recorded(recorded_profiles, n)
    for mu in (0.0, 0.5):
        batch = batch_replay(
            schemes,
            Rehearsal(profile=profile, num_jobs=12),
            rule=ClosingRule(mu=mu, wait_out=wait_out),
        )
        for row, scheme in enumerate(schemes):
            run = replay(
                Setting(scheme=scheme, rule=ClosingRule(mu=mu, wait_out=wait_out)),
                Rehearsal(profile=profile, num_jobs=12),
            )
            times = Rehearsal(profile=profile, num_jobs=12).times(Setting(scheme=scheme))
            check_row(batch, row, run, times, f"{scheme!r}, mu={mu}")


# ---- the batch itself ---------------------------------------------------------------------------


@pytest.mark.parametrize("wait_out", WAIT_OUTS)
def test_what_else_is_in_the_batch_changes_nothing(
    wait_out: WaitOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = random_case(3)
    schemes = all_schemes(case.profile.num_workers, 4)
    together = case.batch(wait_out, schemes)
    backwards = case.batch(wait_out, schemes[::-1])
    assert (together.round_seconds == backwards.round_seconds[::-1]).all()
    monkeypatch.setattr(_batch, "_BLOCK", 1)
    monkeypatch.setattr(_batch, "_LEAST_WIDTH", 2)
    in_small_blocks = case.batch(wait_out, schemes)
    assert (together.round_seconds == in_small_blocks.round_seconds).all()
    assert (together.waited_out == in_small_blocks.waited_out).all()


@dataclass(frozen=True, kw_only=True)
class Tripled(CodedScheme):
    """A scheme that the kernel has never heard of: repetition by three, on workers of any loads."""

    n: int
    uneven: bool = False
    exact: ClassVar[bool] = True
    delay: ClassVar[int] = 0

    @property
    def _inner(self) -> GC:
        return GC(n=self.n, s=2, family="rep")

    @property
    def worker_loads(self) -> FloatArray:
        return self._inner.worker_loads * (np.arange(1, self.n + 1) if self.uneven else 2)

    @property
    def _code(self) -> GradientCode:
        return self._inner._code

    @property
    def promise(self) -> StragglerModel:
        return self._inner.promise

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return GCSchedule(self, num_jobs, conformity=conformity)


@dataclass(frozen=True, kw_only=True)
class Unlike(GC):
    """A scheme whose type has a kernel that its loads rule out."""

    @property
    def worker_loads(self) -> FloatArray:
        return np.linspace(0.5, 1.0, self.n)


def test_a_scheme_unknown_to_the_kernel_is_replayed_in_general() -> None:
    times = np.random.default_rng(5).pareto(1.0, (6, 9)) + 0.1
    profile = DelayProfile.from_times(times, meta=ProfileMeta(alpha=1.0))
    inexact = GC(n=9, s=4, family="binary", allow_error=0.6)
    schemes: list[Scheme] = [
        Uncoded(n=9),
        Tripled(n=9),
        Tripled(n=9, uneven=True),
        Unlike(n=9, s=2),
        GC(n=9, s=4),
        inexact,
    ]
    rehearsal, rule = Rehearsal(profile=profile, num_jobs=6), ClosingRule(mu=0.1)
    batch = batch_replay(schemes, rehearsal, rule=rule)
    for row, scheme in enumerate(schemes):
        setting = Setting(scheme=scheme, rule=rule)
        check_row(batch, row, replay(setting, rehearsal), rehearsal.times(setting), repr(scheme))


def test_every_worker_is_charged_its_own_load() -> None:
    profile = DelayProfile.from_times(np.ones((1, 9)), meta=ProfileMeta(alpha=9.0))
    seconds = Rehearsal(profile=profile).times(Setting(scheme=Tripled(n=9, uneven=True)))
    assert seconds.tolist() == [[pytest.approx(1 + 3 * (i + 1)) for i in range(9)]]


def test_an_empty_batch_has_no_rows() -> None:
    profile = DelayProfile.from_times([[1.0, 2.0]])
    batch = batch_replay(
        [], Rehearsal(profile=profile, num_jobs=1), rule=ClosingRule(mu=0.0, wait_out="all")
    )
    assert batch.runtime_s.shape == batch.num_rounds.shape == batch.waited_out.shape == (0,)


GOOD = {"num_jobs": 4, "alpha": 1.0, "jobs_per_round": 1}
FOUR = [Uncoded(n=4), MSGC(n=4, B=1, W=2, lam=1)]


@pytest.mark.parametrize(
    ("schemes", "culprit", "change"),
    [
        (FOUR, 0, {"num_jobs": 0}),
        (FOUR, 0, {"jobs_per_round": 3}),
        (FOUR, 0, {"jobs_per_round": 0}),
        (FOUR, 0, {"alpha": None}),
        (FOUR, 0, {"alpha": -1.0}),
        (FOUR, 1, {"num_jobs": 6}),
        ([*FOUR, Uncoded(n=5)], 2, {}),
    ],
)
def test_what_a_replay_refuses_the_batch_refuses_in_the_same_words(
    schemes: list[Scheme], culprit: int, change: dict[str, object]
) -> None:
    profile = DelayProfile.from_times(np.ones((6, 4)))
    given = GOOD | change
    k = given.pop("jobs_per_round")

    def alone() -> None:
        setting = Setting(scheme=schemes[culprit], jobs_per_round=k)
        replay(setting, Rehearsal(profile=profile, **given))

    def together() -> None:
        rehearsal = Rehearsal(profile=profile, **given)
        batch_replay(schemes, rehearsal, rule=ClosingRule(), jobs_per_round=k)

    with pytest.raises(SeqgcError) as by_replay:
        alone()
    with pytest.raises(SeqgcError) as by_batch:
        together()
    assert str(by_batch.value) == str(by_replay.value)
    assert type(by_batch.value) is type(by_replay.value)


def test_a_load_that_leaves_no_time_is_refused() -> None:
    heavy = ProfileMeta(base_load=1.0, alpha=1.0)
    profile = DelayProfile.from_times(np.full((6, 4), 0.5), meta=heavy)
    lightest, heaviest = GC(n=4, s=0), GC(n=4, s=3)
    with pytest.raises(SeqgcError) as by_replay:
        replay(
            Setting(scheme=lightest, rule=ClosingRule(mu=0.0, wait_out="all")),
            Rehearsal(profile=profile, num_jobs=4),
        )
    with pytest.raises(SeqgcError) as by_batch:
        batch_replay(
            [heaviest, lightest],
            Rehearsal(profile=profile, num_jobs=4),
            rule=ClosingRule(mu=0.0, wait_out="all"),
        )
    assert str(by_batch.value) == str(by_replay.value)


def test_enough_wanted_answers_are_counted_across_runs() -> None:
    rng = np.random.default_rng(7)
    for n in (1, 15, 16, 17, 48, 100):
        order, wanted = rng.permutation(n), rng.random((n, 30)) < 0.7
        enough = rng.integers(0, n + 1, 30).astype(np.int16)
        for column, (wants, need) in enumerate(zip(wanted.T, enough, strict=True)):
            by_hand = [k for k in range(1, n + 1) if wants[order[:k]].sum() >= need] or [n + 1]
            counted = after_enough(wanted, order, enough)[column]
            assert counted == by_hand[0], f"n={n}, column {column}"


@pytest.mark.parametrize("n", [1, 6, 7, 12])
def test_answers_are_needed_until_the_code_decodes(n: int) -> None:
    rng = np.random.default_rng(n)
    kinds: list[tuple[str, int]] = [
        (kind, s)
        for kind in ("cyclic", "rep", "binary")
        for s in range(n)
        if kind != "rep" or n % (s + 1) == 0
    ]
    arrivals = Arrivals(rng.random((40, n)))
    codes = Codes(arrivals, [s for _, s in kinds], [kind for kind, _ in kinds])
    for round, order in enumerate(arrivals.order):
        useful = rng.random((n, len(kinds))) < (1.0 if round % 4 == 0 else 0.8)
        known = rng.random((n, len(kinds))) < 0.4
        needed = codes.needed(round, useful)
        still_needed = dict(
            zip(codes.covered, codes.still_needed(round, useful, known=known), strict=True)
        )
        decoded = dict(zip(codes.covered, codes.decode(known), strict=True))
        if useful.all():
            assert (codes.needed(round) == needed).all()
        for column, (kind, s) in enumerate(kinds):
            code, where = make_code(kind, n, s), f"{kind}, s={s}, round {round}"
            came = [np.isin(np.arange(n), order[:k]) & useful[:, column] for k in range(n + 1)]
            enough = [k for k in range(n + 1) if code.can_decode(came[k])]
            assert needed[column] == min(enough, default=n + 1), where
            if column in still_needed:
                with_known = [
                    k for k in range(n + 1) if code.can_decode(came[k] | known[:, column])
                ]
                assert still_needed[column] == min(with_known, default=n + 1), where
                assert decoded[column] == code.can_decode(known[:, column]), where
