"""Workers that are simulated functions, opened as the real ones are; and the store they share."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import IO, Any, ClassVar, Final, Self
from unittest import mock

from seqgc.backends import lambda_
from seqgc.backends.lambda_ import Address, Invoking, LambdaBackend
from seqgc.models import factories
from seqgc.stores import DirectoryStore, RetiringStore
from seqgc.training import Crew, Work, run
from seqgc.workers import FunctionSettings, FunctionWorkers, Reach
from tests.simulation.functions import TIMEOUT_S, Account, Wire
from tests.simulation.seams import (
    Ended,
    lambda_backend,
    opening,
    opening_stores,
    shared_objectives,
)
from tests.simulation.world import Violation

_FETCH_S: Final = 0.02
_RECEIPTS_BYTES: Final = 4096 + 300  # of a message: no answer fits a reply
_ERRORS: Final = {"stale-read": errno.ESTALE, "failing-read": errno.EIO}


class SimulatedFunctions(FunctionWorkers):
    """``n`` functions of an account, for one master; ``kind`` says where large things go."""

    provider = "simulated"

    def __init__(self, n: int, account: Account, *, kind: str, master: int) -> None:
        store: Any = "inline" if kind == "lambda-inline" else "directory"
        resident = kind == "resident"
        timeout_s = account.world.lease_s if resident else TIMEOUT_S
        settings = FunctionSettings(store=store, timeout_s=timeout_s, resident=resident)
        super().__init__(n, settings, delays=None)
        self._account, self._receipts = account, kind == "lambda-receipts"
        self._run_id = f"simulated-{master:012x}"
        self._wire = Wire(account, n)
        self._backend: LambdaBackend | None = None

    @property
    def settings(self) -> FunctionSettings:
        return self._wanted

    @property
    def address(self) -> Address:
        return self._account.residents.address if self.settings.resident else super().address

    @property
    def reach(self) -> Reach:
        return Reach(deployed=False, s3=False)

    def _maps(self, name: str) -> bool:  # noqa: ARG002 (all of them)
        return True

    def _connect(self, work: Work) -> opening.Functions:  # noqa: ARG002 (for any work)
        session: Any = SimpleNamespace(client=_no_bucket)
        return opening.Functions(name="simulated", session=session, mount=self._account.mount)

    def _transport(self, functions: opening.Functions) -> Wire:  # noqa: ARG002 (the account's)
        return self._wire

    @contextmanager
    def open(self, work: Work) -> Iterator[Crew]:
        retiring = partial(RetiringStore, now=self._account.now)
        resident = partial(lambda_.ResidentBackend, clock=self._account)
        with (
            self._account.residents.at_home(),
            simulated(self._account),
            mock.patch.object(opening, "unique_name", return_value=self._run_id),
            mock.patch.object(lambda_, "LambdaBackend", self._started),
            mock.patch.object(lambda_, "ResidentBackend", resident),
            mock.patch.object(run, "RetiringStore", retiring),
            super().open(work) as crew,
        ):
            yield crew

    def _started(self, n: int, wire: Wire, *, invoking: Invoking, **more: Any) -> LambdaBackend:
        account = self._account
        if self._receipts:
            invoking = replace(invoking, max_body_bytes=_RECEIPTS_BYTES)
        account.warming = True
        try:
            backend = LambdaBackend(n, wire, invoking=invoking, clock=account, **more)
        finally:
            account.warming = False
        self._backend = backend
        return backend

    def check_memory(self) -> None:
        """See that nothing is kept of invocations that have ended."""
        if self._backend is not None:
            known = len(self._wire.under_way | self._wire.refused) + self._account.fetching
            if (kept := self._backend.outstanding) > known:
                raise Violation(f"{kept} invocations are kept, of which {known} have not ended")

    def check_left(self) -> None:
        """See that the run has left nothing but answers that came late."""
        own = self._account.mount / self._run_id
        if left := sorted(path.name for path in own.rglob("*.npy")):
            raise Violation(f"the run has ended, and left {left}")


@contextmanager
def simulated(account: Account) -> Iterator[None]:
    """Let backends that are made in the block have no thread, and all read this account's files."""
    calls = type("Calls", (_Calls,), {"account": account})
    with (
        mock.patch.object(opening_stores, "DirectoryStore", partial(SharedFiles, account)),
        mock.patch.object(factories, "_objectives", shared_objectives),
        mock.patch.object(lambda_backend, "CallThreads", calls),
    ):
        yield


class SharedFiles(DirectoryStore):
    """The folder that master and functions share, read badly at times; the dead change nothing."""

    def __init__(self, account: Account, root: Any) -> None:
        super().__init__(root, pause=account.pause)
        self._account = account

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        fault = self._account.world.of_read()
        if fault is not None and fault.kind in _ERRORS:
            raise OSError(_ERRORS[fault.kind], os.strerror(_ERRORS[fault.kind]))
        try:
            with super()._opened(name) as file:
                if fault is None:
                    yield file
                    return
                data = bytearray(file.read())
        except FileNotFoundError:
            self._account.missing(name)
            raise
        at = int(1e6 * fault.amount) % len(data)
        if fault.kind == "short-read":
            del data[at:]
        else:
            data[at] ^= 1 << at % 8
        yield io.BytesIO(data)

    def sweep(self) -> None:
        if self._account.world.alive:
            super().sweep()

    def _delete(self, name: str) -> None:
        if self._account.world.alive:
            super()._delete(name)


class _Calls:
    """In place of `CallThreads`: each call is made a little later, and takes time of its own."""

    account: ClassVar[Account]

    def __init__(self, *, on_end: Callable[[], None], **_: object) -> None:
        self._on_end = on_end
        self._ended: list[Ended[object]] = []
        self._closed = False

    def __class_getitem__(cls, _: object) -> type[Self]:
        return cls

    def submit(self, tag: int, call: Callable[[], object]) -> None:
        self.account.fetching += 1
        self.account.after(_FETCH_S, partial(self._make, tag, call))

    def _make(self, tag: int, call: Callable[[], object]) -> None:
        if self._closed:
            self.account.fetching -= 1
            return
        value: object
        with self.account.aside() as spent:
            try:
                value = call()
            except Exception as error:
                value = error
        self.account.after(spent(), partial(self._end, tag, value))

    def _end(self, tag: int, value: Any) -> None:
        self.account.fetching -= 1
        self._ended.append(Ended(tag=tag, at=self.account.now(), value=value))
        self._on_end()

    def take(self) -> list[Ended[object]]:
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        self._closed = True


def _no_bucket(service: str) -> None:
    raise AssertionError(f"nobody needs {service} here")
