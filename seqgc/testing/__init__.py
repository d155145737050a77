"""Tests for extensions of seqgc; the project tests its own classes with the same functions.

`check_scheme` checks a scheme, `check_code` a code, and `check_defence` a defence with its own
policy. To test a backend, subclass `BackendContract` in a test file; to test a store, subclass
`StoreContract` or `BlobStoreContract`. The contracts need pytest; the other names do not.
`HandWoundClock` is a `seqgc.ports.Clock` that moves only when a test moves it. With
`ScriptedBackend` and `ChunkWorkload`, a test can run a policy without workers.
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
    """Import a contract when it is first used, because importing it requires pytest."""
    if name not in _OF_PYTEST:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    pytest.register_assert_rewrite(
        *set(_OF_PYTEST.values()) - sys.modules.keys()
    )  # so that a failed assertion shows the values
    return getattr(import_module(_OF_PYTEST[name]), name)
