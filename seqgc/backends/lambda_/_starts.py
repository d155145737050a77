"""The invocations of functions that stay: made, made again where refused, and paid for.

A function is paid for from its invocation until it has ended. Three things tell when that is:

- *A reply that it has run*: then.
- *A reply that the service refused it*: no function has seen it, and nothing is paid for.
- *The end of its line to the master*, if it was ready and its reply is lost, or has not come: a
  function that hears its master no more ends by itself, within `OUTLIVES_BEATS`.

Until then all that is left of its lease is reserved (`Leases`).
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection
from typing import Final

from seqgc.backends.lambda_._calls import Throttle
from seqgc.backends.lambda_._leases import Leases, Staying
from seqgc.backends.lambda_._places import Stay
from seqgc.backends.lambda_._switchboard import Switchboard
from seqgc.backends.lambda_._transport import Reply, Transport
from seqgc.ports import Clock
from seqgc.wire import StayMessage, encode, to_json
from seqgc.worker._staying import OUTLIVES_BEATS

__all__ = ["Starts"]

_FAREWELL_S: Final = 0.5


class Starts:
    """Invokes functions, by a ``message`` that is whole but for what each one's own is.

    At most ``per_s`` invocations that were throttled are made again in a second.
    """

    def __init__(
        self,
        transport: Transport,
        switchboard: Switchboard,
        *,
        staying: Staying,
        message: Callable[..., StayMessage],
        run_id: str,
        per_s: float,
        clock: Clock,
    ) -> None:
        self._transport, self._switchboard, self._staying = transport, switchboard, staying
        self._message, self._run_id, self._clock = message, run_id, clock
        self._leases = staying.leases or Leases(longest_s=staying.limit_s)
        self._throttle = Throttle(staying.throttling, per_s=per_s)
        self._refused: dict[int, Stay] = {}  # to be invoked again
        self._tags = itertools.count()

    @property
    def wake_at(self) -> float:
        """When `again` may do something; infinity if nobody waits."""
        return self._throttle.wake_at

    def invoke(self, worker: int, number: int) -> Stay:
        """Invoke a worker's so-manieth function, unless that is not admitted."""
        self._leases.admit()
        tag, staying = next(self._tags), self._staying
        call, token = secrets.token_bytes(16), secrets.token_bytes(32)
        message = self._message(
            worker=worker,
            call=call.hex(),
            token=token.hex(),
            beat_s=staying.beat_s,
            leave_s=staying.leave_s(worker, number),
            end_s=staying.end_s,
            start_s=0.0 if staying.start_s is None else staying.start_s(worker, number),
        )
        now = self._clock.now()
        stay = Stay(tag=tag, worker=worker, call=call, message=message, began=now)
        self._switchboard.expect(tag, call=call, token=token)
        self._submit(stay, now=now)
        return stay

    def again(self) -> None:
        """Invoke those who were refused and whose time has come, unless that is not admitted."""
        now = self._clock.now()
        for tag in self._throttle.ready(now=now):
            self._leases.admit()
            self._submit(self._refused.pop(tag), now=now)

    def _submit(self, stay: Stay, *, now: float) -> None:
        self._leases.begin(stay.tag, at=now)
        frame = encode(stay.message, run_id=self._run_id)
        self._transport.submit(stay.tag, to_json(frame))

    def replied(self, stay: Stay | None, reply: Reply) -> bool:
        """Settle an invocation that has ended; return whether it will be made again."""
        if reply.ran:
            self._leases.end(reply.tag, at=reply.at)
        elif reply.ran is False and (stay is None or not stay.ready):
            self._leases.refuse(reply.tag)
        patience = self._staying.throttling.max_resubmissions
        if stay is None or not reply.throttled or stay.refusals >= patience:
            return False
        stay.refusals, stay.began = stay.refusals + 1, reply.at
        self._refused[stay.tag] = stay
        self._throttle.refused(
            stay.tag, refusals=stay.refusals, now=reply.at, least_s=reply.retry_after_s
        )
        return True

    def hang_up(self, stay: Stay) -> None:
        """Have no more to do with a function; what it is paid for is still to be settled."""
        self._throttle.forget(stay.tag)
        self._refused.pop(stay.tag, None)
        self._switchboard.hang_up(stay.tag, call=stay.call)
        self._ends_soon(stay)

    def _ends_soon(self, stay: Stay) -> None:
        if stay.ready:  # one that never called might not have begun
            outlives_s = OUTLIVES_BEATS * self._staying.beat_s
            self._leases.end_by(stay.tag, at=self._clock.now() + outlives_s)

    def close(self, stays: Collection[Stay]) -> None:
        """Hang up on all, and wait for a moment for the ends of those who are paid for."""
        self._switchboard.close()
        for stay in stays:
            self._ends_soon(stay)
        wait_s = _FAREWELL_S if stays and self._staying.leases is not None else 0.0
        give_up_at = self._clock.now() + wait_s
        while self._leases.open and (left_s := give_up_at - self._clock.now()) > 0:
            for reply in self._transport.poll(left_s):
                self.replied(None, reply)
        self._transport.close()
