"""`seqgc deploy --vpc --with-master`: a task for a master that functions in the VPC can reach.

AWS is moto's, and no task runs: the commands that the stack gives to users are taken apart, and
what they start in the task is run here.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqgc.cli import main
from seqgc.deploy import (
    DeployError,
    Deployment,
    DeployOptions,
    deploy,
    plan_teardown,
    upload_run,
    write_deployment,
)
from seqgc.errors import ParameterError
from tests.cli.inside import Status, command
from tests.deploy.cloud import client
from tests.deploy.kit import REGION, ROOT, Json, expanded, listed, rendered, statements
from tests.deploy.test_deploy import Sam, parameters_of
from tests.deploy.test_doctor import answering, examined, failures
from tests.deploy.test_template import LAYERS_OF_IMAGES, LOGIN_AT_ECR, WITH_MASTER, of_type, rules

MASTER = DeployOptions(stack="mine", vpc=True, with_master=True)
NOBODY: Any = None  # a session that is not used
PLAN = 'scheme = "uncoded"\nworkers = 2\nsteps = 2\n[[models]]\nname = "a"\nmodule = "mlp"\n'


@pytest.fixture
def made(account: Any) -> Deployment:
    return deploy(MASTER, session=account, run=Sam())


def allowed(role: Json) -> dict[str, tuple[list[str], Any]]:
    found = statements(role["Properties"]["Policies"])
    assert {each["Effect"] for each in found} == {"Allow"}
    return {each["Sid"]: (sorted(listed(each["Action"])), each["Resource"]) for each in found}


def container(name: str) -> Json:
    found: Json
    (found,) = rendered(**WITH_MASTER)[name]["Properties"]["ContainerDefinitions"]
    return found


# ---- the template --------------------------------------------------------------------------------


def test_the_master_may_invoke_and_use_both_stores_and_its_own_runs_and_no_more() -> None:
    resources = rendered(**WITH_MASTER)
    role = resources["MasterRole"]
    assert role["Properties"]["ManagedPolicyArns"] == ["${CallerPolicy}", "${StorePolicy}"]
    mounts = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]
    assert allowed(role) == {"MountRuns": (mounts, "${FileSystem.Arn}")}
    (own,) = statements(role["Properties"]["Policies"])
    assert own["Condition"] == {
        "StringEquals": {"elasticfilesystem:AccessPointArn": "${RunsAccessPoint.Arn}"}
    }
    # No function may mount this access point.
    for name, each in resources.items():
        assert ("RunsAccessPoint" in str(each)) == (
            name in {"MasterRole", "MasterTask", "CopyTask"}
        )


def test_fargate_may_fetch_one_image_and_write_one_log_and_no_more() -> None:
    role = rendered(**WITH_MASTER)["MasterStartRole"]
    assert "ManagedPolicyArns" not in role["Properties"]
    assert LOGIN_AT_ECR in statements(role["Properties"]["Policies"])
    assert allowed(role) == {
        "Login": (["ecr:GetAuthorizationToken"], "*"),
        "Image": (
            ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            "${MasterRepository.Arn}",
        ),
        "Log": (["logs:CreateLogStream", "logs:PutLogEvents"], "${MasterLogGroup.Arn}"),
    }


def test_the_layers_of_images_are_the_only_foreign_objects_that_the_gateway_lets_through() -> None:
    document = rendered(**WITH_MASTER)["S3Endpoint"]["Properties"]["PolicyDocument"]
    own, layers = document["Statement"]
    assert own in statements(rendered(S3PrefixListId="pl-1")["S3Endpoint"]["Properties"])
    assert (layers["Effect"], layers["Action"]) == ("Allow", "s3:GetObject")
    assert layers["Resource"] == LAYERS_OF_IMAGES


def test_only_the_group_of_the_master_reaches_the_endpoints_and_only_by_https() -> None:
    resources = rendered(**WITH_MASTER)
    endpoints = [
        each
        for each in of_type(resources, "AWS::EC2::VPCEndpoint")
        if each["VpcEndpointType"] == "Interface"
    ]
    names = [each["ServiceName"].removeprefix(f"com.amazonaws.{REGION}.") for each in endpoints]
    assert sorted(names) == ["ecr.api", "ecr.dkr", "lambda", "logs"]
    for each in endpoints:
        assert each["SecurityGroupIds"] == ["${EndpointGroup}"]
        assert each["SubnetIds"] == ["${NewSubnetA}"]
        assert each["PrivateDnsEnabled"] is True
    https = ("tcp", 443, 443, "${EndpointGroup}", "${EndpointGroup}")
    for way in ("Ingress", "Egress"):
        found = rules(of_type(resources, f"AWS::EC2::SecurityGroup{way}"))
        assert [each for each in found if "${EndpointGroup}" in each] == [https]
    (function,) = of_type(resources, "AWS::Lambda::Function")
    assert function["VpcConfig"]["SecurityGroupIds"] == ["${SecurityGroup}"]


@pytest.mark.parametrize("given", [{}, {"Vpc": "no", "WithMaster": "yes"}])
def test_without_the_option_or_a_vpc_there_is_nothing_of_a_master(given: dict[str, str]) -> None:
    resources = rendered(S3PrefixListId="pl-1", **given)
    kinds = {each["Type"].split("::")[1] for each in resources.values()}
    assert not kinds & {"ECS", "ECR"}
    assert len(of_type(resources, "AWS::IAM::Role")) == 1  # of the functions
    network = {"S3Endpoint", "SecurityGroup", "AccessPoint", "LogGroup"}
    own = {"EndpointGroup", "EndpointIn", "EndpointOut", "RunsAccessPoint", "MasterLogGroup"}
    own |= {f"{name}Endpoint" for name in ("Lambda", "EcrApi", "EcrDkr", "Logs")}
    assert own | network <= rendered(**WITH_MASTER).keys()
    assert not own & resources.keys()


def test_the_template_itself_refuses_a_master_without_a_new_vpc_and_a_way_to_s3() -> None:
    rule = expanded()["Rules"]["MasterNeedsNewVpc"]
    assert rule["RuleCondition"] == {"Fn::Equals": [{"Ref": "WithMaster"}, "yes"]}
    assert [each["Assert"] for each in rule["Assertions"]] == [
        {"Fn::Equals": [{"Ref": "Vpc"}, "yes"]},
        {"Fn::Equals": [{"Ref": "VpcId"}, ""]},
        {"Fn::Not": [{"Fn::Equals": [{"Ref": "S3PrefixListId"}, ""]}]},
    ]


def test_both_tasks_keep_runs_on_the_file_system_where_the_image_works() -> None:
    text = (ROOT / "master" / "Dockerfile").read_text(encoding="utf-8")
    folder = text.partition("WORKDIR ")[2].splitlines()[0]
    for name in ("MasterTask", "CopyTask"):
        task = rendered(**WITH_MASTER)[name]["Properties"]
        volumes = {each["Name"]: each["EFSVolumeConfiguration"] for each in task["Volumes"]}
        mounted = {each["SourceVolume"]: each for each in container(name)["MountPoints"]}
        assert mounted.keys() == volumes.keys()
        assert mounted["runs"]["ContainerPath"] == f"{folder}/runs"
        runs = volumes["runs"]
        assert runs["TransitEncryption"] == "ENABLED"
        assert runs["AuthorizationConfig"] == {
            "AccessPointId": "${RunsAccessPoint}",
            "IAM": "ENABLED",
        }
    for architecture, name in (("arm64", "ARM64"), ("x86_64", "X86_64")):
        task = rendered(Architecture=architecture, **WITH_MASTER)["MasterTask"]["Properties"]
        assert task["RuntimePlatform"]["CpuArchitecture"] == name


# ---- deploy --------------------------------------------------------------------------------------


def test_the_commands_of_a_stack_name_what_is_there(made: Deployment) -> None:
    ecs, words = client("ecs"), shlex.split(made.run_master)
    assert words[:3] == ["aws", "ecs", "run-task"]
    given = dict(zip(words[3::2], words[4::2], strict=True))
    assert given["--region"] == made.region
    assert given["--launch-type"] == "FARGATE"
    clusters = ecs.describe_clusters(clusters=[given["--cluster"]])["clusters"]
    assert [each["status"] for each in clusters] == ["ACTIVE"]
    task = ecs.describe_task_definition(taskDefinition=given["--task-definition"])["taskDefinition"]
    (its,) = task["containerDefinitions"]
    assert its["image"] == made.master_image
    kind, _, network = given["--network-configuration"].partition("=")
    assert kind == "awsvpcConfiguration"
    assert network.endswith("assignPublicIp=DISABLED}")
    subnet, groups = (network.split("=[")[n].split("]")[0] for n in (1, 2))
    described = client("ec2").describe_security_groups(GroupIds=groups.split(","))
    (vpc,) = {each["VpcId"] for each in described["SecurityGroups"]}
    assert client("ec2").describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"] == vpc
    assert made.security_group_id in groups
    assert made.copy_results == made.run_master.replace("mine-master", "mine-copy")
    log = shlex.split(made.follow_master)[3]
    assert its["logConfiguration"]["options"]["awslogs-group"] == log


def test_a_later_deployment_keeps_the_master_unless_told_otherwise(
    account: Any, made: Deployment
) -> None:
    assert made.master_image
    for given, kept in ((None, "yes"), (False, "no")):
        sam, options = Sam(fails="deploy"), DeployOptions(stack="mine", with_master=given)
        with pytest.raises(DeployError):
            deploy(options, session=account, run=sam)
        assert parameters_of(sam.commands[-1])["WithMaster"] == kept


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["--no-vpc"],
        ["--vpc", "--vpc-id", "vpc-1", "--subnets", "subnet-1,subnet-2"],
    ],
)
def test_a_master_needs_a_new_vpc_and_one_line_says_it(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", "--dry-run", "--with-master", *given]) == Status.WRONG
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("seqgc: `with_master` must be ")
    assert ("--vpc" in line) != ("vpc_id" in line)


def test_a_dry_run_shows_that_a_master_is_deployed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "--dry-run", "--vpc", "--with-master"]) == 0
    _, deployed = map(shlex.split, capsys.readouterr().out.splitlines())
    assert parameters_of(deployed)["WithMaster"] == "yes"
    assert parameters_of(deployed)["S3PrefixListId"] == "PREFIX-LIST"


# ---- what the tasks run --------------------------------------------------------------------------


def test_the_task_s_command_is_one_of_seqgc_s(
    made: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(PLAN)
    # The prices of another region would have to be looked up.
    write_deployment(Path("seqgc-lambda.toml"), replace(made, region="us-east-1"))
    verb, *words = container("MasterTask")["Command"]
    options = {name for each in command().commands[verb].params for name in each.opts}
    assert {word for word in words if word.startswith("--")} <= options
    assert words[words.index("--mount") + 1] == made.mount_path
    mounted = [each["ContainerPath"] for each in container("MasterTask")["MountPoints"]]
    assert made.mount_path in mounted
    assert main([verb, *words, "--dry-run"]) == 0


def test_the_results_of_a_run_are_copied_to_where_the_role_may_write(
    account: Any, made: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(PLAN)
    run, location = container("CopyTask")["Command"]
    location = location.replace("${Bucket}", made.bucket)
    assert location.startswith(f"s3://{made.bucket}/{made.prefix}/")
    assert main(["train", "run.toml", "--run", run]) == 0
    count = upload_run(run, location, session=account)
    s3 = client("s3")
    objects = s3.list_objects_v2(Bucket=made.bucket, Prefix="runs/results/run/")["Contents"]
    assert len(objects) == count == sum(each.is_file() for each in Path(run).rglob("*"))
    name = "checkpoints/a.safetensors"
    body = s3.get_object(Bucket=made.bucket, Key=f"runs/results/run/{name}")["Body"].read()
    assert body == (Path(run) / name).read_bytes()


@pytest.mark.parametrize(
    ("run", "location", "says"),
    [
        ("none", "s3://b/runs/results/x", "`run` must be the folder of a run"),
        (".", "b/runs", "`location` must be like s3://"),
        (".", "s3://b", "`location` must be like s3://"),
    ],
)
def test_a_copy_of_no_run_or_to_no_bucket_is_refused(
    run: str, location: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.toml").touch()
    with pytest.raises(ParameterError, match=says):
        upload_run(run, location, session=NOBODY)


def test_the_copying_task_s_program_names_what_there_is(tmp_path: Path) -> None:
    python, option, program = container("CopyTask")["EntryPoint"]
    assert (python, option) == ("python", "-c")
    words = [sys.executable, option, program, "none", "s3://b/runs/results/none"]
    ran = subprocess.run(
        words,
        cwd=tmp_path,
        env={"AWS_REGION": REGION, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "`run` must be the folder of a run" in ran.stderr.splitlines()[-1]


# ---- doctor and destroy --------------------------------------------------------------------------


def test_doctor_wants_the_image_and_every_endpoint(account: Any, tmp_path: Path) -> None:
    made = answering(account, tmp_path, vpc=True, with_master=True)
    checks = examined(account, made)
    assert failures(checks) == ["master"]
    assert made.master_image in checks["master"].detail
    assert checks["master"].remedy.startswith(
        f"docker push {made.master_image} (see docs/master.md"
    )
    assert (ROOT / "docs" / "master.md").is_file()
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": {"digest": "sha256:1"}}
    client("ecr").put_image(
        repositoryName="seqgc-master",
        imageManifest=json.dumps(manifest | {"layers": []}),
        imageManifestMediaType=kind,
        imageTag="latest",
    )
    assert examined(account, made)["master"].status == "ok"
    endpoints = client("ec2").describe_vpc_endpoints()["VpcEndpoints"]
    (of_lambda,) = (each for each in endpoints if each["ServiceName"].endswith(".lambda"))
    client("ec2").delete_vpc_endpoints(VpcEndpointIds=[of_lambda["VpcEndpointId"]])
    found = examined(account, made)["master"]
    assert f"com.amazonaws.{REGION}.lambda" in found.detail
    assert found.remedy == made.deploy_command
    without = replace(made, master_image="")
    assert examined(account, without)["master"].status == "skipped"


def test_destroy_takes_the_master_along_but_not_while_its_task_runs(
    account: Any, made: Deployment
) -> None:
    plan = plan_teardown("mine", session=account)  # its own role has the stack's policies
    kinds = {part.kind for part in plan.goes}
    assert kinds >= {"AWS::ECS::Cluster", "AWS::ECS::TaskDefinition", "AWS::ECR::Repository"}
    assert {part.kind for part in plan.stays} == {"AWS::S3::Bucket", "AWS::EFS::FileSystem"}
    assert rendered(**WITH_MASTER)["MasterRepository"]["Properties"]["EmptyOnDelete"] is True
    ecs, words = client("ecs"), shlex.split(made.run_master)
    given = dict(zip(words[3::2], words[4::2], strict=True))
    subnet = given["--network-configuration"].split("=[")[1].split("]")[0]
    # moto starts no task whose memory is not that of a container
    its = {"name": "master", "image": made.master_image, "memory": 4096}
    ecs.register_task_definition(family="like-it", containerDefinitions=[its])
    started = ecs.run_task(
        cluster=given["--cluster"],
        taskDefinition="like-it",
        launchType="FARGATE",
        networkConfiguration={"awsvpcConfiguration": {"subnets": [subnet]}},
    )
    (task,) = (each["taskArn"] for each in started["tasks"])
    with pytest.raises(DeployError, match=rf"{task} is running .*stop-task.*{task}"):
        plan_teardown("mine", session=account)
