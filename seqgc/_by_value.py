"""Conversion of Python objects to bytes, for the worker processes of a master.

Classes and functions of an importable module are sent as names, and the worker imports the module.
Local classes, lambdas and everything in ``__main__`` (a script, the cells of a notebook) exist only
in the master. cloudpickle sends their code, so that no worker has to import the script. cloudpickle
removes the file name from code; this module keeps it, so that error messages can show it.

Loading such bytes can execute any code. A master sends them only through private pipes, to
processes that it has started or was told to trust. It never puts them into a message of the wire
format, sends them to a cloud function or writes them to a file.
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
    """Convert ``value`` to bytes; raise `PicklingError` if that is not possible.

    Examples
    --------
    >>> twice = lambda x: 2 * x
    >>> loads(dumps(twice))(21)
    42
    """
    file = BytesIO()
    try:
        _pickler()(file).dump(value)
    except Exception as error:  # a user's __reduce__ or __getstate__ may raise anything
        raise PicklingError(f"{type(error).__name__}: {error}") from error
    return file.getvalue()


def loads(payload: bytes | bytearray) -> object:
    """Convert bytes from `dumps` back to the value."""
    return pickle.loads(payload)  # noqa: S301 (this program's own bytes)


@cache
def _pickler() -> Callable[[BytesIO], Any]:
    """Return cloudpickle's pickler, changed to keep the names of files."""
    # Imported here: cloud functions import this module and do not have cloudpickle.
    from cloudpickle import CloudPickler

    def reduced(code: CodeType) -> tuple[object, ...]:
        make, arguments = CloudPickler.dispatch_table[CodeType](code)
        return _code_of_file, (code.co_filename, make, arguments)

    class Pickler(CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
        dispatch_table: ClassVar = ChainMap({CodeType: reduced}, CloudPickler.dispatch_table)

    return Pickler


def _code_of_file(file: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=file)
