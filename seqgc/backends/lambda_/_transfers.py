"""Requests to one URL through libcurl, any number at once, driven by whoever calls `turn`.

Theory of operation
-------------------
libcurl has two kinds of handle. An *easy* handle is one request and its answer; a *multi* handle
drives any number of them over connections that it keeps, and never blocks. It says which sockets it
waits for (`Transfers._watch`) and when it wants to be called although nothing has happened
(`Transfers._set_alarm`), and is called when that is so (`Transfers.turn`). There is no thread, no
event loop and no coroutine. So a master runs in a notebook, inside other people's event loops, as
well as in a script; and between two calls answers wait in the system's buffers.

What a round of 256 answers of half a megabyte costs is moving 136 MB, so each byte is moved as
rarely as possible, and by nobody's Python code. libcurl hands over what it has received, or
decrypted, 16 KB at a time, to `io.BytesIO.write`, which is C. The same memory is written again from
its beginning when another answer comes (`_Memory`): of fresh memory the system would have to map
and clear every page.

An invocation must not be sent twice, since a function may have seen it. libcurl sends a request
again when a kept connection turns out to be dead, provided that it can read the body again from its
beginning. So it is given a body that can be read once (READFUNCTION without SEEKFUNCTION), and
reports an error instead. It neither follows redirects nor decodes answers unless asked to.
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

_BUFFER_BYTES: Final = 512 << 10  # libcurl's own, for reading from a socket: fewer system calls
_KEPT_BYTES: Final = 256 << 20
_BUNDLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
_BAD_CERTIFICATE = (pycurl.E_PEER_FAILED_VERIFICATION, pycurl.E_SSL_CACERT_BADFILE)
_FIXED = ("Expect:", "Accept:", "Accept-Encoding: identity")  # nothing after it: not sent at all


class _Memory:
    """Memory that is written again and again; `lend` makes a body of what has been written."""

    def __init__(self) -> None:
        self._room = _KEPT_BYTES  # for what is free; beyond it memory is the system's again
        self._free: list[tuple[BytesIO, int]] = []
        self._lent: deque[tuple[BytesIO, memoryview]] = deque()

    def take(self) -> BytesIO:
        """Return memory that is to be written from its beginning."""
        buffer, size = self._free.pop() if self._free else (BytesIO(), 0)
        self._room += size
        return buffer

    def lend(self, buffer: BytesIO) -> memoryview:
        """Return what has been written, to be read until `take_back`."""
        view = buffer.getbuffer()[: buffer.tell()]
        self._lent.append((buffer, view))
        return view

    def take_back(self, count: int) -> None:
        """Have the ``count`` bodies that were lent first, except what somebody still reads."""
        for _ in range(count):
            buffer, view = self._lent.popleft()
            size = view.nbytes
            try:
                view.release()
                buffer.seek(0)
                buffer.write(b"")
            except BufferError:  # a view of a view: its holder keeps this memory
                continue
            if size <= self._room:
                self._room -= size
                self._free.append((buffer, size))


class Transfers:
    """POST requests to one URL that are under way."""

    def __init__(self, url: str, limits: Limits, *, signer: Signer, clock: Clock) -> None:
        self._clock, self._options, self._signer = clock, _options(url, limits), signer
        self.memory = _Memory()
        self.woken = False  # by `wake`; whoever sees it resets it
        self._idle: list[_Transfer] = []
        self._busy: dict[pycurl.Curl, _Transfer] = {}
        self._fresh: set[_Transfer] = set()  # libcurl has not looked at them yet
        self._unsent: set[_Transfer] = set()
        self._alarm = math.inf  # when libcurl wants to be called, on `time.monotonic`
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
        """How many requests have not left as a whole."""
        self._unsent = {each for each in self._unsent if not each.sent}
        return len(self._unsent) + len(self._fresh)

    def start(self, tag: int, body: bytes) -> None:
        """Begin a request; it leaves in the next `turn`."""
        transfer = self._idle.pop() if self._idle else _Transfer(self._options)
        transfer.tag, transfer.body, transfer.buffer = tag, body, self.memory.take()
        transfer.again = False
        self._send(transfer)

    def _send(self, transfer: _Transfer) -> None:
        transfer.begin(self._signer.headers(transfer.body))
        self._multi.add_handle(transfer.handle)
        self._busy[transfer.handle] = transfer
        self._fresh.add(transfer)

    def turn(self, timeout_s: float) -> list[Reply]:
        """Have libcurl do what can be done; return the replies of what has ended, bodies on loan.

        Waits until something can be done, or `wake` is called, at most ``timeout_s`` seconds.
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
            else:  # events of selectors and of libcurl are the same numbers
                self._multi.socket_action(key.fd, events)
        return replies + self._take_ended()

    def wake(self) -> None:
        """Have `turn` return, now or the next time; any thread may call it, even after `close`."""
        with suppress(OSError):  # there is no room, so it has rung; or it is closed
            self._button.send(b"!")

    def close(self) -> None:
        """Hang up everywhere."""
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
        ended = [
            *(self._end(handle) for handle in complete),
            *(self._end(handle, error=_error(*why)) for handle, *why in failed),
        ]
        return [reply for reply in ended if reply is not None]

    def _end(self, handle: pycurl.Curl, error: Exception | None = None) -> Reply | None:
        """Return what has come of a request, unless it is sent again since its time was wrong."""
        transfer = self._busy.pop(handle)
        self._multi.remove_handle(handle)
        self._unsent.discard(transfer)
        status, headers = int(handle.getinfo(pycurl.RESPONSE_CODE)), transfer.headers()
        if error is None and not transfer.again:
            transfer.again = self._signer.is_stale(transfer.signed, status, headers.get("date"))
            if transfer.again:
                transfer.buffer.seek(0)  # where its answer is to begin
                self._send(transfer)
                return None
        self._idle.append(transfer)
        tag, at, body = transfer.tag, self._clock.now(), self.memory.lend(transfer.buffer)
        transfer.body = b""
        if error is not None:
            return Reply(tag=tag, at=at, error=connection_error(error), ran=None)
        return reply_of(tag, at, status, body, headers)

    def _watch(self, events: int, descriptor: int, *_: object) -> None:
        """Take note of what libcurl waits for at a socket."""
        if events == pycurl.POLL_REMOVE:
            self._selector.unregister(descriptor)
        elif descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events)
        else:
            self._selector.register(descriptor, events)

    def _set_alarm(self, milliseconds: int) -> None:
        """Take note of when libcurl wants to be called; negative: not at all."""
        self._alarm = math.inf if milliseconds < 0 else time.monotonic() + 1e-3 * milliseconds


class _Transfer:
    """An easy handle, used for one request after the other."""

    def __init__(self, options: Mapping[int, object]) -> None:
        self.tag = -1
        self.body, self.buffer = b"", BytesIO()
        self.again = False  # sent already, by a wrong clock
        self.signed: Mapping[str, str] = {}
        self._lines: list[bytes] = []
        self.handle = pycurl.Curl()
        for option, value in options.items():
            self.handle.setopt(option, value)
        self.handle.setopt(pycurl.HEADERFUNCTION, self._lines.append)

    @property
    def sent(self) -> bool:
        """Whether the request has left; of a used handle the last one's, until libcurl begins."""
        return bool(self.handle.getinfo(pycurl.POSTTRANSFER_TIME_T))

    def begin(self, signed: Mapping[str, str]) -> None:
        self.signed = signed
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
                headers.clear()  # those before belong to a "continue", or the like
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return headers


def _error(code: int, message: str) -> Exception:
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return TimeoutError(message)
    if code in _BAD_CERTIFICATE:
        message += "; AWS_CA_BUNDLE names the certificates that are trusted"
    return ConnectionError(message)


def _options(url: str, limits: Limits) -> dict[int, object]:
    # Whom to trust: whom AWS's own tools would, and else whom requests would.
    bundle = next(filter(None, map(os.environ.get, _BUNDLES)), None) or certifi.where()
    options: dict[int, object] = {
        pycurl.URL: url,
        pycurl.POST: 1,
        pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,  # one invocation, one connection
        pycurl.CONNECTTIMEOUT_MS: max(1, round(1e3 * limits.connect_timeout_s)),
        pycurl.TIMEOUT_MS: max(1, round(1e3 * (limits.connect_timeout_s + limits.answer_s))),
        pycurl.MAXFILESIZE_LARGE: limits.max_answer_bytes,
        pycurl.BUFFERSIZE: _BUFFER_BYTES,
        pycurl.TCP_KEEPALIVE: 1,  # a NAT forgets who is silent for 350 s; libcurl asks every 60 s
        pycurl.USERAGENT: "seqgc",
        pycurl.NOSIGNAL: 1,
        pycurl.CAPATH if Path(bundle).is_dir() else pycurl.CAINFO: bundle,
    }
    if is_on_this_machine(url):
        options[pycurl.PROXY] = ""  # none, whatever the environment says
    return options
