"""Starts the one thread that distributed never ends, before any test looks who is running."""

from distributed.utils import _offload_executor

_offload_executor.submit(lambda: None).result()
