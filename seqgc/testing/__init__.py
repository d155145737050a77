"""What those who extend seqgc test their own parts with; our own tests use nothing else.

A scheme is checked by `check_scheme`, a code by `check_code`, a defence with a policy of its own by
`check_defence`. A backend is tested by subclassing `BackendContract` in a test file, a store by
`StoreContract` or `BlobStoreContract`: these need pytest, the rest does not. `HandWoundClock` goes
wherever a `seqgc.ports.Clock` does, `ScriptedBackend` and `ChunkWorkload` wherever a policy is to
be run without workers.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from seqgc.testing._codes import check_code as check_code
from seqgc.testing._defences import check_defence as check_defence
from seqgc.testing._schemes import check_scheme as check_scheme
from seqgc.testing.scripted import PATIENCE_S as PATIENCE_S
from seqgc.testing.scripted import ChunkWorkload as ChunkWorkload
from seqgc.testing.scripted import HandWoundClock as HandWoundClock
from seqgc.testing.scripted import Scripted as Scripted
from seqgc.testing.scripted import ScriptedBackend as ScriptedBackend
from seqgc.testing.scripted import eventually as eventually

if TYPE_CHECKING:
    from seqgc.testing.backends import BackendContract as BackendContract
    from seqgc.testing.backends import SerialBackendContract as SerialBackendContract
    from seqgc.testing.stores import BlobStoreContract as BlobStoreContract
    from seqgc.testing.stores import StoreContract as StoreContract

_OF_PYTEST = {
    "BackendContract": "seqgc.testing.backends",
    "SerialBackendContract": "seqgc.testing.backends",
    "BlobStoreContract": "seqgc.testing.stores",
    "StoreContract": "seqgc.testing.stores",
}


def __getattr__(name: str) -> object:
    """Import a contract when it is asked for: pytest is needed by nothing else here."""
    if name not in _OF_PYTEST:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    pytest.register_assert_rewrite(*set(_OF_PYTEST.values()) - sys.modules.keys())  # shows values
    return getattr(import_module(_OF_PYTEST[name]), name)
