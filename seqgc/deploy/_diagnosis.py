"""The diagnosis of a deployment: checks of the account, the deployment and the network.

A check is a function that returns a description if it succeeds. If it fails, it raises a `_Fault`
or an error of AWS. The remedy of a fault of the deployment is to deploy again, unless the fault
names another remedy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from uuid import uuid4

import numpy as np

from seqgc import wire
from seqgc._aws import open_client
from seqgc.backends.lambda_ import MASTER_PORTS
from seqgc.deploy._aws import client_config, in_one_line
from seqgc.deploy._deployment import Deployment, current_version
from seqgc.errors import ParameterError, SeqgcError, WorkerError, one_line
from seqgc.ports import Arrival, Backend, Failure, Task, WeightedPoints, WeightRef, WorkItem

if TYPE_CHECKING:
    from boto3.session import Session

    from seqgc.backends.lambda_ import Address

Status: TypeAlias = Literal["ok", "failed", "skipped"]

_CLOCK_LIMIT_S: Final = 300.0  # AWS rejects a signature (SigV4) whose time differs by more
_CONCURRENCY_QUOTA: Final = "L-B99A9384"  # Lambda's "Concurrent executions"
# A function may have as many more environments after each period (Lambda Developer Guide, "Lambda
# function scaling", 2026). The rate is fixed, so no call returns it.
_STARTS, _STARTS_S = 1000, 10
_NFS_PORT: Final = 2049
_MASTER_CALLS: Final = ("lambda", "ecr.api", "ecr.dkr", "logs", "s3")  # services with endpoints
_FRAME_BYTES: Final = 4096  # an upper bound for a message without the numbers of its arrays
_PROBE_SIZE: Final = 3  # numbers in the result of a probe
_MESSAGES: Final = 5  # the fastest one is reported
_ANSWER_TIMEOUT_S: Final = 60.0
_LONGEST_FUNCTION_S: Final = 900.0
_LONGEST_REASON: Final = 256  # characters of a failed function's message


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of a check. ``remedy`` is a command that repairs the failure, or empty."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


class _Fault(Exception):
    """The exception of a check that failed or was skipped. ``remedy`` is a command, or empty."""

    def __init__(self, detail: str, *, remedy: str = "", status: Status = "failed") -> None:
        self.detail, self.remedy, self.status = detail, remedy, status
        super().__init__(detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The account to check, the functions deployed in it (if any), and clients of boto3."""

    session: Session
    deployment: Deployment | None
    workers: int
    probes: bool  # send tasks to the functions
    address: Address | None  # where functions connect to this machine
    now: Callable[[], float]  # seconds since 1970
    _clients: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def concurrent(self) -> int:
        """The largest number of functions at a time.

        A resident function and its successor overlap, so these are twice as many.
        """
        return self.workers * self.each

    @property
    def each(self) -> int:
        """The largest number of functions at a time for one worker."""
        return 1 if self.address is None else 2

    @property
    def region(self) -> str:
        """The region of the deployment, or without a deployment that of the session."""
        return self.deployment.region if self.deployment else str(self.session.region_name)

    def client(self, service: str) -> Any:
        """Return the client of boto3 for a service."""
        if service not in self._clients:
            self._clients[service] = self.new_client(service, config=client_config())
        return self._clients[service]

    def new_client(self, service: str, *, config: object) -> Any:
        """Return a new client of boto3 with this configuration."""
        return open_client(self.session, service, region_name=self.region, config=config)


def credentials(target: _Target) -> str:
    """Check that AWS accepts the credentials; return the ARN of their owner."""
    return str(target.client("sts").get_caller_identity()["Arn"])


def region(target: _Target) -> str:
    """Check that the region has Lambda, and that the session uses the region of the functions."""
    regions = target.session.get_available_regions("lambda")
    own = str(target.session.region_name)
    if regions and target.region not in regions:
        detail = f"botocore does not list Lambda in {target.region!r}"
        raise _Fault(detail, remedy="pip install --upgrade boto3, or check --region")
    if target.region != own:
        detail = f"the functions are in {target.region}, this session is in {own}"
        raise _Fault(detail, remedy=f"export AWS_REGION={target.region}")
    return target.region


def clock(target: _Target) -> str:
    """Check that this machine's clock is close enough to AWS's clock for signatures."""
    from botocore.exceptions import ClientError

    try:
        answer: dict[str, Any] = target.client("sts").get_caller_identity()
    except ClientError as error:  # a wrong clock may be the cause; an error has a date, too
        answer = dict(error.response)
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if "date" not in headers:
        raise _Fault("the answer has no date", status="skipped")
    aws_time = parsedate_to_datetime(headers["date"])
    if aws_time.tzinfo is None:
        aws_time = aws_time.replace(tzinfo=UTC)
    ahead_s = target.now() - aws_time.timestamp()
    detail = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} AWS"
    if abs(ahead_s) >= _CLOCK_LIMIT_S:
        detail += f"; signatures allow {_CLOCK_LIMIT_S:.0f} s"
        raise _Fault(detail, remedy="sudo timedatectl set-ntp true")
    return detail


def concurrency(target: _Target) -> str:
    """Check that Lambda allows enough invocations at a time for the workers."""
    client, needed = target.client("lambda"), target.concurrent
    limits = client.get_account_settings()["AccountLimit"]
    if deployment := target.deployment:
        own = client.get_function_concurrency(FunctionName=deployment.function_name)
        if (reserved := own.get("ReservedConcurrentExecutions")) is not None:
            detail = f"{reserved} reserved for the function, {needed} needed"
            if reserved < needed:
                remedy = f"{deployment.deploy_command} --reserved-concurrency {needed}"
                raise _Fault(detail, remedy=remedy)
            return f"{detail}: at most {reserved // target.each} workers"
    free = int(limits["UnreservedConcurrentExecutions"])
    detail = f"{free} unreserved of {limits['ConcurrentExecutions']}, {needed} needed"
    return _enough(free, target, detail)


def quota(target: _Target) -> str:
    """Check that the quota on concurrent executions suffices for the workers."""
    answer = target.client("service-quotas").get_service_quota(
        ServiceCode="lambda", QuotaCode=_CONCURRENCY_QUOTA
    )
    value = float(answer["Quota"]["Value"])
    return _enough(value, target, f"{value:.0f} concurrent executions, {target.concurrent} needed")


def starts(target: _Target) -> str:
    """Return how long Lambda takes to start as many functions as the workers need."""
    periods = (target.concurrent - 1) // _STARTS
    rate = f"{_STARTS} functions start at once, and as many every {_STARTS_S} s"
    return f"{rate}; {target.concurrent} needed: the last ones after {periods * _STARTS_S} s"


def microvms(target: _Target) -> str:
    """Return the account's quotas on MicroVMs. AWS gives no codes for them, so they have names."""
    pages = target.client("service-quotas").get_paginator("list_service_quotas")
    quotas = [each for page in pages.paginate(ServiceCode="lambda") for each in page["Quotas"]]
    named = {
        each["QuotaName"]: each["Value"]
        for each in quotas
        if "microvm" in each["QuotaName"].lower()
    }
    if not named:
        raise _Fault("the account has no quota on MicroVMs in this region", status="skipped")
    return "; ".join(f"{name}: {value:g}" for name, value in sorted(named.items()))


def _enough(concurrent: float, target: _Target, detail: str) -> str:
    """Return ``detail`` and the possible number of workers; raise a `_Fault` if it is too small.

    The remedy requests a quota that leaves 100 executions unreserved.
    """
    if concurrent < target.concurrent:
        ask = "aws service-quotas request-service-quota-increase --service-code lambda"
        ask += f" --quota-code {_CONCURRENCY_QUOTA}"
        ask += f" --desired-value {max(1000, target.concurrent + 100)} --region {target.region}"
        raise _Fault(detail, remedy=ask)
    return f"{detail}: at most {concurrent // target.each:.0f} workers"


def function(target: _Target, deployment: Deployment) -> str:
    """Check that the function can be invoked and has the deployed memory and time limit."""
    config = _configuration(target, deployment)
    state, update = config.get("State", "Active"), config.get("LastUpdateStatus", "Successful")
    if (
        state not in ("Active", "Inactive") or update != "Successful"
    ):  # Inactive functions start when invoked
        why = config.get("StateReason") or config.get("LastUpdateStatusReason") or "without reason"
        wait = f"aws lambda wait function-active-v2 --function-name {deployment.function_name}"
        starting = "Pending" in state or update == "InProgress"
        remedy = f"{wait} --region {deployment.region}" if starting else ""
        raise _Fault(f"state {state}, last update {update}: {why}", remedy=remedy)
    memory_mb, timeout_s = int(config["MemorySize"]), int(config["Timeout"])
    detail = f"{memory_mb} MB, {timeout_s} s"
    if (memory_mb, timeout_s) != (deployment.memory_mb, deployment.timeout_s):
        intended = f"{deployment.memory_mb} MB, {deployment.timeout_s} s"
        raise _Fault(f"the function has {detail}, but {intended} were deployed")
    return f"{deployment.function_name}, {detail}"


def alias(target: _Target, deployment: Deployment) -> str:
    """Check that the caller may read the alias, and that the alias points to one version."""
    name = deployment.alias
    meaning = target.client("lambda").get_alias(FunctionName=deployment.function_name, Name=name)
    if weights := meaning.get("RoutingConfig", {}).get("AdditionalVersionWeights"):
        versions = f"{meaning['FunctionVersion']} and {', '.join(weights)}"
        raise _Fault(f"{name!r} points to several versions: {versions}")
    return f"{name!r} is version {meaning['FunctionVersion']}"


def _require_vpc(deployment: Deployment) -> None:
    """Raise a `_Fault` that skips a check if the functions are in no VPC."""
    if not deployment.has_vpc:
        raise _Fault(f"the stack {deployment.stack} has no VPC", status="skipped")


def snapshot(target: _Target, deployment: Deployment) -> str:
    """Check that the snapshot of the deployed version is ready, if it starts from one.

    After 14 days without invocations Lambda deletes the snapshot, and the version is inactive. The
    next invocation fails, and begins a new snapshot.
    """
    config = _configuration(target, deployment)
    if not deployment.snapstart:
        raise _Fault("deployed without --snapstart", status="skipped")
    version = config["Version"]
    status = config.get("SnapStart", {}).get("OptimizationStatus", "Off")
    if config.get("State") == "Inactive":
        name, where = deployment.function_name, f"--region {deployment.region}"
        wake = f"aws lambda invoke --function-name {name} --qualifier {version} {where} /dev/null"
        wait = "aws lambda wait published-version-active --function-name"
        remedy = f"{wake}; {wait} {name} --qualifier {version} {where}"
        raise _Fault(f"version {version} is inactive, so its snapshot was deleted", remedy=remedy)
    if status != "On":
        raise _Fault(f"version {version} has no snapshot: SnapStart is {status}")
    return f"version {version} starts from a snapshot"


def network(target: _Target, deployment: Deployment) -> str:
    """Check that members of the security group reach each other by NFS, and others do not."""
    _require_vpc(deployment)
    group_id = deployment.security_group_id
    answer = target.client("ec2").describe_security_groups(GroupIds=[group_id])
    (group,) = answer["SecurityGroups"]
    _require_rules(group, _NFS_PORT, _NFS_PORT)
    used = ((_NFS_PORT, _NFS_PORT), (MASTER_PORTS[0], MASTER_PORTS[-1]))
    foreign = [
        rule
        for rule in group["IpPermissions"]
        if not any(_is_among_members(rule, group_id, *ports) for ports in used)
    ]
    if foreign:
        show = f"aws ec2 describe-security-group-rules --region {deployment.region}"
        remedy = f"{show} --filters Name=group-id,Values={group_id}"
        detail = f"{len(foreign)} rules of {group_id} let in more than its members"
        raise _Fault(detail, remedy=remedy)
    return f"{group_id} lets in only its members"


def subnets(target: _Target, deployment: Deployment) -> str:
    """Check that the function is in its VPC, and that its subnets have free addresses."""
    _require_vpc(deployment)
    config = _configuration(target, deployment).get("VpcConfig", {})
    if deployment.security_group_id not in config.get("SecurityGroupIds", []):
        raise _Fault(f"the function is not a member of {deployment.security_group_id}")
    ids = list(config.get("SubnetIds", []))
    descriptions = target.client("ec2").describe_subnets(SubnetIds=ids)["Subnets"]
    full = [each["SubnetId"] for each in descriptions if each["AvailableIpAddressCount"] < 1]
    zones = {each["AvailabilityZone"] for each in descriptions}
    if full:
        remedy = f"{deployment.deploy_command} --vpc-id VPC --subnets OTHER,SUBNETS"
        raise _Fault(f"no free address in {', '.join(full)}", remedy=remedy)
    return f"{', '.join(ids)} in {len(zones)} zones"


def mount(target: _Target, deployment: Deployment) -> str:
    """Check that every subnet of the function can mount the file system."""
    _require_vpc(deployment)
    client, system_id = target.client("efs"), deployment.file_system_id
    (system,) = client.describe_file_systems(FileSystemId=system_id)["FileSystems"]
    targets = client.describe_mount_targets(FileSystemId=system_id)["MountTargets"]
    usable = {
        each["SubnetId"]
        for each in targets
        if each["LifeCycleState"] == "available"
        and deployment.security_group_id in _groups_of(client, each["MountTargetId"])
    }
    vpc = _configuration(target, deployment).get("VpcConfig", {})
    if without := sorted(set(vpc.get("SubnetIds", [])) - usable):
        raise _Fault(f"{system_id} has no available mount target for {without}")
    if not system.get("Encrypted"):
        raise _Fault(f"{system_id} is not encrypted")
    return f"{system_id}, {len(targets)} mount targets, encrypted"


def _groups_of(efs: Any, mount_target: str) -> list[str]:
    answer = efs.describe_mount_target_security_groups(MountTargetId=mount_target)
    return list(answer["SecurityGroups"])


def _configuration(target: _Target, deployment: Deployment) -> dict[str, Any]:
    config: dict[str, Any] = target.client("lambda").get_function_configuration(
        FunctionName=deployment.function_name, Qualifier=deployment.alias
    )
    return config


def _require_rules(group: dict[str, Any], first: int, last: int) -> None:
    """Raise a `_Fault` unless the members of a group can reach each other through these ports."""
    name = group["GroupId"]
    for way, key in (("in", "IpPermissions"), ("out", "IpPermissionsEgress")):
        if not any(_is_among_members(rule, name, first, last) for rule in group[key]):
            ports = f"port {first}" if first == last else f"ports {first} to {last}"
            raise _Fault(f"{name} has no rule for {ports} {way} among its members")


def _is_among_members(rule: dict[str, Any], group: str, first: int, last: int) -> bool:
    """Return True if a rule allows exactly these ports, for this group only."""
    ports = (rule.get("IpProtocol"), rule.get("FromPort"), rule.get("ToPort"))
    groups = [pair.get("GroupId") for pair in rule.get("UserIdGroupPairs", [])]
    others = any(rule.get(key) for key in ("IpRanges", "Ipv6Ranges", "PrefixListIds"))
    return ports == ("tcp", first, last) and groups == [group] and not others


def master(target: _Target, deployment: Deployment) -> str:
    """Check that the master's image exists, and that its endpoints are available."""
    if not deployment.master_image:
        raise _Fault("deployed without --with-master", status="skipped")
    ec2 = target.client("ec2")
    answer = ec2.describe_security_groups(GroupIds=[deployment.security_group_id])
    vpc_id = answer["SecurityGroups"][0]["VpcId"]
    endpoints = ec2.describe_vpc_endpoints(Filters=[{"Name": "vpc-id", "Values": [vpc_id]}])
    available = {
        each["ServiceName"]
        for each in endpoints["VpcEndpoints"]
        if each["State"].lower() == "available"
    }
    services = {f"com.amazonaws.{deployment.region}.{name}" for name in _MASTER_CALLS}
    if missing := sorted(services - available):
        raise _Fault(f"{vpc_id} has no available endpoint for {', '.join(missing)}")
    uri, _, tag = deployment.master_image.rpartition(":")
    ecr = target.client("ecr")
    try:
        ecr.describe_images(repositoryName=uri.partition("/")[2], imageIds=[{"imageTag": tag}])
    except ecr.exceptions.ImageNotFoundException:
        detail = f"there is no image {deployment.master_image}"
        remedy = f"docker push {deployment.master_image} (see docs/master.md)"
        raise _Fault(detail, remedy=remedy) from None
    return f"{deployment.master_image}, {len(services)} endpoints available"


def payload(size_bytes: int | None) -> str:
    """Check that a result (or weights) of this size fits in one reply (or request)."""
    if size_bytes is None:
        detail = "the size of a result is unknown: pass --parameters"
        raise _Fault(detail, status="skipped")
    as_json, limit = wire.envelope_bytes(size_bytes + _FRAME_BYTES), wire.MESSAGE_LIMIT_BYTES
    detail = f"{size_bytes} bytes are {as_json} bytes as JSON; Lambda accepts {limit}"
    if as_json > limit:
        half = wire.envelope_bytes(size_bytes // 2 + _FRAME_BYTES) <= limit
        smaller = "seqgc train --payload float16 instead of float32, or " if half else ""
        remedy = f"{smaller}seqgc train --store s3 (or directory, with EFS)"
        raise _Fault(detail, remedy=remedy)
    return detail


def probe(target: _Target, deployment: Deployment, store: wire.StoreRef) -> str:
    """Send one task whose answer must go through a store, and check that the answer does this."""
    from botocore.config import Config

    if store.kind == "directory":
        _require_vpc(deployment)
    if store.kind == "s3" and not deployment.reaches_s3:
        raise _Fault("the deployed functions cannot reach S3", status="skipped")
    if not target.probes:
        raise _Fault("not checked because of --no-invoke", status="skipped")
    run_id = store.location.rpartition("/")[2]
    config = Config(
        connect_timeout=5, read_timeout=deployment.timeout_s + 10, retries={"total_max_attempts": 1}
    )
    answer = target.new_client("lambda", config=config).invoke(
        FunctionName=current_version(target.client("lambda"), deployment),  # as a run does
        Payload=wire.to_json(wire.encode(_question(store), run_id=run_id)),
    )
    body = answer["Payload"].read()
    logs = f"aws logs tail /seqgc/{deployment.stack} --since 10m --region {deployment.region}"
    if "FunctionError" in answer:
        reason = one_line(body.decode(errors="replace"), limit=_LONGEST_REASON)
        raise _Fault(f"the function failed: {reason}", remedy=logs)
    message = wire.decode(wire.from_json(body), run_id=run_id)
    if isinstance(message, wire.FailureMessage):
        raise _Fault(message.reason, remedy=logs)
    if not isinstance(message, wire.ReceiptMessage):
        kind = type(message).__name__
        raise _Fault(f"the answer did not go through the store: the reply is a {kind}")
    return f"one task answered, {message.size_bytes} bytes written to {store.kind}"


def resident(target: _Target, deployment: Deployment) -> str:
    """Let one function connect to this machine, and measure the round trip of a message."""
    if (address := target.address) is None:
        raise _Fault("only checked with --resident", status="skipped")
    if not deployment.has_vpc:
        detail = f"the stack {deployment.stack} has no VPC, in which functions reach their master"
        raise _Fault(detail, remedy=deployment.vpc_command)
    from seqgc.backends import lambda_

    answer = target.client("ec2").describe_security_groups(GroupIds=[deployment.security_group_id])
    _require_rules(answer["SecurityGroups"][0], MASTER_PORTS[0], MASTER_PORTS[-1])
    limit_s = float(deployment.timeout_s)
    try:
        staying = lambda_.Staying(
            address=address, limit_s=limit_s, start_timeout_s=_ANSWER_TIMEOUT_S
        )
    except ParameterError as error:
        longest = replace(deployment, timeout_s=int(_LONGEST_FUNCTION_S))
        raise _Fault(one_line(error), remedy=longest.deploy_command) from None
    transport = lambda_.Boto3Transport(
        deployment.function_name,
        qualifier=current_version(target.client("lambda"), deployment).rpartition(":")[2],
        limits=lambda_.Limits(timeout_s=limit_s, connections=4),
        region=deployment.region,
        session=target.session,
    )
    try:
        with lambda_.ResidentBackend(
            1,
            transport,
            workload=wire.WorkloadRef(name="constant", settings={"size": _PROBE_SIZE}),
            store=wire.StoreRef(kind="inline"),
            staying=staying,
        ) as backend:
            seconds = [_there_and_back(backend, number) for number in range(_MESSAGES)]
    except WorkerError as error:
        group = deployment.security_group_id
        remedy = f"run the master in the functions' VPC as a member of {group}, or omit --resident"
        raise _Fault(one_line(error), remedy=remedy) from None
    finally:
        transport.close()
    detail = f"a function reaches {address.host}, round trip {1e3 * min(seconds):.1f} ms"
    if limit_s < _LONGEST_FUNCTION_S:
        detail += f"; replaced every {limit_s:g} s: consider --function-timeout-s 900"
    return detail


def _there_and_back(backend: Backend, number: int) -> float:
    """Return the seconds from sending an empty task to its answer, or raise a `WorkerError`."""
    task = Task(round=number, worker=0, attempt=0, items=())
    (sent_at,) = backend.dispatch(number, [task])
    event = backend.receive(sent_at + _ANSWER_TIMEOUT_S)
    if not isinstance(event, Arrival):
        why = event.reason if isinstance(event, Failure) else f"within {_ANSWER_TIMEOUT_S:g} s"
        raise WorkerError(f"an empty task was not answered: {why}", worker=0)
    return event.at - sent_at


def _question(store: wire.StoreRef) -> wire.InvokeMessage:
    """Return a task that every image can compute, without weights.

    Its reply has no room for results, so the function must put them into the store.
    """
    no_weights = WeightRef(model="probe", version=0, digest="0" * 64, dtype="float32", size=0)
    part = WeightedPoints(
        model="probe",
        weights=no_weights,
        points=np.zeros(1, dtype=np.int64),
        coefficients=np.ones(1),
    )
    task = Task(round=0, worker=0, attempt=0, items=(WorkItem(slot=0, parts=(part,)),))
    return wire.InvokeMessage(
        request=wire.TaskMessage(task=task),
        workload=wire.WorkloadRef(name="constant", settings={"size": _PROBE_SIZE}),
        store=store,
        inline_limit_bytes=0,
    )


# The checks, in the order in which users should repair faults. Each is named like its function.
_OF_ACCOUNT: Final = (credentials, clock, region, concurrency, quota, starts, microvms)
_OF_DEPLOYMENT: Final = (function, alias, snapshot, network, subnets, mount, master)
_PROBES: Final = ("probe-directory", "probe-s3")


def diagnose(
    deployment: Deployment | None,
    *,
    session: Session,
    workers: int,
    payload_bytes: int | None = None,
    probes: bool = True,
    address: Address | None = None,
    now: Callable[[], float] = time.time,
) -> list[Check]:
    """Check everything that a run on Lambda needs, and return all results.

    Errors of AWS become failed checks. If ``deployment`` is None, only the account is checked.

    Parameters
    ----------
    workers
        The number of invocations at a time.
    payload_bytes
        The size of one worker's results of a round in a message, or None if it is unknown.
    probes
        Send two tasks. They cost two invocations and leave two small files.
    address
        The address at which a resident function should connect to this machine. By default this
        is not checked.
    now
        Returns the seconds since 1970.
    """
    target = _Target(
        session=session,
        deployment=deployment,
        workers=workers,
        probes=probes,
        address=address,
        now=now,
    )
    functions = {each.__name__: partial(each, target) for each in _OF_ACCOUNT}
    functions["payload"] = partial(payload, payload_bytes)
    remedy = "aws sts get-caller-identity"
    checks = [_check(name, each, remedy=remedy) for name, each in functions.items()]
    if deployment is None:
        detail = "nothing is deployed"
        first = Check(name="deployment", status="failed", detail=detail, remedy="seqgc deploy")
        names = [*(each.__name__ for each in _OF_DEPLOYMENT), *_PROBES, "resident"]
        return [*checks, first, *(Check(name=n, status="skipped", detail=detail) for n in names)]
    detail = f"stack {deployment.stack!r} in {deployment.region}"
    checks.append(Check(name="deployment", status="ok", detail=detail))
    functions = {each.__name__: partial(each, target, deployment) for each in _OF_DEPLOYMENT}
    folder = f"doctor-{uuid4().hex[:12]}"  # named like the folder of a run, so that it expires too
    bucket = f"s3://{deployment.bucket}/{deployment.prefix}/{folder}"
    stores = (
        wire.StoreRef(kind="directory", location=folder),
        wire.StoreRef(kind="s3", location=bucket),
    )
    for name, store in zip(_PROBES, stores, strict=True):
        functions[name] = partial(probe, target, deployment, store)
    functions["resident"] = partial(resident, target, deployment)
    remedy = deployment.deploy_command
    return checks + [_check(name, each, remedy=remedy) for name, each in functions.items()]


def _check(name: str, function: Callable[[], str], *, remedy: str) -> Check:
    """Run a check and return its result. ``remedy`` is for failures without a specific remedy."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return Check(name=name, status="ok", detail=function())
    except _Fault as fault:
        specific, detail, status = fault.remedy, fault.detail, fault.status
    except (BotoCoreError, ClientError) as error:
        (detail, specific), status = in_one_line(error), "failed"
    except (SeqgcError, OSError) as error:
        specific, detail, status = "", one_line(error), "failed"
    remedy = (specific or remedy) if status == "failed" else ""
    return Check(name=name, status=status, detail=detail, remedy=remedy)
