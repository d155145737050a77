"""The settings of the cloud function, from environment variables of the image.

===================  ==============================================================================
SEQGC_FACTORIES      the user's modules in the image, comma-separated, which are imported when the
                     environment starts. They register workloads, networks and data, or define
                     functions that a message names as ``package.module:function``. seqgc's own
                     modules are imported when a workload first needs them
SEQGC_MOUNT          folder where the shared file system is mounted; default: ``/mnt/seqgc``;
                     empty: there is none
SEQGC_S3             locations ``s3://bucket/prefix`` of stores, comma-separated; default: none
SEQGC_TRACE          ``1``: trace with X-Ray
===================  ==============================================================================
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import partial

from seqgc.stores import open_store
from seqgc.worker import FACTORIES, FunctionWorker, Registry

__all__ = ["DEFAULT_MOUNT", "make_worker", "wants_trace"]

DEFAULT_MOUNT = "/mnt/seqgc"
_NUMPY = "lambda_handlers.gradient_worker.numpy_factories"
_TORCH = "seqgc.models.factories"


def make_worker(
    environment: Mapping[str, str], *, registry: Registry = FACTORIES
) -> FunctionWorker:
    """Return the worker that the environment variables describe.

    Raises
    ------
    ParameterError
        If a module in ``SEQGC_FACTORIES`` cannot be imported.
    """
    registry.list_modules(_listed(environment, "SEQGC_FACTORIES"))
    registry.add_modules([_NUMPY])
    if importlib.util.find_spec("torch") is not None:
        registry.add_modules([_TORCH])
    return FunctionWorker(
        registry,
        partial(
            open_store,
            mount=environment.get("SEQGC_MOUNT", DEFAULT_MOUNT) or None,
            s3_allowed=_listed(environment, "SEQGC_S3"),
        ),
    )


def wants_trace(environment: Mapping[str, str]) -> bool:
    """Return True if invocations are to be traced."""
    return environment.get("SEQGC_TRACE", "") == "1"


def _listed(environment: Mapping[str, str], name: str) -> list[str]:
    return [each.strip() for each in environment.get(name, "").split(",") if each.strip()]
