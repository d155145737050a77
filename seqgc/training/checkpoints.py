"""A module's weights and buffers in a safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from seqgc._durable import replacing
from seqgc.errors import StoreError, one_line

__all__ = ["load_checkpoint", "save_checkpoint"]

METADATA: Final = {"format": "pt"}
"""Of every safetensors file. Not more than one: in files they come in any order."""


def save_checkpoint(path: str | Path, module: nn.Module) -> None:
    """Write the state of ``module`` to ``path``: complete and on disk, or not at all.

    Raises
    ------
    OSError
        If the folder is absent or cannot be written to; an older checkpoint is then unharmed.

    Examples
    --------
    >>> import tempfile, pathlib, torch
    >>> from seqgc.training import load_checkpoint, save_checkpoint
    >>> one, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "linear.safetensors")
    ...     save_checkpoint(path, one)
    ...     load_checkpoint(path, other)
    >>> bool((one.weight == other.weight).all())
    True
    """
    # Clones, because the format knows no shared memory: tied weights are written under each name.
    state = {name: tensor.clone().contiguous() for name, tensor in module.state_dict().items()}
    with replacing(Path(path)) as file:
        file.write(save(state, metadata=METADATA))


def load_checkpoint(path: str | Path, module: nn.Module) -> None:
    """Read ``path`` into ``module``, in the module's own precision.

    Raises
    ------
    StoreError
        If the file is missing or damaged, or holds other parameters than the module's.
    """
    try:
        module.load_state_dict(load(Path(path).read_bytes()))
    except (OSError, SafetensorError, RuntimeError) as error:
        cause = one_line(error)
        message = f"checkpoint {path} does not load into {type(module).__name__}: {cause}"
        raise StoreError(message) from error
