"""What a doctor looks at: the account, what is deployed in it, and the way to it and back.

An examination returns what it saw, if that is well, and raises a `Finding`, or whatever AWS
refuses, if not. Of what is deployed, a finding that names no remedy is mended by deploying again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np

from seqgc import wire
from seqgc._aws import open_client
from seqgc.backends.lambda_ import MASTER_PORTS
from seqgc.deploy._aws import client_config
from seqgc.deploy._deployment import Deployment
from seqgc.deploy._versions import current_version
from seqgc.errors import ParameterError, WorkerError, one_line
from seqgc.ports import Arrival, Backend, Task, WeightedPoints, WeightRef, WorkItem

if TYPE_CHECKING:
    from boto3.session import Session

    from seqgc.backends.lambda_ import Address

Status: TypeAlias = Literal["ok", "failed", "skipped"]

CLOCK_LIMIT_S: Final = 300.0  # SigV4 refuses a signature that is older, or younger
CONCURRENCY_QUOTA: Final = "L-B99A9384"  # Lambda's "Concurrent executions"
NFS: Final = 2049
_FRAME_BYTES: Final = 4096  # of a message, beside its numbers
_PROBE: Final = 3  # numbers that the probe asks for
_MESSAGES: Final = 5  # of which the quickest counts
_CALLS_WITHIN_S: Final = 60.0
_LAMBDA_S: Final = 900.0
_REFUSED: Final = 256  # characters of what a function says that failed


class Finding(Exception):
    """A fault, with the command that mends it; or why there was no use in looking."""

    def __init__(self, detail: str, *, remedy: str = "", status: Status = "failed") -> None:
        self.detail, self.remedy, self.status = detail, remedy, status
        super().__init__(detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What is examined: an account, and the functions deployed in it, if any."""

    session: Session
    deployment: Deployment | None
    workers: int
    probes: bool  # whether they may be sent tasks
    address: Address | None  # where functions that stay are to call this machine
    now: Callable[[], float]  # seconds since 1970
    _clients: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def concurrent(self) -> int:
        """How many functions are to run at a time: of those that stay each one's successor too."""
        return self.workers if self.address is None else 2 * self.workers

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
        return open_client(self.session, service, region_name=self.region, config=config)


def credentials(patient: Patient) -> str:
    """Whose credentials these are; that AWS takes them."""
    return str(patient.client("sts").get_caller_identity()["Arn"])


def region(patient: Patient) -> str:
    """Whether Lambda is there, and that it is where the functions are."""
    known = patient.session.get_available_regions("lambda")
    own = str(patient.session.region_name)
    if known and patient.region not in known:
        detail = f"botocore knows no Lambda in {patient.region!r}"
        raise Finding(detail, remedy="pip install --upgrade boto3, or see --region")
    if patient.region != own:
        detail = f"the functions are in {patient.region}, this session is in {own}"
        raise Finding(detail, remedy=f"export AWS_REGION={patient.region}")
    return patient.region


def clock(patient: Patient) -> str:
    """Whether this machine's clock is within what signatures allow for of AWS's."""
    from botocore.exceptions import ClientError

    try:
        answer: dict[str, Any] = patient.client("sts").get_caller_identity()
    except ClientError as error:  # a refusal has a date too; a wrong clock may be its cause
        answer = dict(error.response)
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if "date" not in headers:
        raise Finding("the answer has no date", status="skipped")
    theirs = parsedate_to_datetime(headers["date"])
    if theirs.tzinfo is None:
        theirs = theirs.replace(tzinfo=UTC)
    ahead_s = patient.now() - theirs.timestamp()
    detail = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} AWS"
    if abs(ahead_s) >= CLOCK_LIMIT_S:
        detail += f"; signatures allow {CLOCK_LIMIT_S:.0f} s"
        raise Finding(detail, remedy="sudo timedatectl set-ntp true")
    return detail


def concurrency(patient: Patient) -> str:
    """Whether as many invocations may run at a time as the workers need."""
    client, wanted = patient.client("lambda"), patient.concurrent
    limits = client.get_account_settings()["AccountLimit"]
    if deployment := patient.deployment:
        own = client.get_function_concurrency(FunctionName=deployment.function_name)
        if (reserved := own.get("ReservedConcurrentExecutions")) is not None:
            detail = f"{reserved} reserved for the function, {wanted} needed"
            if reserved < wanted:
                raise Finding(detail, remedy=f"seqgc deploy --reserved-concurrency {wanted}")
            return detail
    free = int(limits["UnreservedConcurrentExecutions"])
    detail = f"{free} unreserved of {limits['ConcurrentExecutions']}, {wanted} needed"
    return _enough(free, patient, detail)


def quota(patient: Patient) -> str:
    """Whether the quota on concurrent executions is what the workers need."""
    answer = patient.client("service-quotas").get_service_quota(
        ServiceCode="lambda", QuotaCode=CONCURRENCY_QUOTA
    )
    value = float(answer["Quota"]["Value"])
    return _enough(
        value, patient, f"{value:.0f} concurrent executions, {patient.concurrent} needed"
    )


def _enough(concurrent: float, patient: Patient, detail: str) -> str:
    """Refuse less than the workers need; AWS is to keep 100 for what is not reserved."""
    if concurrent < patient.concurrent:
        ask = "aws service-quotas request-service-quota-increase --service-code lambda"
        ask += f" --quota-code {CONCURRENCY_QUOTA}"
        ask += f" --desired-value {max(1000, patient.concurrent + 100)} --region {patient.region}"
        raise Finding(detail, remedy=ask)
    return detail


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
    """Whether the caller may ask which version the alias means, and it is one."""
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
    _require_rules(group, NFS, NFS)
    known = ((NFS, NFS), (MASTER_PORTS[0], MASTER_PORTS[-1]))
    foreign = [
        rule
        for rule in group["IpPermissions"]
        if not any(_is_among_members(rule, group_id, *ports) for ports in known)
    ]
    if foreign:
        show = f"aws ec2 describe-security-group-rules --region {deployment.region}"
        remedy = f"{show} --filters Name=group-id,Values={group_id}"
        detail = f"{group_id} lets in more than its members: {len(foreign)} rules"
        raise Finding(detail, remedy=remedy)
    return f"{group_id} is open to nobody but itself"


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


def _require_rules(group: dict[str, Any], first: int, last: int) -> None:
    """Refuse a group whose members do not reach each other by these ports."""
    name = group["GroupId"]
    for way, key in (("in", "IpPermissions"), ("out", "IpPermissionsEgress")):
        if not any(_is_among_members(rule, name, first, last) for rule in group[key]):
            ports = f"port {first}" if first == last else f"ports {first} to {last}"
            raise Finding(f"{name} has no rule for {ports} {way} among its members")


def _is_among_members(rule: dict[str, Any], group: str, first: int, last: int) -> bool:
    """Whether a rule is for these ports, and for that group alone."""
    ports = (rule.get("IpProtocol"), rule.get("FromPort"), rule.get("ToPort"))
    groups = [pair.get("GroupId") for pair in rule.get("UserIdGroupPairs", [])]
    others = any(rule.get(key) for key in ("IpRanges", "Ipv6Ranges", "PrefixListIds"))
    return ports == ("tcp", first, last) and groups == [group] and not others


def payload(size_bytes: int | None) -> str:
    """Whether so many bytes of results (or weights) fit one request or reply."""
    if size_bytes is None:
        detail = "how many bytes a result has is not known: --parameters"
        raise Finding(detail, status="skipped")
    as_json, limit = wire.envelope_bytes(size_bytes + _FRAME_BYTES), wire.MESSAGE_LIMIT_BYTES
    detail = f"{size_bytes} bytes are {as_json} as JSON, Lambda takes {limit}"
    if as_json > limit:
        half = wire.envelope_bytes(size_bytes // 2 + _FRAME_BYTES) <= limit
        narrower = "seqgc train --payload float16 if it is float32 now, or " if half else ""
        remedy = f"{narrower}seqgc train --store directory (EFS) or --store s3"
        raise Finding(detail, remedy=remedy)
    return detail


def probe(patient: Patient, deployment: Deployment, store: wire.StoreRef) -> str:
    """Send one task whose answer has to go through a store; see that it is answered so."""
    from botocore.config import Config

    if store.kind == "s3" and not deployment.reaches_s3:
        raise Finding("the functions have no way to S3, as deployed", status="skipped")
    if not patient.probes:
        raise Finding("not asked for: --no-invoke", status="skipped")
    run_id = store.location.rpartition("/")[2]
    config = Config(
        connect_timeout=5, read_timeout=deployment.timeout_s + 10, retries={"total_max_attempts": 1}
    )
    answer = patient.new_client("lambda", config=config).invoke(
        FunctionName=current_version(patient.client("lambda"), deployment),  # as a run does
        Payload=wire.to_json(wire.encode(_question(store), run_id=run_id)),
    )
    body = answer["Payload"].read()
    logs = f"aws logs tail /seqgc/{deployment.stack} --since 10m --region {deployment.region}"
    if "FunctionError" in answer:
        reason = one_line(body.decode(errors="replace"), limit=_REFUSED)
        raise Finding(f"the function failed: {reason}", remedy=logs)
    message = wire.decode(wire.from_json(body), run_id=run_id)
    if isinstance(message, wire.FailureMessage):
        raise Finding(message.reason, remedy=logs)
    if not isinstance(message, wire.ReceiptMessage):
        kind = type(message).__name__
        raise Finding(f"the answer did not go through the store: it is a {kind}")
    return f"one task answered, {message.size_bytes} bytes written to {store.kind}"


def resident(patient: Patient, deployment: Deployment) -> str:
    """Let one function call this machine, and see how long a message takes there and back."""
    if (address := patient.address) is None:
        raise Finding("not asked for: --resident", status="skipped")
    from seqgc.backends import lambda_

    answer = patient.client("ec2").describe_security_groups(GroupIds=[deployment.security_group_id])
    _require_rules(answer["SecurityGroups"][0], MASTER_PORTS[0], MASTER_PORTS[-1])
    limit_s = float(deployment.timeout_s)
    try:
        staying = lambda_.Staying(address=address, limit_s=limit_s, start_timeout_s=_CALLS_WITHIN_S)
    except ParameterError as error:
        raise Finding(one_line(error), remedy="seqgc deploy --function-timeout-s 900") from None
    transport = lambda_.Boto3Transport(
        deployment.function_name,
        qualifier=current_version(patient.client("lambda"), deployment).rpartition(":")[2],
        limits=lambda_.Limits(timeout_s=limit_s, connections=4),
        region=deployment.region,
        session=patient.session,
    )
    try:
        with lambda_.ResidentBackend(
            1,
            transport,
            workload=wire.WorkloadRef(name="constant", settings={"size": _PROBE}),
            store=wire.StoreRef(kind="inline"),
            staying=staying,
        ) as backend:
            seconds = [_there_and_back(backend, number) for number in range(_MESSAGES)]
    except WorkerError as error:
        group = deployment.security_group_id
        remedy = f"run the master in the functions' VPC, as a member of {group}; or not --resident"
        raise Finding(one_line(error), remedy=remedy) from None
    finally:
        transport.close()
    left = (
        "" if limit_s >= _LAMBDA_S else f"; replaced every {limit_s:g} s: --function-timeout-s 900"
    )
    return f"a function calls {address.host}, {1e3 * min(seconds):.1f} ms there and back{left}"


def _there_and_back(backend: Backend, number: int) -> float:
    """Return the seconds of a task that asks for nothing; `WorkerError` if it is not answered."""
    task = Task(round=number, worker=0, attempt=0, items=())
    (left_at,) = backend.dispatch(number, [task])
    event = backend.receive(left_at + _CALLS_WITHIN_S)
    if not isinstance(event, Arrival):
        why = f"within {_CALLS_WITHIN_S:g} s" if event is None else event.reason
        raise WorkerError(f"a task of nothing was not answered: {why}", worker=0)
    return event.at - left_at


def _question(store: wire.StoreRef) -> wire.InvokeMessage:
    """Return a task that every image knows, without weights, too large for any reply."""
    nothing = WeightRef(model="probe", version=0, digest="0" * 64, dtype="float32", size=0)
    part = WeightedPoints(
        model="probe", weights=nothing, points=np.zeros(1, dtype=np.int64), coefficients=np.ones(1)
    )
    task = Task(round=0, worker=0, attempt=0, items=(WorkItem(slot=0, parts=(part,)),))
    return wire.InvokeMessage(
        request=wire.TaskMessage(task=task),
        workload=wire.WorkloadRef(name="constant", settings={"size": _PROBE}),
        store=store,
        inline_limit_bytes=0,
    )


# In the order in which to repair what they find; a check is called as its function.
ACCOUNT: Final = (credentials, clock, region, concurrency, quota)
DEPLOYED: Final = (function, alias, network, subnets, mount)
