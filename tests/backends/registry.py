"""The backends that the contract suite runs over: one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from seqgc.backends import LocalBackend
from seqgc.backends.dask_ import DaskBackend
from seqgc.backends.lambda_ import LambdaBackend
from seqgc.ports import Backend, Clock, Payload
from tests.backends.dask import warm as warm
from tests.backends.lambda_.local import TRANSPORTS, inline, open_transport, scripted_workload
from tests.backends.scripted import Scripted

Delays: TypeAlias = Callable[[int, int], float]
Fixture: TypeAlias = Callable[[str], Any]  # a fixture's value, by its name


class Opener(Protocol):
    """Opens a backend whose workers are ready."""

    def __call__(
        self,
        n: int,
        computation: Scripted,
        /,
        *,
        fixture: Fixture,
        delays: Delays | None,
        clock: Clock | None,
        payload: Payload | None,
    ) -> Backend: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a backend is opened, and what its workers are.

    ``serial``: a worker takes one task after the other, and hears when one is cancelled. On Lambda
    it does neither: a worker is a number, each of its tasks an invocation of its own, which nobody
    can stop. ``lets_go``: closing does not wait for what still computes, as it must for threads.
    """

    open: Opener
    serial: bool = True
    lets_go: bool = True


def _plain(make: Callable[..., Backend]) -> Opener:
    """A backend that takes a computation as it is, and needs no fixture."""

    def opened(n: int, computation: Scripted, /, *, fixture: Fixture, **options: Any) -> Backend:  # noqa: ARG001 (the protocol's)
        return make(n, computation, **options)

    return opened


def _on_lambda(transport: str) -> Opener:
    """A function of the local Lambda service that the session shares."""

    def opened(
        n: int,
        computation: Scripted,
        /,
        *,
        fixture: Fixture,
        delays: Delays | None,
        clock: Clock | None,
        payload: Payload | None,
    ) -> Backend:
        return LambdaBackend(
            n,
            open_transport(transport, fixture("lambda_service"), clock=clock),
            workload=scripted_workload(computation),
            store=inline(),
            delays=delays,
            clock=clock,
            payload=payload,
        )

    return opened


BACKENDS: dict[str, Kind] = {
    "dask": Kind(open=_plain(partial(DaskBackend, processes=0)), lets_go=False),
    "local": Kind(open=_plain(LocalBackend)),
    **{
        f"lambda-local by {transport}": Kind(open=_on_lambda(transport), serial=False)
        for transport in TRANSPORTS
    },
}
