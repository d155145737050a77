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

__all__ = ["Check", "Examination", "Patient", "examine", "failed", "passed", "skipped"]

Status: TypeAlias = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at and found; ``remedy`` is a command that mends it, empty unless failed."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def passed(name: str, detail: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(name=name, status="ok", detail=detail)


def failed(name: str, detail: str, *, remedy: str) -> Check:
    """Return a check that found a fault."""
    return Check(name=name, status="failed", detail=detail, remedy=remedy)


def skipped(name: str, why: str) -> Check:
    """Return a check that there was no use in making."""
    return Check(name=name, status="skipped", detail=why)


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


Examination: TypeAlias = Callable[[], Check]


def examine(name: str, examination: Examination, *, remedy: str) -> Check:
    """Make a check; whatever AWS refuses is what it found."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return examination()
    except (BotoCoreError, ClientError) as error:
        message, known = in_one_line(error)
        return failed(name, message, remedy=known or remedy)
    except (SeqgcError, OSError) as error:
        return failed(name, " ".join(str(error).split()), remedy=remedy)
