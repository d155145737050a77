"""A module's weights and buffers in a safetensors file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from seqgc._bounded import open_bounded
from seqgc._durable import replacing
from seqgc.errors import StoreError, one_line

__all__ = ["load_checkpoint", "save_checkpoint", "save_state", "save_states"]

_MOST_BYTES: Final = 2**38
_DIGEST: Final = "seqgc_sha256"
"""The file's only metadata: of several, the format keeps no order, and no two files were equal."""


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
    save_state(path, module.state_dict())


def save_state(
    path: str | Path, tensors: Mapping[str, torch.Tensor], *, check: Callable[[], object] = bool
) -> None:
    """Write the state of a module, as `save_checkpoint` does, unless ``check`` raises at last."""
    # Clones, because the format knows no shared memory: tied weights are written under each name.
    state = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    with replacing(Path(path), check=check) as file:
        file.write(save(state, metadata={_DIGEST: _digest(state)}))


def save_states(
    folder: Path, states: Mapping[str, Mapping[str, torch.Tensor]], *, check: Callable[[], object]
) -> Iterator[str]:
    """Write each state under its name, unless ``check`` raises; yield what could not be written."""
    for name, tensors in states.items():
        file = folder / f"{name}.safetensors"
        try:
            save_state(file, tensors, check=check)
        except OSError as error:
            yield f"{file} could not be written: {error.strerror or error}"


def load_checkpoint(path: str | Path, module: nn.Module) -> None:
    """Read ``path`` into ``module``, in the module's own precision.

    If the file states its digest, as a file of `save_checkpoint` does, the digest must match.

    Raises
    ------
    StoreError
        If the file is missing or damaged, or its parameters are not those of the module.
    """
    try:
        with open_bounded(path, most_bytes=_MOST_BYTES) as file:
            data = file.read()
        state = load(data)
        if _said(data) not in (None, _digest(state)):
            raise StoreError(f"checkpoint {path} is damaged: its digest is another than it says")
        module.load_state_dict(state)
    except (OSError, SafetensorError, RuntimeError) as error:
        cause = one_line(error)
        message = f"checkpoint {path} does not load into {type(module).__name__}: {cause}"
        raise StoreError(message) from error


def _digest(state: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _said(data: bytes) -> object:
    """Return the digest that a safetensors file names; None if it names none."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__", {}).get(_DIGEST)
