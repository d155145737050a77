"""Python objects as bytes, for the worker processes of a master.

Classes and functions of an importable module are sent as their names; the worker imports the
module. Local classes, lambdas and everything in ``__main__`` (a script, the cells of a notebook)
exist only in the master, so their code is sent by cloudpickle, and no worker imports the script.
The code keeps its file name, which cloudpickle removes, so that errors can show it.

Loading such bytes can execute any code. A master sends them only to processes that it has started
or was told to trust, through private pipes; never over the wire, to functions, or into a file.
"""

from __future__ import annotations

import pickle
from collections import ChainMap
from functools import cache
from io import BytesIO
from pickle import PicklingError
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PicklingError", "dumps", "loads"]


def dumps(value: object) -> bytes:
    """Return ``value`` as bytes; raise `PicklingError` if that is not possible.

    Examples
    --------
    >>> twice = lambda x: 2 * x
    >>> loads(dumps(twice))(21)
    42
    """
    file = BytesIO()
    try:
        _pickler()(file).dump(value)
    except Exception as error:  # of a user's __reduce__ or __getstate__
        raise PicklingError(f"{type(error).__name__}: {error}") from error
    return file.getvalue()


def loads(payload: bytes | bytearray) -> object:
    """Return the value of bytes that `dumps` has made."""
    return pickle.loads(payload)  # noqa: S301 (the master's own)


@cache
def _pickler() -> Callable[[BytesIO], Any]:
    """Return cloudpickle's pickler, changed to keep the names of files."""
    # Imported here: cloud functions import this module and do not have cloudpickle.
    from cloudpickle import CloudPickler

    def reduced(code: CodeType) -> tuple[object, ...]:
        make, arguments = CloudPickler.dispatch_table[CodeType](code)
        return _code_of_file, (code.co_filename, make, arguments)

    class Pickler(CloudPickler):  # type: ignore[misc]  # it has no types
        dispatch_table: ClassVar = ChainMap({CodeType: reduced}, CloudPickler.dispatch_table)

    return Pickler


def _code_of_file(file: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=file)
