"""Where functions that stay call their master: one thread, and a line for each of them.

The thread carries frames and decides nothing. It beats, and hears beats, whatever the master's own
thread is busy with: a master that spends ten seconds on an optimizer's step is not silent, and
takes nobody for lost. What it hears it stamps and queues, and wakes who waits for it.

Anybody who reaches the port may connect. A connection is a stranger's until its call is proved
(`seqgc.worker._line`); of a stranger nothing is kept but 54 bytes, or a TLS handshake (0.3 MB), for
a few beats, and where there are too many strangers at once the one that has been there longest must
go: a function takes milliseconds, so those who let others wait are never the functions. These beats
are counted as silent ones are: while this thread has no processor it can hear no proof.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from seqgc.errors import ParameterError
from seqgc.ports import Clock
from seqgc.worker._line import PROOF_BEATS, Line, Stranger, prove_master

__all__ = ["MASTER_PORTS", "Address", "Heard", "Switchboard"]

MASTER_PORTS: Final = range(9840, 9856)
"""Where masters in the functions' VPC listen, each run at one: what template.yaml lets through."""

_STRANGERS = 256
_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen: an IP ``host`` of this machine, and the first free one of some ``ports``.

    Port 0 is any free one. What goes through there is encrypted unless the address is
    ``plain``, which only 127.0.0.1 may be. `ParameterError`: it is no address, or stands for all.
    """

    host: str = "127.0.0.1"
    ports: Sequence[int] = (0,)
    plain: bool = True

    def __post_init__(self) -> None:
        try:
            everywhere = ip_address(self.host).is_unspecified
        except ValueError:
            everywhere = True
        if everywhere:
            rule, remedy = "must be one IP address of this machine", "give the one functions reach"
            raise ParameterError("master_address", rule, self.host, remedy)
        if self.plain and self.host != "127.0.0.1":
            rule = "must be 127.0.0.1 where connections are not encrypted"
            raise ParameterError("host", rule, self.host)

    @classmethod
    def in_vpc(cls, host: str | None) -> Address:
        """Return the address of a master in the functions' VPC; None: its usual one there."""
        if host is None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect(("192.0.2.1", 9))  # sends nothing, but chooses the interface
                except OSError as error:
                    rule = f"must be given where this machine has no route to others ({error})"
                    raise ParameterError("master_address", rule, host) from None
                host = probe.getsockname()[0]
        return cls(host=host, ports=MASTER_PORTS, plain=False)

    def listener(self) -> socket.socket:
        """Return a socket that listens there, or raise `ParameterError`."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        why: OSError | None = None
        for port in self.ports:
            try:
                return socket.create_server((self.host, port), family=family, backlog=_STRANGERS)
            except OSError as error:
                why = error
        ports = f"{self.ports[0]} to {self.ports[-1]}" if len(self.ports) > 1 else self.ports[0]
        rule = f"must be an address of this machine with a free port ({why})"
        remedy = "give the one that functions reach, or end what listens there"
        raise ParameterError("master_address", rule, f"{self.host}, port {ports}", remedy) from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heard:
    """Something from the function that was invoked as ``tag``, read at ``at``.

    A ``frame``, or, if it is None, that there will be no more, and why, in one line.
    """

    tag: int
    at: float
    frame: bytearray | None
    why: str = ""


class Switchboard:
    """Answers the functions that it expects, from when it is made to `close`.

    From its first frame on, a function is taken for lost after ``patience`` silent beats of
    ``beat_s`` seconds; before, while it makes its workload, it may be too busy to beat. ``on_news``
    is called by the thread, once `take` would return what is new. With ``tls`` connections are
    encrypted.

    Of what a function says, and does not hear, no more than a frame beyond ``untaken_bytes`` is
    kept: until `take` is called it is not listened to; if it does not read it is hung up on.
    ``trouble`` says in a few words why nobody was let in the last time; empty: nothing was wrong.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        tls: ssl.SSLContext | None,
        beat_s: float,
        patience: int,
        clock: Clock,
        on_news: Callable[[], None],
        untaken_bytes: int = 64 << 20,
    ) -> None:
        self.host, self.port = listener.getsockname()[:2]
        self._listener, self._tls, self._clock, self._on_news = listener, tls, clock, on_news
        self._beat_s, self._patience, self._untaken_bytes = beat_s, patience, untaken_bytes
        self.trouble = ""
        self._said: Final[dict[int, int]] = {}  # bytes of each function there; the thread counts
        self._taken: Final[dict[int, int]] = {}  # of these; who takes counts
        self._expected: Final[dict[bytes, tuple[int, bytes]]] = {}  # call: tag, token
        self._lines: Final[dict[int, Line]] = {}
        self._strangers: Final[dict[asyncio.Task[None], int]] = {}  # in order, and their beats
        self._news: Final[deque[Heard]] = deque()
        self._over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="seqgc-switchboard", daemon=True)
        listener.setblocking(False)
        self._thread.start()

    # ---- for the master's own thread ------------------------------------------------------------

    def expect(self, tag: int, *, call: bytes, token: bytes) -> None:
        """Answer one call, if it is proved by this token."""
        self._expected[call] = (tag, token)

    def send(self, tag: int, frame: bytes) -> None:
        """Send a frame to a function, if it is still there."""
        self._loop.call_soon_threadsafe(self._send, tag, frame)

    def hang_up(self, tag: int, *, call: bytes) -> None:
        """End a function's line, or do not answer its call any more."""
        self._expected.pop(call, None)
        self._loop.call_soon_threadsafe(self._hang_up, tag)

    def take(self) -> list[Heard]:
        """Return what has been heard, in order of time."""
        news = []
        while self._news:
            each = self._news.popleft()
            news.append(each)
            if each.frame is None:
                self._taken.pop(each.tag, None)
            else:
                self._taken[each.tag] = self._taken.get(each.tag, 0) + _weight(each.frame)
        return news

    def close(self) -> None:
        """Hang up on everybody, and stop listening; harmless if done already."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(_CLOSE_S)
        self._listener.close()

    # ---- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._answer_all())
        finally:
            self._loop.close()

    async def _answer_all(self) -> None:
        answering = asyncio.gather(self._answer(), self._send_away())
        await self._over.wait()
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)  # nobody else is let in
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self) -> None:
        while True:
            try:  # asyncio's own way, if it is cancelled, loses who has just been let in
                connection, _ = self._listener.accept()
            except BlockingIOError:
                await self._somebody()
                continue
            except OSError as error:  # too many open files, or one that hung up already
                self.trouble = str(error)
                await asyncio.sleep(self._beat_s / 10)
                continue
            self.trouble = ""
            if len(self._strangers) >= _STRANGERS:
                next(iter(self._strangers)).cancel()
            task = asyncio.create_task(self._meet(connection))
            self._strangers[task] = 0
            await asyncio.sleep(0.0)  # it is under way, and so are others, before the next comes

    async def _somebody(self) -> None:
        """Wait until somebody wants to connect."""
        is_there = asyncio.Event()
        self._loop.add_reader(self._listener, is_there.set)
        try:
            await is_there.wait()
        finally:
            self._loop.remove_reader(self._listener)

    async def _send_away(self) -> None:
        """Hang up on strangers who have proved nothing for too many beats."""
        while True:
            await asyncio.sleep(self._beat_s)
            for task in self._strangers:
                self._strangers[task] += 1
                if self._strangers[task] > PROOF_BEATS:
                    task.cancel()

    async def _meet(self, connection: socket.socket) -> None:
        """Answer one connection: a stranger's for a moment, a function's as long as it stays."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await self._opened(connection)
            call = await prove_master(reader, writer, token_of=self._token_of)
            tag, _ = self._expected.pop(call)  # each call is answered once
            self._strangers.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            await self._hear(tag, Line(reader, writer, self._beat_s, patience=math.inf))
        except (OSError, Stranger, KeyError):
            pass  # whoever it was knows no more than before
        finally:
            self._strangers.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            if writer is None:
                connection.close()
            else:
                writer.transport.abort()

    async def _opened(
        self, connection: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection.setblocking(False)
        # asyncio's own way leaves out sockets that `accept` made: a frame would wait for 40 ms.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._tls
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)

    def _token_of(self, call: bytes) -> bytes | None:
        expected = self._expected.get(call)
        return None if expected is None else expected[1]

    async def _hear(self, tag: int, line: Line) -> None:
        """Queue what a function says, until its line ends."""
        self._lines[tag], self._said[tag] = line, 0
        try:
            async for frame in line.frames():
                line.patience = self._patience  # its first frame says that it is ready
                self._said[tag] += _weight(frame)
                self._tell(tag, frame)
                while self._said[tag] - self._taken.get(tag, 0) > self._untaken_bytes:
                    await asyncio.sleep(self._beat_s / 10)
        finally:
            del self._lines[tag], self._said[tag]
            self._tell(tag, None, why=line.end)

    def _tell(self, tag: int, frame: bytearray | None, *, why: str = "") -> None:
        self._news.append(Heard(tag=tag, at=self._clock.now(), frame=frame, why=why))
        self._on_news()

    def _send(self, tag: int, frame: bytes) -> None:
        if (line := self._lines.get(tag)) is None:
            return
        if line.writer.transport.get_write_buffer_size() > self._untaken_bytes:
            line.hang_up("it does not read what it is sent")
        else:
            line.send(frame)

    def _hang_up(self, tag: int) -> None:
        if (line := self._lines.get(tag)) is not None:
            line.hang_up("the master hung up")


def _weight(frame: bytearray) -> int:
    """Return the bytes that a frame takes while it waits, roughly."""
    return len(frame) + 500
