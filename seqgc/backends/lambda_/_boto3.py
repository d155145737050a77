"""The Invoke API through boto3."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from seqgc.backends.lambda_._errors import read_whole, reply_of
from seqgc.backends.lambda_._sockets import Sockets
from seqgc.backends.lambda_._threads import ThreadedTransport
from seqgc.backends.lambda_._transport import Limits, Reply
from seqgc.errors import ParameterError
from seqgc.ports import Clock

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.client import BaseClient

__all__ = ["Boto3Transport"]


class Boto3Transport(ThreadedTransport):
    """Invokes by ``boto3.client("lambda").invoke``, in a thread each; a `Transport`.

    It is the one to begin with: credentials, endpoints, proxies and certificates are boto3's
    business. Its cost is the processor's time, a few ms per invocation: see `CurlTransport`.

    Parameters
    ----------
    function_name
        The function's name or ARN.
    qualifier
        An alias or version; None: the newest, unpublished one.
    limits
        Of time, connections and bytes; None: the default ones.
    region, endpoint_url, session
        As boto3's; None: what it finds.
    clock
        What replies are stamped with; `time.monotonic` unless given.

    Raises
    ------
    ParameterError
        If the endpoint is no URL.

    Examples
    --------
    >>> transport = Boto3Transport("seqgc-worker", region="eu-west-1")
    >>> transport.poll(0.0)
    []
    >>> transport.close()
    """

    def __init__(
        self,
        function_name: str,
        *,
        qualifier: str | None = None,
        limits: Limits | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        session: Session | None = None,
        clock: Clock | None = None,
    ) -> None:
        import boto3
        from botocore.config import Config

        super().__init__(limits, clock=clock)
        config = Config(
            retries={"total_max_attempts": 1},  # who repeats an invocation decides the scheduler
            max_pool_connections=self._limits.connections,
            connect_timeout=self._limits.connect_timeout_s,
            read_timeout=self._limits.answer_s,
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
            refusal, meta = error.response, error.response["ResponseMetadata"]
            fields = {"Message": refusal["Error"].get("Message"), "Reason": refusal.get("Reason")}
            code = refusal["Error"].get("Code", "")
            headers = {**meta["HTTPHeaders"], "x-amzn-errortype": code}
            return reply_of(tag, 0.0, meta["HTTPStatusCode"], json.dumps(fields).encode(), headers)
        body = read_whole(answer["Payload"].read, max_bytes=self._limits.max_answer_bytes)
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        return reply_of(tag, 0.0, answer["StatusCode"], body, headers)

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
