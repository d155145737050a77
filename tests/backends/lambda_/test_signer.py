"""Our signatures are botocore's."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from seqgc.backends.lambda_ import Signer, Target

AT = datetime(2030, 2, 28, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize("token", [None, "a/session+token=="])
@pytest.mark.parametrize(
    "target",
    [
        Target.invoke_api("worker", region="eu-west-1"),
        Target.invoke_api("arn:aws:lambda:us-east-1:1:function:w", region="us-east-1"),
        Target.invoke_api(
            "w", region="us-east-1", qualifier="live", endpoint_url="http://127.0.0.1:9001/"
        ),
        Target.function_url("https://abc.lambda-url.eu-west-1.on.aws"),
        Target.function_url("https://abc.lambda-url.eu-west-1.on.aws/"),
    ],
)
def test_a_signature_is_the_one_that_botocore_makes(
    monkeypatch: pytest.MonkeyPatch, target: Target, token: str | None
) -> None:
    monkeypatch.setattr(auth, "get_current_datetime", lambda: AT)
    credentials = Credentials("AKID", "secret", token)
    signer = Signer(target, credentials=credentials, now=AT.timestamp)
    for body in (b"{}", b"", b"\x00" * 1000):
        request = AWSRequest(method="POST", url=target.url, data=body, headers=dict(target.headers))
        auth.SigV4Auth(credentials.get_frozen_credentials(), "lambda", target.region).add_auth(
            request
        )
        assert signer.headers(body) == dict(request.headers.items())


def test_the_day_and_renewed_credentials_change_the_key() -> None:
    target, time = Target.invoke_api("w", region="eu-west-1"), [AT.timestamp()]
    credentials = Credentials("AKID", "secret")
    signer = Signer(target, credentials=credentials, now=lambda: time[0])

    def fresh() -> dict[str, str]:
        return Signer(target, credentials=credentials, now=lambda: time[0]).headers(b"{}")

    first = signer.headers(b"{}")
    time[0] += 1.0  # the next day
    assert signer.headers(b"{}") == fresh() != first
    credentials.secret_key = "renewed"
    assert signer.headers(b"{}") == fresh()
