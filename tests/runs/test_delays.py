"""The delays of a recorded run, wherever a profile is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from seqgc import Rehearsal, Setting, parse_scheme, replay, tune
from seqgc.cli import main
from seqgc.errors import ParameterError, ProfileError
from seqgc.profiles import CENSORED, FAILED, DelayProfile, ProfileMeta, lint, write_profile
from seqgc.runs import read_delays, read_run
from seqgc.search import SearchSpace
from tests.cli.kit import Out
from tests.runs.logs import write_run, write_tasks

SECONDS = [[0.5, 0.6, 0.9], [0.4, 2.0, 0.7], [0.5, 0.6, 0.8]]


def test_an_uncoded_run_is_the_profile_of_its_answers(tmp_path: Path) -> None:
    profile = read_run(write_run(tmp_path, SECONDS)).profile()
    np.testing.assert_allclose(profile.times, SECONDS)
    assert profile.answered.all()
    assert profile.meta.base_load == pytest.approx(1 / 3)
    assert profile.meta.alpha is None
    assert (profile.meta.provider, profile.meta.batch) == ("local", 256)


def test_a_cancelled_task_is_censored_at_the_end_of_its_round(tmp_path: Path) -> None:
    profile = read_run(write_run(tmp_path, SECONDS, scheme="gc:s=1", needed=2)).profile()
    assert profile.status[1].tolist() == [0, CENSORED, 0]
    np.testing.assert_allclose(profile.times[1], [0.4, 0.7, 0.7])


def test_a_failure_is_no_censored_time(tmp_path: Path) -> None:
    run = write_run(tmp_path, SECONDS, scheme="gc:s=1", needed=2, failed={(2, 0): 0.1})
    profile = read_run(run).profile()
    assert (profile.status[2, 0], profile.times[2, 0]) == (FAILED, pytest.approx(0.1))
    assert profile.awaited().times[2, 0] == pytest.approx(0.8)


def test_a_censored_time_becomes_a_longer_answer_of_its_worker() -> None:
    times = np.array([[1.0, 9.0], [3.0, 9.0], [5.0, 9.0], [2.0, 9.0]])
    status = np.zeros((4, 2), dtype=np.int8)
    status[3, 0] = CENSORED
    profile = DelayProfile(times=times, status=status)
    assert profile.awaited().times[3, 0] == 4.0  # the median of 3 and 5
    draws = {
        float(profile.awaited(rng=np.random.default_rng(seed)).times[3, 0]) for seed in range(30)
    }
    assert draws == {3.0, 5.0}


def test_without_a_longer_answer_of_its_own_a_worker_takes_one_of_all() -> None:
    status = np.array([[0, 0], [CENSORED, 0]], dtype=np.int8)
    profile = DelayProfile(times=np.array([[1.0, 7.0], [2.0, 3.0]]), status=status)
    assert profile.awaited().times[1, 0] == 5.0  # the median of 3 and 7


def test_lint_counts_no_cancelled_task_as_a_failure() -> None:
    times = np.random.default_rng(0).uniform(1.0, 2.0, size=(8, 4))
    status = np.zeros((8, 4), dtype=np.int8)
    status[:, 2:] = CENSORED
    times[:, 2:] = 1.5
    assert not [each for each in lint(DelayProfile(times=times, status=status)) if
                each.rule in ("mostly-failed", "often-failed")]  # fmt: skip
    times[:, 2:] = 2.5
    found = {each.rule for each in lint(DelayProfile(times=times, status=status))}
    assert "cancelled" in found


def test_alpha_is_fitted_where_the_loads_of_a_worker_change(tmp_path: Path) -> None:
    loads = [[(1.0, 0.5, 0.25)[(k + w) % 3] for w in range(3)] for k in range(12)]
    seconds = [[0.3 + 0.1 * w + 2.0 * load for w, load in enumerate(row)] for row in loads]
    seconds[4][1] += 20.0  # a straggler
    profile = read_run(write_run(tmp_path, seconds, loads=loads)).profile()
    assert profile.meta.alpha == pytest.approx(2.0)
    assert profile.meta.base_load == 0.25
    np.testing.assert_allclose(np.median(profile.times, axis=0), [0.8, 0.9, 1.0])


def test_alpha_is_unknown_if_loads_differ_between_workers_only(tmp_path: Path) -> None:
    """A worker with less load may have it because it is slow."""
    loads = [[1.0, 0.5, 0.25]] * 12
    seconds = [[2.0 + 0.01 * k] * 3 for k in range(12)]
    run = write_run(tmp_path, seconds, loads=loads)
    assert read_run(run).profile().meta.alpha is None
    given = read_run(run).profile(alpha=1.0)
    assert given.meta.alpha == 1.0
    np.testing.assert_allclose(given.times[0], [1.25, 1.75, 2.0])
    with pytest.raises(ProfileError, match="alpha=4"):
        read_run(run).profile(alpha=4.0)


def test_alpha_is_not_fitted_to_noise(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    loads = rng.choice([0.25, 0.5], size=(20, 3)).tolist()
    seconds = rng.uniform(0.5, 1.5, size=(20, 3)).tolist()
    assert read_run(write_run(tmp_path, seconds, loads=loads)).profile().meta.alpha is None


def test_without_rounds_row_k_has_the_kth_task_of_each_worker(tmp_path: Path) -> None:
    """Worker 0 gets its second piece while it computes the first one."""
    run = write_tasks(
        tmp_path,
        # round, worker, left, arrived
        [(0, 0, 0.0, 0.4), (0, 1, 0.0, 0.9), (0, 0, 0.1, 0.7), (1, 0, 0.8, 1.0), (1, 1, 1.0, 1.5)],
        pieces=3,
    )
    profile = read_run(run).profile()
    np.testing.assert_allclose(profile.times, [[0.4, 0.9], [0.3, 0.5]])
    assert profile.meta.base_load == pytest.approx(1 / 3)


def test_a_run_whose_worker_did_nothing_is_refused(tmp_path: Path) -> None:
    run = write_tasks(tmp_path, [(0, 0, 0.0, 0.4)], pieces=3)
    with pytest.raises(ProfileError, match="worker 1"):
        read_run(run).profile()
    with pytest.raises(ProfileError, match=str(tmp_path)):
        read_delays(run)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"events\.jsonl"):
        read_delays(tmp_path)


def test_an_uncoded_replay_of_an_uncoded_run_takes_its_rounds(tmp_path: Path) -> None:
    profile = read_delays(write_run(tmp_path, SECONDS))
    rehearsal = Rehearsal(profile=profile, alpha=0.0)
    run = replay(Setting(scheme=parse_scheme("uncoded", n=3)), rehearsal)
    np.testing.assert_allclose(run.round_seconds, [0.9, 2.0, 0.8])
    best = tune(rehearsal, space=SearchSpace(families=("uncoded", "gc-rep"))).best
    assert best.setting.scheme.spec == "gc-rep:s=2"


@pytest.mark.parametrize(
    "words",
    [
        ["tune", "{}", "--alpha", "0.2", "--schemes", "uncoded,gc-rep"],
        ["replay", "{}", "--alpha", "0.2", "--scheme", "gc-rep:s=2"],
        ["profile", "lint", "{}"],
        ["profile", "stats", "{}"],
        ["profile", "fit", "{}"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_verbs_read_a_run_as_they_read_its_profile(
    tmp_path: Path, words: Sequence[str], capsys: Out
) -> None:
    rng = np.random.default_rng(3)
    seconds = rng.lognormal(-1, 0.1, size=(20, 3))
    seconds *= rng.choice([1, 4], p=[0.9, 0.1], size=(20, 3))
    run = write_run(tmp_path, seconds.tolist())
    file = tmp_path / "same.npz"
    write_profile(read_delays(run), path=file)
    answers = []
    for path in (run, file):
        assert main([*(word.format(path) for word in words), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        answers.append(
            {key: value for key, value in facts.items() if key not in ("file", "seconds")}
        )
    assert answers[0] == answers[1]


def test_alpha_is_asked_for_with_what_to_do(tmp_path: Path, capsys: Out) -> None:
    run = str(write_run(tmp_path, SECONDS))
    assert main(["train", "--delays", run]) == 2
    assert "alpha" in capsys.readouterr().err
    assert main(["tune", run, "--schemes", "gc-rep", "--jobs-per-round", "1"]) == 0
    assert "--alpha" in (shown := capsys.readouterr().out)
    assert "seqgc profile" in shown


def test_meta_of_a_bundle_counts_every_model(tmp_path: Path) -> None:
    profile = read_run(write_run(tmp_path, SECONDS, bundle=4)).profile()
    assert profile.meta == ProfileMeta(
        base_load=profile.meta.base_load,
        batch=256,
        provider="local",
        recorded_at=profile.meta.recorded_at,
        source=profile.meta.source,
    )
    assert profile.meta.base_load == pytest.approx(4 / 3)


def test_the_page_of_a_run_can_have_a_search_on_its_delays(tmp_path: Path) -> None:
    run, page = write_run(tmp_path / "run", SECONDS), tmp_path / "page.html"
    words = ["report", str(run), "-o", str(page)]
    assert main([*words, "--alpha", "0.2"]) == 2
    assert main([*words, "--search", "--watch"]) == 2
    assert main([*words, "--search", "--alpha", "0.2"]) == 0
    assert "What would suit it" in page.read_text(encoding="utf-8")
