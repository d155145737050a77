"""The Invoke API through boto3."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from seqgc.backends.lambda_._errors import reply_of
from seqgc.backends.lambda_._sockets import Sockets
from seqgc.backends.lambda_._threads import ThreadedTransport
from seqgc.backends.lambda_._transport import READ_GRACE_S, Reply
from seqgc.errors import ParameterError
from seqgc.ports import Clock

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.client import BaseClient

__all__ = ["Boto3Transport"]


class Boto3Transport(ThreadedTransport):
    """Invokes by ``boto3.client("lambda").invoke``, in a thread each; a `Transport`.

    It is the one to begin with: credentials, endpoints, proxies and certificates are boto3's
    business. Its cost is the processor's time, a few ms per invocation: see `AsyncTransport`.

    Parameters
    ----------
    function_name
        The function's name or ARN.
    qualifier
        An alias or version; None: the newest, unpublished one.
    timeout_s
        The function's own time-out, seconds; its answer is waited for a little longer.
    connections
        Most invocations at once: at least the workers and their outstanding stragglers. What
        exceeds it waits here.
    connect_timeout_s
        For a connection to be made, seconds. `close` may take as long if one hangs.
    region, endpoint_url, session
        As boto3's; None: what it finds.
    clock
        What replies are stamped with; `time.monotonic` unless given.

    Raises
    ------
    ParameterError
        If ``connections`` is not positive, or the endpoint no URL.

    Examples
    --------
    >>> transport = Boto3Transport("seqgc-worker", region="eu-west-1", timeout_s=60.0)
    >>> transport.poll(0.0)
    []
    >>> transport.close()
    """

    def __init__(
        self,
        function_name: str,
        *,
        qualifier: str | None = None,
        timeout_s: float = 900.0,
        connections: int = 1024,
        connect_timeout_s: float = 5.0,
        region: str | None = None,
        endpoint_url: str | None = None,
        session: Session | None = None,
        clock: Clock | None = None,
    ) -> None:
        import boto3
        from botocore.config import Config

        super().__init__(connections=connections, clock=clock)
        config = Config(
            retries={"total_max_attempts": 1},  # who repeats an invocation decides the scheduler
            max_pool_connections=connections,
            connect_timeout=connect_timeout_s,
            read_timeout=timeout_s + READ_GRACE_S,
            tcp_keepalive=True,  # a silent quarter of an hour is longer than many a NAT remembers
        )
        try:
            self._client = (session or boto3.Session()).client(
                "lambda", config=config, region_name=region, endpoint_url=endpoint_url
            )
        except ValueError as error:  # boto3's own, of what is given or configured
            raise ParameterError("endpoint_url", f"must be a URL ({error})", endpoint_url) from None
        self._function = {"FunctionName": function_name}
        if qualifier is not None:
            self._function["Qualifier"] = qualifier
        _watch(self._client, self._sockets)

    def _send(self, tag: int, body: bytes) -> Reply:
        from botocore.exceptions import ClientError

        try:
            answer = self._client.invoke(**self._function, Payload=body, LogType="Tail")
        except ClientError as error:
            told, meta = error.response, error.response["ResponseMetadata"]
            body = json.dumps(
                {"Message": told["Error"].get("Message"), "Reason": told.get("Reason")}
            ).encode()
            return reply_of(
                tag,
                0.0,
                meta["HTTPStatusCode"],
                body,
                code=told["Error"].get("Code", ""),
                retry_after=meta["HTTPHeaders"].get("retry-after", ""),
            )
        return reply_of(
            tag,
            0.0,
            answer["StatusCode"],
            answer["Payload"].read(),
            function_error_kind=answer.get("FunctionError", ""),
            log_tail=answer.get("LogResult", ""),
        )

    def _release(self) -> None:
        self._client.close()


def _watch(client: BaseClient, sockets: Sockets) -> None:
    """Have ``sockets`` know the client's connections.

    botocore has no public way to reach them; a session of our own would have to guess its proxies
    and certificates.
    """
    http = client._endpoint.http_session
    watched = {
        scheme: sockets.watched(pool) for scheme, pool in http._pool_classes_by_scheme.items()
    }
    http._pool_classes_by_scheme = http._manager.pool_classes_by_scheme = watched
