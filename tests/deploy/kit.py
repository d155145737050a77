"""The template as AWS would see it: expanded by SAM's own translator, then rendered."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "template.yaml"
REGION, ACCOUNT = "eu-central-1", "123456789012"
IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/worker:latest"
PSEUDO = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Partition": "aws",
    "AWS::Region": REGION,
    "AWS::URLSuffix": "amazonaws.com",
}
NOTHING = object()  # what AWS::NoValue leaves

Json = dict[str, Any]


@cache
def _parsed() -> Json:
    from samtranslator.yaml_helper import yaml_parse

    return yaml_parse(TEMPLATE.read_text(encoding="utf-8"))


@cache
def _expanded() -> Json:
    import boto3
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator

    template = copy.deepcopy(_parsed())
    # What `sam build` and `sam package` do: code gets an address.
    template["Resources"]["ImageWorker"]["Properties"]["ImageUri"] = IMAGE
    template["Resources"]["ZipWorker"]["Properties"]["CodeUri"] = "s3://code/worker.zip"
    session = boto3.Session(region_name=REGION)
    parameters = {name: each["Default"] for name, each in template["Parameters"].items()}
    return Translator({}, Parser(), boto_session=session).translate(template, parameters)


def expanded() -> Json:
    """The template without SAM's shorthand; conditions and references are still in it."""
    return copy.deepcopy(_expanded())


def rendered(*, stack: str = "seqgc", **parameters: str) -> Json:
    """Every resource that these parameters make; references are written ``${Name.Attribute}``."""
    return decided(linked=False, stack=stack, **parameters)["Resources"]


def decided(*, linked: bool, stack: str = "seqgc", **parameters: str) -> Json:
    """Resources and outputs that these parameters make; ``linked`` leaves references in."""
    template = expanded()
    values = {name: each["Default"] for name, each in template["Parameters"].items()}
    assert values.keys() >= parameters.keys()
    renderer = _Renderer(
        template, PSEUDO | {"AWS::StackName": stack} | values | parameters, linked=linked
    )
    return {part: renderer.section(part) for part in ("Resources", "Outputs")}


class _Renderer:
    def __init__(self, template: Json, values: Json, *, linked: bool) -> None:
        self.template, self.values, self.linked = template, values, linked

    def section(self, part: str) -> Json:
        return {
            name: self.value({key: value for key, value in each.items() if key != "Condition"})
            for name, each in self.template[part].items()
            if "Condition" not in each or self.condition(each["Condition"])
        }

    def condition(self, name: str) -> bool:
        return self.truth(self.template["Conditions"][name])

    def truth(self, formula: Json) -> bool:
        ((function, arguments),) = formula.items()
        match function:
            case "Condition":
                return self.condition(arguments)
            case "Fn::Equals":
                left, right = (str(self.value(each)) for each in arguments)
                return left == right
            case "Fn::Not":
                return not self.truth(arguments[0])
            case "Fn::And":
                return all(map(self.truth, arguments))
            case "Fn::Or":
                return any(map(self.truth, arguments))
        raise AssertionError(f"no such condition function: {function}")

    def value(self, node: Any) -> Any:
        if isinstance(node, list):
            found = [self.value(each) for each in node]
            return [each for each in found if each is not NOTHING]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            ((function, argument),) = node.items()
            if function == "Ref" or function.startswith("Fn::"):
                return self.intrinsic(function, argument)
        found = {key: self.value(each) for key, each in node.items()}
        return {key: each for key, each in found.items() if each is not NOTHING}

    def intrinsic(self, function: str, argument: Any) -> Any:
        match function:
            case "Ref" if argument == "AWS::NoValue":
                return NOTHING
            case "Ref" if argument in self.values:
                return self.values[argument]
            case "Ref" | "Fn::GetAtt" if self.linked:
                return {function: argument}
            case "Ref" | "Fn::GetAtt":
                name = argument if isinstance(argument, str) else ".".join(argument)
                return f"${{{name}}}"
            case "Fn::If":
                name, yes, no = argument
                return self.value(yes if self.condition(name) else no)
            case "Fn::Sub" if isinstance(argument, list):
                text, own = argument
                return self.intrinsic(
                    function, _replaced(text, {k: self.value(v) for k, v in own.items()})
                )
            case "Fn::Sub":
                for name, value in self.values.items():
                    argument = argument.replace(f"${{{name}}}", str(value))
                return {function: argument} if self.linked and "${" in argument else argument
        return {function: self.value(argument)}  # Fn::Select, Fn::Cidr, …: AWS's own business


def _replaced(text: str, values: Json) -> str:
    for name, value in values.items():
        # linked, a reference stands for itself: ``${Name}`` is how `Fn::Sub` writes it
        text = text.replace(
            f"${{{name}}}", f"${{{value['Ref']}}}" if isinstance(value, dict) else value
        )
    return text


def statements(node: Any) -> list[Json]:
    """Every statement of every policy document within."""
    if isinstance(node, list):
        return [found for each in node for found in statements(each)]
    if not isinstance(node, dict):
        return []
    own = node.get("Statement", [])
    return [*own, *(found for each in node.values() for found in statements(each))]


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
