"""What a master's own workers are sent as Python objects, and how these cross the pipe.

Classes and functions of an importable module travel by their names: the worker imports the module.
Those of ``__main__`` (a notebook's cells, a script), local classes and lambdas exist in the master
alone, so their code travels with them, by cloudpickle, and no worker ever imports the script.

Who can write such bytes can have any code run. They go from a master to processes that it has
started or was told to trust, over pipes that are theirs alone; never over the wire, to functions,
or into a file.
"""

from __future__ import annotations

import pickle
from pickle import PicklingError

__all__ = ["PicklingError", "dumps", "loads"]


def dumps(value: object) -> bytes:
    """Return ``value`` as bytes; whatever keeps it from that is a `PicklingError`.

    Examples
    --------
    >>> twice = lambda x: 2 * x
    >>> loads(dumps(twice))(21)
    42
    """
    # Here, because functions import those who call this, send nothing, and have no cloudpickle.
    import cloudpickle

    try:
        payload: bytes = cloudpickle.dumps(value)
    except Exception as error:  # of anybody's __reduce__ and __getstate__
        raise PicklingError(f"{type(error).__name__}: {error}") from error
    return payload


def loads(payload: bytes | bytearray) -> object:
    """Return what `dumps` was given."""
    return pickle.loads(payload)  # noqa: S301 (the master's own)
