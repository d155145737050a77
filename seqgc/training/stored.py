"""Data sets of `seqgc data put` as PyTorch has them."""

from __future__ import annotations

from functools import cached_property

import torch
from torch.utils.data import TensorDataset

from seqgc.errors import ParameterError
from seqgc.stores import StoredData, data_places, find_data

__all__ = ["StoredPoints", "stored_points"]


class StoredPoints(TensorDataset):
    """The points of a stored data set, read when they are needed; ``part`` is ``""`` or ``_test``.

    Pickled, it is a name and a digest: who gets it opens the data set again, where it was or where
    its own data sets are, and refuses another one of that name.
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


def _opened(name: str, place: str, digest: str, part: str) -> StoredPoints:
    stored = find_data(name, (place, *data_places()))
    if stored is None or stored.digest != digest:
        rule = "must be the data set that the run began with"
        found = "there is none" if stored is None else stored.digest[:12]
        raise ParameterError("data", f"{rule}, {digest[:12]}; {found}", name, "seqgc data put")
    return StoredPoints(stored, part)
