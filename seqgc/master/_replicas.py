"""Comparison of results that must be equal, in order to detect workers with wrong results."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from seqgc.errors import AuditError
from seqgc.ports import FloatArray

ResultKey: TypeAlias = tuple[int, int, int]  # worker, round, slot
_Place: TypeAlias = tuple[int, int]  # cover and place


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdict:
    """The outcome of the votes on some places; ``liars`` are the workers with other results."""

    results: dict[_Place, FloatArray]
    liars: frozenset[int]
    uncompared: int  # places with one answer, although several workers were asked


class Replicas:
    """The results of one job that several workers may return, with a vote on each place.

    Correct results for one place are equal to the last bit. Therefore the digest of a result is a
    vote. A worker has one vote on each place, and more than half of the votes must agree.

    Examples
    --------
    >>> replicas = Replicas(job=0)
    >>> for worker, value in enumerate([7.0, 8.0, 7.0]):
    ...     replicas.ask((0, 0), worker)
    ...     replicas.add((0, 0), np.array([value]), key=(worker, 0, 0))
    >>> verdict = replicas.count([(0, 0)])
    >>> verdict.results, sorted(verdict.liars)
    ({(0, 0): array([7.])}, [1])
    """

    def __init__(self, *, job: int) -> None:
        self._job = job
        self._asked: defaultdict[_Place, set[int]] = defaultdict(set)
        self._votes: defaultdict[_Place, defaultdict[bytes, set[int]]]
        self._votes = defaultdict(lambda: defaultdict(set))
        self._digests: dict[ResultKey, bytes] = {}
        self._vectors: dict[bytes, FloatArray] = {}

    def ask(self, place: _Place, worker: int) -> None:
        """Record that a worker was sent a task for the result of a place."""
        self._asked[place].add(worker)

    def add(self, place: _Place, result: FloatArray, *, key: ResultKey) -> None:
        """Add a worker's vote; copy the result unless an equal result is stored."""
        digest = _digest(result)
        if digest not in self._vectors:
            self._vectors[digest] = result.copy()
        self._votes[place][digest].add(key[0])
        self._digests[key] = digest

    @property
    def asked(self) -> dict[_Place, list[int]]:
        """The workers that were sent a task for each place."""
        return {place: sorted(workers) for place, workers in self._asked.items() if workers}

    @property
    def stored(self) -> dict[ResultKey, FloatArray]:
        """Copies of all results that have arrived."""
        return {key: self._vectors[digest].copy() for key, digest in self._digests.items()}

    def in_dispute(self, unused: Sequence[slice] = (), *, but: Set[int] = frozenset()) -> bool:
        """Return True if some place has votes, but none of them has a majority.

        ``unused`` slices of a result may differ. Workers in ``but``, which are known to be wrong,
        have no vote; a place that has only their votes is in dispute.
        """
        return any(_majority(self._votes_on(place, unused, but)) is None for place in self._votes)

    def count(
        self,
        places: Iterable[_Place],
        *,
        unused: Sequence[slice] = (),
        but: Set[int] = frozenset(),
    ) -> Verdict:
        """Return the majority's results for these places, each of which must have an answer.

        For ``unused`` and ``but`` see `in_dispute`.

        Raises
        ------
        AuditError
            If a place has no majority.
        """
        results: dict[_Place, FloatArray] = {}
        liars: set[int] = set()
        uncompared = 0
        for place in places:
            votes = self._votes_on(place, unused, but)
            voters = set().union(*votes.values())
            if (most := _majority(votes)) is None:
                heard = voters or set().union(*self._votes[place].values())
                raise AuditError(self._job, sorted(heard), expelled=not voters)
            liars |= voters - votes[most]
            uncompared += len(voters) == 1 and len(self._asked[place]) > 1
            results[place] = self._vectors[most]
        return Verdict(results=results, liars=frozenset(liars), uncompared=uncompared)

    def _votes_on(
        self, place: _Place, unused: Sequence[slice], but: Set[int]
    ) -> Mapping[bytes, set[int]]:
        """Return the workers of each vote on a place, except the workers in ``but``.

        Results that differ only in ``unused`` parts are one vote.
        """
        votes: Mapping[bytes, set[int]] = self._votes[place]
        if but:
            heard = {digest: workers - but for digest, workers in votes.items()}
            votes = {digest: workers for digest, workers in heard.items() if workers}
        if len(votes) == 1 or not unused:
            return votes
        alike: dict[bytes, bytes] = {}  # the first digest among results that count as equal
        together = defaultdict[bytes, set[int]](set)
        for digest, workers in votes.items():
            vector = self._vectors[digest].copy()
            for part in unused:
                vector[part] = 0
            together[alike.setdefault(_digest(vector), digest)] |= workers
        return together


def _digest(result: FloatArray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(result).data, digest_size=16).digest()


def _majority(votes: Mapping[bytes, set[int]]) -> bytes | None:
    """Return the vote of more than half of the voters; None if no vote has a majority."""
    if not votes:
        return None
    most = max(votes, key=lambda digest: len(votes[digest]))
    enough = 2 * len(votes[most]) > len(set().union(*votes.values()))
    return most if enough else None
