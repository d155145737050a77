"""The function's environments: started when needed, kept warm, the latest used first.

Theory of operation
-------------------
Four kinds of process make up the emulator:

::

    caller -- control socket --> service -- channel --> parent --fork--> environment
                                    ^                                        |
                                    +-------- its own Runtime API -----------+

The *service* is one asyncio loop: Invoke API, function URL, a Runtime API for each environment. It
never forks, since a process with an event loop forks badly. The *parent* (`_parent`) runs AWS's own
runtime client, handler imported, to where it asks for a first request (`_runtime`). There it forks
an environment when the service says so; it holds their process ids, reports each end, and kills
them all when the channel closes. An *environment* goes on from there, and asks its Runtime API for
one request after the other.

Whoever dies takes the right ones along, without any clean-up of its own: the service ends when the
caller's control socket closes, the parent when the service's channel does, environments when their
parent kills them; if the parent is killed, the service kills the environments that it knows of
(`_lost`) and ends.

An environment is either idle (at the end of a list: the latest used is the first to be used again,
so that few are kept warm), or `lent` to one request. It is started by its first request, whose time
includes that. One that has ended is forgotten when its request ends; one that ends while it is
idle, at once. As many requests are answered at a time as the function's concurrency allows, and one
beyond it is throttled: there is no queue, as Lambda has none. Environments share the memory that
their parent had when it forked them; what each writes to is copied, page by page, which is why
large memory is given back at once and why all that can be is imported before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from seqgc.local_lambda._environment import Environment
from seqgc.local_lambda._parent import ORDER, REPORT

__all__ = ["Environments"]


class Environments:
    """All environments; as many as are lent at a time, at most.

    ``channel`` leads to the process that environments are forked from; ``on_loss`` is called should
    that process end by itself.
    """

    def __init__(self, channel: socket.socket, *, on_loss: Callable[[], None]) -> None:
        self.cold_starts = 0
        self._channel = channel
        self._on_loss = on_loss
        self._environments: dict[int, Environment] = {}
        self._idle: list[Environment] = []
        # The parent may block while it reports. Were this process to block while it gives an order,
        # the two would wait for each other as soon as some hundred orders are under way.
        self._sender = ThreadPoolExecutor(1)
        asyncio.get_running_loop().add_reader(channel, self._hear)

    def __len__(self) -> int:
        return len(self._environments)

    def next_number(self) -> int:
        """Return the number of the environment that would be lent next."""
        return self._idle[-1].number if self._idle else self.cold_starts

    @contextmanager
    def lent(self) -> Iterator[Environment]:
        """Lend an idle environment, or a new one that is still to be started."""
        if self._idle:
            environment = self._idle.pop()
        else:
            environment = Environment(self.cold_starts, order=self._order)
            self.cold_starts += 1
            self._environments[environment.number] = environment
        try:
            yield environment
        finally:
            if environment.alive:
                self._idle.append(environment)
            else:
                self._forget(environment)

    def close(self) -> None:
        """Release ports and descriptors; the processes are their parent's."""
        asyncio.get_running_loop().remove_reader(self._channel)
        self._sender.shutdown(wait=False, cancel_futures=True)
        for environment in self._environments.values():
            environment.close()
        self._environments.clear()
        self._idle.clear()

    def _forget(self, environment: Environment) -> None:
        if self._environments.pop(environment.number, None) is not None:
            environment.close()

    def _order(self, number: int, port: int = 0, key: bytes = b"", *logs: int) -> None:
        self._sender.submit(self._send, ORDER.pack(number, port, key), logs)

    def _send(self, order: bytes, logs: tuple[int, ...]) -> None:
        with suppress(OSError):  # the parent has gone, which is noticed where it is heard
            socket.send_fds(self._channel, [order], logs)
        for log in logs:
            os.close(log)

    def _hear(self) -> None:
        """Take one report of the parent's."""
        try:
            number, pid, code = REPORT.unpack(self._channel.recv(REPORT.size))
        except (OSError, struct.error):
            self._lost()
            return
        if (environment := self._environments.get(number)) is None:
            return
        if pid:
            environment.pid = pid
            return
        environment.ended(code)
        if environment in self._idle:
            self._idle.remove(environment)
            self._forget(environment)

    def _lost(self) -> None:
        """Kill what the parent can kill no more."""
        asyncio.get_running_loop().remove_reader(self._channel)
        for environment in self._environments.values():
            if environment.pid:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(environment.pid, signal.SIGKILL)
            environment.ended(-signal.SIGKILL)
        self._on_loss()
