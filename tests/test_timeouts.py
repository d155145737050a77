"""The page of all time limits has the limits of the code, in order, and its inequalities hold."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config

from tests.deploy import kit

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "timeouts.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """Return the rows, without their head, of the table whose head begins with ``heading``."""
    lines = PAGE.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows: list[list[str]] = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


LIMITS = {row[0]: (float(row[1]), re.findall("`([^`]+)`", row[3])) for row in table("limit")}


def value(name: str) -> float:
    """Return a constant of seqgc, or the default of a field or argument of a class or method."""
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            owner = importlib.import_module(".".join(["seqgc", *parts[:split]]))
            break
        except ModuleNotFoundError:
            continue
    attributes = parts[split:]
    found = functools.reduce(getattr, attributes[: max(1, len(attributes) - 1)], owner)
    if len(attributes) > 1:
        found = inspect.signature(found).parameters[attributes[-1]].default
    return float(found)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_has_the_value_of_the_code(limit: str) -> None:
    seconds, names = LIMITS[limit]
    if names[-1:] == ["template.yaml"]:
        tasks = [each["Properties"]["ContainerDefinitions"] for each in rendered_tasks()]
        (value_s,) = {each[names[0]] for (each,) in tasks if names[0] in each}
        assert value_s == seconds
    elif names:
        assert math.prod(map(value, names)) == seconds
    elif "S3" in limit:
        assert Config.OPTION_DEFAULTS["read_timeout"] == seconds  # seqgc keeps boto3's default
    else:
        assert "NAT" in limit or "--snapstart" in limit  # AWS's, and not in the code


def rendered_tasks() -> list[dict[str, Any]]:
    master = {"Vpc": "yes", "WithMaster": "yes", "S3PrefixListId": "pl-1"}
    parts = kit.rendered(**master).values()
    return [each for each in parts if each["Type"] == "AWS::ECS::TaskDefinition"]


def test_limits_are_in_ascending_order() -> None:
    seconds = [each for each, _ in LIMITS.values()]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(("shorter", "longer"), [tuple(row[:2]) for row in table("shorter")])
def test_what_must_be_shorter_is(shorter: str, longer: str) -> None:
    assert LIMITS[shorter][0] < LIMITS[longer][0]
