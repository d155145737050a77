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
"""The only metadata of a file. The format does not keep the order of several entries, and equal
states should give equal files.
"""


def save_checkpoint(path: str | Path, module: nn.Module) -> None:
    """Write the state of ``module`` to ``path``, and wait until the complete file is on the disk.

    Raises
    ------
    OSError
        If the folder is absent or cannot be written to. An existing file is then unchanged.

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
    """Write the state of a module like `save_checkpoint`.

    ``check`` is called before the new file gets its name. If it raises, ``path`` is unchanged.
    """
    # The format does not allow shared memory, so tied weights are copied under each name.
    state = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    with replacing(Path(path), check=check) as file:
        file.write(save(state, metadata={_DIGEST: _digest(state)}))


def save_states(
    folder: Path, states: Mapping[str, Mapping[str, torch.Tensor]], *, check: Callable[[], object]
) -> Iterator[str]:
    """Write each state to the file ``<name>.safetensors`` in the folder.

    Yield a line for each file that could not be written. ``check`` is as in `save_state`.
    """
    for name, tensors in states.items():
        file = folder / f"{name}.safetensors"
        try:
            save_state(file, tensors, check=check)
        except OSError as error:
            yield f"{file} could not be written: {error.strerror or error}"


def load_checkpoint(path: str | Path, module: nn.Module) -> None:
    """Load the state in the file ``path`` into ``module``. The module's precision is unchanged.

    If the file contains its digest, like every file of `save_checkpoint`, the digest is checked.

    Raises
    ------
    StoreError
        If the file is missing or damaged, or does not have the parameters of the module.
    """
    try:
        with open_bounded(path, most_bytes=_MOST_BYTES) as file:
            data = file.read()
        state = load(data)
        if _recorded_digest(data) not in (None, _digest(state)):
            raise StoreError(f"checkpoint {path} is damaged: its digest does not match")
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


def _recorded_digest(data: bytes) -> object:
    """Return the digest that a safetensors file contains, or None."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__", {}).get(_DIGEST)
