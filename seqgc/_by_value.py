"""What a master's own workers are sent as Python objects, and how these cross the pipe.

Classes and functions of an importable module travel by their names: the worker imports the module.
Those of ``__main__`` (a notebook's cells, a script), local classes and lambdas exist in the master
alone, so their code travels with them, by cloudpickle, and no worker ever imports the script. Their
code keeps the name of its file, which cloudpickle would leave out, so that errors can name it.

Who can write such bytes can have any code run. They go from a master to processes that it has
started or was told to trust, over pipes that are theirs alone; never over the wire, to functions,
or into a file.
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
    """Return ``value`` as bytes; whatever keeps it from that is a `PicklingError`.

    Examples
    --------
    >>> twice = lambda x: 2 * x
    >>> loads(dumps(twice))(21)
    42
    """
    file = BytesIO()
    try:
        _pickler()(file).dump(value)
    except Exception as error:  # of anybody's __reduce__ and __getstate__
        raise PicklingError(f"{type(error).__name__}: {error}") from error
    return file.getvalue()


def loads(payload: bytes | bytearray) -> object:
    """Return what `dumps` was given."""
    return pickle.loads(payload)  # noqa: S301 (the master's own)


@cache
def _pickler() -> Callable[[BytesIO], Any]:
    """Return cloudpickle's pickler, but for the names of files."""
    # Here, because functions import those who call `dumps`, send nothing, and have no cloudpickle.
    from cloudpickle import CloudPickler

    def reduced(code: CodeType) -> tuple[object, ...]:
        make, arguments = CloudPickler.dispatch_table[CodeType](code)
        return _code_of_file, (code.co_filename, make, arguments)

    class Pickler(CloudPickler):  # type: ignore[misc]  # it has no types
        dispatch_table: ClassVar = ChainMap({CodeType: reduced}, CloudPickler.dispatch_table)

    return Pickler


def _code_of_file(file: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=file)
