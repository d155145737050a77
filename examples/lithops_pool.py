"""Functions of Lithops as a pool for `seqgc.workers.executor` (``pip install lithops``)."""

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import lithops


def _call(fn: Any, args: Any, kwargs: Any) -> Any:
    return fn(*args, **kwargs)


class LithopsPool(Executor):
    """Calls as functions of a Lithops executor, at most ``most`` at the same time."""

    def __init__(self, functions: lithops.FunctionExecutor, *, most: int) -> None:
        self._functions, self._threads = functions, ThreadPoolExecutor(most)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        call = self._functions.call_async(_call, (fn, args, kwargs))
        return self._threads.submit(call.result, wait_dur_sec=0.1)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
