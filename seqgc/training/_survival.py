"""A first trial of users' own code in a child process, so that it cannot end the master.

Before a run starts, each model is tried: the master calls its module, loss and data set. Code that
calls ``os._exit`` there, or ends with a segmentation fault, would end the master without a message.
So the trial is made in a child process first. The child is a fork of the master, which needs no
pickling and takes a few hundredths of a second. If the child reports nothing, the trial is over. If
there is an error or a warning, or if the child is not done within a time limit, the master makes
the trial itself, so that errors and warnings are raised in the master.

Children are used on Linux only: elsewhere system libraries may not be used after a fork.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Final

import torch

from seqgc.errors import ParameterError
from seqgc.training.model import Model

__all__ = ["try_first"]

_LIMIT_S: Final = 20.0  # a longer trial is made by the master, which can be interrupted
_SILENT, _TO_REPEAT, _INTERRUPTED = b"s", b"r", b"i"
_TRUSTED: Final = frozenset({"builtins", "functools", "numpy", "seqgc", "torch", "torchvision"})


def try_first(model: Model, trial: Callable[[Model], None]) -> None:
    """Call ``trial(model)``; if the model has code of the user's own, in a child process first.

    Warns if the child is not done within a time limit. Errors of the trial are passed on.

    Raises
    ------
    ParameterError
        If the trial ends the child, or the model's code raises a `KeyboardInterrupt` there.
    """
    if sys.platform == "linux" and _has_own_code(model):
        said, status = _in_child(lambda: trial(model))
        if said == _SILENT:
            return
        if said == _INTERRUPTED:
            raise _deadly(model, "its code raised KeyboardInterrupt")
        if not said and status is not None:
            raise _deadly(model, _end_of(status))
        if not said:
            text = f"model {model.name!r} is still being tried after {_LIMIT_S:g} s"
            warnings.warn(
                f"{text}; it is now tried in this process: if this does not end, its code hangs",
                stacklevel=2,
            )
    trial(model)


def _has_own_code(model: Model) -> bool:
    """Return True if any part of the model is defined outside the trusted packages."""
    return any(_package(part) not in _TRUSTED for part in _parts_of(model))


def _parts_of(model: Model) -> Iterator[object]:
    yield from model.module.modules()
    yield getattr(model.loss, "func", model.loss)
    datasets: list[object] = [model.dataset, model.test_dataset]
    while datasets:
        if (dataset := datasets.pop()) is not None:
            yield dataset
            datasets.append(getattr(dataset, "dataset", None))  # of a subset, or an augmented one


def _package(part: object) -> str:
    kind = part if hasattr(part, "__qualname__") else type(part)
    return str(kind.__module__).partition(".")[0]


def _deadly(model: Model, how: str) -> ParameterError:
    rule = "must not end the process that computes it"
    remedy = "call it on a few data points yourself: `python -X faulthandler` shows where it ends"
    return ParameterError("module", f"{rule} ({how} when it was tried)", model.name, remedy)


def _end_of(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"a child process exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"a child process was killed by {name}"


def _in_child(call: Callable[[], None]) -> tuple[bytes, int | None]:
    """Call a function in a child process; return the child's report and its wait status.

    The report is empty if the child ended without one, or was not done in time. In the latter case
    the child is killed, and the status is None.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # or the child's copy might be written as well
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where there are threads
        child = os.fork()
    if child == 0:
        _answer(call, writer)
    os.close(writer)
    said, status = b"", None
    try:
        if select.select([reader], [], [], _LIMIT_S)[0]:
            said = os.read(reader, 1)
            _, status = os.waitpid(child, 0)
    finally:
        os.close(reader)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return said, status


def _answer(call: Callable[[], None], writer: int) -> None:
    """Act as the child: report how the call went, and exit without the master's clean-up."""
    said = _TO_REPEAT
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
        signal.alarm(2 * int(_LIMIT_S))  # should the master be killed meanwhile
        torch.set_num_threads(1)  # the master's other threads are not here
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            call()
        said = _TO_REPEAT if told else _SILENT
        sys.stdout.flush()
    except KeyboardInterrupt:
        said = _INTERRUPTED
    except BaseException:
        pass
    finally:
        os.write(writer, said)
        os._exit(0)
