"""The choice between functions in a VPC with a file system, and functions without a network.

Functions without a VPC get their weights in requests or from the bucket. Their stack has no file
system, mount targets, security group or endpoint, so that AWS has less to create and to delete. A
file system is needed only for resident functions, which connect to their master inside the VPC, for
a run whose store is the file system, and for data that are larger than the memory of a function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from seqgc.deploy._deployment import DeployOptions
from seqgc.errors import ParameterError

_DROP: Final = "--no-vpc --drop-file-system"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNeeds:
    """The needs of a run that the functions are deployed for.

    ``file_system`` is the reason why the run needs a file system, or empty. ``weights`` says how
    the run moves its weights without a file system.
    """

    file_system: str = ""
    weights: str = "weights go in requests, or by S3 if they do not fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkChoice:
    """The options with ``vpc`` decided, and the reason for the decision."""

    options: DeployOptions
    reason: str

    def __str__(self) -> str:
        return f"{'a VPC with a file system' if self.options.vpc else 'no VPC'}: {self.reason}"


def choose_network(
    options: DeployOptions, *, needs: RunNeeds, outputs: Mapping[str, str]
) -> NetworkChoice:
    """Decide whether functions are deployed in a VPC, with a file system, and whether a master is.

    The options decide first, then the existing stack, then the needs of the run. ``outputs`` has
    the outputs of the existing stack; without a stack it is empty.

    Raises
    ------
    ParameterError
        If the existing stack would lose its file system, or the run or SnapStart does not allow the
        chosen kind.

    Examples
    --------
    >>> print(choose_network(DeployOptions(), needs=RunNeeds(), outputs={}))
    no VPC: weights go in requests, or by S3 if they do not fit; --vpc adds a file system
    >>> needs = RunNeeds(file_system="`resident` in run.toml")
    >>> print(choose_network(DeployOptions(), needs=needs, outputs={}))
    a VPC with a file system: needed for `resident` in run.toml
    """
    file_system = outputs.get("FileSystemId", "")
    if options.vpc is not None:
        vpc, reason = options.vpc, "as requested"
    elif "AliasArn" in outputs:
        kind = f"has the file system {file_system}" if file_system else "has no VPC"
        vpc, reason = bool(file_system), f"the stack {options.stack} {kind}"
    elif options.needs_vpc:
        vpc, reason = True, f"needed for `{options.needs_vpc}`"
    elif needs.file_system:
        vpc, reason = True, f"needed for {needs.file_system}"
    else:
        vpc, reason = False, f"{needs.weights}; --vpc adds a file system"
    if vpc and options.snapstart:
        rule = f"must be left out with a file system ({reason}): SnapStart does not work with EFS"
        remedy = f"deploy with {_DROP}, or with another --stack" if file_system else ""
        raise ParameterError("snapstart", rule, True, remedy)
    if not vpc and needs.file_system:
        rule = f"must have a file system for {needs.file_system} ({reason})"
        raise ParameterError("vpc", rule, False, "deploy with --vpc")
    if not vpc and options.needs_vpc:
        name = options.needs_vpc
        rule = f"needs a VPC, but {reason}"
        raise ParameterError(name, rule, getattr(options, name), "deploy with --vpc")
    if not vpc and file_system:
        if not options.drop_file_system:
            rule = f"must stay: the stack {options.stack} would lose its file system {file_system}"
            remedy = f"{_DROP} leaves it outside of the stack; another --stack keeps both"
            raise ParameterError("vpc", rule, False, remedy)
        delete = f"aws efs delete-file-system --file-system-id {file_system}"
        reason += f"; {file_system} stays outside of the stack until `{delete}`; its VPC may stay"
    has_master = vpc and _has_master(options, outputs)
    return NetworkChoice(options=replace(options, vpc=vpc, with_master=has_master), reason=reason)


def _has_master(options: DeployOptions, outputs: Mapping[str, str]) -> bool:
    """Return True if a master in a VPC is requested, or kept from the existing stack."""
    if options.with_master is None:
        return "MasterImage" in outputs and not options.vpc_id
    return options.with_master
