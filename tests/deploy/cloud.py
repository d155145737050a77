"""A stack of the expanded template in moto: AWS's control plane, as far as it can be had here.

moto's CloudFormation makes nothing of a SAM template and reports success all the same, so it is
given the expanded one; of what it has no idea of, references are written out, and resources are
made by their own API, from the properties that the rendered template gives them.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tests.deploy.kit import ACCOUNT, REGION, Json, decided, expanded, rendered

EFS = "arn:${AWS::Partition}:elasticfilesystem:${AWS::Region}:${AWS::AccountId}"


@cache
def loader() -> Any:
    """botocore's models of the services, which take a second to read, read once."""
    from botocore.loaders import create_loader

    return create_loader()


def new_session(region: str = REGION) -> Any:
    import boto3
    from botocore.session import get_session

    session = get_session()
    session.register_component("data_loader", loader())
    return boto3.Session(region_name=region, botocore_session=session)


@cache
def client(service: str) -> Any:
    """The test's own client; moto starts again in every test, the client need not."""
    return new_session().client(service)


def make_stack(
    name: str, parameters: dict[str, str], *, tags: dict[str, str] | None = None
) -> None:
    """What CloudFormation does when `sam deploy` asks it to."""
    made = _make_most(name, parameters, tags or {})
    resources = rendered(stack=name, **parameters)
    for kind, make in BY_HAND.items():
        for logical, resource in resources.items():
            if resource["Type"] == kind:
                make({"FunctionName": function_name(name, logical)} | _named(resource, made))


def function_name(stack: str, logical: str) -> str:
    return f"{stack}-{logical}"


def function_arn(stack: str, logical: str) -> str:
    return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{function_name(stack, logical)}"


def _make_most(stack: str, parameters: dict[str, str], tags: dict[str, str]) -> dict[str, str]:
    """Let moto's CloudFormation make what it can; return physical names by logical ones."""
    template = decided(linked=True, stack=stack, **parameters)
    template["Description"] = expanded()["Description"]
    resources = template["Resources"]
    template["Resources"] = {
        k: each for k, each in resources.items() if each["Type"] not in BY_HAND
    }
    for each in template["Resources"].values():
        if each.get("DeletionPolicy") == "RetainExceptOnCreate":
            each["DeletionPolicy"] = "Retain"  # the same, but that moto knows it
        if each["Type"] == "AWS::ECR::Repository":
            each["Properties"]["RepositoryName"] = f"{stack}-master"  # moto's own has capitals
    for output in template["Outputs"].values():
        if isinstance(output["Value"], int):
            output["Value"] = str(output["Value"])
    made = client("cloudformation")
    made.create_stack(
        StackName=stack,
        TemplateBody=json.dumps(_written_out(template, stack)),
        Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
    )
    found = made.list_stack_resources(StackName=stack)["StackResourceSummaries"]
    names = {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in found}
    functions = {
        f"{name}Worker": function_name(stack, f"{name}Worker") for name in ("Image", "Zip")
    }
    return names | functions


def _written_out(node: Any, stack: str) -> Any:
    if isinstance(node, list):
        return [_written_out(each, stack) for each in node]
    if not isinstance(node, dict):
        return node
    match node:
        case {"Fn::GetAtt": ["FileSystem", "Arn"]}:
            return {"Fn::Sub": EFS + ":file-system/${FileSystem}"}
        case {"Fn::GetAtt": [("AccessPoint" | "RunsAccessPoint") as point, "Arn"]}:
            return {"Fn::Sub": f"{EFS}:access-point/${{{point}}}"}
        case {"Ref": "AccessPoint" | "RunsAccessPoint"}:
            return "fsap-0123456789"  # moto answers with an object of its own
        case {"Fn::GetAtt": [("ImageWorker" | "ZipWorker") as function, "Arn"]}:
            return function_arn(stack, function)
        case {"Fn::Sub": "${ImageWorker.Arn}:*" | "${ZipWorker.Arn}:*" as every}:
            return function_arn(stack, every[2:].removesuffix(".Arn}:*")) + ":*"
        case {"Fn::Select": [int(index), {"Fn::Cidr": [_, _, 7]}]}:
            return f"10.64.0.{128 * index}/25"
        case {"Ref": str(name)} if name.endswith("Aliaslive"):
            return function_arn(stack, name.removesuffix("Aliaslive")) + ":live"
    return {key: _written_out(each, stack) for key, each in node.items()}


def _named(node: Any, made: dict[str, str]) -> Any:
    """The properties with ``${Name}`` replaced by what was made; of a resource, its properties."""
    if isinstance(node, dict):
        return {key: _named(each, made) for key, each in node.get("Properties", node).items()}
    if isinstance(node, list):
        return [_named(each, made) for each in node]
    if isinstance(node, str):
        for name, physical in made.items():
            node = node.replace(f"${{{name}}}", physical)
    return node


def _make_function(properties: Json) -> None:
    role = next(each for each in client("iam").list_roles()["Roles"])
    keys = ("FunctionName", "MemorySize", "Timeout", "PackageType", "Environment", "Architectures")
    made = {key: properties[key] for key in keys}
    made |= {key: properties[key] for key in ("VpcConfig", "SnapStart") if key in properties}
    made |= {key: int(properties[key]) for key in ("MemorySize", "Timeout")}
    code = properties["Code"]
    if properties["PackageType"] == "Zip":
        made |= {key: properties[key] for key in ("Handler", "Runtime")}
        code = {"ZipFile": b"not looked into"}
    client("lambda").create_function(**made, Code=code, Role=role["Arn"])
    if reserved := properties.get("ReservedConcurrentExecutions"):
        client("lambda").put_function_concurrency(
            FunctionName=properties["FunctionName"], ReservedConcurrentExecutions=int(reserved)
        )


def _make_alias(properties: Json) -> None:
    version = client("lambda").publish_version(FunctionName=properties["FunctionName"])["Version"]
    client("lambda").create_alias(
        FunctionName=properties["FunctionName"], Name=properties["Name"], FunctionVersion=version
    )


def _make_retries(properties: Json) -> None:
    client("lambda").put_function_event_invoke_config(
        FunctionName=properties["FunctionName"],
        MaximumRetryAttempts=properties["MaximumRetryAttempts"],
        MaximumEventAgeInSeconds=properties["MaximumEventAgeInSeconds"],
    )


def _make_alarm(properties: Json) -> None:
    properties.pop("FunctionName")
    client("cloudwatch").put_metric_alarm(**properties)


def _make_dashboard(properties: Json) -> None:
    properties.pop("FunctionName")
    client("cloudwatch").put_dashboard(**properties)


def _make_egress(properties: Json) -> None:
    rule: Json = {"IpProtocol": properties["IpProtocol"]}
    rule |= {key: properties[key] for key in ("FromPort", "ToPort")}
    if group := properties.get("DestinationSecurityGroupId"):
        rule["UserIdGroupPairs"] = [{"GroupId": group}]
    if prefixes := properties.get("DestinationPrefixListId"):
        rule["PrefixListIds"] = [{"PrefixListId": prefixes}]
    client("ec2").authorize_security_group_egress(
        GroupId=properties["GroupId"], IpPermissions=[rule]
    )


BY_HAND = {
    "AWS::CloudWatch::Alarm": _make_alarm,
    "AWS::CloudWatch::Dashboard": _make_dashboard,
    "AWS::EC2::SecurityGroupEgress": _make_egress,
    "AWS::Lambda::Function": _make_function,
    "AWS::Lambda::Version": lambda _: None,  # `_make_alias` publishes it
    "AWS::Lambda::Alias": _make_alias,
    "AWS::Lambda::EventInvokeConfig": _make_retries,
}
