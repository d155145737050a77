"""A lower bound on the memory that a function needs, to compare with its limit before a run begins.

A run that could work must not be rejected, so only certain needs are counted: PyTorch, the data
that are not mapped from files, and for one model its weights, their gradient, the fetched weights,
the results, and the inputs of its share of a batch. Activations need additional memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from seqgc.models.datasets import PointDataset
    from seqgc.training import Model, TaskSizes

__all__ = ["require_memory"]

_RUNTIME_BYTES: Final = 200 << 20
"""A lower bound for a function that has imported PyTorch and computed nothing (226 MB measured)."""


def require_memory(
    models: Sequence[Model],
    sizes: TaskSizes,
    *,
    workers: int,
    memory_mb: int,
    mapped: Callable[[str], bool],
) -> None:
    """Raise `ParameterError` if models and data need more memory than a function has.

    ``memory_mb`` is the function's memory in MB. ``mapped`` returns True for the name of a stored
    data set that functions map from their file system.
    """
    from seqgc.models.datasets import StoredPoints

    datasets = {id(each): each for model in models for each in _read(model)}
    data_bytes = sum(
        0 if isinstance(each, StoredPoints) and mapped(each.stored.name) else _bytes(each)
        for each in datasets.values()
    )
    model_bytes = max(
        2 * sum(p.nbytes for p in model.module.parameters())
        + _bytes(model.dataset) // len(model.dataset) * (model.batch_size // workers)
        for model in models
    )
    fetched_bytes = sizes.weights_bytes // sizes.weights_files + sizes.result_bytes
    least = _RUNTIME_BYTES + data_bytes + model_bytes + fetched_bytes
    if least > memory_mb << 20:
        parts = {
            "PyTorch": _RUNTIME_BYTES,
            "data": data_bytes,
            "a model and its share of a batch": model_bytes,
            "weights and results": fetched_bytes,
        }
        needs = ", ".join(f"{name} {_mb(size)}" for name, size in parts.items())
        rule = f"must be at least {_mb(least)} MB ({needs})"
        remedy = "deploy with more --memory-mb"
        if data_bytes:
            remedy += ", or with --vpc, and `seqgc data put --mount` the data on the functions' "
            remedy += "file system"
        raise ParameterError("function.memory_mb", rule, memory_mb, remedy)


def _read(model: Model) -> tuple[PointDataset, ...]:
    """Return the datasets of a model that a function loads.

    Of a stored data set, a function loads only the training data.
    """
    from seqgc.models.datasets import StoredPoints

    if isinstance(model.dataset, StoredPoints) or model.test_dataset is None:
        return (model.dataset,)
    return model.dataset, model.test_dataset


def _bytes(dataset: PointDataset) -> int:
    """Return the number of bytes of a dataset's arrays, or 0 if it is unknown."""
    if (data_bytes := getattr(dataset, "data_bytes", None)) is not None:
        return int(data_bytes)
    return sum(tensor.nbytes for tensor in getattr(dataset, "tensors", ()))


def _mb(size_bytes: int) -> int:
    return -(-size_bytes // (1 << 20))
