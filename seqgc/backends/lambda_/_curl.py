from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from seqgc.backends._events import LONGEST_WAIT_S, MonotonicClock
from seqgc.backends.lambda_._target import Signer, Target
from seqgc.backends.lambda_._transport import Limits, Reply
from seqgc.errors import WorkerError
from seqgc.ports import Clock

if TYPE_CHECKING:
    from botocore.credentials import Credentials

__all__ = ["CurlTransport"]

_FLUSH_S: Final = 1.0  # time limit of `flush`, longer than a TLS handshake
_GLANCE_S: Final = 0.02


class CurlTransport:
    """A `Transport` that sends invocations with libcurl, without threads.

    It needs a fraction of boto3's processor time. ``HTTPS_PROXY`` and ``NO_PROXY`` determine the
    proxy, and ``AWS_CA_BUNDLE`` the trusted certificates. If ``credentials`` is None, botocore
    looks for credentials. ``clock`` gives the times of replies (default: `time.monotonic`).

    Raises
    ------
    ParameterError
        If there are no credentials.
    WorkerError
        If pycurl is not installed.

    Examples
    --------
    >>> from botocore.credentials import Credentials
    >>> target = Target.invoke_api("seqgc-worker", region="eu-west-1", qualifier="live")
    >>> transport = CurlTransport(target, credentials=Credentials("key", "secret"))
    >>> transport.poll(0.0)
    []
    >>> transport.close()
    """

    def __init__(
        self,
        target: Target,
        *,
        limits: Limits | None = None,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
    ) -> None:
        try:
            from seqgc.backends.lambda_._transfers import Transfers
        except ImportError as error:
            remedy = "pip install pycurl, or choose boto3 or http"
            raise WorkerError(f"the transport curl needs pycurl ({error}): {remedy}") from None
        self._limits = limits or Limits()
        self._transfers = Transfers(
            target.url,
            self._limits,
            signer=Signer(target, credentials=credentials),
            clock=clock or MonotonicClock(),
        )
        self._waiting: deque[tuple[int, bytes]] = deque()  # they wait for a free connection
        self._replies: list[Reply] = []
        self._returned = 0  # number of replies that the latest `poll` returned
        self._closed = False

    @staticmethod
    def is_available() -> bool:
        """Return True if pycurl, which this transport needs, can be imported."""
        try:
            import pycurl  # noqa: F401
        except ImportError:
            return False
        return True

    def submit(self, tag: int, body: bytes) -> None:
        if self._closed:
            raise WorkerError("the transport is closed: make a new one")
        self._waiting.append((tag, body))
        self._start_waiting()

    def flush(self) -> None:
        give_up_at = time.monotonic() + _FLUSH_S
        while self._transfers.unsent and (rest_s := give_up_at - time.monotonic()) > 0:
            self._turn(min(rest_s, _GLANCE_S))

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        returned, self._returned = self._returned, 0  # first, because a later line may raise
        self._transfers.memory.take_back(returned)
        give_up_at = time.monotonic() + min(timeout_s, LONGEST_WAIT_S)
        while True:
            has_news = self._replies or self._transfers.woken  # `flush` may have read replies
            left_s = 0.0 if has_news else give_up_at - time.monotonic()
            self._turn(max(0.0, left_s))
            if self._replies or self._transfers.woken or left_s <= 0:
                break
        self._transfers.woken = False
        replies, self._replies = self._replies, []
        self._returned = len(replies)
        return replies

    def wake(self) -> None:
        self._transfers.wake()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._waiting.clear()
            self._transfers.close()

    def _turn(self, timeout_s: float) -> None:
        self._replies += self._transfers.turn(timeout_s)
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._transfers) < self._limits.connections:
            tag, body = self._waiting.popleft()
            self._transfers.start(tag, body)
