"""Deployments: their options, the file that describes one, and the version that a run invokes.

`seqgc deploy` publishes a version of the function and points the function's alias to it. Earlier
versions stay. A new run looks up the version of the alias once, records it, and invokes only this
version. A later deployment therefore does not change the code of a run that has begun or is
resumed. If the recorded version cannot be used any more, `pin_version` raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args

import tomli_w

from seqgc._aws import open_client
from seqgc._bounded import read_toml
from seqgc._durable import replacing
from seqgc.costs.prices import Architecture
from seqgc.deploy._aws import DeployError, calls, client_config
from seqgc.errors import ParameterError, require_int

if TYPE_CHECKING:
    from boto3.session import Session

_LIMITS: Final = {
    "memory_mb": (256, 10240),
    "timeout_s": (1, 900),
    "provisioned_mibps": (1, 3414),
    "reserved_concurrency": (0, 10**6),
}
_OF_VPC: Final = ("vpc_id", "throughput_mode", "provisioned_mibps")
_TAG: Final = re.compile(r"[\w.:/@+-]{1,128}=[\w.:/@+-]{0,256}", re.ASCII)
_MOST_TAGS: Final = 45  # a resource may have 50; CloudFormation and SAM add some
_STACK_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")

Package: TypeAlias = Literal["image", "zip"]
ThroughputMode: TypeAlias = Literal["bursting", "elastic", "provisioned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployOptions:
    """The parameters of ``template.yaml``, which are the options of ``seqgc deploy``.

    If ``vpc`` is None, `choose_network` decides whether functions are in a VPC with a file system.
    If ``with_master`` is None, it decides whether the stack has a master.

    Examples
    --------
    >>> options = DeployOptions(memory_mb=1769, trace=True, vpc=False)
    >>> options.function, options.parameters()["Trace"], options.parameters()["Vpc"]
    ('ImageWorker', 'yes', 'no')
    >>> DeployOptions(vpc_id="vpc-1")
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `subnets` must be two subnets of the existing VPC; got ()
    """

    stack: Annotated[str, "Name of the CloudFormation stack."] = "seqgc"
    package: Annotated[
        Package, "Package: image (with PyTorch; needs Docker) or zip (only numpy)."
    ] = "image"
    image_uri: Annotated[str, "URI of an existing image in ECR. Nothing is built."] = ""
    architecture: Annotated[Architecture, "Processor of the functions: arm64 or x86_64."] = "arm64"
    memory_mb: Annotated[int, "Memory of a function, in MB."] = 2560
    timeout_s: Annotated[int, "--function-timeout-s", "Time limit of a function, in seconds."] = 60
    reserved_concurrency: Annotated[
        int, "Number of concurrent invocations reserved for the function. 0: none."
    ] = 0
    vpc: Annotated[
        bool | None,
        "Functions in a VPC, with a file system. By default as in the existing stack, else only if "
        "another option or --plan needs it.",
    ] = None
    drop_file_system: Annotated[
        bool,
        "--drop-file-system",
        "Let --no-vpc take the file system out of an existing stack. It is kept, with its data.",
    ] = False
    snapstart: Annotated[
        bool,
        "--snapstart",
        "Start functions from a snapshot (SnapStart), which AWS bills. Only without a VPC.",
    ] = False
    with_master: Annotated[
        bool | None,
        "A master in the new VPC: a Fargate task, and interface endpoints, which AWS bills by the "
        "hour. Needs --vpc. By default as in the existing stack.",
    ] = None
    vpc_id: Annotated[str, "ID of an existing VPC. By default a new one is created."] = ""
    subnets: Annotated[tuple[str, ...], "Two subnets of the existing VPC, as A,B."] = ()
    route_table_id: Annotated[
        str, "Route table of the subnets, which gets a gateway endpoint for S3."
    ] = ""
    throughput_mode: Annotated[
        ThroughputMode, "Throughput of the file system: bursting, elastic or provisioned."
    ] = "elastic"
    provisioned_mibps: Annotated[int, "Provisioned throughput of the file system, in MiB/s."] = 64
    log_retention_days: Annotated[int, "Number of days for which logs are kept."] = 14
    monitoring: Annotated[bool, "Create alarms and a dashboard in CloudWatch."] = True
    alarm_topic_arn: Annotated[str, "SNS topic for alarms. By default none."] = ""
    trace: Annotated[
        bool, "--xray", "Trace a sample of the invocations with X-Ray, which AWS bills."
    ] = False
    tag: Annotated[tuple[str, ...], "Tag of every resource, as KEY=VALUE. Repeatable."] = ()
    factories: Annotated[
        tuple[str, ...], "Your module with functions that models may name. Repeatable."
    ] = ()

    def __post_init__(self) -> None:
        if not _STACK_NAME.fullmatch(self.stack):
            raise ParameterError("stack", "must be letters, digits and hyphens", self.stack)
        _check_limits(self, *_LIMITS)
        self._check_network()
        if self.image_uri and self.package != "image":
            raise ParameterError("image_uri", "requires package 'image'", self.image_uri)
        if self.alarm_topic_arn and not self.monitoring:
            rule = "must be left out if there are no alarms (--no-monitoring)"
            raise ParameterError("alarm_topic_arn", rule, self.alarm_topic_arn)
        for module in self.factories:
            if not all(part.isidentifier() for part in module.split(".")):
                raise ParameterError("factories", "must be names of modules", module)
        _check_tags(self.tag)

    def _check_network(self) -> None:
        if self.vpc_id and len(set(self.subnets)) != 2:
            raise ParameterError("subnets", "must be two subnets of the existing VPC", self.subnets)
        if not self.vpc_id and (self.subnets or self.route_table_id):
            rule = "must be set with `subnets` and `route_table_id`"
            raise ParameterError("vpc_id", rule, self.vpc_id)
        if (needing := self.needs_vpc) and self.vpc is False:
            rule = "must be left out with --no-vpc"
            raise ParameterError(needing, rule, getattr(self, needing))
        if self.drop_file_system and self.vpc is not False:
            raise ParameterError("drop_file_system", "must be used with --no-vpc", True)
        if self.snapstart and (self.vpc or needing):
            rule = "must be left out with a file system: SnapStart does not work with EFS"
            remedy = f"leave out `{needing or 'vpc'}`, or use --no-vpc"
            raise ParameterError("snapstart", rule, True, remedy)
        if self.with_master and not self.vpc:
            raise ParameterError("with_master", "must be used with --vpc", True)
        if self.with_master and self.vpc_id:
            rule = "must be left out with `vpc_id`, which may already have the same endpoints"
            raise ParameterError("with_master", rule, True)

    @property
    def needs_vpc(self) -> str:
        """The first option in use that needs a VPC, or empty."""
        defaults = {each.name: each.default for each in fields(self) if each.name in _OF_VPC}
        return next((k for k, value in defaults.items() if getattr(self, k) != value), "")

    @property
    def function(self) -> str:
        """The logical name of the function in the template."""
        return "ImageWorker" if self.package == "image" else "ZipWorker"

    def parameters(self, *, prefix_list: str = "") -> dict[str, str]:
        """Return the template's parameters.

        ``prefix_list`` is the id of S3's prefix list, which functions in a VPC need to reach S3. By
        default, if ``vpc`` or ``with_master`` is None, there is no VPC or no master.
        """
        options = asdict(self) | {"vpc": bool(self.vpc), "with_master": bool(self.with_master)}
        for name in ("stack", "subnets", "tag", "drop_file_system"):
            del options[name]
        options["factories"] = ",".join(self.factories)
        subnet_a, subnet_b = self.subnets or ("", "")
        result = {_in_template(name): _as_parameter(value) for name, value in options.items()} | {
            "SubnetA": subnet_a,
            "SubnetB": subnet_b,
            "S3PrefixListId": prefix_list,
        }
        texts = "".join(f"{name}={value}\n" for name, value in sorted(result.items()))
        return result | {"Setup": sha256(texts.encode()).hexdigest()[:16]}


def _check_limits(holder: object, *names: str) -> None:
    for name in names:
        least, most = _LIMITS[name]
        integer = require_int(name, getattr(holder, name), least=least, most=most)
        object.__setattr__(holder, name, integer)


def _check_tags(tags: tuple[str, ...]) -> None:
    keys = set[str]()
    for tag in tags:
        key = tag.partition("=")[0]
        if not _TAG.fullmatch(tag) or key.lower().startswith("aws:") or key in keys:
            rule = "must be KEY=VALUE of letters, digits and _.:/@+-; no key twice or with aws:"
            raise ParameterError("tag", rule, tag)
        keys.add(key)
    if len(keys) > _MOST_TAGS:
        raise ParameterError("tag", f"must be at most {_MOST_TAGS} tags", len(keys))


def _as_parameter(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _in_template(field: str) -> str:
    """Return the name of a field in the template, for example ``MemoryMb`` for ``memory_mb``."""
    return "".join(word.capitalize() for word in field.split("_"))


DEPLOYMENT_FILE: Final = "seqgc-lambda.toml"
_SCHEMA_VERSION = 1
_KINDS = {"str": (str, "text"), "int": (int, "a whole number"), "bool": (bool, "true or false")}
_REMEDY = "run `seqgc deploy`"
_OLDER: Final[Mapping[str, Any]] = {
    "factories": "",
    "snapstart": False,
    "master_image": "",
    "run_master": "",
    "follow_master": "",
    "copy_results": "",
}  # fields that older files do not have
_OF_NETWORK: Final = ("mount_path", "file_system_id", "access_point_id", "security_group_id")
_OUTPUTS: Final = {"bucket": "BucketName", "prefix": "BucketPrefix"}  # other names: `_in_template`


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Deployed worker functions, and the storage that they share with the master.

    New runs invoke the current version of the alias ``alias_arn``. If the functions can reach S3
    (``reaches_s3``), objects are stored below ``prefix`` in ``bucket``. The file system is mounted
    at ``mount_path`` in the functions. A master in the VPC mounts the same file system through the
    access point, as a member of the security group. Without a VPC, these four fields are empty. If
    ``snapstart``, environments start from a snapshot. ``factories`` lists modules, separated by
    commas; models may name functions of these modules.

    If the stack has a master, its image must be pushed as ``master_image``. Then the command
    ``run_master`` starts the master, ``follow_master`` shows its log, and ``copy_results`` copies
    the folder of its run to the bucket. Without a master, these four fields are empty.

    Examples
    --------
    >>> arn = "arn:aws:lambda:eu-central-1:123456789012:function:seqgc-ImageWorker-x:live"
    >>> deployment = Deployment(
    ...     stack="seqgc", region="eu-central-1", alias_arn=arn, bucket="b",
    ...     prefix="runs", reaches_s3=True, mount_path="/mnt/seqgc", file_system_id="fs-1",
    ...     access_point_id="fsap-1", security_group_id="sg-1", caller_policy_arn="arn:…",
    ...     store_policy_arn="arn:…", architecture="arm64", memory_mb=2560, timeout_s=60,
    ... )
    >>> deployment.function_name, deployment.alias, deployment.has_vpc
    ('seqgc-ImageWorker-x', 'live', True)
    """

    stack: str
    region: str
    alias_arn: str
    bucket: str
    prefix: str
    reaches_s3: bool
    mount_path: str
    file_system_id: str
    access_point_id: str
    security_group_id: str
    caller_policy_arn: str
    store_policy_arn: str
    architecture: str
    memory_mb: int
    timeout_s: int
    factories: str = ""
    snapstart: bool = False
    master_image: str = ""
    run_master: str = ""
    follow_master: str = ""
    copy_results: str = ""

    def __post_init__(self) -> None:
        absent = [name for name in _OF_NETWORK if not getattr(self, name)]
        if absent and len(absent) < len(_OF_NETWORK):
            rule = f"must be set with {', '.join(_OF_NETWORK)}, or all must be empty (no VPC)"
            raise ParameterError(absent[0], rule, "")
        if len(self.alias_arn.split(":")) != 8:
            raise ParameterError("alias_arn", "must be the ARN of an alias", self.alias_arn)
        if self.architecture not in get_args(Architecture):
            rule = f"must be {' or '.join(get_args(Architecture))}"
            raise ParameterError("architecture", rule, self.architecture)
        _check_limits(self, "memory_mb", "timeout_s")

    @property
    def has_vpc(self) -> bool:
        """True if the functions are in a VPC, with a file system."""
        return bool(self.file_system_id)

    @property
    def function_arn(self) -> str:
        """The ARN of the function, without the alias."""
        return self.alias_arn.rpartition(":")[0]

    @property
    def function_name(self) -> str:
        """The name of the function, without the alias."""
        return self.alias_arn.split(":")[6]

    @property
    def alias(self) -> str:
        """The name of the alias."""
        return self.alias_arn.split(":")[7]

    @property
    def deploy_command(self) -> str:
        """The command that deploys this stack again, with its processor, memory and time-out.

        It lacks the user's own code, and options that a deployment file does not record.
        """
        command = f"seqgc deploy --stack {self.stack} --region {self.region}"
        defaults = {each.name: each.default for each in fields(DeployOptions)}
        for name, option in (
            ("architecture", "--architecture"),
            ("memory_mb", "--memory-mb"),
            ("timeout_s", "--function-timeout-s"),
        ):
            if (value := getattr(self, name)) != defaults[name]:
                command += f" {option} {value}"
        return f"{command} --snapstart" if self.snapstart else command

    @property
    def vpc_command(self) -> str:
        """The command that adds a VPC with a file system, which excludes SnapStart."""
        return f"{replace(self, snapstart=False).deploy_command} --vpc"

    @classmethod
    def from_outputs(cls, stack: str, region: str, outputs: Mapping[str, str]) -> Deployment:
        """Make a deployment from a stack's outputs; raise `DeployError` if an output is missing."""
        values: dict[str, Any] = {"stack": stack, "region": region}
        has_vpc = any(_in_template(name) in outputs for name in _OF_NETWORK)
        optional = {*_OLDER, *(() if has_vpc else _OF_NETWORK)}
        for name in (each.name for each in fields(cls) if each.name not in values):
            output = _OUTPUTS.get(name, _in_template(name))
            if output not in outputs and name not in optional:
                message = f"stack {stack!r} in {region} has no output {output!r}"
                remedy = f"it is not a stack of seqgc: {_REMEDY} with another --stack"
                raise DeployError(message, remedy)
            values[name] = outputs.get(output, "")
        for name in ("memory_mb", "timeout_s"):
            values[name] = int(values[name])
        for name in ("reaches_s3", "snapstart"):
            values[name] = values[name] == "yes"
        return cls(**values)


def write_deployment(path: Path, deployment: Deployment) -> None:
    """Write the deployment to a file. An existing file is replaced atomically."""
    text = "# Written by `seqgc deploy`; read by `seqgc train --backend lambda`. No secrets.\n"
    text += tomli_w.dumps({"schema": _SCHEMA_VERSION} | asdict(deployment))
    with replacing(path) as file:
        file.write(text.encode())


def read_deployment(path: Path) -> Deployment:
    """Read a file that `write_deployment` wrote; raise `ParameterError` if it is not valid."""
    rule = "must be a file that `seqgc deploy` wrote"
    try:
        values = read_toml(path)
    except OSError as error:
        why = f"{error.strerror}: {_REMEDY}, or pass --deployment"
        raise ParameterError("deployment", rule, str(path), why) from None
    except ValueError as error:
        raise ParameterError("deployment", f"{rule}: {error}", str(path), _REMEDY) from None
    if (schema := values.pop("schema", None)) != _SCHEMA_VERSION:
        rule = f"must have schema {_SCHEMA_VERSION} in {path}"
        raise ParameterError("deployment", rule, schema, _REMEDY)
    values = {**_OLDER, **values}
    kinds = {each.name: _KINDS[str(each.type)] for each in fields(Deployment)}
    for name, (kind, article) in kinds.items():
        if type(values.get(name)) is not kind:
            rule = f"must have {name!r}, {article} ({path})"
            raise ParameterError("deployment", rule, values.get(name), _REMEDY)
    if unknown := sorted(values.keys() - kinds.keys()):
        raise ParameterError("deployment", f"has unknown keys ({path})", unknown, _REMEDY)
    return Deployment(**values)


def current_version(client: Any, deployment: Deployment) -> str:
    """Return the ARN of the alias's current version. Raises the errors of botocore."""
    alias = client.get_alias(FunctionName=deployment.function_name, Name=deployment.alias)
    return f"{deployment.function_arn}:{alias['FunctionVersion']}"


def pin_version(
    deployment: Deployment, *, session: Session, before: Mapping[str, str]
) -> dict[str, str]:
    """Return the ``version`` (an ARN) and settings of the functions that a run invokes.

    The run records the result. ``before`` is what a resumed run has recorded, and is returned after
    a check. For a new run ``before`` is empty, and the version is the alias's current version.

    Raises
    ------
    ParameterError
        If the recorded version cannot be used any more.
    DeployError
        If AWS returns an error.
    """
    setup = {"memory_mb": str(deployment.memory_mb), "timeout_s": str(deployment.timeout_s)}
    setup |= {"snapstart": "yes"} if deployment.snapstart else {}
    try:
        client = open_client(session, "lambda", config=client_config())
    except ValueError as error:  # raised by boto3 for a wrong configuration
        raise ParameterError("endpoint_url", f"must be a URL ({error})", None) from None
    with calls("look up the published version of the functions", remedy="see `seqgc doctor`"):
        if not before:
            return {"version": current_version(client, deployment), **setup}
        reason = _why_unusable(client, deployment, before=before, setup=setup)
    if reason:
        rule = f"must continue with the functions that it began with: {reason}"
        remedy = "--accept-changes continues with the functions that are deployed now"
        raise ParameterError("run", rule, before["version"], remedy)
    return dict(before)


def _why_unusable(
    client: Any, deployment: Deployment, *, before: Mapping[str, str], setup: Mapping[str, str]
) -> str:
    """Return the reason why a run cannot use its recorded version; empty if it can use it."""
    version = before["version"]
    if version.rpartition(":")[0] != deployment.function_arn:
        return f"the deployed function is now {deployment.function_arn}"
    settings = [name for name in {**before, **setup} if name != "version"]
    pairs = [(name, before.get(name, "no"), setup.get(name, "no")) for name in settings]
    if changed := [f"{name} was {old}, is {new}" for name, old, new in pairs if old != new]:
        return f"the settings have changed in a later deployment: {', '.join(changed)}"
    try:  # this needs no further permission, and runs nothing
        client.invoke(FunctionName=version, InvocationType="DryRun")
    except client.exceptions.ResourceNotFoundException:
        return "that version has been deleted"
    return ""
