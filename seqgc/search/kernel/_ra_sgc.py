"""Kernel of RA-SGC, in which candidates deal different parts to workers.

Therefore the loads differ, there is no common order of arrival, and each candidate has its own
times: arrays (candidates, workers). The time at which a round closes depends on two instants. The
first is the arrival of a share q of the chunks of the round's own job. The second is the arrival of
the last missing chunk of the job before, either from a worker to which the chunk was dealt in this
round, or late from a worker that had the chunk before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqgc.ports import BoolArray, FloatArray, IntArray
from seqgc.schemes import RASGC
from seqgc.schemes.ra_sgc import LATE_WEIGHT, loads_of_parts
from seqgc.search.kernel._dispatch import (
    Kernel,
    Need,
    Played,
    Stage,
    kernel_of,
    least_loads,
    necessary_answers,
)


class _Flights:
    """The missing chunks of the previous job, for candidates with the same number G of chunks.

    ``missing`` (candidates, G) marks missing chunks. ``_to_come`` (candidates, G) are the earliest
    late arrivals of missing chunks, in seconds from the beginning of the open round. ``_rates``
    (candidates, n) are the rates at which workers straggle.
    """

    def __init__(self, schemes: Sequence[RASGC], num_rounds: int) -> None:
        self.n, self._last = schemes[0].n, num_rounds - 1
        self._num_own = schemes[0].num_own
        self._most_holders = np.array([scheme.r for scheme in schemes])
        self._most_parts = np.array([scheme.p for scheme in schemes])
        self._takes = np.array([scheme.late == "take" for scheme in schemes])
        self.missing: BoolArray = np.zeros((len(schemes), self._num_own), dtype=np.bool_)
        self._to_come: FloatArray = np.full(self.missing.shape, np.inf)
        self._rates: FloatArray = np.zeros((len(schemes), self.n))

    def deal(self, round: int) -> None:
        """Deal the missing chunks, each in ``parts`` (candidates,) parts, to several holders."""
        self._counts = self.missing.sum(axis=1)
        some = np.maximum(self._counts, 1)
        wanted = np.maximum(self.n // (self._most_holders * some), 1)
        self.parts: IntArray = np.minimum(wanted, self._most_parts)
        most = np.maximum(1, self.n // (some * self.parts))
        holders = most if round == self._last else np.minimum(self._most_holders, most)
        self._best = np.argsort(self._rates, axis=1, kind="stable")
        self._dealt = np.arange(self.n) < (self._counts * self.parts * holders)[:, None]

    def is_dealt(self) -> BoolArray:
        """Return a mask (candidates, n) of the workers that were dealt a part."""
        mask: BoolArray = np.zeros(self._dealt.shape, dtype=np.bool_)
        np.put_along_axis(mask, self._best, self._dealt, axis=1)
        return mask

    def completed(self, times: FloatArray) -> FloatArray:
        """Return the arrival time of the last missing chunk, (candidates,).

        It is -inf if no chunk is missing.
        """
        # The index of each worker's part, with workers in order of their rates.
        places = np.arange(self.n)
        items = (self._counts * self.parts)[:, None]
        item = places % np.maximum(items, 1)
        came = np.full(times.shape, np.inf)  # by part, chunk after chunk
        rows, held = np.nonzero(self._dealt)
        in_order = np.take_along_axis(times, self._best, axis=1)
        np.minimum.at(came, (rows, item[rows, held]), in_order[rows, held])
        whole = np.full(self.missing.shape, -np.inf)  # by missing chunk
        rows, items_of = np.nonzero(places < items)
        np.maximum.at(whole, (rows, items_of // self.parts[rows]), came[rows, items_of])
        chunks = np.argsort(~self.missing, axis=1, kind="stable")  # the missing ones first
        earliest = np.minimum(whole, np.take_along_axis(self._to_come, chunks, axis=1))
        last: FloatArray = earliest.max(axis=1)
        return last

    def first_own(self, times: FloatArray) -> FloatArray:
        """Return the arrival times (candidates, G) of the first results of the round's own job."""
        rows = -(-self.n // self._num_own)
        padded = np.full((len(times), rows * self._num_own), np.inf)
        padded[:, : self.n] = times
        first: FloatArray = padded.reshape(len(times), rows, -1).min(axis=1)
        return first

    def close(self, times: FloatArray, first_own: FloatArray, at: FloatArray) -> None:
        """Update the state after a round with a new job that closed at the times ``at``."""
        self.missing = first_own > at[:, None]
        late = self.missing & self._takes[:, None]
        self._to_come = np.where(late, first_own - at[:, None], np.inf)
        self._rates = (1 - LATE_WEIGHT) * self._rates + LATE_WEIGHT * (times > at[:, None])


def _play(schemes: Sequence[RASGC], stage: Stage) -> Played:
    """Replay schemes with the same number of chunks."""
    n, num_rounds = schemes[0].n, stage.num_rounds
    flights = _Flights(schemes, num_rounds)
    quorum = np.array([[scheme.quorum - 1] for scheme in schemes])
    wanted = np.array([[n - 1 - scheme.s] for scheme in schemes])  # if rounds must conform
    whole, dealt = _loads(schemes, stage.rehearsal.batch)
    seconds = np.zeros((num_rounds, len(schemes)))
    waited_out = np.zeros(seconds.shape, dtype=np.bool_)
    loads = np.zeros(seconds.shape)
    for round in range(num_rounds):
        flights.deal(round)
        is_last = round == num_rounds - 1
        idle = ~flights.missing.any(axis=1) & is_last
        if idle.all():
            break
        own = np.where(is_last, 0.0, whole)
        more = np.take_along_axis(dealt, flights.parts[:, None], axis=1)
        has = np.where(flights.is_dealt() | is_last, own + more, own)
        times, loads[round] = stage.times(round, has), has.mean(axis=1)
        needed = flights.completed(times)
        if not is_last:
            first_own = flights.first_own(times)
            in_order = np.sort(first_own, axis=1)
            needed = np.maximum(needed, np.take_along_axis(in_order, quorum, axis=1)[:, 0])
        slowest = times.max(axis=1)
        deadline = (1 + stage.rule.mu) * times.min(axis=1)
        look = np.minimum(deadline, slowest)
        if stage.rule.wait_out != "feasible":
            conforms = np.take_along_axis(np.sort(times, axis=1), wanted, axis=1)[:, 0]
            needed = np.maximum(needed, conforms)
        late = slowest if stage.rule.wait_out == "all" else needed
        at = np.where(idle, 0.0, np.where(needed <= look, look, late))
        seconds[round], waited_out[round] = at, ~idle & (at > deadline)
        if not is_last:
            flights.close(times, first_own, at)
    return Played(seconds=seconds, waited_out=waited_out, loads=loads)


def _loads(schemes: Sequence[RASGC], batch: int | None) -> tuple[FloatArray, FloatArray]:
    """Return the loads of whole chunks (candidates, 1), and of parts (candidates, parts + 1)."""
    whole = np.zeros((len(schemes), 1))
    dealt = np.zeros((len(schemes), 1 + max(scheme.p for scheme in schemes)))
    for row, scheme in enumerate(schemes):
        whole[row], of_parts = loads_of_parts(scheme, batch)
        dealt[row, : len(of_parts)] = of_parts
    return whole, dealt


@kernel_of.register
def _(scheme: RASGC, *, feasible: bool, bursty_only: bool) -> Kernel:  # noqa: ARG001
    """Return the kernel, which replays schemes with the same number of chunks together."""
    return Kernel(group=(RASGC, scheme.num_own), decisions=scheme, play=_play)


@least_loads.register
def _(scheme: RASGC, batch: int | None) -> FloatArray:
    """Return the loads of the workers' own chunks."""
    return np.full(scheme.n, loads_of_parts(scheme, batch)[0])


@necessary_answers.register
def _(scheme: RASGC, *, conforms: bool) -> Need:
    """Return a need for one answer for each chunk of the quorum; conforming rounds need more."""
    return Need(answers=scheme.n - scheme.s if conforms else scheme.quorum)
