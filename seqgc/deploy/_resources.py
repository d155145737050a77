"""Checks of what is deployed: the function, its alias, the network and the file system.

A fault that names no remedy of its own is mended by deploying once more.
"""

from __future__ import annotations

from typing import Any, Final

from seqgc.deploy._check import Finding, Patient
from seqgc.deploy._deployment import Deployment

__all__ = ["alias", "function", "mount", "network", "subnets"]

NFS: Final = 2049


def function(patient: Patient, deployment: Deployment) -> str:
    """Whether the function can be invoked, and is as it was deployed."""
    config = _configuration(patient, deployment)
    state, update = config.get("State", "Active"), config.get("LastUpdateStatus", "Successful")
    if state not in ("Active", "Inactive") or update != "Successful":  # Inactive: wakes when asked
        why = config.get("StateReason") or config.get("LastUpdateStatusReason") or "no reason given"
        wait = f"aws lambda wait function-active-v2 --function-name {deployment.function_name}"
        starting = "Pending" in state or update == "InProgress"
        remedy = f"{wait} --region {deployment.region}" if starting else ""
        raise Finding(f"state {state}, last update {update}: {why}", remedy=remedy)
    memory_mb, timeout_s = int(config["MemorySize"]), int(config["Timeout"])
    detail = f"{memory_mb} MB, {timeout_s} s"
    if (memory_mb, timeout_s) != (deployment.memory_mb, deployment.timeout_s):
        intended = f"{deployment.memory_mb} MB, {deployment.timeout_s} s"
        raise Finding(f"{detail} where {intended} were deployed")
    return f"{deployment.function_name}, {detail}"


def alias(patient: Patient, deployment: Deployment) -> str:
    """Whether there is the alias, and it means one version."""
    name = deployment.alias
    target = patient.client("lambda").get_alias(FunctionName=deployment.function_name, Name=name)
    if split := target.get("RoutingConfig", {}).get("AdditionalVersionWeights"):
        raise Finding(f"{name!r} is divided among versions {target['FunctionVersion']}, {split}")
    return f"{name!r} is version {target['FunctionVersion']}"


def network(patient: Patient, deployment: Deployment) -> str:
    """Whether the security group's members reach each other by NFS, and nobody else does."""
    group_id = deployment.security_group_id
    answer = patient.client("ec2").describe_security_groups(GroupIds=[group_id])
    (group,) = answer["SecurityGroups"]
    for way, key in (("in", "IpPermissions"), ("out", "IpPermissionsEgress")):
        if not any(_is_nfs_to(rule, group_id) for rule in group[key]):
            raise Finding(f"{group_id} has no rule for port {NFS} {way} among its members")
    foreign = [rule for rule in group["IpPermissions"] if not _is_nfs_to(rule, group_id)]
    if foreign:
        remedy = (
            f"aws ec2 describe-security-group-rules --region {deployment.region} "
            f"--filters Name=group-id,Values={group_id}"
        )
        detail = f"{group_id} lets in more than its members: {len(foreign)} rules"
        raise Finding(detail, remedy=remedy)
    return f"{group_id} is open to itself on {NFS} only"


def subnets(patient: Patient, deployment: Deployment) -> str:
    """Whether the function is in its VPC, in subnets that still have addresses."""
    config = _configuration(patient, deployment).get("VpcConfig", {})
    if deployment.security_group_id not in config.get("SecurityGroupIds", []):
        raise Finding(f"the function is not a member of {deployment.security_group_id}")
    ids = list(config.get("SubnetIds", []))
    described = patient.client("ec2").describe_subnets(SubnetIds=ids)["Subnets"]
    full = [each["SubnetId"] for each in described if each["AvailableIpAddressCount"] < 1]
    zones = {each["AvailabilityZone"] for each in described}
    if full:
        remedy = f"{deployment.deploy_command} --vpc-id VPC --subnets OTHER,SUBNETS"
        raise Finding(f"no address is left in {', '.join(full)}", remedy=remedy)
    return f"{', '.join(ids)} in {len(zones)} zones"


def mount(patient: Patient, deployment: Deployment) -> str:
    """Whether the file system can be mounted from every subnet of the function."""
    client, system_id = patient.client("efs"), deployment.file_system_id
    (system,) = client.describe_file_systems(FileSystemId=system_id)["FileSystems"]
    targets = client.describe_mount_targets(FileSystemId=system_id)["MountTargets"]
    usable = {
        target["SubnetId"]
        for target in targets
        if target["LifeCycleState"] == "available"
        and deployment.security_group_id in _groups_of(client, target["MountTargetId"])
    }
    vpc = _configuration(patient, deployment).get("VpcConfig", {})
    if without := sorted(set(vpc.get("SubnetIds", [])) - usable):
        raise Finding(f"{system_id} has no available mount target for {without}")
    if not system.get("Encrypted"):
        raise Finding(f"{system_id} is not encrypted")
    return f"{system_id}, {len(targets)} mount targets, encrypted"


def _groups_of(efs: Any, target: str) -> list[str]:
    answer = efs.describe_mount_target_security_groups(MountTargetId=target)
    return list(answer["SecurityGroups"])


def _configuration(patient: Patient, deployment: Deployment) -> dict[str, Any]:
    config: dict[str, Any] = patient.client("lambda").get_function_configuration(
        FunctionName=deployment.function_name, Qualifier=deployment.alias
    )
    return config


def _is_nfs_to(rule: dict[str, Any], group: str) -> bool:
    """Whether a rule is for NFS, and for that group alone."""
    ports = (rule.get("IpProtocol"), rule.get("FromPort"), rule.get("ToPort"))
    groups = [pair.get("GroupId") for pair in rule.get("UserIdGroupPairs", [])]
    others = any(rule.get(key) for key in ("IpRanges", "Ipv6Ranges", "PrefixListIds"))
    return ports == ("tcp", NFS, NFS) and groups == [group] and not others
