"""A network between simulated processes: connections that are slow, cut, or silent for good."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from seqgc.backends.lambda_ import Address
from tests.simulation.threads import Loop, Process, Threads

LATENCY_S: Final = 0.02


class End(asyncio.Transport):
    """One end of a connection, and the socket that it is before it is accepted."""

    def __init__(self, network: Network, process: Process) -> None:
        super().__init__()
        self.process, self.other = process, self
        self.closed = self.muted = False  # muted: nothing that it says gets through
        self.said = 0  # bytes
        self._network, self._loop = network, None
        self._protocol: Any = None
        self._waiting: list[tuple[str, object]] = []  # until it is attached
        network.ends.append(self)

    def attach(self, loop: Loop | None, protocol: Any) -> None:
        self._loop, self._protocol = loop, protocol  # type: ignore[assignment]
        self._call("connection_made", self)
        for name, argument in self._waiting:
            self._call(name, argument)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self.said += len(data)
            self._network.carry(self, "data_received", bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        for data in self._network.altered(self, list_of_data):
            self.write(b"".join(data))

    def abort(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._call("connection_lost", None)
        self._network.carry(self, "connection_lost", ConnectionResetError(104, "reset by peer"))

    def take(self, name: str, argument: object) -> None:
        """Take what the other end has sent."""
        if self.closed or not self.process.alive:
            return
        self.closed = name == "connection_lost"
        if self._protocol is None:
            self._waiting.append((name, argument))
        else:
            self._call(name, argument)

    def _call(self, name: str, argument: object) -> None:
        if self._protocol is None or not self.process.alive:
            return
        call = partial(getattr(self._protocol, name), argument)
        if self._loop is None:
            call()
        else:
            self._loop.call_soon_threadsafe(call)

    close = abort

    def setsockopt(self, *_: object) -> None:
        """Nothing is kept back here."""

    def setblocking(self, _: bool) -> None:
        """It never blocks."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """There is memory enough."""

    resume_reading = pause_reading


class Listener:
    """A socket that listens."""

    def __init__(self, network: Network, process: Process, port: int) -> None:
        self.process, self.calls = process, deque[End]()
        self._network, self._port = network, port
        self._called: Callable[[], object] = lambda: None

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def setblocking(self, _: bool) -> None:
        """It never blocks."""

    def call(self, end: End) -> None:
        self.calls.append(end)
        self._called()

    def close(self) -> None:
        if self._network.listeners.get(self._port) is self:
            del self._network.listeners[self._port]

    def accept(self) -> tuple[End, tuple[str, int]]:
        if not self.calls:
            raise BlockingIOError
        return self.calls.popleft(), ("127.0.0.1", 0)

    def tell(self, called: Callable[[], object]) -> None:
        """Call this whenever somebody calls; nobody has since the last `accept`."""
        self._called = called


class Network:
    """Carries what processes send each other; ``altered`` says what becomes of an end's lines."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.listeners: dict[int, Listener] = {}
        self.ends: list[End] = []
        self.altered: Callable[[End, Any], list[Any]] = lambda _, data: [data]
        self.watch: Callable[[End], None] = lambda _: None

    def listen(self, port: int) -> Listener:
        self.listeners[port] = listener = Listener(self, self.threads.process, port)
        return listener

    def connect(self, process: Process, port: int) -> End:
        """Return the end of a process that calls a port; the other one is to be accepted."""
        listener = self.listeners.get(port)
        if listener is None or not listener.process.alive:
            raise ConnectionRefusedError(111, "Connection refused")
        end, other = End(self, process), End(self, listener.process)
        end.other, other.other = other, end
        listener.call(other)
        return end

    def ends_of(self, process: Process) -> list[End]:
        """Return the ends of a process that are open."""
        self.ends = [end for end in self.ends if not end.closed]
        return [end for end in self.ends if end.process is process]

    def carry(self, sender: End, name: str, argument: object) -> None:
        self.watch(sender)
        if not sender.muted:
            after = self.threads.simulator.after
            after(LATENCY_S, partial(self._arrive, sender, name, argument))

    def _arrive(self, sender: End, name: str, argument: object) -> None:
        if not sender.muted:
            sender.other.take(name, argument)


class NetworkLoop(Loop):
    """A loop whose connections are a network's."""

    def __init__(self, network: Network) -> None:
        super().__init__(network.threads)
        self._network = network

    def add_reader(self, fd: Any, callback: Callable[..., object], *_: Any) -> None:
        fd.tell(partial(self.call_soon_threadsafe, callback))

    def remove_reader(self, fd: Any) -> bool:
        fd.tell(lambda: None)
        return True

    async def connect_accepted_socket(
        self, protocol_factory: Callable[[], Any], sock: Any, **_: object
    ) -> tuple[End, Any]:
        return await self._attached(sock, protocol_factory())

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], _: str, port: int, **__: object
    ) -> tuple[End, Any]:
        await asyncio.sleep(LATENCY_S)
        end = self._network.connect(self.process, port)
        return await self._attached(end, protocol_factory())

    async def _attached(self, end: End, protocol: Any) -> tuple[End, Any]:
        end.attach(self, protocol)
        await asyncio.sleep(0)
        return end, protocol


class NetworkAddress(Address):
    """Where a simulated master listens."""

    network: Network

    def listener(self) -> Any:
        return self.network.listen(self.ports[0])
