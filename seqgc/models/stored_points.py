"""Data sets of `seqgc data put` as PyTorch has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import torch
from torch.utils.data import TensorDataset

from seqgc.errors import ParameterError
from seqgc.stores import StoredData, data_places, find_data

__all__ = ["StoredPoints", "digests", "find_points", "require_digests", "stored_points"]


class StoredPoints(TensorDataset):
    """The points of a stored data set, read when they are needed; ``part`` is ``""`` or ``_test``.

    Pickled, it is a name and a digest: who gets it opens the data set again, where it was or where
    its own data sets are, also if it has been replaced since; another one of the name is refused.
    """

    def __init__(self, stored: StoredData, part: str = "") -> None:
        self.stored, self.part = stored, part

    @cached_property
    def tensors(self) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        """The inputs and the targets, which are mapped or fetched when first needed."""
        return tuple(torch.from_numpy(self.stored.read(f"{key}{self.part}")) for key in ("x", "y"))

    def __len__(self) -> int:
        return self.stored.arrays[f"x{self.part}"].shape[0]

    @property
    def digest(self) -> str:
        """What says which points they are: a data set of the same digest has the same."""
        return f"{self.stored.digest}{self.part}"

    @property
    def data_bytes(self) -> int:
        """How long their numbers are."""
        return sum(self.stored.arrays[f"{key}{self.part}"].data_bytes for key in ("x", "y"))

    def __reduce__(self) -> tuple[object, ...]:
        stored = self.stored
        return _opened, (stored.name, stored.place, stored.digest, self.part)


def stored_points(stored: StoredData) -> tuple[StoredPoints, StoredPoints]:
    """Return the points to train on and to test on, the same where there are no others."""
    train = StoredPoints(stored)
    return train, StoredPoints(stored, "_test") if "x_test" in stored.arrays else train


def digests(datasets: Iterable[object]) -> dict[str, str]:
    """Return which contents those have that are stored, by their names."""
    stored = (each.stored for each in datasets if isinstance(each, StoredPoints))
    return {each.name: each.digest for each in stored}


def require_digests(given: object) -> Mapping[str, str]:
    """Return what `digests` said to somebody else, or raise `ParameterError`."""
    if not isinstance(given, Mapping) or not all(isinstance(d, str) for d in given.values()):
        raise ParameterError("data", "must map names to digests", given)
    return given


def find_points(name: str, digest: str) -> StoredData | None:
    """Return the data set of a name, of a digest if one is given; None: there is none of the name.

    If those contents are gone it is what is there now: who compares the two says what differs.
    """
    begun = find_data(name, digest=digest) if digest else None
    return begun or find_data(name)


def _opened(name: str, place: str, digest: str, part: str) -> StoredPoints:
    stored = find_data(name, (place, *data_places()), digest=digest)
    if stored is None or stored.digest != digest:
        rule = f"must be the data set that the run began with, {digest[:12]}, which is gone"
        raise ParameterError("data", rule, name, "seqgc data put")
    return StoredPoints(stored, part)
