"""The master's side of the connections from resident functions, in one thread.

The thread sends and receives frames, and makes no decisions. It exchanges heartbeats even while the
master's main thread is busy, for example with an optimizer step of ten seconds. The thread puts
received frames into a queue, with their times, and wakes the main thread.

Any program that can reach the port may connect. Such a stranger must first prove that it is an
expected function (`seqgc.worker._resident`). Before this proof it can occupy only 54 bytes, or a
TLS handshake (0.3 MB), for a few heartbeats. If there are too many strangers, the oldest is
disconnected: it cannot be a function, because a function proves itself within milliseconds. The
thread counts these heartbeats itself, so that time in which it does not run does not count.

The certificate for encrypted connections is self-signed and made at the beginning of a run.
Functions receive it in their invocation, over AWS's TLS, and accept no other certificate.
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
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final

from seqgc._durable import temporary_folder
from seqgc.errors import ParameterError
from seqgc.ports import Clock
from seqgc.worker._resident import CERTIFIED_NAME, PROOF_BEATS, Line, Stranger, prove_master

__all__ = ["MASTER_PORTS", "Address", "Heard", "Switchboard", "tls_server"]

MASTER_PORTS: Final = range(9840, 9856)
"""The ports that template.yaml opens for masters in the functions' VPC. Each run uses one port."""

_STRANGERS = 256
_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address at which a master listens: an IP address of this machine and a range of ports.

    The master uses the first free port in ``ports``; port 0 means any free port. Connections are
    encrypted unless ``plain`` is True, which is allowed only for 127.0.0.1.

    Raises
    ------
    ParameterError
        If ``host`` is not an IP address, or means all addresses (such as 0.0.0.0), or if ``plain``
        is true and ``host`` is not 127.0.0.1.
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
            rule, remedy = (
                "must be one IP address of this machine",
                "give the address that functions reach",
            )
            raise ParameterError("master_address", rule, self.host, remedy)
        if self.plain and self.host != "127.0.0.1":
            rule = "must be 127.0.0.1 if connections are not encrypted"
            raise ParameterError("host", rule, self.host)

    @classmethod
    def in_vpc(cls, host: str | None) -> Address:
        """Return the address of a master in the functions' VPC.

        If ``host`` is None, use the IP address of this machine's default network interface.
        """
        if host is None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect(("192.0.2.1", 9))  # sends nothing, but chooses the interface
                except OSError as error:
                    rule = f"must be given: this machine has no route to other machines ({error})"
                    raise ParameterError("master_address", rule, host) from None
                host = probe.getsockname()[0]
        return cls(host=host, ports=MASTER_PORTS, plain=False)

    def listener(self) -> socket.socket:
        """Return a socket that listens at this address, or raise `ParameterError`."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        why: OSError | None = None
        for port in self.ports:
            try:
                return socket.create_server((self.host, port), family=family, backlog=_STRANGERS)
            except OSError as error:
                why = error
        ports = f"{self.ports[0]} to {self.ports[-1]}" if len(self.ports) > 1 else self.ports[0]
        rule = f"must be an address of this machine with a free port ({why})"
        remedy = "give the address that functions reach, or end the program that uses the port"
        raise ParameterError("master_address", rule, f"{self.host}, port {ports}", remedy) from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Heard:
    """A frame from the function with this invocation ``tag``, received at the time ``at``.

    If ``frame`` is None, the connection has ended, and ``why`` is the reason in one line.
    """

    tag: int
    at: float
    frame: bytearray | None
    why: str = ""


class Switchboard:
    """A server for the connections of expected functions.

    If a function has sent its first frame, it is disconnected after ``patience`` silent heartbeats
    of ``beat_s`` seconds. Before the first frame there is no limit, because a function may be too
    busy with imports to send heartbeats. The thread calls ``on_news`` when `take` can return
    frames. With ``tls``, connections are encrypted.

    For each function, at most ``untaken_bytes`` bytes and one frame are kept in memory in each
    direction. If a function has sent more, the thread stops reading until `take` is called. If a
    function does not read, it is disconnected. ``trouble`` is the reason why the latest connection
    could not be accepted, or empty.
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
        # The bytes received from each function, and the bytes that `take` has returned.
        self._said: Final[dict[int, int]] = {}  # only this thread writes it
        self._taken: Final[dict[int, int]] = {}  # only the master's thread writes it
        self._expected: Final[dict[bytes, tuple[int, bytes]]] = {}  # call: tag, token
        self._lines: Final[dict[int, Line]] = {}
        self._strangers: Final[dict[asyncio.Task[None], int]] = {}  # heartbeats; oldest first
        self._news: Final[deque[Heard]] = deque()
        self._over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="seqgc-switchboard", daemon=True)
        listener.setblocking(False)
        self._thread.start()

    # ---- methods for the master's thread --------------------------------------------------------

    def expect(self, tag: int, *, call: bytes, token: bytes) -> None:
        """Accept one connection of a function that names this call and proves this token."""
        self._expected[call] = (tag, token)

    def send(self, tag: int, frame: bytes) -> None:
        """Send a frame to a function if it is still connected."""
        self._loop.call_soon_threadsafe(self._send, tag, frame)

    def hang_up(self, tag: int, *, call: bytes) -> None:
        """Close a function's connection, or if it has not connected, do not accept its call."""
        self._expected.pop(call, None)
        self._loop.call_soon_threadsafe(self._hang_up, tag)

    def take(self) -> list[Heard]:
        """Return the frames and the ends of connections since the last call, in order of time."""
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
        """Close all connections and stop listening. A second call does nothing."""
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
        await asyncio.gather(answering, return_exceptions=True)  # accepts no more
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self) -> None:
        while True:
            try:  # not asyncio's sock_accept, which may lose a connection if it is cancelled
                connection, _ = self._listener.accept()
            except BlockingIOError:
                await self._wait_for_caller()
                continue
            except OSError as error:  # too many open files, or the caller has gone
                self.trouble = str(error)
                await asyncio.sleep(self._beat_s / 10)
                continue
            self.trouble = ""
            if len(self._strangers) >= _STRANGERS:
                next(iter(self._strangers)).cancel()
            task = asyncio.create_task(self._meet(connection))
            self._strangers[task] = 0
            await asyncio.sleep(0.0)  # lets tasks run before the next connection is accepted

    async def _wait_for_caller(self) -> None:
        connected = asyncio.Event()
        self._loop.add_reader(self._listener, connected.set)
        try:
            await connected.wait()
        finally:
            self._loop.remove_reader(self._listener)

    async def _send_away(self) -> None:
        """Disconnect strangers that have not proved themselves within a number of heartbeats."""
        while True:
            await asyncio.sleep(self._beat_s)
            for task in self._strangers:
                self._strangers[task] += 1
                if self._strangers[task] > PROOF_BEATS:
                    task.cancel()

    async def _meet(self, connection: socket.socket) -> None:
        """Serve one connection. Close it if the caller does not prove that it is a function."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await self._opened(connection)
            call = await prove_master(reader, writer, token_of=self._token_of)
            tag, _ = self._expected.pop(call)  # each call is accepted once
            self._strangers.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            await self._hear(tag, Line(reader, writer, self._beat_s, patience=math.inf))
        except (OSError, Stranger, KeyError):
            pass  # close the connection without an answer
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
        # asyncio does not set this option for accepted sockets. Without it, frames may wait 40 ms.
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
        """Queue the frames of a function until its connection ends."""
        self._lines[tag], self._said[tag] = line, 0
        try:
            async for frame in line.frames():
                line.patience = self._patience  # with the first frame, the function is ready
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
            line.hang_up("the function does not read its messages")
        else:
            line.send(frame)

    def _hang_up(self, tag: int) -> None:
        if (line := self._lines.get(tag)) is not None:
            line.hang_up("the master hung up")


def _weight(frame: bytearray) -> int:
    """Return the approximate memory of a queued frame, in bytes."""
    return len(frame) + 500


_BEFORE, _AFTER = timedelta(days=1), timedelta(days=60)  # functions do not check these times


def tls_server() -> tuple[ssl.SSLContext, str]:
    """Make a self-signed certificate; return a TLS context with it, and the certificate as PEM.

    Raises
    ------
    ParameterError
        If the package cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        rule = f"needs the package cryptography, which cannot be imported ({error})"
        raise ParameterError("resident", rule, True, "pip install 'seqgc[aws]'") from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, CERTIFIED_NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _AFTER)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(CERTIFIED_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with temporary_folder("seqgc-tls-") as folder:  # ssl reads keys from files only
        file = folder / "both.pem"
        file.write_bytes(secret + pem)
        context.load_cert_chain(file)
    return context, pem.decode("ascii")
