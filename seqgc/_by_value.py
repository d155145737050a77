"""Conversion of Python objects to bytes, for the worker processes of a master.

Classes and functions of an importable module are sent as names, and the worker imports the module.
Local classes, lambdas and everything in ``__main__`` (a script, the cells of a notebook) exist only
in the master. cloudpickle sends their code, so that no worker has to import the script. cloudpickle
removes the file name from code; this module keeps it, so that error messages can show it.

A `Parcel` keeps large arrays out of these bytes, so that a master can give all workers the same
memory (pickle protocol 5, PEP 574).

Loading such bytes can execute any code. A master sends them only through private pipes, to
processes that it has started or was told to trust. It never puts them into a message of the wire
format, sends them to a cloud function or writes them to a file.
"""

from __future__ import annotations

import pickle
from collections import ChainMap
from functools import cache
from io import BytesIO
from pickle import PickleBuffer, PicklingError
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Parcel", "PicklingError", "dumps", "loads"]

APART_BYTES: Final = 1 << 16
"""Length from which an array stays out of a parcel's payload."""


def dumps(value: object) -> bytes:
    """Convert ``value`` to bytes; raise `PicklingError` if that is not possible.

    Examples
    --------
    >>> twice = lambda x: 2 * x
    >>> loads(dumps(twice))(21)
    42
    """
    return _dumps(value, {}, None)


def loads(payload: bytes | bytearray, buffers: Iterable[memoryview] = ()) -> object:
    """Convert bytes from `dumps`, or the payload and buffers of a `Parcel`, back to the value."""
    return pickle.loads(payload, buffers=buffers)  # noqa: S301 (this program's own bytes)


class Parcel:
    """An object as bytes, its ``payload``, and its large arrays as ``buffers``.

    `Parcel.of` copies no array: the buffers are the memory of the object, and later changes to its
    arrays also change the parcel. A parcel can be pickled. Then its buffers are copied, unless the
    pickler also keeps buffers apart, as the pickler of another parcel does.

    Examples
    --------
    >>> import numpy as np
    >>> parcel = Parcel.of({"x": np.zeros(100_000)})
    >>> len(parcel.payload) < 1000, [each.nbytes for each in parcel.buffers]
    (True, [800000])
    >>> parcel.open()["x"].shape
    (100000,)
    """

    def __init__(
        self, payload: bytes | bytearray, buffers: Iterable[bytes | bytearray | memoryview]
    ) -> None:
        self.payload: Final = payload
        self.buffers: Final = tuple(memoryview(each) for each in buffers)

    @classmethod
    def of(cls, value: object, *, reducers: Mapping[type, Callable[[Any], Any]] = {}) -> Parcel:
        """Return a parcel of ``value``; raise `PicklingError` if that is not possible.

        ``reducers`` are functions by type, as in `copyreg`.
        """
        buffers: list[memoryview] = []

        def is_in_payload(buffer: PickleBuffer) -> bool:
            view = buffer.raw()
            if view.nbytes < APART_BYTES:
                return True
            buffers.append(view)
            return False

        payload = _dumps(value, reducers, is_in_payload)
        return cls(payload, buffers)

    def open(self) -> Any:
        """Return the object. Its large arrays are views of the buffers."""
        return loads(self.payload, self.buffers)

    def __reduce_ex__(self, protocol: Any) -> tuple[object, ...]:
        # The copies are writable, as with protocol 5, because torch warns of read-only memory.
        as_buffer: Callable[[memoryview], object] = PickleBuffer if protocol >= 5 else bytearray
        return type(self), (self.payload, [as_buffer(each) for each in self.buffers])


def _dumps(
    value: object,
    reducers: Mapping[type, Callable[[Any], Any]],
    buffer_callback: Callable[[PickleBuffer], bool] | None,
) -> bytes:
    file = BytesIO()
    try:
        _pickler()(file, reducers, buffer_callback).dump(value)
    except Exception as error:  # a user's __reduce__ or __getstate__ may raise anything
        raise PicklingError(f"{type(error).__name__}: {error}") from error
    return file.getvalue()


@cache
def _pickler() -> Callable[..., Any]:
    """Return cloudpickle's pickler, changed to keep the names of files."""
    # Imported here: cloud functions import this module and do not have cloudpickle.
    from cloudpickle import CloudPickler

    def reduced(code: CodeType) -> tuple[object, ...]:
        make, arguments = CloudPickler.dispatch_table[CodeType](code)
        return _code_of_file, (code.co_filename, make, arguments)

    class Pickler(CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
        def __init__(
            self,
            file: BytesIO,
            reducers: Mapping[type, Callable[[Any], Any]],
            buffer_callback: Callable[[PickleBuffer], bool] | None,
        ) -> None:
            own: dict[type, Callable[[Any], Any]] = {CodeType: reduced}
            self.dispatch_table = ChainMap(own, dict(reducers), CloudPickler.dispatch_table)
            super().__init__(file, buffer_callback=buffer_callback)

    return Pickler


def _code_of_file(file: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=file)
