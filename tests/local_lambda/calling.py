"""Real clients of AWS's, told where the local service is."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from seqgc.local_lambda import LocalLambda

REGION = "us-east-1"
HANDLER = "tests.local_lambda.functions.handler"


@dataclass(frozen=True, kw_only=True)
class Reply:
    value: Any
    error: str
    log: str
    request_id: str
    version: str


def client(service: LocalLambda) -> Any:
    """boto3, that tries once and has room for many."""
    return boto3.client(
        "lambda",
        endpoint_url=service.endpoint_url,
        region_name=REGION,
        aws_access_key_id=service.keys.access_key_id,
        aws_secret_access_key=service.keys.secret_access_key,
        config=Config(retries={"total_max_attempts": 1}, max_pool_connections=64),
    )


def call(aws: Any, service: LocalLambda, **event: Any) -> Reply:
    payload = json.dumps(event).encode()
    got = aws.invoke(FunctionName=service.function_name, Payload=payload, LogType="Tail")
    return Reply(
        value=json.loads(got["Payload"].read()),
        error=got.get("FunctionError", ""),
        log=base64.b64decode(got["LogResult"]).decode(),
        request_id=got["ResponseMetadata"]["RequestId"],
        version=got["ExecutedVersion"],
    )


def signed(
    service: LocalLambda, url: str, *, data: bytes = b"", content_type: str = "application/json"
) -> dict[str, str]:
    """Headers of a POST to a function URL."""
    request = AWSRequest("POST", url, data=data, headers={"Content-Type": content_type})
    SigV4Auth(Credentials(*service.keys), "lambda", REGION).add_auth(request)
    return dict(request.headers)
