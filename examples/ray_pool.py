"""A Ray cluster as a pool for `seqgc.workers.executor` (``pip install ray``)."""

from concurrent.futures import Executor, Future
from typing import Any

import ray


@ray.remote(max_retries=0)
def _call(fn: Any, args: Any, kwargs: Any) -> Any:
    return fn(*args, **kwargs)


class RayPool(Executor):
    """Calls as tasks of the cluster to which ``ray.init`` has connected this process."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return _call.remote(fn, args, kwargs).future()
