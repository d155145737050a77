"""An AWS account that is moto's: control-plane calls have the real API's shapes, nothing runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.cloud import new_session
from tests.deploy.kit import REGION


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A session of boto3 in an empty account."""
    from moto import mock_aws

    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # a third of a second, every time
    # It reads JSON as YAML, a tenth of a second for each stack.
    parse = "moto.cloudformation.models.Stack.parse_template"
    monkeypatch.setattr(parse, staticmethod(json.loads))
    with mock_aws(config={"lambda": {"use_docker": False}}):
        yield new_session()
