"""Explanations of runs and traces whose stragglers are known."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from seqgc import DelayProfile, explain, read_run
from seqgc.cli import main
from seqgc.errors import ParameterError
from seqgc.explanation import Explanation
from seqgc.ports import TaskPhases
from seqgc.profiles import CENSORED, ProfileMeta
from tests.cli.kit import Out
from tests.runs.logs import write_run, write_tasks

ROUNDS, N = 30, 4
STEADY = np.full((ROUNDS, N), 1.0)


def one_always_slow(factor: float = 3.0) -> np.ndarray:
    times = STEADY.copy()
    times[:, 2] = factor
    return times


def random_stragglers(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    times = rng.uniform(1.0, 1.05, size=(ROUNDS, N))
    times[np.arange(ROUNDS), rng.integers(N, size=ROUNDS)] = 5.0
    return times


def counterfactual(found: Explanation, what: str) -> float:
    (seconds,) = [each.seconds for each in found.counterfactuals if each.what == what]
    return seconds


def test_a_worker_that_is_always_slow_is_named_with_its_exact_cost(tmp_path: Path) -> None:
    found = read_run(write_run(tmp_path, one_always_slow().tolist(), master_s=0.5)).explain()
    first = found.by_worker[0]
    assert (first.worker, first.always, first.factor) == (2, True, 3.0)
    assert first.cost_s == pytest.approx(2.0 * ROUNDS)
    assert first.constant_s == pytest.approx(2.0 * ROUNDS)
    assert first.varying_s == pytest.approx(0.0)
    assert found.waiting_s == pytest.approx(2.0 * ROUNDS)
    assert found.computing_s == pytest.approx(1.0 * ROUNDS)
    assert found.master_s == pytest.approx(0.5 * (ROUNDS - 1))
    assert found.agreement == pytest.approx(1.0)
    assert "Worker 2" in found.verdict[0]
    assert "replace it" in found.verdict[0]
    assert not any(each.cost_s for each in found.by_worker[1:])


def test_of_two_workers_that_hide_each_other_the_verdict_names_both() -> None:
    times = one_always_slow()
    times[:, 0] = 3.0
    found = explain(DelayProfile.from_times(np.hstack([times, STEADY])))
    assert all(not row.cost_s for row in found.by_worker)  # one of them alone saves nothing
    assert {row.worker for row in found.by_worker if row.always} == {0, 2}
    assert "0, 2" in found.verdict[0]


def test_a_worker_that_is_always_slow_is_named_whatever_else_was_slow() -> None:
    times = random_stragglers()
    times[:, 2] *= 2.0
    alone = explain(DelayProfile.from_times(one_always_slow()))
    assert "no code is needed" in alone.verdict[0]
    found = explain(DelayProfile.from_times(times, meta=ProfileMeta(base_load=1 / N, alpha=0.1)))
    assert [row.worker for row in found.by_worker if row.always] == [2]
    assert "Worker 2 was always slow" in found.verdict[0]
    assert "no code" not in found.verdict[0]
    code = next(each for each in found.counterfactuals if each.what == "code")
    assert code.scheme in found.verdict[1]


def test_stragglers_that_change_are_answered_by_a_code() -> None:
    profile = DelayProfile.from_times(
        random_stragglers(), meta=ProfileMeta(base_load=1 / N, alpha=0.1)
    )
    found = explain(profile)
    assert not any(row.always for row in found.by_worker)
    code = next(each for each in found.counterfactuals if each.what == "code")
    assert code.scheme in found.verdict[0]
    assert code.seconds < 0.5 * found.seconds
    assert code.low_s <= code.seconds <= code.high_s < found.seconds
    assert code.surely_faster
    assert code.saved_s == pytest.approx(found.seconds - code.seconds)
    assert found.half_in_rounds == pytest.approx(ROUNDS / 2, abs=1)


def test_one_slow_round_is_no_sure_gain_and_has_no_interval_from_0() -> None:
    times = np.ones((40, N))
    times[7, 2] = 50.0
    found = explain(DelayProfile.from_times(times, meta=ProfileMeta(base_load=1 / N, alpha=0.0)))
    ways = {each.what: each for each in found.counterfactuals}
    nobody, code = ways["nobody slow"], ways["code"]
    assert (found.seconds, nobody.low_s, nobody.seconds, nobody.high_s) == (89.0, 40.0, 40.0, 40.0)
    assert (code.low_s, code.seconds, code.surely_faster) == (40.0, 40.0, False)
    assert ways["hedge"].low_s >= 40.0
    assert f"{code.scheme} would have taken 40 s instead of 89 s" in found.verdict[0]
    assert "1 of 40 rounds" in found.verdict[0]


@pytest.mark.parametrize(("rounds", "sure"), [(2, False), (4, False), (12, True)])
def test_a_few_rounds_make_nothing_sure(rounds: int, sure: bool) -> None:
    times = np.ones((rounds, N))
    times[np.arange(rounds), np.arange(rounds) % N] = 5.0
    found = explain(DelayProfile.from_times(times), alpha=0.0)
    assert any(each.surely_faster for each in found.counterfactuals) is sure


@pytest.mark.parametrize("deals", [True, False])
def test_figures_agree_also_if_a_replay_of_the_run_does_not(deals: bool, tmp_path: Path) -> None:
    if deals:  # six pieces of 0.1 s and two of 0.3 s in each round; in truth, alpha is larger
        tasks = [
            (r, 0, 0.7 * r + 0.1 * k, 0.7 * r + 0.1 * (k + 1)) for r in range(20) for k in range(6)
        ]
        tasks += [
            (r, 1, 0.7 * r + 0.3 * k, 0.7 * r + 0.3 * (k + 1)) for r in range(20) for k in range(2)
        ]
        found = read_run(write_tasks(tmp_path, tasks, pieces=8)).explain(alpha=0.5)
    else:  # the run waited for everyone, which the code does not need
        run = write_run(tmp_path, random_stragglers().tolist(), scheme="gc:s=1")
        found = read_run(run).explain()
    assert found.agreement is not None
    assert (found.agreement > 1.1) if deals else (found.agreement < 0.9)
    saved_s = found.counterfactuals[0].saved_s
    assert found.counterfactuals[0].what == "nobody slow"
    assert found.waiting_s == pytest.approx(saved_s)
    assert found.waiting_s + found.computing_s == pytest.approx(found.seconds)
    assert found.computing_s == pytest.approx(found.counterfactuals[0].seconds)
    assert max(each.cost_s or 0.0 for each in found.by_worker) <= found.waiting_s + 1e-9
    assert f"{found.agreement:.2f} times" in " ".join(found.missing)


def test_rounds_with_fewer_workers_are_left_out_with_their_master(tmp_path: Path) -> None:
    logs = []
    for name, times in (("few", STEADY[:5, :2]), ("more", STEADY[:20])):
        path = write_run(tmp_path / name, times.tolist(), master_s=0.1) / "events.jsonl"
        logs.append([json.loads(line) for line in path.read_text().splitlines()])
    lines = [*logs[0][:-1], {**logs[1][0], "event": "resume"}]
    for line in logs[1][1:]:
        later = {name: line[name] + 5 for name in ("round", "job") if name in line}
        lines.append(line | later)
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    found = read_run(tmp_path).explain()
    assert (found.rounds, found.workers) == (20, N)
    assert found.master_s == pytest.approx(1.9)
    assert any(text.startswith("5 rounds are left out") for text in found.missing)


def test_nothing_slow_is_called_nothing_slow() -> None:
    rng = np.random.default_rng(1)
    found = explain(DelayProfile.from_times(rng.uniform(1.0, 1.02, size=(ROUNDS, N))))
    assert found.verdict[0].startswith("Nothing was slow")
    assert found.waiting_s < 0.05 * found.seconds


def test_one_slow_round_is_found() -> None:
    times = STEADY.copy()
    times[7, 1] = 100.0
    found = explain(DelayProfile.from_times(times))
    assert (found.by_round[0].round, found.by_round[0].slowest) == (7, 1)
    assert found.by_round[0].cost_s == pytest.approx(99.0)
    assert found.half_in_rounds == 1


def test_without_alpha_it_says_what_does_not_need_it_and_asks(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, random_stragglers().tolist()))
    found = run.explain()
    assert [each.what for each in found.counterfactuals] == ["nobody slow"]
    assert any("--alpha" in each and "seqgc profile" in each for each in found.missing)
    known = run.explain(alpha=0.1)
    assert {each.what for each in known.counterfactuals} >= {"code", "deal", "hedge", "ssp"}
    assert not any("--alpha" in each for each in known.missing)


@pytest.mark.parametrize(("provider", "stays"), [("", False), ("lambda", False), ("local", True)])
def test_deal_is_replayed_or_said_to_be_left_out(provider: str, stays: bool) -> None:
    meta = ProfileMeta(base_load=1 / N, alpha=0.1, provider=provider)
    found = explain(DelayProfile.from_times(random_stragglers(), meta=meta))
    assert ("deal" in {each.what for each in found.counterfactuals}) is stays
    assert any("--backend local" in each for each in found.missing) is not stays


def test_the_uncoded_counterfactual_of_a_coded_run_is_the_uncoded_run(tmp_path: Path) -> None:
    """Both runs have the same delays; tasks of the code have twice the load.

    All workers of a round take equally long, so that the coded run also awaits all of them.
    """
    rng, alpha = np.random.default_rng(2), 0.8
    uncoded = rng.uniform(1.0, 1.5, size=(ROUNDS, 1)).repeat(N, axis=1)
    coded = uncoded + alpha * (2 / N - 1 / N)
    loads = [[2 / N] * N] * ROUNDS
    plain = write_run(tmp_path / "plain", uncoded.tolist())
    code = write_run(tmp_path / "code", coded.tolist(), scheme="gc-rep:s=1", loads=loads)
    as_plain = counterfactual(read_run(code).explain(alpha=alpha), "uncoded")
    assert as_plain == pytest.approx(explain(plain).seconds)


def test_time_that_no_replay_explains_is_in_every_counterfactual(tmp_path: Path) -> None:
    """The rounds of this run take longer than its scheme needs, as on a busy master."""
    times = random_stragglers()
    run = read_run(write_run(tmp_path, times.tolist(), scheme="gc-rep:s=1")).explain(alpha=0.0)
    assert run.agreement is not None
    assert run.agreement < 0.9
    nobody_slow = next(each for each in run.counterfactuals if each.what == "nobody slow")
    assert nobody_slow.saved_s == pytest.approx(run.waiting_s)


def test_a_censored_time_is_drawn_from_longer_answers_and_widens_the_interval() -> None:
    times = random_stragglers()
    status = np.zeros(times.shape, dtype=np.int8)
    hidden = (times == 5.0) & (np.arange(ROUNDS) % 2 == 0)[:, None]
    status[hidden] = CENSORED
    times[hidden] = 1.05
    times[(times == 5.0)] = np.linspace(3.0, 9.0, int((times == 5.0).sum()))
    found = explain(
        DelayProfile(times=times, status=status, meta=ProfileMeta(base_load=1 / N, alpha=0.1))
    )
    assert (found.censored, found.only_bounded) == (int(hidden.sum()), 0)
    assert found.waiting_s > 0.5 * found.seconds


def test_only_lower_bounds_are_said_to_be_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, one_always_slow().tolist(), scheme="gc:s=1", needed=3)
    found = read_run(run).explain(alpha=0.1)
    assert (found.censored, found.only_bounded) == (ROUNDS, ROUNDS)
    assert any("--scheme uncoded" in each for each in found.missing)


def test_phases_are_named_and_the_slow_one_gets_the_blame(tmp_path: Path) -> None:
    phases = TaskPhases(0.0, 0.0, 0.25, 0.5)
    run = read_run(write_run(tmp_path, random_stragglers().tolist(), phases=phases))
    found = {each.phase: each for each in run.explain().by_phase}
    assert found["computed"].median_s == 0.5
    assert found["computed"].cost_s == pytest.approx(0.0)
    assert found["on the way"].cost_s == pytest.approx(run.explain().waiting_s, rel=0.1)
    assert any("on the way" in each for each in run.explain().verdict)


def test_a_run_that_deals_needs_alpha_and_agrees_with_its_replay(tmp_path: Path) -> None:
    """Two workers, one piece each, one after the other: every piece takes 1 s."""
    tasks = [(k, w, float(k), k + 1.0) for k in range(8) for w in (0, 1)]
    run = read_run(write_tasks(tmp_path, tasks, pieces=2))
    assert run.explain().agreement is None
    assert run.explain(alpha=0.1).agreement == pytest.approx(1.0, abs=0.02)


def test_a_price_is_paid_for_all_workers() -> None:
    profile = DelayProfile.from_times(random_stragglers())
    nobody = explain(profile, usd_per_worker_s=0.01).counterfactuals[0]
    assert nobody.usd == pytest.approx(0.01 * N * nobody.seconds)


def test_a_run_shorter_than_its_delay_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, STEADY[:2].tolist(), scheme="m-sgc:B=1,W=2,lam=2")
    with pytest.raises(ParameterError, match="delay"):
        read_run(run).explain()


def test_the_verb_prints_words_json_and_a_page(tmp_path: Path, capsys: Out) -> None:
    run, page = str(write_run(tmp_path / "run", one_always_slow().tolist())), tmp_path / "e.html"
    assert main(["explain", run]) == 0
    assert "Worker 2 was always slow" in capsys.readouterr().out
    assert main(["explain", run, "--json", "-o", str(page), "--usd-per-hour", "3.6"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts.keys() == {field.name for field in fields(Explanation)} | {"alpha_cases", "file"}
    assert facts["counterfactuals"][0].keys() == {
        "what", "scheme", "mu", "seconds", "low_s", "high_s", "saved_s", "surely_faster",
        "usd",
    }  # fmt: skip
    assert facts["counterfactuals"][0]["usd"] == pytest.approx(
        0.001 * N * facts["counterfactuals"][0]["seconds"]
    )
    assert "replace it" in page.read_text(encoding="utf-8")
    assert main(["explain", str(tmp_path)]) == 2
    assert "events.jsonl" in capsys.readouterr().err
