"""What can be chosen of a deployment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from seqgc.deploy._prices import Architecture
from seqgc.errors import ParameterError, require_int

__all__ = ["DeployOptions", "Package", "ThroughputMode"]

Package: TypeAlias = Literal["image", "zip"]
ThroughputMode: TypeAlias = Literal["bursting", "elastic", "provisioned"]

_LIMITS: Final = (
    ("memory_mb", 256, 10240),
    ("timeout_s", 1, 900),
    ("provisioned_mibps", 1, 3414),
    ("reserved_concurrency", 0, 10**6),
)
_STACK_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployOptions:
    """The parameters of ``template.yaml``.

    ``memory_mb`` in MB, ``timeout_s`` in seconds; ``reserved_concurrency`` 0 sets none aside.
    Without ``vpc_id`` a VPC is made; with it, ``subnets`` are two of its subnets, and
    ``route_table_id`` is theirs if it is to be given a gateway endpoint for S3.

    Examples
    --------
    >>> options = DeployOptions(memory_mb=1769, function_url=True)
    >>> options.function, options.parameters(prefix_list="pl-1")["FunctionUrl"]
    ('ImageWorker', 'yes')
    >>> DeployOptions(vpc_id="vpc-1")
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `subnets` must be two of the existing VPC; got ()
    """

    stack: str = "seqgc"
    package: Package = "image"
    image_uri: str = ""
    architecture: Architecture = "arm64"
    memory_mb: int = 2560
    timeout_s: int = 60
    reserved_concurrency: int = 0
    vpc_id: str = ""
    subnets: tuple[str, ...] = ()
    route_table_id: str = ""
    throughput_mode: ThroughputMode = "elastic"
    provisioned_mibps: int = 64
    function_url: bool = False
    log_retention_days: int = 14

    def __post_init__(self) -> None:
        if not _STACK_NAME.fullmatch(self.stack):
            raise ParameterError("stack", "must be letters, digits and hyphens", self.stack)
        for name, least, most in _LIMITS:
            integer = require_int(name, getattr(self, name), least=least, most=most)
            object.__setattr__(self, name, integer)
        if self.vpc_id and len(set(self.subnets)) != 2:
            raise ParameterError("subnets", "must be two of the existing VPC", self.subnets)
        if not self.vpc_id and (self.subnets or self.route_table_id):
            rule = "must be given with `subnets` and `route_table_id`"
            raise ParameterError("vpc_id", rule, self.vpc_id)
        if self.image_uri and self.package != "image":
            raise ParameterError("image_uri", "needs package 'image'", self.image_uri)

    @property
    def function(self) -> str:
        """The function's logical name in the template."""
        return "ImageWorker" if self.package == "image" else "ZipWorker"

    def parameters(self, *, prefix_list: str) -> dict[str, str]:
        """Return the template's parameters; ``prefix_list`` is the region's of S3."""
        subnet_a, subnet_b = self.subnets or ("", "")
        return {
            "Package": self.package,
            "ImageUri": self.image_uri,
            "Architecture": self.architecture,
            "MemoryMb": str(self.memory_mb),
            "TimeoutS": str(self.timeout_s),
            "ReservedConcurrency": str(self.reserved_concurrency),
            "VpcId": self.vpc_id,
            "SubnetA": subnet_a,
            "SubnetB": subnet_b,
            "RouteTableId": self.route_table_id,
            "S3PrefixListId": prefix_list,
            "ThroughputMode": self.throughput_mode,
            "ProvisionedMibps": str(self.provisioned_mibps),
            "FunctionUrl": "yes" if self.function_url else "no",
            "LogRetentionDays": str(self.log_retention_days),
        }
