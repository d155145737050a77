"""The function's environments: started when needed, kept warm, the latest used first.

Theory of operation
-------------------
Four kinds of process make up the emulator:

::

    caller -- control socket --> service -- channel --> parent --fork--> environment
                                    ^                                        |
                                    +-------- its own Runtime API -----------+

The *service* is one asyncio loop: Invoke API, function URL, a Runtime API for each environment. It
never forks, since a process with an event loop forks badly. The *parent* (`_parent`) imports the
handler once, computes nothing, and forks an environment when the service says so; it holds their
process ids, reports each end, and kills them all when the channel closes. An *environment* runs
AWS's own runtime client, which asks its Runtime API for one request after the other.

Whoever dies takes the right ones along, without any clean-up of its own: the service ends when the
caller's control socket closes, the parent when the service's channel does, environments when their
parent kills them; if the parent is killed, the service kills the environments that it knows of
(`_lost`) and ends.

An environment is either idle (at the end of a list: the latest used is the first to be used again,
so that few are kept warm), or belongs to one request, from `acquire` to `release`. It is started
by its first request, whose time includes that. One that has ended is forgotten when it is released;
one that ends while it is idle, at once. `concurrency` counts all of them, and a request beyond it
is throttled: there is no queue, as Lambda has none. Environments share the memory that their
parent had when it forked them; what each writes to is copied, page by page, which is why large
memory is given back at once and why all that can be is imported before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from seqgc.local_lambda._environment import Environment
from seqgc.local_lambda._fork_channel import Sender, receive

__all__ = ["Environments"]

_INIT_LIMIT_S = 60.0  # Lambda has 10 s, but no hundred environments that start on one core


class Environments:
    """At most ``concurrency`` environments.

    Parameters
    ----------
    channel
        Leads to the process that environments are forked from.
    on_loss
        Called should that process end by itself.
    """

    def __init__(
        self, concurrency: int, *, channel: socket.socket, on_loss: Callable[[], None]
    ) -> None:
        self.cold_starts = 0
        self._concurrency = concurrency
        self._channel = channel
        self._sender = Sender(channel)
        self._on_loss = on_loss
        self._environments: dict[int, Environment] = {}
        self._idle: list[Environment] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        asyncio.get_running_loop().add_reader(channel, self._hear)

    def __len__(self) -> int:
        return len(self._environments)

    def next_number(self) -> int | None:
        """Return the environment that `acquire` would take; None if all are busy."""
        if self._idle:
            return self._idle[-1].number
        return self.cold_starts if len(self._environments) < self._concurrency else None

    def acquire(self) -> Environment:
        """Take an idle environment, or a new one that is still to be started."""
        if self._idle:
            return self._idle.pop()
        environment = Environment(self.cold_starts, kill=self._kill)
        self.cold_starts += 1
        self._environments[environment.number] = environment
        return environment

    async def start(self, environment: Environment) -> bool:
        """Start a new environment; False if it has ended before it asked for a request."""
        message = {"fork": environment.number, "environment": await environment.open()}
        self._sender.send(message, descriptor=environment.log.writing)
        try:
            async with asyncio.timeout(_INIT_LIMIT_S):
                return await environment.ready()
        except TimeoutError:
            await environment.end()
            return False

    def release(self, environment: Environment) -> None:
        """Give an environment back, or what is left of it."""
        if environment.alive:
            self._idle.append(environment)
        else:
            self._forget(environment)
        while self._waiting:
            if not (waiting := self._waiting.popleft()).done():
                waiting.set_result(None)
                break

    async def vacancy(self) -> None:
        """Wait until an environment has been given back."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def close(self) -> None:
        """Release ports and descriptors; the processes are their parent's."""
        asyncio.get_running_loop().remove_reader(self._channel)
        self._sender.close()
        for environment in self._environments.values():
            environment.close()
        self._environments.clear()
        self._idle.clear()

    def _forget(self, environment: Environment) -> None:
        if self._environments.pop(environment.number, None) is not None:
            environment.close()

    def _kill(self, number: int) -> None:
        self._sender.send({"kill": number})

    def _hear(self) -> None:
        """Take one message of the parent's."""
        try:
            message, _ = receive(self._channel)
        except (OSError, EOFError):
            message = None
        if message is None:
            self._lost()
        elif "forked" in message:
            if (environment := self._environments.get(message["forked"])) is not None:
                environment.pid = message["pid"]
        elif (environment := self._environments.get(message["ended"])) is not None:
            environment.ended(message["code"])
            if environment in self._idle:
                self._idle.remove(environment)
                self._forget(environment)

    def _lost(self) -> None:
        """Kill what the parent can kill no more."""
        asyncio.get_running_loop().remove_reader(self._channel)
        for environment in tuple(self._environments.values()):
            if environment.pid:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(environment.pid, signal.SIGKILL)
            environment.ended(-signal.SIGKILL)
        self._on_loss()
