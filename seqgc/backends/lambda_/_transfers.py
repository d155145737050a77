"""Simultaneous requests to one URL with libcurl, in the thread that calls `Transfers.turn`.

Theory of operation
-------------------
libcurl has two kinds of handle. An *easy* handle is one request and its answer. A *multi* handle
processes any number of easy handles, keeps connections open, and never blocks. libcurl reports the
sockets on which it waits (`Transfers._watch`), and the time at which it must be called even if no
socket is ready (`Transfers._set_alarm`). `Transfers.turn` calls libcurl when a socket is ready or
this time has come. There is no thread, event loop or coroutine, so a master also runs in a notebook
or inside another event loop. Between two calls, answers wait in the system's buffers.

In a round of 256 answers of half a megabyte, most of the cost is copying 136 MB. Therefore each
byte is copied as rarely as possible, and never by Python code: libcurl passes received or decrypted
data in pieces of 16 KB to `io.BytesIO.write`, which is written in C. The memory of earlier answers
is used again (`_Memory`), because the system must map and clear every page of new memory.

An invocation must not be sent twice, because a function may have received it. If an open connection
turns out to be dead, libcurl sends the request again if it can read the body a second time. Here it
cannot do this (READFUNCTION without SEEKFUNCTION), so it reports an error. By default, libcurl does
not follow redirects or decode answers.
"""

from __future__ import annotations

import math
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Final

import certifi
import pycurl

from seqgc._aws import is_on_this_machine
from seqgc.backends.lambda_._target import Signer
from seqgc.backends.lambda_._transport import Limits, Reply, connection_error, reply_of
from seqgc.ports import Clock

__all__ = ["Transfers"]

_BUFFER_BYTES: Final = 512 << 10  # for reading from a socket, with few system calls
_KEPT_BYTES: Final = 256 << 20
_BUNDLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
_BAD_CERTIFICATE = (pycurl.E_PEER_FAILED_VERIFICATION, pycurl.E_SSL_CACERT_BADFILE)
_FIXED = ("Expect:", "Accept:", "Accept-Encoding: identity")  # an empty value removes a header


class _Memory:
    """A pool of reusable buffers.

    `take` returns a buffer to write to, `lend` returns a view of the written bytes, and `take_back`
    makes lent buffers free again.
    """

    def __init__(self) -> None:
        self._room = _KEPT_BYTES  # the pool keeps free buffers up to this size
        self._free: list[tuple[BytesIO, int]] = []
        self._lent: deque[tuple[BytesIO, memoryview]] = deque()

    def take(self) -> BytesIO:
        """Return a free buffer, to be written from its beginning."""
        buffer, size = self._free.pop() if self._free else (BytesIO(), 0)
        self._room += size
        return buffer

    def lend(self, buffer: BytesIO) -> memoryview:
        """Return the bytes that have been written to a buffer. They are valid until `take_back`."""
        view = buffer.getbuffer()[: buffer.tell()]
        self._lent.append((buffer, view))
        return view

    def take_back(self, count: int) -> None:
        """Free the ``count`` buffers that were lent first, except buffers that are still in use."""
        for _ in range(count):
            buffer, view = self._lent.popleft()
            size = view.nbytes
            try:
                view.release()
                buffer.seek(0)
                buffer.write(b"")
            except BufferError:  # other code still has a view of this buffer, and keeps it
                continue
            if size <= self._room:
                self._room -= size
                self._free.append((buffer, size))


class Transfers:
    """The unfinished POST requests to one URL."""

    def __init__(self, url: str, limits: Limits, *, signer: Signer, clock: Clock) -> None:
        self._clock, self._options, self._signer = clock, _options(url, limits), signer
        self.memory = _Memory()
        self.woken = False  # set by `wake`, reset by the reader
        self._idle: list[_Transfer] = []
        self._busy: dict[pycurl.Curl, _Transfer] = {}
        self._fresh: set[_Transfer] = set()  # libcurl has not begun these requests
        self._unsent: set[_Transfer] = set()
        self._alarm = math.inf  # the time of `time.monotonic` at which libcurl must be called
        self._bell, self._button = socket.socketpair()
        for end in (self._bell, self._button):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_alarm)
        self._multi.setopt(pycurl.M_MAXCONNECTS, limits.connections)

    def __len__(self) -> int:
        return len(self._busy)

    @property
    def unsent(self) -> int:
        """The number of requests that have not been sent completely."""
        self._unsent = {each for each in self._unsent if not each.sent}
        return len(self._unsent) + len(self._fresh)

    def start(self, tag: int, body: bytes) -> None:
        """Begin a request. The next `turn` sends it."""
        transfer = self._idle.pop() if self._idle else _Transfer(self._options)
        transfer.tag, transfer.body, transfer.buffer = tag, body, self.memory.take()
        transfer.begin(self._signer.headers(transfer.body))
        self._multi.add_handle(transfer.handle)
        self._busy[transfer.handle] = transfer
        self._fresh.add(transfer)

    def turn(self, timeout_s: float) -> list[Reply]:
        """Let libcurl read and write. Return the replies to the requests that have ended.

        Wait for at most ``timeout_s`` seconds until a socket is ready or `wake` is called. The
        bodies of replies are lent by `memory`.
        """
        replies: list[Reply] = []
        if self._alarm <= time.monotonic():
            self._alarm = math.inf
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
            self._unsent |= self._fresh
            self._fresh.clear()
            replies = self._take_ended()
        wait_s = 0.0 if replies else min(timeout_s, self._alarm - time.monotonic())
        for key, events in self._selector.select(max(0.0, wait_s)):
            if key.fileobj is self._bell:
                self._bell.recv(4096)
                self.woken = True
            else:  # `selectors` and libcurl use the same numbers for events
                self._multi.socket_action(key.fd, events)
        return replies + self._take_ended()

    def wake(self) -> None:
        """Make the present or the next `turn` return at once.

        Any thread may call this, even after `close`.
        """
        with suppress(OSError):  # the buffer is full of earlier calls, or the socket is closed
            self._button.send(b"!")

    def close(self) -> None:
        for handle in self._busy:
            self._multi.remove_handle(handle)
        for transfer in (*self._busy.values(), *self._idle):
            transfer.handle.close()
        self._multi.close()
        self._selector.close()
        for end in (self._bell, self._button):
            end.close()

    def _take_ended(self) -> list[Reply]:
        _, complete, failed = self._multi.info_read()
        return [
            *(self._end(handle) for handle in complete),
            *(self._end(handle, error=_error(*why)) for handle, *why in failed),
        ]

    def _end(self, handle: pycurl.Curl, error: Exception | None = None) -> Reply:
        transfer = self._busy.pop(handle)
        self._multi.remove_handle(handle)
        self._unsent.discard(transfer)
        status, headers = int(handle.getinfo(pycurl.RESPONSE_CODE)), transfer.headers()
        self._idle.append(transfer)
        tag, at, body = transfer.tag, self._clock.now(), self.memory.lend(transfer.buffer)
        transfer.body = b""
        if error is not None:
            return Reply(tag=tag, at=at, error=connection_error(error), ran=None)
        return reply_of(tag, at, status, body, headers)

    def _watch(self, events: int, descriptor: int, *_: object) -> None:
        """Register the events of a socket for which libcurl waits. libcurl calls this."""
        if events == pycurl.POLL_REMOVE:
            self._selector.unregister(descriptor)
        elif descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events)
        else:
            self._selector.register(descriptor, events)

    def _set_alarm(self, milliseconds: int) -> None:
        """Store the time, from now, at which libcurl must be called; negative means never."""
        self._alarm = math.inf if milliseconds < 0 else time.monotonic() + 1e-3 * milliseconds


class _Transfer:
    """An easy handle, which several requests use one after the other."""

    def __init__(self, options: Mapping[int, object]) -> None:
        self.tag = -1
        self.body, self.buffer = b"", BytesIO()
        self._lines: list[bytes] = []
        self.handle = pycurl.Curl()
        for option, value in options.items():
            self.handle.setopt(option, value)
        self.handle.setopt(pycurl.HEADERFUNCTION, self._lines.append)

    @property
    def sent(self) -> bool:
        """True if the request has been sent.

        Before libcurl begins the request, the value is that of the previous request.
        """
        return bool(self.handle.getinfo(pycurl.POSTTRANSFER_TIME_T))

    def begin(self, signed: Mapping[str, str]) -> None:
        self._lines.clear()
        lines = [*_FIXED, *(f"{name}: {value}" for name, value in signed.items())]
        self.handle.setopt(pycurl.HTTPHEADER, lines)
        self.handle.setopt(pycurl.POSTFIELDSIZE_LARGE, len(self.body))
        self.handle.setopt(pycurl.READFUNCTION, BytesIO(self.body).read)
        self.handle.setopt(pycurl.WRITEFUNCTION, self.buffer.write)

    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for line in self._lines:
            if line.startswith(b"HTTP/"):
                headers.clear()  # earlier lines belong to an interim response such as 100
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return headers


def _error(code: int, message: str) -> Exception:
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return TimeoutError(message)
    if code in _BAD_CERTIFICATE:
        message += "; if the default certificates fail, AWS_CA_BUNDLE must name a file with others"
    return ConnectionError(message)


def _options(url: str, limits: Limits) -> dict[int, object]:
    # Trust the same certificates as AWS's tools, or else as requests.
    bundle = next(filter(None, map(os.environ.get, _BUNDLES)), None) or certifi.where()
    options: dict[int, object] = {
        pycurl.URL: url,
        pycurl.POST: 1,
        pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,  # one invocation, one connection
        pycurl.CONNECTTIMEOUT_MS: max(1, round(1e3 * limits.connect_timeout_s)),
        pycurl.TIMEOUT_MS: max(1, round(1e3 * (limits.connect_timeout_s + limits.answer_s))),
        pycurl.MAXFILESIZE_LARGE: limits.max_answer_bytes,
        pycurl.BUFFERSIZE: _BUFFER_BYTES,
        pycurl.TCP_KEEPALIVE: 1,  # every 60 s, because AWS's NAT drops a connection idle for 350 s
        pycurl.USERAGENT: "seqgc",
        pycurl.NOSIGNAL: 1,
        pycurl.CAPATH if Path(bundle).is_dir() else pycurl.CAINFO: bundle,
    }
    if is_on_this_machine(url):
        options[pycurl.PROXY] = ""  # no proxy, even if the environment names one
    return options
