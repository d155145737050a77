"""Checks of what is deployed: the function, its alias, the network and the file system."""

from __future__ import annotations

from typing import Any, Final

from seqgc.deploy._check import Check, Patient, failed, passed
from seqgc.deploy._deployment import Deployment

__all__ = ["alias", "function", "mount", "network", "subnets"]

NFS: Final = 2049
_DEPLOY: Final = "seqgc deploy --stack {stack} --region {region}"


def function(patient: Patient, made: Deployment) -> Check:
    """Whether the function can be invoked, and is as it was deployed."""
    found = patient.client("lambda").get_function_configuration(
        FunctionName=made.function_name, Qualifier=made.alias
    )
    state, update = found.get("State", "Active"), found.get("LastUpdateStatus", "Successful")
    if state not in ("Active", "Inactive") or update != "Successful":  # Inactive: wakes when asked
        why = found.get("StateReason") or found.get("LastUpdateStatusReason") or "no reason given"
        detail = f"state {state}, last update {update}: {why}"
        wait = f"aws lambda wait function-active-v2 --function-name {made.function_name}"
        starting = "Pending" in state or update == "InProgress"
        remedy = f"{wait} --region {made.region}" if starting else remedy_of(made)
        return failed("function", detail, remedy=remedy)
    memory_mb, timeout_s = int(found["MemorySize"]), int(found["Timeout"])
    detail = f"{memory_mb} MB, {timeout_s} s"
    if (memory_mb, timeout_s) != (made.memory_mb, made.timeout_s):
        detail += f" where {made.memory_mb} MB, {made.timeout_s} s were deployed"
        return failed("function", detail, remedy=remedy_of(made))
    return passed("function", f"{made.function_name}, {detail}")


def alias(patient: Patient, made: Deployment) -> Check:
    """Whether there is the alias, and it means one version."""
    found = patient.client("lambda").get_alias(FunctionName=made.function_name, Name=made.alias)
    split = found.get("RoutingConfig", {}).get("AdditionalVersionWeights")
    if split:
        detail = f"{made.alias!r} is divided among versions {found['FunctionVersion']}, {split}"
        return failed("alias", detail, remedy=remedy_of(made))
    return passed("alias", f"{made.alias!r} is version {found['FunctionVersion']}")


def network(patient: Patient, made: Deployment) -> Check:
    """Whether the security group's members reach each other by NFS, and nobody else does."""
    group = patient.client("ec2").describe_security_groups(GroupIds=[made.security_group_id])
    (found,) = group["SecurityGroups"]
    for way, key in (("in", "IpPermissions"), ("out", "IpPermissionsEgress")):
        if not any(_is_nfs_to(rule, made.security_group_id) for rule in found[key]):
            detail = f"{made.security_group_id} has no rule for port {NFS} {way} among its members"
            return failed("network", detail, remedy=remedy_of(made))
    foreign = [rule for rule in found["IpPermissions"] if not _is_nfs_to(rule, found["GroupId"])]
    if foreign:
        detail = f"{made.security_group_id} lets in more than its members: {len(foreign)} rules"
        remedy = (
            f"aws ec2 describe-security-group-rules --region {made.region} "
            f"--filters Name=group-id,Values={made.security_group_id}"
        )
        return failed("network", detail, remedy=remedy)
    return passed("network", f"{made.security_group_id} is open to itself on {NFS} only")


def subnets(patient: Patient, made: Deployment) -> Check:
    """Whether the function is in its VPC, in subnets that still have addresses."""
    config = _vpc_config(patient, made)
    if made.security_group_id not in config.get("SecurityGroupIds", []):
        detail = f"the function is not a member of {made.security_group_id}"
        return failed("subnets", detail, remedy=remedy_of(made))
    ids = list(config.get("SubnetIds", []))
    found = patient.client("ec2").describe_subnets(SubnetIds=ids)["Subnets"]
    full = [each["SubnetId"] for each in found if each["AvailableIpAddressCount"] < 1]
    zones = {each["AvailabilityZone"] for each in found}
    if full:
        detail = f"no address is left in {', '.join(full)}"
        remedy = f"{remedy_of(made)} --vpc-id VPC --subnets OTHER,SUBNETS"
        return failed("subnets", detail, remedy=remedy)
    return passed("subnets", f"{', '.join(ids)} in {len(zones)} zones")


def mount(patient: Patient, made: Deployment) -> Check:
    """Whether the file system can be mounted from every subnet of the function."""
    client = patient.client("efs")
    (system,) = client.describe_file_systems(FileSystemId=made.file_system_id)["FileSystems"]
    targets = client.describe_mount_targets(FileSystemId=made.file_system_id)["MountTargets"]
    usable = {
        target["SubnetId"]
        for target in targets
        if target["LifeCycleState"] == "available"
        and made.security_group_id in _groups_of(client, target["MountTargetId"])
    }
    without = set(_vpc_config(patient, made).get("SubnetIds", [])) - usable
    if without:
        detail = f"{made.file_system_id} has no available mount target for {sorted(without)}"
        return failed("mount", detail, remedy=remedy_of(made))
    if not system.get("Encrypted"):
        return failed("mount", f"{made.file_system_id} is not encrypted", remedy=remedy_of(made))
    return passed("mount", f"{made.file_system_id}, {len(targets)} mount targets, encrypted")


def remedy_of(made: Deployment) -> str:
    """Return the command that makes the stack what it should be."""
    return _DEPLOY.format(stack=made.stack, region=made.region)


def _groups_of(efs: Any, target: str) -> list[str]:
    answer = efs.describe_mount_target_security_groups(MountTargetId=target)
    return list(answer["SecurityGroups"])


def _vpc_config(patient: Patient, made: Deployment) -> dict[str, Any]:
    found = patient.client("lambda").get_function_configuration(
        FunctionName=made.function_name, Qualifier=made.alias
    )
    config: dict[str, Any] = found.get("VpcConfig", {})
    return config


def _is_nfs_to(rule: dict[str, Any], group: str) -> bool:
    """Whether a rule is for NFS, and for that group alone."""
    ports = (rule.get("IpProtocol"), rule.get("FromPort"), rule.get("ToPort"))
    groups = [pair.get("GroupId") for pair in rule.get("UserIdGroupPairs", [])]
    others = [
        *rule.get("IpRanges", []),
        *rule.get("Ipv6Ranges", []),
        *rule.get("PrefixListIds", []),
    ]
    return ports == ("tcp", NFS, NFS) and groups == [group] and not others
