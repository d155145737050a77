"""Checks of what is deployed: the function, its alias, the network and the file system."""

from __future__ import annotations

from typing import Any, Final

from seqgc.deploy._check import Check, Patient, failed, passed
from seqgc.deploy._deployment import Deployment

__all__ = ["alias", "function", "mount", "network", "subnets"]

NFS: Final = 2049
_DEPLOY: Final = "seqgc deploy --stack {stack} --region {region}"


def function(patient: Patient, deployment: Deployment) -> Check:
    """Whether the function can be invoked, and is as it was deployed."""
    config = _configuration(patient, deployment)
    state, update = config.get("State", "Active"), config.get("LastUpdateStatus", "Successful")
    if state not in ("Active", "Inactive") or update != "Successful":  # Inactive: wakes when asked
        why = config.get("StateReason") or config.get("LastUpdateStatusReason") or "no reason given"
        detail = f"state {state}, last update {update}: {why}"
        wait = f"aws lambda wait function-active-v2 --function-name {deployment.function_name}"
        starting = "Pending" in state or update == "InProgress"
        remedy = f"{wait} --region {deployment.region}" if starting else remedy_of(deployment)
        return failed("function", detail, remedy=remedy)
    memory_mb, timeout_s = int(config["MemorySize"]), int(config["Timeout"])
    detail = f"{memory_mb} MB, {timeout_s} s"
    if (memory_mb, timeout_s) != (deployment.memory_mb, deployment.timeout_s):
        detail += f" where {deployment.memory_mb} MB, {deployment.timeout_s} s were deployed"
        return failed("function", detail, remedy=remedy_of(deployment))
    return passed("function", f"{deployment.function_name}, {detail}")


def alias(patient: Patient, deployment: Deployment) -> Check:
    """Whether there is the alias, and it means one version."""
    name = deployment.alias
    target = patient.client("lambda").get_alias(FunctionName=deployment.function_name, Name=name)
    split = target.get("RoutingConfig", {}).get("AdditionalVersionWeights")
    if split:
        detail = f"{name!r} is divided among versions {target['FunctionVersion']}, {split}"
        return failed("alias", detail, remedy=remedy_of(deployment))
    return passed("alias", f"{name!r} is version {target['FunctionVersion']}")


def network(patient: Patient, deployment: Deployment) -> Check:
    """Whether the security group's members reach each other by NFS, and nobody else does."""
    group_id = deployment.security_group_id
    answer = patient.client("ec2").describe_security_groups(GroupIds=[group_id])
    (group,) = answer["SecurityGroups"]
    for way, key in (("in", "IpPermissions"), ("out", "IpPermissionsEgress")):
        if not any(_is_nfs_to(rule, group_id) for rule in group[key]):
            detail = f"{group_id} has no rule for port {NFS} {way} among its members"
            return failed("network", detail, remedy=remedy_of(deployment))
    foreign = [rule for rule in group["IpPermissions"] if not _is_nfs_to(rule, group_id)]
    if foreign:
        detail = f"{group_id} lets in more than its members: {len(foreign)} rules"
        remedy = (
            f"aws ec2 describe-security-group-rules --region {deployment.region} "
            f"--filters Name=group-id,Values={group_id}"
        )
        return failed("network", detail, remedy=remedy)
    return passed("network", f"{group_id} is open to itself on {NFS} only")


def subnets(patient: Patient, deployment: Deployment) -> Check:
    """Whether the function is in its VPC, in subnets that still have addresses."""
    config = _configuration(patient, deployment).get("VpcConfig", {})
    if deployment.security_group_id not in config.get("SecurityGroupIds", []):
        detail = f"the function is not a member of {deployment.security_group_id}"
        return failed("subnets", detail, remedy=remedy_of(deployment))
    ids = list(config.get("SubnetIds", []))
    described = patient.client("ec2").describe_subnets(SubnetIds=ids)["Subnets"]
    full = [each["SubnetId"] for each in described if each["AvailableIpAddressCount"] < 1]
    zones = {each["AvailabilityZone"] for each in described}
    if full:
        detail = f"no address is left in {', '.join(full)}"
        remedy = f"{remedy_of(deployment)} --vpc-id VPC --subnets OTHER,SUBNETS"
        return failed("subnets", detail, remedy=remedy)
    return passed("subnets", f"{', '.join(ids)} in {len(zones)} zones")


def mount(patient: Patient, deployment: Deployment) -> Check:
    """Whether the file system can be mounted from every subnet of the function."""
    client = patient.client("efs")
    (system,) = client.describe_file_systems(FileSystemId=deployment.file_system_id)["FileSystems"]
    targets = client.describe_mount_targets(FileSystemId=deployment.file_system_id)["MountTargets"]
    usable = {
        target["SubnetId"]
        for target in targets
        if target["LifeCycleState"] == "available"
        and deployment.security_group_id in _groups_of(client, target["MountTargetId"])
    }
    vpc = _configuration(patient, deployment).get("VpcConfig", {})
    without = set(vpc.get("SubnetIds", [])) - usable
    if without:
        detail = f"{deployment.file_system_id} has no available mount target for {sorted(without)}"
        return failed("mount", detail, remedy=remedy_of(deployment))
    if not system.get("Encrypted"):
        return failed(
            "mount", f"{deployment.file_system_id} is not encrypted", remedy=remedy_of(deployment)
        )
    return passed("mount", f"{deployment.file_system_id}, {len(targets)} mount targets, encrypted")


def remedy_of(deployment: Deployment) -> str:
    """Return the command that makes the stack what it should be."""
    return _DEPLOY.format(stack=deployment.stack, region=deployment.region)


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
    others = [
        *rule.get("IpRanges", []),
        *rule.get("Ipv6Ranges", []),
        *rule.get("PrefixListIds", []),
    ]
    return ports == ("tcp", NFS, NFS) and groups == [group] and not others
