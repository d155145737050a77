"""AWS's runtime client: run once as far as all environments are alike, and on from there by each.

Until it first asks for an invocation the client does the same in every environment: it sets up
logging and imports the handler. So the parent does it, and is forked there, as environments of
SnapStart begin with a snapshot. What is printed until then begins the log of each environment.

If the handler cannot be imported, what was done is undone; environments begin at the beginning, and
each reports what fails.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.machinery import ModuleSpec

from seqgc.local_lambda._function_settings import KEPT_LOG_BYTES

__all__ = ["run_runtime"]

# The compiled half of awslambdaric's client. It reads the address of its Runtime API when it is
# loaded, so every environment loads it itself; without it, all else can be loaded before.
_COMPILED = "runtime_client"
_ADDRESS = "AWS_LAMBDA_RUNTIME_API"
_NOWHERE = "127.0.0.1:0"  # until there is a Runtime API


def run_runtime(handler: str, fork: Callable[[], tuple[str, str]]) -> None:
    """Run the runtime: in the parent until ``fork`` raises, in environments until they end.

    ``fork`` is called once. It returns in environments only, the address and the key of a Runtime
    API. All that is asked there begins with the key, which neither the handler's variables nor its
    child processes have.
    """
    os.environ[_ADDRESS] = _NOWHERE
    sys.modules[_COMPILED] = None  # type: ignore[assignment]
    from awslambdaric import __main__ as runtime
    from awslambdaric.lambda_runtime_client import BaseLambdaRuntimeClient as Client

    del sys.modules[_COMPILED]
    compiled = importlib.util.find_spec(_COMPILED)  # a search costs an environment its own memory
    arguments = ["bootstrap", handler]
    wait, handlers = Client.wait_next_invocation, logging.root.handlers[:]
    out, err = sys.stdout, sys.stderr
    reached = False

    def become_environment() -> None:
        nonlocal reached
        reached, Client.wait_next_invocation = True, wait
        if "numpy" in sys.modules:  # which puts this off: 12 ms for every environment
            importlib.import_module("numpy.random")
        gc.collect()
        gc.freeze()  # what is here is never garbage, and its pages stay shared
        _connect(compiled, *fork())

    with tempfile.TemporaryFile() as printed:
        stop = _redirect(printed.fileno())

        def first_wait(client: object) -> object:
            stop()
            printed.seek(0)
            said = printed.read(KEPT_LOG_BYTES)
            printed.close()
            become_environment()
            os.write(1, said)
            return wait(client)

        Client.wait_next_invocation = first_wait
        try:
            runtime.main(arguments)
        except BaseException:
            if reached:
                raise
            stop()
        else:
            return
    sys.stdout, sys.stderr = out, err
    logging.root.handlers[:] = handlers
    become_environment()
    runtime.main(arguments)


def _redirect(file: int) -> Callable[[], None]:
    """Send what is printed to a file; return what ends that."""
    kept = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]

    def stop() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in kept:
            os.dup2(copy, descriptor)
            os.close(copy)

    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor, _ in kept:
        os.dup2(file, descriptor)
    return stop


def _connect(compiled: ModuleSpec | None, address: str, key: str) -> None:
    """Have the client turn to an environment's own Runtime API."""
    from awslambdaric import lambda_runtime_client as client

    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # as a fresh process has random numbers of its own; Python's has them
    os.environ[_ADDRESS] = f"{address}/{key}"
    if compiled is None:
        raise ImportError(f"awslambdaric lacks its compiled half, {_COMPILED}")
    client.runtime_client = module = importlib.util.module_from_spec(compiled)
    module.initialize_client(client._user_agent())
    os.environ[_ADDRESS] = address  # for the half that is not compiled
    call = client.BaseLambdaRuntimeClient.call_rapid
    client.BaseLambdaRuntimeClient.call_rapid = lambda self, method, endpoint, *rest: call(
        self, method, f"/{key}{endpoint}", *rest
    )
