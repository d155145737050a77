"""What can be chosen of a deployment."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Annotated, Final, Literal, TypeAlias

from seqgc.deploy._prices import Architecture
from seqgc.errors import ParameterError, require_int

__all__ = ["DeployOptions", "in_template"]

_LIMITS: Final = (
    ("memory_mb", 256, 10240),
    ("timeout_s", 1, 900),
    ("provisioned_mibps", 1, 3414),
    ("reserved_concurrency", 0, 10**6),
)
_STACK_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")

Package: TypeAlias = Literal["image", "zip"]
ThroughputMode: TypeAlias = Literal["bursting", "elastic", "provisioned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployOptions:
    """The parameters of ``template.yaml``, and options of ``seqgc deploy``: their help is here.

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

    stack: Annotated[str, "Name of the CloudFormation stack."] = "seqgc"
    package: Annotated[
        Package, "image: PyTorch models; needs Docker. zip: numpy workloads only."
    ] = "image"
    image_uri: Annotated[str, "An image that is in ECR already; builds nothing."] = ""
    architecture: Annotated[Architecture, "Processor of the functions."] = "arm64"
    memory_mb: Annotated[int, "Memory of a function, MB."] = 2560
    timeout_s: Annotated[int, "Longest invocation, seconds."] = 60
    reserved_concurrency: Annotated[
        int, "Invocations at a time set aside for the function; 0: none."
    ] = 0
    vpc_id: Annotated[str, "An existing VPC; by default one is made."] = ""
    subnets: Annotated[tuple[str, ...], "Two subnets of the existing VPC: A,B."] = ()
    route_table_id: Annotated[str, "Their route table, to be given a gateway endpoint for S3."] = ""
    throughput_mode: Annotated[ThroughputMode, "Throughput mode of the file system."] = "elastic"
    provisioned_mibps: Annotated[int, "MiB/s, if provisioned."] = 64
    function_url: Annotated[
        bool, "--function-url", "Make a URL too; callers sign with IAM credentials."
    ] = False
    log_retention_days: Annotated[int, "Days for which logs are kept."] = 14

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
        plain = asdict(self)
        del plain["stack"], plain["subnets"]
        subnet_a, subnet_b = self.subnets or ("", "")
        return {in_template(name): str(value) for name, value in plain.items()} | {
            "SubnetA": subnet_a,
            "SubnetB": subnet_b,
            "S3PrefixListId": prefix_list,
            "FunctionUrl": "yes" if self.function_url else "no",
        }


def in_template(field: str) -> str:
    """Return the name that a field has in the template: ``MemoryMb`` is ``memory_mb``."""
    return "".join(word.capitalize() for word in field.split("_"))
