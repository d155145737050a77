"""SnapStart in the local service: the order of hooks, and what restored environments share.

The first tests show that the imitation shares as much as a real snapshot does; else the last ones
could not fail.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from lambda_handlers.gradient_worker._snapshot import before_snapshot
from seqgc.local_lambda import DeployedAs, LocalLambda
from seqgc.testing import eventually
from seqgc.wire import ResultMessage, decode, encode, from_json, to_json
from seqgc.worker import Registry
from tests.local_lambda.calling import call, client
from tests.worker.asking import invocation

OWN = "tests.local_lambda.restored.handler"
WORKER = "lambda_handlers.gradient_worker.handler.handler"


@contextmanager
def restoring(handler: str, **environment: str) -> Iterator[tuple[LocalLambda, Any]]:
    deployed = DeployedAs(snapstart=True)
    with LocalLambda(handler, concurrency=1, environment=environment, deployed=deployed) as service:
        aws = client(service)
        yield service, aws
        aws.close()


def end(service: LocalLambda, pid: int) -> None:
    """End an environment, so that the next request restores another one."""
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: service.statistics().environments == 0, "noticing")


def test_hooks_run_once_before_the_snapshot_and_in_every_environment_after_it() -> None:
    with restoring(OWN) as (service, aws):
        first = call(aws, service)
        again = call(aws, service).value
        end(service, first.value["pid"])
        other = call(aws, service).value
    names = ["before, second", "before, first", "after, first", "after, second"]
    for each in (first.value, again, other):
        assert [name for name, _ in each["happened"]] == names
        pids = [pid for _, pid in each["happened"]]
        assert pids[:2] == [pids[0]] * 2
        assert pids[2:] == [each["pid"]] * 2
        assert pids[0] != each["pid"]
    assert first.value["happened"][0] == other["happened"][0]  # one snapshot for both
    assert first.value["drawn"] == other["drawn"] != again["drawn"]  # random state is in it
    assert "Restore Duration" in first.log
    assert "Init Duration" not in first.log
    variables = first.value["variables"]
    assert variables["AWS_LAMBDA_INITIALIZATION_TYPE"] == "snap-start"
    assert not variables.keys() & {"AWS_LAMBDA_LOG_GROUP_NAME", "AWS_LAMBDA_LOG_STREAM_NAME"}


@pytest.mark.parametrize("when", ["before, first", "after, second"])
def test_a_hook_that_fails_fails_in_every_environment(when: str) -> None:
    with restoring(OWN, FAILS=when) as (service, aws):
        for _ in range(2):
            reply = call(aws, service)
            assert reply.error
            assert reply.value["errorMessage"] == f"on purpose {when}"


def drawn(service: LocalLambda, aws: Any) -> np.ndarray:
    payload = to_json(encode(invocation(name="draw", settings={}), run_id="r"))
    answer = aws.invoke(FunctionName=service.function_name, Payload=payload)
    reply = decode(from_json(answer["Payload"].read()), run_id="r")
    assert isinstance(reply, ResultMessage)
    return next(iter(reply.results.values()))


def test_restored_workers_draw_different_numbers_and_have_imported_their_libraries() -> None:
    with restoring(WORKER, SEQGC_FACTORIES="tests.local_lambda.restored") as (service, aws):
        first = drawn(service, aws)
        end(service, int(first[3]))
        other = drawn(service, aws)
    assert not set(first[:4]) & set(other[:4])
    assert first[4] == other[4] == 1


def test_before_the_snapshot_every_module_is_imported_that_a_task_may_need() -> None:
    registry = Registry(["tests.local_lambda.restored", "no.such.module"])
    with pytest.raises(ValueError, match=r"no\.such\.module"):
        before_snapshot(registry)
