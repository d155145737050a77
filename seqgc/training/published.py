"""Published versions of the weights of a bundle, which workers read."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import accumulate, pairwise
from typing import Final, Protocol

import torch

from seqgc.errors import StoreError
from seqgc.models.model import Model
from seqgc.models.results import ResultLayout
from seqgc.ports import FloatArray, WeightRef, WeightStore

__all__ = ["PublishedModel", "PublishedWeights"]

_LAST_FAILS: Final = 5  # number of removals that may fail in the last call of `keep`


class PublishedModel(Protocol):
    """The part of a model in training that `PublishedWeights` needs (`Learner`)."""

    @property
    def model(self) -> Model: ...
    @property
    def layout(self) -> ResultLayout: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def changes(self) -> int:
        """The number of changes of the weights."""

    def vector(self) -> FloatArray:
        """Return a copy of the trainable parameters, (P,), read-only."""

    def move_to(self, vector: torch.Tensor) -> None:
        """Make the trainable parameters views of ``vector`` (P,), if this is possible."""

    def move_out(self) -> None:
        """Give each trainable parameter its own memory again."""

    def is_in(self, vector: torch.Tensor) -> bool:
        """Return True if the trainable parameters are views of ``vector``."""


class PublishedWeights:
    """The published versions of the weights of a bundle of models.

    In the store, the weights of all models of a bundle are one vector (P_1 + ... + P_k,), under the
    name of the first model. Many small files would take longer to write and read than the
    computation with their content. The number of a version is the number of changes of all models'
    weights.

    The parameters of the models become views of one vector in memory. Therefore publishing is one
    copy, and equal optimizers work on one long parameter
    (`seqgc.models.optimizers.move_together`).
    """

    def __init__(self, learners: Sequence[PublishedModel], *, store: WeightStore) -> None:
        self._learners: Final = tuple(learners)
        self._store: Final = store
        ends = accumulate((each.layout.parameters for each in learners), initial=0)
        self.spans: Final = tuple(pairwise(ends))
        """The range of each model in the vector: its first position, and the end of the range."""
        self._vector: Final = torch.empty(self.spans[-1][1], dtype=learners[0].dtype)
        self._places: Final = [self._vector[start:stop] for start, stop in self.spans]
        for learner, place in zip(learners, self._places, strict=True):
            learner.move_to(place)
        self._published: list[WeightRef] = []
        self._unneeded: list[WeightRef] = []  # versions that are not removed yet
        self.unremoved = ""
        """The reason why a version could not be removed, if one could not; the first one counts."""

    def publish(self) -> WeightRef:
        """Return a reference to the present weights. Publish them first if they are new."""
        if not self.is_published:
            self._put(self._version, self._present())
        return self._published[-1]

    def republish(self, version: int, weights: FloatArray) -> WeightRef:
        """Publish a version again that was published before the run was resumed.

        Versions must be published in ascending order.
        """
        if not self._published or self._published[-1].version != version:
            self._put(version, weights)
        return self._published[-1]

    @property
    def is_published(self) -> bool:
        """True if the present weights are published."""
        return bool(self._published) and self._published[-1].version == self._version

    @property
    def latest(self) -> WeightRef | None:
        """The last published version, or None if nothing is published or it has been discarded."""
        return self._published[-1] if self._published else None

    def version(self, ref: WeightRef) -> FloatArray:
        """Return the weights of a published version."""
        return self._present() if ref.version == self._version else self._store.fetch(ref)

    def keep(self, needed: Set[WeightRef]) -> None:
        """Discard the published versions that are not ``needed``.

        If a version cannot be removed, a later call tries again. Each failure takes time. Therefore
        a call ends after one failure, or after five failures if no version is needed, because this
        may be the last call.
        """
        self._unneeded += [ref for ref in self._published if ref not in needed]
        self._published = [ref for ref in self._published if ref in needed]
        fails = 1 if needed else _LAST_FAILS
        while self._unneeded and fails:
            ref = self._unneeded.pop(0)
            try:
                self._store.discard(ref)
            except StoreError as error:
                self._unneeded.append(ref)
                self.unremoved = self.unremoved or str(error)
                fails -= 1

    def move_out(self) -> None:
        """Give the models' parameters their own memory again, outside the common vector."""
        for learner, place in zip(self._learners, self._places, strict=True):
            if learner.is_in(place):
                learner.move_out()

    @property
    def _version(self) -> int:
        return sum(learner.changes for learner in self._learners)

    def _present(self) -> FloatArray:
        vector: FloatArray = self._vector.numpy().copy()
        for learner, place, span in zip(self._learners, self._places, self.spans, strict=True):
            if not learner.is_in(place):
                vector[slice(*span)] = learner.vector()
        vector.setflags(write=False)
        return vector

    def _put(self, version: int, weights: FloatArray) -> None:
        ref = self._store.publish(self._learners[0].model.name, version, weights)
        self._unneeded = [each for each in self._unneeded if each != ref]
        self._published.append(ref)
