"""The file that `deploy` writes and `train` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqgc.deploy import DeployError, Deployment, read_deployment, write_deployment
from seqgc.errors import ParameterError

ARN = "arn:aws:lambda:eu-central-1:123456789012:function:seqgc-ImageWorker-x:live"
OUTPUTS = {
    "AliasArn": ARN,
    "FunctionArn": ARN.removesuffix(":live"),
    "BucketName": "b",
    "BucketPrefix": "runs",
    "ReachesS3": "yes",
    "MountPath": "/mnt/seqgc",
    "FileSystemId": "fs-1",
    "AccessPointId": "fsap-1",
    "SecurityGroupId": "sg-1",
    "CallerPolicyArn": "arn:aws:iam::123456789012:policy/caller",
    "StorePolicyArn": "arn:aws:iam::123456789012:policy/store",
    "Architecture": "arm64",
    "MemoryMb": "2560",
    "TimeoutS": "60",
}


def made() -> Deployment:
    return Deployment.from_outputs("seqgc", "eu-central-1", OUTPUTS)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "seqgc-lambda.toml"
    write_deployment(path, made())
    assert read_deployment(path) == made()
    assert (made().memory_mb, made().timeout_s, made().reaches_s3) == (2560, 60, True)
    assert [each.name for each in tmp_path.iterdir()] == ["seqgc-lambda.toml"]


def test_functions_without_a_way_to_s3_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "seqgc-lambda.toml"
    only_efs = Deployment.from_outputs("seqgc", "eu-central-1", OUTPUTS | {"ReachesS3": "no"})
    write_deployment(path, only_efs)
    assert not read_deployment(path).reaches_s3


def test_functions_without_a_network_and_older_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "seqgc-lambda.toml"
    of_network = ("MountPath", "FileSystemId", "AccessPointId", "SecurityGroupId")
    outputs = {key: value for key, value in OUTPUTS.items() if key not in of_network}
    plain = Deployment.from_outputs("seqgc", "eu-central-1", outputs | {"Snapstart": "yes"})
    assert (plain.has_vpc, plain.snapstart, plain.file_system_id) == (False, True, "")
    write_deployment(path, plain)
    assert read_deployment(path) == plain
    write_deployment(path, made())
    path.write_text(path.read_text().replace("snapstart = false\n", ""))
    assert read_deployment(path) == made()
    assert made().has_vpc


def test_a_stack_that_is_another_is_refused() -> None:
    some = {key: value for key, value in OUTPUTS.items() if key != "MountPath"}
    with pytest.raises(DeployError, match=r"'other' in eu-central-1 has no output 'MountPath'"):
        Deployment.from_outputs("other", "eu-central-1", some)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("schema = 1", "schema = 2", "must have schema 1"),
        ("memory_mb = 2560", 'memory_mb = "2560"', "must have 'memory_mb', a whole number"),
        ("reaches_s3 = true", 'reaches_s3 = "yes"', "must have 'reaches_s3', true or false"),
        ('bucket = "b"', "", "must have 'bucket', text"),
        ('bucket = "b"', 'bucket = "b"\ncolour = "red"', "unknown keys"),
        (":live", "", "must be the ARN of an alias"),
        ('file_system_id = "fs-1"', 'file_system_id = ""', "`file_system_id` must be set with"),
        ("schema = 1", "schema", "must be a file that `seqgc deploy` wrote: "),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    path = tmp_path / "seqgc-lambda.toml"
    write_deployment(path, made())
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ParameterError) as refused:
        read_deployment(path)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_comes_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="run `seqgc deploy`"):
        read_deployment(tmp_path / "none.toml")
