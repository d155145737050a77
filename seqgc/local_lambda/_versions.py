"""The function's published versions: each has environments of its own; requests say which.

The first version's environments are forked from the service's own child, as it is there already;
those of a later one from a process that is started anew, since what a version imports and which
variables it has are its own. What is not published, ``$LATEST``, is always as the newest version.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import fields
from multiprocessing.connection import Connection

from seqgc.local_lambda._environments import Environments
from seqgc.local_lambda._function import Function
from seqgc.local_lambda._function_settings import ServiceSettings
from seqgc.local_lambda.service import Statistics

__all__ = ["Versions"]

_NUMBER = re.compile("[1-9][0-9]{0,8}")  # Python's own limit, of thousands of digits, is an error


class Versions:
    """All versions, of which ``channel`` leads to the first one's parent of environments.

    ``on_loss`` is called should any of these parents end by itself.
    """

    def __init__(
        self, settings: ServiceSettings, channel: socket.socket, *, on_loss: Callable[[], None]
    ) -> None:
        self._on_loss = on_loss
        self._functions: list[Function] = []
        self._environments: list[Environments] = []
        self._parents: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []
        self._add(settings, channel)

    @property
    def newest(self) -> Function:
        """The version that every alias means."""
        return self._functions[-1]

    @property
    def current(self) -> str:
        """The newest version's number."""
        return str(len(self._functions))

    def named(self, qualifier: str) -> tuple[str, Function] | None:
        """Return the version that a qualifier means, and its number; None if there is none."""
        if qualifier == "$LATEST":
            return qualifier, self.newest
        if qualifier in self.newest.settings.deployed.aliases:
            return self.current, self.newest
        if _NUMBER.fullmatch(qualifier) and int(qualifier) <= len(self._functions):
            return qualifier, self._functions[int(qualifier) - 1]
        return None

    def publish(self, settings: ServiceSettings, variables: Mapping[str, str]) -> str:
        """Publish another version, whose environments have these variables; return its number."""
        ours, theirs = socket.socketpair()
        with theirs:
            parent = subprocess.Popen(
                [sys.executable, "-m", "seqgc.local_lambda._parent", str(theirs.fileno())],
                cwd=settings.deployed.code,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self._parents.append((ours, parent))
        with closing(Connection(os.dup(ours.fileno()))) as channel:
            channel.send(settings)
        self._add(settings, ours)
        return self.current

    def _add(self, settings: ServiceSettings, channel: socket.socket) -> None:
        environments = Environments(channel, on_loss=self._on_loss)
        free = self._functions[0].free if self._functions else None
        self._environments.append(environments)
        self._functions.append(Function(settings, environments=environments, free=free))

    def statistics(self) -> Statistics:
        """Return what has happened until now, to all versions together."""
        seen = [function.statistics() for function in self._functions]
        names = [each.name for each in fields(Statistics) if each.name != "faults"]
        faults = sum((Counter(each.faults) for each in seen), Counter[str]())
        return Statistics(
            **{name: sum(getattr(each, name) for each in seen) for name in names},
            faults=dict(faults),
        )

    def log(self, request_id: str | None) -> str:
        """Return one request's log, or those of each version's latest requests."""
        return "".join(function.log(request_id) for function in self._functions)

    def close(self) -> None:
        """Release ports and descriptors; end the parents of later versions, and wait for them."""
        for environments in self._environments:
            environments.close()
        for channel, _ in self._parents:
            with suppress(OSError):  # it has gone already
                channel.shutdown(socket.SHUT_RDWR)
            channel.close()
        for _, parent in self._parents:
            parent.wait()
