"""What a module is but for the values of its trainable parameters: its *form*.

The models of a grid differ in learning rates and seeds, and a hundred of them have one form. At the
same weights, modules of one form are the same function. So what does not depend on the weights is
done once a form: whether a model is sound is tried on one, and a worker has one module for all,
into which it writes the weights of whichever model it is asked for.

A form is a digest of the pickled module, with every tensor replaced by what it is: a trainable
parameter by its shape, place and dtype, any other by its content. Two modules that are alike may
happen to pickle differently; then they are two forms, which costs time and nothing else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import torch
import xxhash
from torch import Tensor, nn

from seqgc.training.model import Model, Objective

__all__ = ["form_of", "has_hooks", "one_of_each", "with_shared_modules"]

Contents = dict[int, tuple[Tensor, str]]  # by identity, with the tensor, so that it stays alive


def form_of(thing: object, contents: Contents | None = None) -> bytes | None:
    """Return the form of a module, or of anything else; None if it cannot be told.

    ``contents`` remembers the tensors that have been read, for things that may share them.

    Examples
    --------
    >>> make = torch.nn.Linear
    >>> form_of(make(2, 1)) == form_of(make(2, 1)), form_of(make(2, 1)) == form_of(make(3, 1))
    (True, False)
    """
    out = io.BytesIO()
    try:
        _FormPickler(out, {} if contents is None else contents).dump(thing)
    except Exception:  # whatever classes of one's own raise: then it is like no other
        return None
    return xxhash.xxh3_128_digest(out.getbuffer())


def one_of_each(models: Iterable[Model]) -> list[Model]:
    """Return the first model of each form, loss, data and autocast; all of forms untold."""
    found, contents = dict[object, Model](), Contents()
    for model in models:
        form, loss = form_of(model.module, contents), form_of(model.loss, contents)
        told = form is not None and loss is not None
        kind = form, loss, id(model.dataset), id(model.test_dataset), model.autocast
        found.setdefault(kind if told else id(model), model)
    return list(found.values())


def with_shared_modules(objectives: Iterable[Objective]) -> tuple[Objective, ...]:
    """Return the objectives, those of one form with one module: the first's, weights and all."""
    all_, contents, first = list(objectives), Contents(), dict[bytes, nn.Module]()
    modules = {id(each.module): each.module for each in all_}
    for key, module in modules.items():
        if (form := form_of(module, contents)) is not None:
            modules[key] = first.setdefault(form, module)
    return tuple(replace(each, module=modules[id(each.module)]) for each in all_)


def has_hooks(tensor: Tensor) -> bool:
    """Say whether something is called with the tensor's gradient; copies and pickles have none."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


class _FormPickler(pickle.Pickler):
    """Writes what a tensor is in place of the tensor."""

    def __init__(self, out: io.BytesIO, contents: Contents) -> None:
        super().__init__(out)
        self._contents: Final = contents
        self._seen: Final[dict[int, Tensor]] = {}  # by storage; kept, so that no number comes twice

    def persistent_id(self, obj: object) -> object:
        if not isinstance(obj, Tensor):
            return None
        if obj.__dict__ or has_hooks(obj):
            raise ValueError("a tensor with attributes or hooks of its own")
        at = obj.untyped_storage().data_ptr()
        self._seen.setdefault(at, obj)
        about = (type(obj), obj.dtype, tuple(obj.shape), obj.stride(), obj.requires_grad)
        # Tied parameters, and views of one another, are such in every module of a form.
        place = list(self._seen).index(at), obj.storage_offset()
        trainable = isinstance(obj, nn.Parameter) and obj.requires_grad
        return (*map(str, about), place, "" if trainable else self._content(obj))

    def _content(self, tensor: Tensor) -> str:
        if id(tensor) not in self._contents:
            data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest = xxhash.xxh3_128_hexdigest(data.numpy().data)
            self._contents[id(tensor)] = tensor, digest
        return self._contents[id(tensor)][1]
