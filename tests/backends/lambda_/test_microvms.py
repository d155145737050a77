"""Workers on MicroVMs, against an imitation of the calls of AWS that they need."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
import torch
from botocore.validate import ParamValidator
from safetensors.torch import load_file

from seqgc import registered_model, workers
from seqgc.backends import Messaging
from seqgc.backends.lambda_ import (
    LambdaBackend,
    Limits,
    MicrovmFleet,
    MicrovmLaunch,
    MicrovmTransport,
)
from seqgc.errors import ParameterError, WorkerError
from seqgc.local_lambda import KeyPair
from seqgc.local_lambda.microvms import LocalMicrovms
from seqgc.ports import Arrival, Backend, Failure
from seqgc.stores import open_store
from seqgc.testing import Scripted, eventually
from seqgc.testing.scripted import next_event, task
from seqgc.training import Crew, TrainingPlan, Work, Workers, train
from tests.backends.lambda_.local import REGION, ROOT, inline, scripted_workload

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
    "SEQGC_FACTORIES": "tests.backends.scripted",
}
LAUNCH = MicrovmLaunch(image=LocalMicrovms.image)


def session() -> boto3.Session:
    return boto3.Session(*KeyPair.new(), region_name=REGION)


def launched(
    service: LocalMicrovms, count: int, launch: MicrovmLaunch = LAUNCH, **options: Any
) -> MicrovmFleet:
    return MicrovmFleet(
        count, launch, session=session(), endpoint_url=service.endpoint_url, **options
    )


@pytest.fixture(scope="module")
def service() -> Iterator[LocalMicrovms]:
    with LocalMicrovms(ENVIRONMENT, imports=False, throttled=1) as service:
        yield service


@pytest.fixture(scope="module")
def fleet(service: LocalMicrovms) -> Iterator[MicrovmFleet]:
    with launched(service, 2) as fleet:
        yield fleet


def backend(fleet: MicrovmFleet, folder: Path, n: int = 2) -> LambdaBackend:
    limits = Limits(timeout_s=60.0)
    workload = scripted_workload(Scripted(folder=folder))
    transport = MicrovmTransport(fleet, limits=limits)
    return LambdaBackend(n, transport, workload=workload, store=inline())


def states(service: LocalMicrovms, fleet: MicrovmFleet) -> list[str]:
    return [service.microvms[each].state for each in fleet.identifiers]


def test_the_answers_of_the_imitation_have_the_form_of_the_service_model(
    service: LocalMicrovms,
) -> None:
    client = session().client("lambda-microvms", endpoint_url=service.endpoint_url)
    checked = []

    def call(name: str, **parameters: Any) -> Any:
        answer = getattr(client, name)(**parameters)
        model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[name])
        kept = {key: value for key, value in answer.items() if key != "ResponseMetadata"}
        report = ParamValidator().validate(kept, model.output_shape)
        assert not report.has_errors(), report.generate_report()
        assert set(model.output_shape.required_members) <= set(kept)
        checked.append(name)
        return answer

    identifier = call("run_microvm", **LAUNCH.request)["microvmId"]
    who = {"microvmIdentifier": identifier}
    eventually(lambda: call("get_microvm", **who)["state"] == "RUNNING", "the launch")
    assert call("get_microvm", **who)["idlePolicy"] == LAUNCH.request["idlePolicy"]
    token = {"expirationInMinutes": 60, "allowedPorts": [{"port": 8080}]}
    call("create_microvm_auth_token", **who, **token)
    with pytest.raises(client.exceptions.ValidationException):
        client.create_microvm_auth_token(**who, **(token | {"expirationInMinutes": 61}))
    with pytest.raises(client.exceptions.ConflictException, match="RUNNING, not SUSPENDED"):
        client.resume_microvm(**who)
    for name in ("suspend_microvm", "resume_microvm", "terminate_microvm"):
        call(name, **who)
    assert call("get_microvm", **who)["state"] == "TERMINATED"
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.get_microvm(microvmIdentifier="microvm-none")
    assert len(set(checked)) == 6
    client.close()


def test_a_suspended_fleet_computes_again(
    service: LocalMicrovms, fleet: MicrovmFleet, tmp_path: Path
) -> None:
    used = backend(fleet, tmp_path)
    used.dispatch(0, [task(0, 0), task(0, 1)])
    first = [next_event(used) for _ in range(2)]
    fleet.suspend()
    assert states(service, fleet) == ["SUSPENDED"] * 2
    used.dispatch(1, [task(1, 0), task(1, 1)])  # resumes them
    second = [next_event(used) for _ in range(2)]
    assert states(service, fleet) == ["RUNNING"] * 2
    assert all(isinstance(each, Arrival) for each in (*first, *second))
    fleet.suspend()
    fleet.resume()
    assert states(service, fleet) == ["RUNNING"] * 2
    used.close()


def test_a_token_is_replaced_before_it_ends_and_when_it_is_refused(
    service: LocalMicrovms, tmp_path: Path
) -> None:
    now = [0.0]
    with launched(service, 1, now=lambda: now[0]) as fleet:
        used = backend(fleet, tmp_path, n=1)

        def outcome(round: int) -> object:
            used.dispatch(round, [task(round, 0)])
            return next_event(used)

        before = service.calls["CreateMicrovmAuthToken"]
        for at, tokens in ((0.0, 1), (2999.0, 1), (3001.0, 2)):
            now[0] = at
            assert isinstance(outcome(int(at)), Arrival)
            assert service.calls["CreateMicrovmAuthToken"] - before == tokens
        service.microvms[fleet.identifiers[0]].tokens.clear()
        refused = outcome(4000)
        assert isinstance(refused, Failure)
        assert "HTTP 403" in refused.reason
        assert fleet.identifiers[0] in refused.reason
        assert isinstance(outcome(4001), Arrival)
        assert service.calls["CreateMicrovmAuthToken"] - before == 3
        used.close()


def test_a_microvm_that_ends_is_a_failure_and_the_others_compute(
    service: LocalMicrovms, tmp_path: Path
) -> None:
    with launched(service, 2) as fleet:
        used = backend(fleet, tmp_path)
        service.microvms[fleet.identifiers[1]].terminate()
        used.dispatch(0, [task(0, 0, "gate a"), task(0, 1)])
        (tmp_path / "go a").touch()
        events = [next_event(used) for _ in range(2)]
        assert {type(each) for each in events} == {Arrival, Failure}
        used.close()


def test_a_throttled_launch_is_repeated_and_starts_one_microvm(service: LocalMicrovms) -> None:
    with launched(service, 1):
        assert service.calls["RunMicrovm"] == len(service.microvms) + 1  # the first was throttled


def test_a_launch_that_fails_leaves_no_microvm() -> None:
    with LocalMicrovms({"SEQGC_FACTORIES": "no.such.module"}) as service:
        with pytest.raises(WorkerError, match="is TERMINATED: Ready hook"):
            launched(service, 2)
        assert {each.state for each in service.microvms.values()} == {"TERMINATED"}
        other = MicrovmLaunch(image=LocalMicrovms.image + "-2")
        with pytest.raises(WorkerError, match="there is no such image"):
            launched(service, 1, other)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"idle_s": 59}, "`idle_s` must be an integer >= 60; got 59"),
        ({"life_s": 28801}, "`life_s` must"),
        ({"port": 0}, "`port` must"),
        ({"suspended_s": -1}, "`suspended_s` must"),
        ({"start_s": 0}, "`start_s` must"),
    ],
)
def test_what_the_service_refuses_is_refused_before(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ParameterError, match=rule):
        MicrovmLaunch(image="i", **changes)


class MicrovmWorkers:
    """Workers of a run on a fleet; weights and results are in the messages."""

    n, provider = 2, "microvms"

    def __init__(self, fleet: MicrovmFleet) -> None:
        self._fleet = fleet

    def check(self, work: Work) -> None:
        work.workload()  # raises if other machines cannot build the models

    @contextmanager
    def open(self, work: Work) -> Iterator[Crew]:
        store, shared = inline(), open_store(inline(), mount=None)

        def start() -> Backend:
            messaging = Messaging(run_id="on-microvms", payload=work.payload)
            return LambdaBackend(
                self.n,
                MicrovmTransport(self._fleet),
                workload=work.workload(),
                store=store,
                shared=shared,
                messaging=messaging,
            )

        yield Crew(start=start, store=shared, grace_s=60.0)


def test_a_run_on_microvms_trains_the_same_weights(fleet: MicrovmFleet, tmp_path: Path) -> None:
    def trained(name: str, given: Workers) -> torch.Tensor:
        model = registered_model(
            "net", module="mlp", optimizer=functools.partial(torch.optim.SGD, lr=0.1),
            batch_size=32,
        )  # fmt: skip
        plan = TrainingPlan(models=[model], scheme="gc:s=1", steps=4, precision="float64")
        train(plan, given, run=tmp_path / name)
        tensors = load_file(tmp_path / name / "checkpoints" / "net.safetensors")
        return torch.cat([tensors[each].ravel() for each in sorted(tensors)])

    remote = trained("remote", MicrovmWorkers(fleet))
    with workers.local(2) as local:
        here = trained("here", local)
    torch.testing.assert_close(remote, here, rtol=0, atol=1e-10)


def test_a_fleet_without_a_region_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(ParameterError, match=r"`region` must be given.*You must specify a region"):
        MicrovmFleet(1, LAUNCH, session=boto3.Session(*KeyPair.new()))


def test_a_task_must_not_outlast_the_idle_time(fleet: MicrovmFleet) -> None:
    with pytest.raises(ParameterError, match=r"`idle_s` must be at least 901 s.*; got 900"):
        MicrovmTransport(fleet, limits=Limits(timeout_s=901.0))


def test_a_request_that_is_no_task_is_refused(service: LocalMicrovms, fleet: MicrovmFleet) -> None:
    with fleet.least_busy() as microvm:
        headers, url = dict(fleet.headers(microvm)), microvm.url
    assert requests.post(url, b"{}", timeout=60).status_code == 403
    for body, path, status in ((b"no JSON", "", 400), (b"{}", "other", 404)):
        answer = requests.post(url + path, body, headers=headers, timeout=60)
        assert (answer.status_code, list(answer.json())) == (status, ["Message"])
    assert (
        requests.post(
            url, b"", headers=headers | {"X-aws-proxy-port": "22"}, timeout=60
        ).status_code
        == 403
    )
    assert states(service, fleet) == ["RUNNING"] * 2
