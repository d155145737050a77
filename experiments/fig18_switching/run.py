"""A run that begins uncoded and switches to the best code on its own delays (Fig. 18).

python -m experiments.fig18_switching.run [--output FOLDER]

The real loop trains four small models, on delays in virtual time, without sleeping. After 40
rounds, a search looks for the fastest setting of one family on these rounds, while training
continues. Five rounds later the run switches to it, and no job is lost.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from experiments.delays import GENERATORS
from experiments.results import Table, figure, folder_arguments, save
from seqgc import Model, Setting, TrainingPlan, parse_scheme, read_run, train, workers
from seqgc.plot import COLORS
from seqgc.ports import Backend, Dispatch, FloatArray, Notice, Seen
from seqgc.rounds import Adaptation, ClosingRule
from seqgc.search import Rehearsal, ReplayBackend, SearchSpace, replay, tune
from seqgc.training.tuner import Choice, Question

N, MODELS, STEPS = 64, 4, 60
PROBE, SEARCHING = 40, 5  # rounds
ALPHA = 2.24  # seconds per unit of load, as in Table 1
RULE = ClosingRule(mu=1.0, wait_out="all")  # the paper's
FAMILIES = ("uncoded", "gc", "sr-sgc", "m-sgc")
KINDS = ("canada", "canada, no stalls")
SEEDS = range(2)
RUNS = ("delays", "seed", "family", "found", "switched_at", "run_s", "coded_s", "search_s")
CURVES = ("delays", "family", "seconds", "rounds")


class FamilyTuner:
    """Tuner that searches one family, and returns the answer some rounds later."""

    def __init__(self, family: str) -> None:
        self._family, self._looks, self._answer = family, 0, None
        self.search_s = 0.0
        self.found: Setting | None = None

    def submit(self, question: Question) -> None:
        began = time.process_time()
        space = SearchSpace(
            families=(self._family,), mus=(RULE.mu,), wait_outs=(RULE.wait_out,),
            jobs_per_round=(1,), max_delay=MODELS - 1,
        )  # fmt: skip
        rehearsal = Rehearsal(profile=question.profile, models=MODELS, repeat=False)
        best = tune(rehearsal, space=space, top=1).best
        self.search_s = time.process_time() - began
        rounds = question.profile.num_rounds
        now_s = replay(question.current, rehearsal).runtime_s
        self.found = best.setting
        self._answer = Choice(
            current=question.current,
            found=best.setting,
            current_s=now_s / rounds,
            found_s=best.runtime_s / rounds,
            jobs_left=question.jobs_left,
            searched=1,
        )

    def result(self) -> Choice | None:
        self._looks += 1
        if self._answer is None or self._looks < SEARCHING:
            return None
        answer, self._answer = self._answer, None
        return answer

    def close(self) -> None:
        pass


class ByLoad:
    """Observer of a run that adds the delays of a profile, and of the tasks' loads."""

    def __init__(self, times: FloatArray) -> None:
        self._times, self._loads = times, np.zeros(times.shape[1])
        self.switched_at: object = ""  # round

    def __call__(self, seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.loads is not None:
            self._loads = seen.loads
        if isinstance(seen, Notice) and seen.kind == "switch":
            self.switched_at = seen.fields["round"]

    def of_round(self, number: int) -> FloatArray:
        return self._times[number] + ALPHA * self._loads

    def backend(self, _n: int, factory: Callable[[], object]) -> Backend:
        threads = torch.get_num_threads()
        compute = factory()
        torch.set_num_threads(threads)
        return ReplayBackend(self.of_round, compute=compute)


def models() -> list[Model]:
    generator = torch.Generator().manual_seed(0)
    points = TensorDataset(
        torch.randn(512, 4, generator=generator), torch.randn(512, 1, generator=generator)
    )
    sgd = partial(torch.optim.SGD, lr=0.1)
    return [
        Model(
            name=f"model-{i}", module=nn.Linear(4, 1), loss=nn.MSELoss(), dataset=points,
            optimizer=sgd, batch_size=256, seed=i,
        )
        for i in range(MODELS)
    ]  # fmt: skip


def trained(kind: str, seed: int, family: str) -> tuple[dict[str, object], FloatArray]:
    """Return a run's row, and the end of each of its rounds, in seconds."""
    rounds = MODELS * STEPS + 20
    rng = np.random.default_rng(seed)
    profile = GENERATORS[kind].profile(rounds, workers=N, rng=rng)
    start = Setting(scheme=parse_scheme("uncoded", n=N), rule=RULE)
    delays, tuner = ByLoad(profile.times), FamilyTuner(family)
    plan = TrainingPlan(
        models=models(),
        scheme=start,
        steps=STEPS,
        adaptation=None if family == "uncoded" else Adaptation(probe=PROBE, alpha=ALPHA),
    )
    with tempfile.TemporaryDirectory() as folder:
        crew = workers.custom(N, delays.backend)
        train(plan, crew, run=Path(folder, "run"), observers=[delays], tuner=tuner)
        closed = read_run(Path(folder, "run")).rounds()
    rehearsal = Rehearsal(profile=profile, num_jobs=MODELS * STEPS, alpha=ALPHA, models=MODELS)
    coded = replay(tuner.found or start, rehearsal)
    ends = np.cumsum(closed["duration_s"])
    row = {
        "delays": kind,
        "seed": seed,
        "family": family,
        "found": tuner.found.scheme.spec if tuner.found else family,
        "switched_at": delays.switched_at,
        "run_s": f"{ends[-1]:.1f}",
        "coded_s": f"{coded.runtime_s:.1f}",
        "search_s": f"{tuner.search_s:.1f}",
    }
    return row, ends


def curve(ends: FloatArray) -> Iterator[tuple[float, int]]:
    """Yield the end of every fifth round, with its number."""
    for done in range(0, len(ends) + 1, 5):
        yield (float(ends[done - 1]) if done else 0.0), done


def tables(folder: Path) -> tuple[Table, Table]:
    """Compute the rows that the tables lack."""
    runs = Table(folder / "runs.csv", RUNS, keys=3)
    curves = Table(folder / "curves.csv", CURVES, keys=2)
    for kind in KINDS:
        for seed in SEEDS:
            for family in FAMILIES:
                if (kind, seed, family) in runs:
                    continue
                row, ends = trained(kind, seed, family)
                if not seed:
                    points = curve(ends)
                    curves.append(
                        {"delays": kind, "family": family, "seconds": f"{at:.1f}", "rounds": rounds}
                        for at, rounds in points
                    )
                runs.append([row])
    return runs, curves


def draw(curves: Table, path: Path) -> None:
    """Draw rounds over time, of the first run on each kind of delays."""
    picture = figure(width=9.6, height=3.6)
    for ax, kind in zip(picture.subplots(1, len(KINDS)), KINDS, strict=True):
        for color, family in zip(COLORS, FAMILIES, strict=False):
            mine = [
                (float(row["seconds"]), int(row["rounds"]))
                for row in curves.rows()
                if (row["delays"], row["family"]) == (kind, family)
            ]
            ax.plot(*zip(*mine, strict=True), color=color, label=family, linewidth=1.4)
        ax.axhline(PROBE + SEARCHING, color="0.6", linewidth=1)
        ax.set(xlabel="seconds", ylabel="rounds over", title=kind)
    handles = picture.axes[0].get_legend_handles_labels()
    picture.legend(*handles, loc="outside upper center", ncols=len(FAMILIES), frameon=False)
    save(picture, path)


def main() -> None:
    folder: Path = folder_arguments(__doc__, __file__).parse_args().output
    torch.set_num_threads(1)
    _, curves = tables(folder)
    draw(curves, folder / "fig18.svg")


if __name__ == "__main__":
    main()
