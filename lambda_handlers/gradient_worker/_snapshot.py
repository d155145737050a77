"""The hooks of SnapStart, which starts environments from a snapshot of an initialized process.

Lambda takes the snapshot when a version is published, and every environment continues from it. The
hook before the snapshot therefore imports everything that tasks need: PyTorch, the modules of the
registry and the client of S3. It makes nothing that must differ between environments: no numbers
are drawn, and no connection, token or credential exists until the first task opens its store.

After the snapshot is restored, all environments have the same state of random generators. The
second hook gives each environment its own. The user's modules can register hooks of their own with
``snapshot_restore_py``. Hooks after the restore have ten seconds in total.
"""

from __future__ import annotations

import importlib
import random
import secrets
import sys
from collections.abc import Mapping

import numpy as np

from seqgc.stores import import_s3
from seqgc.worker import FACTORIES, Registry

__all__ = ["after_restore", "before_snapshot", "register_hooks"]


def register_hooks(environment: Mapping[str, str], registry: Registry = FACTORIES) -> None:
    """Register both hooks if Lambda will take a snapshot of this process, else do nothing."""
    if environment.get("AWS_LAMBDA_INITIALIZATION_TYPE") != "snap-start":
        return
    # AWS's runtimes and base images contain this package; the runtime client depends on it.
    from snapshot_restore_py import register_after_restore, register_before_snapshot

    register_before_snapshot(before_snapshot, registry)
    register_after_restore(after_restore)


def before_snapshot(registry: Registry) -> None:
    """Import the modules of the registry, PyTorch among them, and the client of S3.

    PyTorch imports more modules when it computes its first gradient. Therefore compute one, without
    random numbers.
    """
    registry.import_modules()
    import_s3()
    importlib.import_module("numpy.random")
    if (torch := sys.modules.get("torch")) is not None:
        torch.ones(1, requires_grad=True).backward(torch.ones(1))


def after_restore() -> None:
    """Seed the global random generators of Python, NumPy and PyTorch with new entropy."""
    random.seed(secrets.randbits(128))
    np.random.seed(secrets.randbits(32))  # noqa: NPY002 (user code may draw from the global state)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(secrets.randbits(63))
