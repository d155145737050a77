"""Who may call the function: a key pair for each service, by AWS Signature Version 4.

See "Create a signed AWS API request" in AWS's IAM user guide. Any process of this machine may open
a connection to the service; one that does not know the key pair gets nothing, and what it sends is
not kept.
"""

from __future__ import annotations

import calendar
import hashlib
import hmac
import re
import secrets
import time
from typing import NamedTuple, Self
from urllib.parse import quote

from seqgc.local_lambda._http_server import Request

__all__ = ["KeyPair"]

_METHOD = "AWS4-HMAC-SHA256"
_AUTHORIZATION = re.compile(
    rf"{_METHOD} Credential=(?P<key>[^/\s]+)/(?P<day>\d{{8}})/(?P<region>[a-z0-9-]+)/lambda/"
    r"aws4_request, ?SignedHeaders=(?P<names>[a-z0-9;-]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
_VALID_S = 300.0  # a signature's age, both ways


class KeyPair(NamedTuple):
    """What callers of a service sign with, as ``boto3.Session(*keys)`` does."""

    access_key_id: str
    secret_access_key: str

    @classmethod
    def new(cls) -> Self:
        """Return one that nobody else has."""
        return cls(f"LOCAL{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30))

    def is_named(self, request: Request) -> bool:
        """Whether a request's head names this key; all that can be told before its body is read."""
        match = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
        return match is not None and _equal(match["key"], self.access_key_id)

    def has_signed(self, request: Request) -> bool:
        """Whether a request was signed with this pair, as it is, in the last five minutes."""
        headers = request.headers
        match = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        if match is None or request.body is None or not _equal(match["key"], self.access_key_id):
            return False
        names, at = match["names"].split(";"), headers.get("x-amz-date", "")
        due = {"host", *(name for name in headers if name.startswith("x-amz-"))}
        if not due.issubset(names) or not at.startswith(match["day"]) or not _is_recent(at):
            return False
        lines = "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in names)
        path, query = quote(request.path, safe="/~"), "&".join(sorted(request.query.split("&")))
        digest = hashlib.sha256(request.body).hexdigest()
        canonical = f"{request.method}\n{path}\n{query}\n{lines}\n{match['names']}\n{digest}"
        scope = (match["day"], match["region"], "lambda", "aws4_request")
        hashed = hashlib.sha256(canonical.encode("latin-1")).hexdigest()
        key = f"AWS4{self.secret_access_key}".encode()
        for step in (*scope, f"{_METHOD}\n{at}\n{'/'.join(scope)}\n{hashed}"):
            key = hmac.digest(key, step.encode(), "sha256")
        return _equal(key.hex(), match["signature"])


def _is_recent(at: str) -> bool:
    try:
        signed_at = calendar.timegm(time.strptime(at, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        return False
    return abs(time.time() - signed_at) <= _VALID_S


def _equal(given: str, due: str) -> bool:
    """Compare in a time that says nothing of where they differ."""
    return hmac.compare_digest(given.encode(), due.encode())
