"""One thing that a doctor looks at, and what there is to look at."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from seqgc.deploy._aws import client_config, in_one_line
from seqgc.deploy._deployment import Deployment
from seqgc.errors import SeqgcError

if TYPE_CHECKING:
    from boto3.session import Session

__all__ = ["Check", "Examination", "Finding", "Patient", "examine"]

Status: TypeAlias = Literal["ok", "failed", "skipped"]
Examination: TypeAlias = Callable[[], str]
"""Returns what it saw, if that is well; raises a `Finding` or whatever AWS refuses, if not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at and found; ``remedy`` is a command that mends it, empty unless failed."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


class Finding(Exception):
    """A fault, with the command that mends it; or why there was no use in looking."""

    def __init__(self, detail: str, *, remedy: str = "", status: Status = "failed") -> None:
        self.detail, self.remedy, self.status = detail, remedy, status
        super().__init__(detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What is examined: an account, and the functions deployed in it, if any.

    ``workers`` functions are to run at a time. ``now`` tells the seconds since 1970.
    """

    session: Session
    deployment: Deployment | None
    workers: int
    now: Callable[[], float] = field(default=time.time)
    _clients: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def region(self) -> str:
        """The region that is asked: the deployment's, else the session's."""
        return self.deployment.region if self.deployment else str(self.session.region_name)

    def client(self, service: str) -> Any:
        """Return a client of boto3, which has no types of its own, one for each service."""
        if service not in self._clients:
            self._clients[service] = self.new_client(service, config=client_config())
        return self._clients[service]

    def new_client(self, service: str, *, config: object) -> Any:
        """Return a client that is set up otherwise."""
        client: Any = self.session.client  # boto3's overloads want a literal name
        return client(service, region_name=self.region, config=config)


def examine(name: str, examination: Examination, *, remedy: str) -> Check:
    """Make a check; ``remedy`` is for faults and refusals of AWS that name none of their own."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return Check(name=name, status="ok", detail=examination())
    except Finding as finding:
        known, detail, status = finding.remedy, finding.detail, finding.status
    except (BotoCoreError, ClientError) as error:
        (detail, known), status = in_one_line(error), "failed"
    except (SeqgcError, OSError) as error:
        known, detail, status = "", " ".join(str(error).split()), "failed"
    mends = (known or remedy) if status == "failed" else ""
    return Check(name=name, status=status, detail=detail, remedy=mends)
