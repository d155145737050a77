"""How many threads a master computes with: one, for the cores are the workers'.

A second thread would spin on one of them. PyTorch has threads of its own, and so has each library
for linear algebra that numpy and scipy bring. The limits are the whole process's, other threads
included, and are lifted as they were when a run ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]


@contextmanager
def one_thread() -> Iterator[None]:
    """During the block, have one thread for PyTorch and for linear algebra."""
    from threadpoolctl import threadpool_limits  # which functions and workers need not have

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
