"""The Invoke API, or a function URL, through asyncio: hundreds of invocations on one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from seqgc.backends._tasks import MonotonicClock
from seqgc.backends.lambda_._errors import connection_error, reply_of
from seqgc.backends.lambda_._http1 import Client
from seqgc.backends.lambda_._signer import Signer
from seqgc.backends.lambda_._target import Target
from seqgc.backends.lambda_._transport import READ_GRACE_S, Reply, check_connections
from seqgc.errors import WorkerError
from seqgc.ports import Clock

if TYPE_CHECKING:
    from botocore.credentials import Credentials

__all__ = ["AsyncTransport"]

_LONGEST_WAIT_S = 3600.0
_GLANCE_S = 0.02
_FLUSH_S = 1.0  # more than a TLS handshake takes, and no more than a dispatch may block
_MAX_ANSWER_BYTES = 16 << 20  # more than the service lets through


class AsyncTransport:
    """Posts invocations on asyncio's event loop, without threads; a `Transport`.

    Its event loop runs inside `submit`, for a moment, and inside `poll`; between them nothing is
    read, and answers wait in the system's buffers. It costs less than half of what threads do, so
    it is the one for hundreds of workers. It cannot be used inside a running event loop (as of a
    notebook), and knows no proxy: there the other transports work.

    Parameters
    ----------
    target
        Where to post.
    timeout_s
        The function's own time-out, seconds; its answer is waited for a little longer.
    connections
        Most invocations at once: at least the workers and their outstanding stragglers. What
        exceeds it waits here.
    connect_timeout_s
        For a connection to be made, seconds.
    credentials
        The caller's; None: those that botocore finds.
    clock
        What replies are stamped with; `time.monotonic` unless given.

    Raises
    ------
    ParameterError
        If ``connections`` is not positive, or there are no credentials.

    Examples
    --------
    >>> from botocore.credentials import Credentials
    >>> target = Target.invoke_api("seqgc-worker", region="eu-west-1", qualifier="live")
    >>> transport = AsyncTransport(target, credentials=Credentials("key", "secret"))
    >>> transport.poll(0.0)
    []
    >>> transport.close()
    """

    def __init__(
        self,
        target: Target,
        *,
        timeout_s: float = 900.0,
        connections: int = 1024,
        connect_timeout_s: float = 5.0,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_connections(connections)
        self._clock: Clock = MonotonicClock() if clock is None else clock
        self._signer = Signer(target, credentials=credentials)
        self._replies: list[Reply] = []
        self._returned: list[Reply] = []  # by the latest poll
        self._calls: set[asyncio.Task[None]] = set()
        self._unsent: set[int] = set()
        self._flushing = self._turning = self._woken = False
        self._client = Client(
            target.url,
            connections=connections,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=timeout_s + READ_GRACE_S,
            max_body_bytes=_MAX_ANSWER_BYTES,
        )
        self._loop = asyncio.new_event_loop()

    def submit(self, tag: int, body: bytes) -> None:
        """Invoke the function with ``body``; returns at once.

        Raises
        ------
        WorkerError
            If the transport is closed.
        """
        if self._loop.is_closed():
            raise WorkerError("the transport is closed: make a new one")
        if not self._unsent:
            self._turn(0.0)  # first learn which idle connections the other side has closed
        call = self._loop.create_task(self._post(tag, body))
        self._calls.add(call)
        self._unsent.add(tag)
        call.add_done_callback(self._calls.discard)

    def flush(self) -> None:
        """Return once what was submitted has left, or after a second: then it leaves later."""
        give_up_at = self._loop.time() + _FLUSH_S
        self._flushing = True
        while (
            len(self._unsent) > self._client.waiting
            and (left := give_up_at - self._loop.time()) > 0
        ):
            self._turn(min(left, _GLANCE_S))
        self._flushing = False

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        """Return the replies that have come, in order of time; wait for one if there is none."""
        read, self._returned = self._returned, []  # whatever comes, nothing is recycled twice
        for reply in read:
            self._client.recycle(reply.body)
        self._turn(0.0)
        if not self._replies and not self._woken and timeout_s > 0:
            self._turn(timeout_s)
        self._woken = False
        self._returned, self._replies = self._replies, []
        return list(self._returned)

    def wake(self) -> None:
        """Have `poll` return, now or the next time; any thread may call it."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._rouse)

    def close(self) -> None:
        """Abandon what is on its way, within about a second; harmless if done already."""
        if self._loop.is_closed():
            return
        try:
            self._loop.run_until_complete(self._abandon())
        finally:
            self._loop.close()

    def _turn(self, timeout_s: float) -> None:
        """Run the loop until a reply comes, or, with a timeout of 0, over what is ready now."""
        alarm: asyncio.Handle
        if timeout_s > 0:
            alarm = self._loop.call_later(min(timeout_s, _LONGEST_WAIT_S), self._loop.stop)
        else:
            alarm = self._loop.call_soon(self._loop.stop)
        self._turning = True
        try:
            self._loop.run_forever()
        finally:
            self._turning = False
            alarm.cancel()

    async def _post(self, tag: int, body: bytes) -> None:
        try:
            response = await self._client.post(
                self._signer.headers(body), body, sent=lambda: self._sent(tag)
            )
            told = response.headers
            reply = reply_of(
                tag,
                self._clock.now(),
                response.status,
                response.body,
                function_error_kind=told.get("x-amz-function-error", ""),
                log_tail=told.get("x-amz-log-result", ""),
                code=told.get("x-amzn-errortype", ""),
                retry_after=told.get("retry-after", ""),
            )
        except Exception as error:
            reply = Reply(tag=tag, at=self._clock.now(), error=connection_error(error))
        self._replies.append(reply)
        self._sent(tag)
        self._stop()

    def _sent(self, tag: int) -> None:
        self._unsent.discard(tag)
        if self._flushing and not self._unsent:
            self._stop()

    def _rouse(self) -> None:
        self._woken = True
        self._stop()

    def _stop(self) -> None:
        """End the turn, if this is one: closing runs the loop too, and to its own end."""
        if self._turning:
            self._loop.stop()

    async def _abandon(self) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        self._client.close()
        await asyncio.sleep(0)  # the connections' ends are told in the loop's next round
        await self._loop.shutdown_default_executor()  # looks up names
