"""Workers that are functions, wherever these run: how they are called, and what they share."""

from __future__ import annotations

import re
import sys
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seqgc.cli._config import RunConfig
from seqgc.cli._engine._settings import as_deployed, chosen_store
from seqgc.stores import DirectoryStore, open_store, remove_forgotten
from seqgc.wire import StoreKind, StoreRef

if TYPE_CHECKING:
    from boto3.session import Session

    from seqgc.backends.lambda_ import Transport
    from seqgc.ports import Backend
    from seqgc.training import Remote
    from seqgc.training.run import Delays

__all__ = ["Functions", "remote_workers", "store_ref", "unique_name"]

_MOST_CONNECTIONS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Functions:
    """Functions as their master reaches them.

    ``session`` signs for it. ``endpoint_url`` is that of the Invoke API, unless it is AWS's own;
    ``url`` the function's, empty if it has none. ``mount`` is where the master has their file
    system, and ``bucket`` their ``s3://bucket/prefix``; empty if they have none.
    """

    name: str
    region: str
    session: Session
    alias: str | None = None
    endpoint_url: str | None = None
    url: str = ""
    mount: Path | None = None
    bucket: str = ""


def remote_workers(
    functions: Functions, config: RunConfig, *, name: str, delays: Delays | None, stack: ExitStack
) -> Remote:
    """Return the functions as a run's workers, and the store that they share with their master.

    What earlier runs have left on a file system goes now, and this run's folder with ``stack``.
    """
    from seqgc.backends.lambda_ import LambdaBackend
    from seqgc.training import Remote
    from seqgc.training.factories import workload_of

    run_id, choice = unique_name(name), chosen_store(config)
    workload = workload_of(config.models, precision=config.precision)
    fixed = config.probe is None and config.retune is None  # else schemes change in the run
    ref = store_ref(choice.kind, functions, run_id)
    s3_client = partial(functions.session.client, "s3")
    shared = open_store(ref, mount=functions.mount, s3_client=s3_client)
    if isinstance(shared, DirectoryStore) and functions.mount is not None:
        remove_forgotten(functions.mount)
        stack.callback(shared.sweep)  # unless a late answer lies there

    def open_backend(n: int) -> Backend:
        backend = LambdaBackend(
            n,
            _open_transport(functions, config),
            workload=workload,
            store=ref,
            shared=shared,
            run_id=run_id,
            rounding_name=name,
            code=config.scheme[:100] if fixed else "",
            delays=delays,
            payload=config.payload,
            stochastic_rounding=config.stochastic_rounding,
            warm_up_rounds=config.function.warm_up,
        )
        sys.stderr.write(f"store: {choice}\n")
        return backend

    return Remote(open=open_backend, store=shared, grace_s=as_deployed(config).timeout_s)


def store_ref(kind: StoreKind, functions: Functions, run_id: str) -> StoreRef:
    """Return where a run's functions find weights, and put large answers."""
    match kind:
        case "directory":
            return StoreRef(kind=kind, location=run_id)
        case "s3":
            return StoreRef(kind=kind, location=f"{functions.bucket}/{run_id}")
        case "inline":
            return StoreRef(kind=kind)


def unique_name(name: str) -> str:
    """Return a run's name that no other run has, of characters that every store takes."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:80].lstrip(".-") or "run"
    return f"{plain}-{uuid.uuid4().hex[:12]}"


def _open_transport(functions: Functions, config: RunConfig) -> Transport:
    from seqgc.backends.lambda_ import (
        Boto3Transport,
        CurlTransport,
        HttpTransport,
        Limits,
        Target,
    )

    kind = config.function.transport
    limits = Limits(
        timeout_s=as_deployed(config).timeout_s,
        connections=max(_MOST_CONNECTIONS, 4 * config.workers),
    )
    if kind == "boto3":
        return Boto3Transport(
            functions.name,
            qualifier=functions.alias,
            limits=limits,
            region=functions.region,
            endpoint_url=functions.endpoint_url,
            session=functions.session,
        )
    if kind == "http" and functions.url:
        target = Target.function_url(functions.url, region=functions.region)
    else:
        target = Target.invoke_api(
            functions.name,
            region=functions.region,
            qualifier=functions.alias,
            endpoint_url=functions.endpoint_url,
        )
    signed = CurlTransport if kind == "curl" else HttpTransport
    return signed(target, limits=limits, credentials=functions.session.get_credentials())
