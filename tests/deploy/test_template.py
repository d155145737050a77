"""What the expanded template gives to whom; linted as AWS's own tools lint it."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from seqgc.backends.lambda_ import MASTER_PORTS
from seqgc.deploy import DeployOptions
from tests.deploy.kit import (
    REGION,
    ROOT,
    TEMPLATE,
    Json,
    decided,
    expanded,
    listed,
    rendered,
    statements,
)

EXISTING = {"VpcId": "vpc-1", "SubnetA": "subnet-1", "SubnetB": "subnet-2"}
PREFIX_LIST = {"S3PrefixListId": "pl-1"}
VARIANTS = [
    {"Package": package} | network
    for package, network in itertools.product(
        ("image", "zip"), ({}, PREFIX_LIST, EXISTING | {"RouteTableId": "rtb-1"})
    )
]
NO_VPC = {"Vpc": "no"}
VARIANTS += [{"Package": package} | NO_VPC for package in ("image", "zip")]
WITH_MASTER = PREFIX_LIST | {"WithMaster": "yes"}
VARIANTS += [{"Package": "image"} | WITH_MASTER]
LAYERS_OF_IMAGES = f"arn:aws:s3:::prod-{REGION}-starport-layer-bucket/*"
LOGIN_AT_ECR = {
    "Sid": "Login",
    "Effect": "Allow",
    "Action": "ecr:GetAuthorizationToken",
    "Resource": "*",
}
VERSIONS = ("${ImageWorker.Arn}:*", "${ZipWorker.Arn}:*")
INTERFACES = {
    "ec2:AssignPrivateIpAddresses",
    "ec2:CreateNetworkInterface",
    "ec2:DeleteNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:UnassignPrivateIpAddresses",
}


REFUSES_PLAIN_HTTP = {
    "Sid": "OnlyEncrypted",
    "Effect": "Deny",
    "Principal": "*",
    "Action": "s3:*",
    "Resource": ["${Bucket.Arn}", "${Bucket.Arn}/*"],
    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
}


def of_type(resources: Json, kind: str) -> list[Json]:
    return [each["Properties"] for each in resources.values() if each["Type"] == kind]


def only(resources: Json, kind: str) -> Json:
    (found,) = of_type(resources, kind)
    return found


def test_cfn_lint_finds_nothing() -> None:
    from cfnlint.api import lint_file

    assert [str(match) for match in lint_file(TEMPLATE)] == []


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: "-".join(each.values()))
def test_no_policy_has_a_wildcard_action_or_resource(variant: dict[str, str]) -> None:
    found = statements(rendered(**variant))
    assert len(found) >= (7 if "Vpc" in variant else 10)
    for statement in found:
        if statement in (REFUSES_PLAIN_HTTP, LOGIN_AT_ECR):
            continue
        assert "NotAction" not in statement
        for action in listed(statement["Action"]):
            service, name = action.split(":")
            assert service.isalnum()
            assert name.isalnum()
        for resource in listed(statement.get("Resource", statement.get("NotResource", []))):
            named = ("${Bucket.Arn}/runs/*", "${Bucket.Arn}/data/*", LAYERS_OF_IMAGES, *VERSIONS)
            assert resource in named or "*" not in resource
        # "everything but" is for refusing only
        assert "NotResource" not in statement or statement["Effect"] == "Deny"


@pytest.mark.parametrize("variant", VARIANTS[:3])
def test_a_principal_is_everybody_only_where_a_gateway_endpoint_knows_no_other(
    variant: dict[str, str],
) -> None:
    resources = rendered(**variant)
    open_to_all = [
        each
        for each in statements(resources)
        if "*" in str(listed(each.get("Principal", ""))) and each["Effect"] == "Allow"
    ]
    endpoint = only(resources, "AWS::EC2::VPCEndpoint") if "VpcId" not in variant else None
    for statement in open_to_all:
        assert statement["Condition"] == {"StringEquals": {"aws:PrincipalAccount": "123456789012"}}
    if endpoint is not None:
        assert open_to_all == endpoint["PolicyDocument"]["Statement"]


def test_the_worker_may_log_mount_and_keep_objects_of_its_own_and_no_more() -> None:
    role = rendered()["WorkerRole"]["Properties"]
    allowed = {
        each["Sid"]: (listed(each["Action"]), each["Resource"], each.get("Condition"))
        for each in statements(role["Policies"])
        if each["Effect"] == "Allow"
    }
    mounts = {"StringEquals": {"elasticfilesystem:AccessPointArn": "${AccessPoint.Arn}"}}
    assert allowed == {
        "Log": (["logs:CreateLogStream", "logs:PutLogEvents"], "${LogGroup.Arn}", None),
        "Mount": (
            ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"],
            "${FileSystem.Arn}",
            mounts,
        ),
        "Objects": (["s3:GetObject", "s3:PutObject"], "${Bucket.Arn}/runs/*", None),
        "Data": (["s3:GetObject"], "${Bucket.Arn}/data/*", None),
    }


def test_what_lambda_may_do_to_interfaces_code_in_the_function_may_not() -> None:
    import boto3
    from moto import mock_aws

    role = rendered()["WorkerRole"]["Properties"]
    (managed,) = role["ManagedPolicyArns"]
    (denied,) = [each for each in statements(role["Policies"]) if each["Effect"] == "Deny"]
    assert set(denied["Action"]) == INTERFACES
    assert denied["Condition"] == {"Null": {"lambda:SourceFunctionArn": "false"}}
    with mock_aws(config={"iam": {"load_aws_managed_policies": True}}):  # a copy of AWS's own
        iam = boto3.client("iam", region_name="us-east-1")
        version = iam.get_policy(PolicyArn=managed)["Policy"]["DefaultVersionId"]
        document = iam.get_policy_version(PolicyArn=managed, VersionId=version)
    (statement,) = document["PolicyVersion"]["Document"]["Statement"]
    assert set(statement["Action"]) == INTERFACES


@pytest.mark.parametrize("package", ["image", "zip"])
def test_the_caller_may_ask_for_the_version_and_invoke_versions_and_no_more(package: str) -> None:
    policy = rendered(Package=package)["CallerPolicy"]["Properties"]
    arn = f"${{{package.capitalize()}Worker.Arn}}"
    assert [(each["Effect"], each["Action"], each["Resource"]) for each in statements(policy)] == [
        ("Allow", "lambda:GetAlias", arn),
        ("Allow", "lambda:InvokeFunction", f"{arn}:*"),
    ]
    assert {"Description"} == policy.keys() - {"PolicyDocument"}


def test_the_function_has_no_url_and_no_permission_of_its_own() -> None:
    for each in VARIANTS:
        kinds = {resource["Type"] for resource in rendered(**each).values()}
        assert not kinds & {"AWS::Lambda::Url", "AWS::Lambda::Permission"}


def test_the_group_is_open_to_itself_for_nfs_and_calls_and_to_s3_alone() -> None:
    resources = rendered(**PREFIX_LIST)
    assert only(resources, "AWS::EC2::SecurityGroup")["SecurityGroupEgress"] == [
        {"Description": "in place of allow-all", "IpProtocol": "-1", "CidrIp": "127.0.0.1/32"}
    ]
    assert "SecurityGroupIngress" not in only(resources, "AWS::EC2::SecurityGroup")
    assert rules(of_type(resources, "AWS::EC2::SecurityGroupIngress")) == [
        ("tcp", 2049, 2049, "${SecurityGroup}", "${SecurityGroup}"),
        ("tcp", MASTER_PORTS[0], MASTER_PORTS[-1], "${SecurityGroup}", "${SecurityGroup}"),
    ]
    assert rules(of_type(resources, "AWS::EC2::SecurityGroupEgress")) == [
        ("tcp", 2049, 2049, "${SecurityGroup}", "${SecurityGroup}"),
        ("tcp", MASTER_PORTS[0], MASTER_PORTS[-1], "${SecurityGroup}", "${SecurityGroup}"),
        ("tcp", 443, 443, "${SecurityGroup}", "pl-1"),
    ]
    assert len(of_type(rendered(), "AWS::EC2::SecurityGroupEgress")) == 2
    outputs = [decided(linked=False, **each)["Outputs"] for each in ({}, PREFIX_LIST)]
    assert [each["ReachesS3"]["Value"] for each in outputs] == ["no", "yes"]


def rules(found: list[Json]) -> list[tuple[Any, ...]]:
    """Protocol, ports, group and other end of rules; any further key is a failure."""
    keys = ["Description", "FromPort", "GroupId", "IpProtocol", "ToPort"]
    ends = {"SourceSecurityGroupId", "DestinationSecurityGroupId", "DestinationPrefixListId"}
    result = []
    for rule in found:
        ((end,), rest) = (rule.keys() & ends, sorted(rule.keys() - ends))
        assert rest == keys
        ports = (rule["FromPort"], rule["ToPort"])
        result.append((rule["IpProtocol"], *ports, rule["GroupId"], rule[end]))
    return result


@pytest.mark.parametrize("variant", [*VARIANTS[:3], WITH_MASTER])
def test_nothing_leads_to_the_internet(variant: dict[str, str]) -> None:
    resources = rendered(**variant)
    kinds = {each["Type"] for each in resources.values()}
    assert not kinds & {
        "AWS::EC2::EIP",
        "AWS::EC2::InternetGateway",
        "AWS::EC2::NatGateway",
        "AWS::EC2::Route",
        "AWS::EC2::VPCGatewayAttachment",
    }
    for subnet in of_type(resources, "AWS::EC2::Subnet"):
        assert subnet["MapPublicIpOnLaunch"] is False


@pytest.mark.parametrize("package", ["image", "zip"])
def test_without_a_vpc_there_is_nothing_of_a_network_and_no_permission_for_one(
    package: str,
) -> None:
    made = decided(linked=False, Package=package, **NO_VPC)
    resources = made["Resources"]
    kinds = {each["Type"].rpartition("::")[0] for each in resources.values()}
    assert kinds == {"AWS::CloudWatch", "AWS::IAM", "AWS::Lambda", "AWS::Logs", "AWS::S3"}
    function = only(resources, "AWS::Lambda::Function")
    assert not function.keys() & {"VpcConfig", "FileSystemConfigs", "SnapStart"}
    variables = function["Environment"]["Variables"]
    assert (variables["SEQGC_MOUNT"], variables["SEQGC_DATA"]) == ("", "s3://${Bucket}/data")
    role = resources["WorkerRole"]["Properties"]
    assert "ManagedPolicyArns" not in role
    assert [each["Sid"] for each in statements(role["Policies"])] == ["Log", "Objects", "Data"]
    stored = statements(resources["StorePolicy"]["Properties"])
    assert [each["Sid"] for each in stored] == ["Objects"]
    assert made["Outputs"]["ReachesS3"]["Value"] == "yes"
    of_network = {"FileSystemId", "AccessPointId", "MountPath", "SecurityGroupId"}
    assert not of_network & made["Outputs"].keys()


@pytest.mark.parametrize("package", ["image", "zip"])
def test_a_function_in_a_vpc_starts_after_its_mount_targets(package: str) -> None:
    resources = rendered(Package=package)
    (function,) = (r for r in resources.values() if r["Type"] == "AWS::Lambda::Function")
    assert function["Metadata"]["StartsAfter"] == ["${MountTargetA}", "${MountTargetB}"]
    (function,) = (
        r for r in rendered(Package=package, **NO_VPC).values() if "Function" in r["Type"][-9:]
    )
    assert "StartsAfter" not in function["Metadata"]


@pytest.mark.parametrize("package", ["image", "zip"])
def test_published_versions_start_from_a_snapshot_only_if_asked_for(package: str) -> None:
    made = decided(linked=False, Package=package, Snapstart="yes", **NO_VPC)
    function = only(made["Resources"], "AWS::Lambda::Function")
    assert function["SnapStart"] == {"ApplyOn": "PublishedVersions"}
    assert made["Outputs"]["Snapstart"]["Value"] == "yes"


def test_the_rules_refuse_a_snapshot_with_a_file_system() -> None:
    rule = expanded()["Rules"]["SnapStartHasNoFileSystem"]
    assert rule["RuleCondition"] == {"Fn::Equals": [{"Ref": "Snapstart"}, "yes"]}
    (assertion,) = rule["Assertions"]
    assert assertion["Assert"] == {"Fn::Equals": [{"Ref": "Vpc"}, "no"]}


def test_an_existing_vpc_is_taken_as_it_is() -> None:
    resources = rendered(**EXISTING)
    kinds = {each["Type"] for each in resources.values()}
    assert not kinds & {"AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EC2::RouteTable"}
    assert "AWS::EC2::VPCEndpoint" not in kinds
    endpoint = only(rendered(**EXISTING, RouteTableId="rtb-1"), "AWS::EC2::VPCEndpoint")
    assert (endpoint["VpcId"], endpoint["RouteTableIds"]) == ("vpc-1", ["rtb-1"])
    assert only(resources, "AWS::EC2::SecurityGroup")["VpcId"] == "vpc-1"
    function = only(resources, "AWS::Lambda::Function")
    assert function["VpcConfig"]["SubnetIds"] == ["subnet-1", "subnet-2"]
    targets = of_type(resources, "AWS::EFS::MountTarget")
    assert [each["SubnetId"] for each in targets] == ["subnet-1", "subnet-2"]


def test_what_is_kept_is_encrypted_and_private() -> None:
    resources = rendered()
    system, bucket = only(resources, "AWS::EFS::FileSystem"), only(resources, "AWS::S3::Bucket")
    assert system["Encrypted"] is True
    (refused,) = statements(system)
    assert refused["Effect"] == "Deny"
    assert refused["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    policy = only(resources, "AWS::S3::BucketPolicy")
    assert policy["Bucket"] == "${Bucket}"
    assert statements(policy) == [REFUSES_PLAIN_HTTP]
    kept = {name for name, each in resources.items() if "Retain" in each.get("DeletionPolicy", "")}
    assert kept >= {
        "Bucket",
        "BucketPolicy",
        "FileSystem",
    }  # what the bucket refuses, it always does
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    point = only(resources, "AWS::EFS::AccessPoint")
    assert point["PosixUser"] == {"Uid": "1000", "Gid": "1000"}
    assert point["RootDirectory"]["Path"] == "/seqgc"


@pytest.mark.parametrize("mode", ["bursting", "elastic", "provisioned"])
def test_throughput_is_provisioned_only_if_asked_for(mode: str) -> None:
    system = only(rendered(ThroughputMode=mode), "AWS::EFS::FileSystem")
    assert system["ThroughputMode"] == mode
    assert system.get("ProvisionedThroughputInMibps") == (64 if mode == "provisioned" else None)


@pytest.mark.parametrize("package", ["image", "zip"])
def test_the_function_is_as_asked_for_and_never_retried(package: str) -> None:
    resources = rendered(Package=package, Architecture="x86_64", MemoryMb="1769", TimeoutS="33")
    function = only(resources, "AWS::Lambda::Function")
    assert function["PackageType"] == package.capitalize()
    assert function["Architectures"] == ["x86_64"]
    assert (function["MemorySize"], function["Timeout"]) == ("1769", "33")
    assert "ReservedConcurrentExecutions" not in function
    (mounted,) = function["FileSystemConfigs"]
    assert mounted["Arn"] == "${AccessPoint.Arn}"
    assert mounted["LocalMountPath"] == function["Environment"]["Variables"]["SEQGC_MOUNT"]
    group = only(resources, "AWS::Logs::LogGroup")
    assert group["RetentionInDays"] == 14
    assert function["LoggingConfig"]["LogGroup"] == "${LogGroup}"


@pytest.mark.parametrize("package", ["image", "zip"])
def test_every_version_stays_and_keeps_what_forbids_to_repeat_it(package: str) -> None:
    resources = rendered(Package=package)
    kinds = ("AWS::Lambda::Version", "AWS::Lambda::EventInvokeConfig")
    ((name, version),) = ((k, each) for k, each in resources.items() if each["Type"] == kinds[0])
    (once,) = (each for each in resources.values() if each["Type"] == kinds[1])
    assert version["DeletionPolicy"] == version["UpdateReplacePolicy"] == "Retain"
    assert once["UpdateReplacePolicy"] == "Retain"
    (of_arn,) = once["Properties"]["Qualifier"].values()
    assert of_arn == [7, {"Fn::Split": [":", f"${{{name}}}"]}]
    assert once["Properties"]["MaximumRetryAttempts"] == 0
    alias = only(resources, "AWS::Lambda::Alias")
    assert (alias["Name"], alias["FunctionVersion"]) == ("live", f"${{{name}.Version}}")


@pytest.mark.parametrize("package", ["image", "zip"])
def test_whatever_parameter_changes_another_version_is_published(package: str) -> None:
    """SAM names a version by the function's code; AWS replaces one whose description changes."""

    def described(**changes: Any) -> str:
        parameters = DeployOptions(package=package, **changes).parameters(prefix_list="pl-1")  # type: ignore[arg-type]
        resources = rendered(**parameters)
        function = only(resources, "AWS::Lambda::Function")
        text = str(only(resources, "AWS::Lambda::Version")["Description"])
        assert text == function["Description"]  # or Lambda would find nothing to publish
        return text

    same = described(vpc=True), described(vpc=True, memory_mb=2560)
    changed = [described(vpc=False), described(memory_mb=1769), described(timeout_s=61)]
    changed += [described(trace=True)]
    changed += [described(factories=("mine.nets",)), described(vpc=False, snapstart=True)]
    changed += [described(image_uri="an/image:2")] if package == "image" else []
    assert len({*same, *changed}) == 1 + len(changed)


def test_alarms_ask_about_the_function_and_tell_the_topic_if_there_is_one() -> None:
    for package, worker in (("image", "ImageWorker"), ("zip", "ZipWorker")):
        resources = rendered(Package=package, TimeoutS="33", AlarmTopicArn="arn:aws:sns:a:1:ops")
        alarms = {a["AlarmName"]: a for a in of_type(resources, "AWS::CloudWatch::Alarm")}
        assert alarms.keys() == {"seqgc-errors", "seqgc-throttles", "seqgc-duration"}
        share, longest = alarms["seqgc-duration"]["Metrics"]
        assert (share["Expression"], share["Id"]) == ("longest / (10 * 33)", "share")  # ms to %
        assert longest["MetricStat"]["Metric"]["MetricName"] == "Duration"
        asked = [
            metric["Dimensions"]
            for alarm in alarms.values()
            for metric in [
                alarm if "MetricName" in alarm else None,
                *(m["MetricStat"]["Metric"] for m in alarm.get("Metrics", []) if "MetricStat" in m),
            ]
            if metric is not None
        ]
        assert asked == [[{"Name": "FunctionName", "Value": f"${{{worker}}}"}]] * 4
        for alarm in alarms.values():
            assert alarm["AlarmActions"] == ["arn:aws:sns:a:1:ops"]
            assert alarm["TreatMissingData"] == "notBreaching"  # no run, no alarm
    silent = of_type(rendered(), "AWS::CloudWatch::Alarm")
    assert ["AlarmActions" in alarm for alarm in silent] == [False] * 3
    kinds = {each["Type"] for each in rendered(Monitoring="no").values()}
    assert not kinds & {"AWS::CloudWatch::Alarm", "AWS::CloudWatch::Dashboard"}


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    board = only(rendered(stack="mine"), "AWS::CloudWatch::Dashboard")
    assert board["DashboardName"] == "mine-eu-central-1"
    widgets = [each["properties"] for each in json.loads(board["DashboardBody"])["widgets"]]
    shown, last = set(), ["", "", "", ""]
    for widget in widgets:
        for row in widget.get("metrics", []):
            words = [word for word in row if isinstance(word, str)]
            if words == ["..."]:
                words = last
            if words:
                last = [old if new == "." else new for new, old in zip(words, last, strict=True)]
                shown.add(tuple(last))
    own = {
        name for space, name, *where in shown if space == "seqgc" and where == ["service", "mine"]
    }
    telemetry = (ROOT / "lambda_handlers/gradient_worker/_telemetry.py").read_text()
    assert len(own) == 7
    assert all(f'"{name}"' in telemetry for name in own)
    theirs = {name for space, name, *_ in shown if space == "AWS/Lambda"}
    assert theirs == {"Invocations", "Errors", "Throttles", "Duration", "ConcurrentExecutions"}
    (annotation,) = widgets[2]["annotations"]["horizontal"]
    assert annotation["value"] == 60


def test_x_ray_is_off_unless_asked_for_and_then_the_worker_may_send_traces() -> None:
    for asked, mode in (("no", "PassThrough"), ("yes", "Active")):
        resources = rendered(Trace=asked)
        function = only(resources, "AWS::Lambda::Function")
        assert function["TracingConfig"] == {"Mode": mode}
        sids = [each.get("Sid") for each in statements(resources["WorkerRole"]["Properties"])]
        assert ("Trace" in sids) == (asked == "yes")


def test_a_stack_s_tags_reach_every_resource_that_can_have_any() -> None:
    """CloudFormation's own schemas say to which resources it hands a stack's tags on."""
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

    kinds = {each["Type"] for each in rendered(**WITH_MASTER).values()}
    schemas = {k: PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, k).schema for k in kinds}
    assert {k for k, schema in schemas.items() if not schema["tagging"]["taggable"]} == {
        "AWS::EC2::SecurityGroupEgress",
        "AWS::EC2::SecurityGroupIngress",
        "AWS::EC2::SubnetRouteTableAssociation",
        "AWS::EFS::MountTarget",
        "AWS::IAM::ManagedPolicy",
        "AWS::Lambda::Alias",
        "AWS::Lambda::EventInvokeConfig",
        "AWS::Lambda::Version",
        "AWS::S3::BucketPolicy",
    }


def test_concurrency_is_reserved_if_asked_for() -> None:
    function = only(rendered(ReservedConcurrency="256"), "AWS::Lambda::Function")
    assert function["ReservedConcurrentExecutions"] == "256"


def test_what_runs_leave_expires_and_data_sets_do_not() -> None:
    bucket = only(rendered(), "AWS::S3::Bucket")
    rules = {each["Prefix"]: each for each in bucket["LifecycleConfiguration"]["Rules"]}
    assert rules.keys() == {"runs/", "data/"}
    assert "ExpirationInDays" in rules["runs/"]
    assert rules["data/"].keys() == {
        "Id", "Status", "Prefix", "AbortIncompleteMultipartUpload"
    }  # fmt: skip


def test_functions_without_a_way_to_s3_look_for_data_on_the_file_system_alone() -> None:
    places = [
        rendered(**given)["ImageWorker"]["Properties"]["Environment"]["Variables"]["SEQGC_DATA"]
        for given in ({}, PREFIX_LIST)
    ]
    assert places == ["/mnt/seqgc/data", "/mnt/seqgc/data,s3://${Bucket}/data"]
