"""RA-SGC does what section 3.4 of docs/mathematics.md says, to the last task."""

from __future__ import annotations

from math import ceil, floor

import numpy as np
import pytest

from seqgc.ports import BoolArray
from seqgc.schemes import RASGC, Schedule

JOBS = 6


class Section:
    """Section 3.4, read line by line, for batches of as many points as one likes."""

    def __init__(self, scheme: RASGC) -> None:
        self.n, self.p, self.q, self.r = scheme.n, scheme.p, scheme.q, scheme.r
        self.G = floor(scheme.n / (scheme.s + 1))
        self.round, self.rates = 0, np.zeros(scheme.n)
        self.received: dict[int, tuple[int, int]] = {}  # of the job before: chunk -> worker, round
        self.missing: list[int] = []
        self.P = 1
        self.dealt: dict[int, tuple[int, int, int]] = {}  # worker -> chunk, part, holder

    def subchunks(self, chunk: int, part: int = 0, of: int = 1) -> list[int]:
        within = range(floor(part * self.p / of), floor((part + 1) * self.p / of))
        return [chunk * self.p + k for k in within]

    def tasks(self, worker: int) -> list[tuple[int, list[int]]]:
        """Return a worker's jobs and their sub-chunks."""
        tasks = []
        if self.round < JOBS:
            tasks.append((self.round, self.subchunks(worker % self.G)))
        if worker in self.dealt:
            chunk, part, _ = self.dealt[worker]
            tasks.append((self.round - 1, self.subchunks(chunk, part, self.P)))
        return tasks

    def loads(self) -> list[float]:
        part = ceil(self.p / self.P) / (self.G * self.p)
        if self.round == JOBS:
            return [part] * self.n
        return [1 / self.G + (part if worker in self.dealt else 0) for worker in range(self.n)]

    def holders(self, chunk: int, part: int) -> list[int]:
        """Return who was dealt a part, the first holder first."""
        own = [(k, w) for w, (c, u, k) in self.dealt.items() if (c, u) == (chunk, part)]
        return [worker for _, worker in sorted(own)]

    def is_complete(self, responded: BoolArray) -> bool:
        return all(
            chunk in self.received
            or all(responded[self.holders(chunk, u)].any() for u in range(self.P))
            for chunk in self.missing
        )

    def may_close(self, responded: BoolArray) -> bool:
        own = {worker % self.G for worker in np.flatnonzero(responded)}
        quorum = ceil(round(self.q * self.G, 9)) if self.round < JOBS else 0
        return self.is_complete(responded) and len(own) >= quorum

    def take_late(self, worker: int) -> None:
        self.received.setdefault(worker % self.G, (worker, self.round - 1))

    def close(self, responded: BoolArray) -> dict[int, set[tuple[int, int, int]]]:
        """Return of the jobs that are finished whose results make them: worker, round, slot."""
        finished = {}
        if self.missing:
            terms = {(w, r, 0) for w, r in self.received.values()}
            for chunk in set(self.missing) - self.received.keys():
                for u in range(self.P):
                    holder = next(w for w in self.holders(chunk, u) if responded[w])
                    terms.add((holder, self.round, 1))
            finished[self.round - 1] = terms
        self.rates = 0.8 * self.rates + 0.2 * ~responded
        self.received, self.missing, self.dealt, self.P = {}, [], {}, 1
        if self.round < JOBS:
            for worker in np.flatnonzero(responded).tolist():
                self.received.setdefault(worker % self.G, (worker, self.round))
            self.missing = sorted(set(range(self.G)) - self.received.keys())
            if not self.missing:
                finished[self.round] = {(w, r, 0) for w, r in self.received.values()}
        self.round += 1
        self.deal()
        return finished

    def deal(self) -> None:
        """Give what is missing to those who have been late least."""
        if m := len(self.missing):
            self.P = min(self.p, max(1, floor(self.n / (self.r * m))))
            most = floor(self.n / (m * self.P))
            h = most if self.round == JOBS else min(self.r, most)
            b = sorted(range(self.n), key=lambda worker: (self.rates[worker], worker))
            for k in range(h):
                for j, chunk in enumerate(self.missing):
                    for u in range(self.P):
                        self.dealt[b[(k * m + j) * self.P + u]] = chunk, u, k
            assert len(self.dealt) == m * self.P * h


def terms(schedule: Schedule, job: int) -> set[tuple[int, int, int]]:
    decoding = schedule.decoding(job)
    assert {term.weight for term in decoding.terms} == {1.0}
    return {(term.worker, term.round, term.slot) for term in decoding.terms}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "scheme",
    [
        RASGC(n=8, s=1, q=0.5, r=2),
        RASGC(n=9, s=0, q=0.3, r=1, p=4),
        RASGC(n=12, s=2, q=0.25, r=2, p=3),
        RASGC(n=11, s=1, q=0.6, r=3, p=2),
        RASGC(n=7, s=3, q=1.0, r=4, p=5),
    ],
    ids=lambda scheme: scheme.spec,
)
def test_section_3_4_determines_tasks_loads_closing_and_decoding(scheme: RASGC, seed: int) -> None:
    rng = np.random.default_rng(seed)
    schedule, section = scheme.start(JOBS), Section(scheme)
    finished = []
    for round in range(JOBS + 1):
        asked = [
            [(task.job, task.chunks.tolist()) for task in tasks] for tasks in schedule.assignment()
        ]
        assert asked == [section.tasks(worker) for worker in range(scheme.n)]
        assert schedule.loads().tolist() == pytest.approx(section.loads(), rel=1e-12)
        for worker in rng.permutation(scheme.n)[: int(rng.integers(3))].tolist():
            if schedule.awaits(round - 1, worker):
                schedule.take_late(round - 1, worker)
                section.take_late(worker)
        responded = rng.random(scheme.n) < rng.choice([0.0, 0.3, 0.6, 0.9])
        for worker in rng.permutation(scheme.n):
            assert schedule.enough(responded) == section.may_close(responded)
            if schedule.enough(responded):
                break
            responded[worker] = True
        jobs = schedule.close_round(responded)
        expected = section.close(responded)
        assert {job: terms(schedule, job) for job in jobs} == expected
        finished += jobs
    assert sorted(finished) == list(range(JOBS))
