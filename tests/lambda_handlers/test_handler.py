"""The handler in an interpreter of its own: what it loads, prints and answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lambda_handlers.gradient_worker import numpy_factories
from seqgc.models.factories import workload_of
from seqgc.ports import Task
from seqgc.stores import DirectoryStore
from seqgc.training import ResultLayout, registered_model
from seqgc.wire import (
    FailureMessage,
    InvokeMessage,
    Message,
    ReceiptMessage,
    ResultMessage,
    StoreRef,
    decode,
    encode,
    from_json,
    to_json,
    to_mapping,
)
from tests.worker.asking import invocation, ref_of, task_of

ROOT = Path(__file__).resolve().parents[2]
LEAST_SQUARES = {"points": 6, "features": 3, "seed": 1}
WEIGHTS = np.array([1.0, -2.0, 3.0])

# Each line of input is an event; each reply or error goes to the file that is named, so that the
# output is the function's own alone. The file's last line tells what has been imported.
ENVIRONMENT = """
import json, sys
from lambda_handlers.gradient_worker.handler import handler

class Context:
    aws_request_id = "request-1"

with open(sys.argv[1], "w") as out:
    for line in sys.stdin:
        try:
            print(json.dumps({"reply": handler(json.loads(line), Context())}), file=out)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out)
    print(json.dumps({"modules": sorted(sys.modules)}), file=out)
"""


@dataclass(frozen=True)
class Ran:
    replies: list[dict[str, Any]]
    modules: set[str]
    lines: list[dict[str, Any]]

    @property
    def logs(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if "_aws" not in line]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if "_aws" in line]


def run(*events: object, environment: Mapping[str, str] | None = None) -> Ran:
    """Invoke the handler with each event, in one fresh interpreter."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEQGC_")}
    with tempfile.TemporaryDirectory() as folder:
        replies = Path(folder, "replies")
        ran = subprocess.run(
            [sys.executable, "-c", ENVIRONMENT, str(replies)],
            input="".join(json.dumps(event) + "\n" for event in events),
            capture_output=True,
            check=False,
            timeout=60,
            env=kept | {"OMP_NUM_THREADS": "1"} | dict(environment or {}),
            cwd=ROOT,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        *answers, last = [json.loads(line) for line in replies.read_text().splitlines()]
    return Ran(
        answers, set(last["modules"]), [json.loads(line) for line in ran.stdout.splitlines()]
    )


def event(message: Message, *, run_id: str = "run-9") -> dict[str, object]:
    return to_mapping(encode(message, run_id=run_id))


def answer_in(reply: dict[str, Any], *, run_id: str = "run-9") -> Message:
    return decode(from_json(reply["reply"]), run_id=run_id)


def least_squares(*, settings: Mapping[str, Any] = LEAST_SQUARES, **more: Any) -> InvokeMessage:
    return invocation(WEIGHTS, name="least-squares", settings=settings, **more)


def expected() -> list[float]:
    compute = numpy_factories.least_squares(LEAST_SQUARES, lambda _: WEIGHTS)
    gradient: list[float] = compute(task_of(ref_of(WEIGHTS)).items[0].parts).tolist()
    return gradient


def test_importing_it_loads_nothing_that_a_cold_start_has_no_time_for() -> None:
    ran = run(event(least_squares()))
    assert isinstance(answer_in(ran.replies[0]), ResultMessage)
    heavy = {
        "aiohttp", "awslambdaric", "boto3", "botocore.client", "dask", "multiprocessing",
        "pydantic", "requests", "rich", "scipy", "seqgc.backends", "seqgc.codes", "seqgc.master",
        "seqgc.schemes", "seqgc.training", "sklearn", "torch", "typer", "urllib3",
    }  # fmt: skip
    assert not ran.modules & heavy
    assert {"numpy", "seqgc.worker", "aws_lambda_powertools"} <= ran.modules


def test_an_invocation_and_a_function_urls_request_are_answered_alike() -> None:
    message = least_squares()
    body = to_json(encode(message, run_id="run-9")).decode()
    request = {
        "version": "2.0",
        "rawPath": "/",
        "requestContext": {"http": {"method": "POST"}},
        "body": body,
        "isBase64Encoded": False,
    }
    ran = run(event(message), request)
    for reply in ran.replies:
        answer = answer_in(reply)
        assert isinstance(answer, ResultMessage)
        message.request.check(answer)
        assert answer.results[0].tolist() == expected()


NO_INVOCATIONS: list[tuple[object, str]] = [
    ({}, "missing required field `seqgc`"),
    ([1, 2], "Expected `object`, got `array`"),
    (17, "Expected `object`, got `int`"),
    ({"seqgc": 1, "frame": "AAAA"}, "cut short"),
    ({"requestContext": {}, "body": "e30=", "isBase64Encoded": True}, "body must be JSON"),
    ({"requestContext": {}, "body": None}, "body must be JSON"),
    ({"requestContext": {}, "body": "{"}, "envelope is not JSON"),
]


def test_what_is_no_invocation_is_an_error_of_the_function() -> None:
    ran = run(*(bad for bad, _ in NO_INVOCATIONS), event(least_squares()))
    *errors, last = ran.replies
    for (_, cause), reply, log in zip(NO_INVOCATIONS, errors, ran.logs[:-1], strict=True):
        assert reply["error"].startswith("WireError: ")
        assert cause in reply["error"]
        assert (log["level"], log["message"], log["request"]) == ("ERROR", "refused", "request-1")
        assert cause in log["reason"]
    assert [metrics["Refused"] for metrics in ran.metrics] == [[1.0]] * len(errors) + [[0.0]]
    assert isinstance(answer_in(last), ResultMessage)  # none of them did any harm


def test_each_invocation_has_a_line_of_log_and_one_of_metrics() -> None:
    failing = least_squares(settings={"points": 0})
    task = task_of(ref_of(WEIGHTS), round=7, worker=3, attempt=2)
    ran = run(
        *(event(least_squares(task=task)) for _ in range(2)),
        event(failing),
        environment={"POWERTOOLS_SERVICE_NAME": "my-stack"},  # as the template has it
    )
    keys = [tuple(log[k] for k in ("run", "round", "worker", "attempt")) for log in ran.logs]
    assert keys == [("run-9", 7, 3, 2), ("run-9", 7, 3, 2), ("run-9", 4, 1, 0)]
    assert [log["cold_start"] for log in ran.logs] == [True, False, False]
    assert [log["warm"] for log in ran.logs] == [False, True, False]
    assert [log["message"] for log in ran.logs] == ["answered", "answered", "failed"]
    assert "`points` must be an integer" in ran.logs[2]["reason"]
    assert {record["service"] for record in (*ran.logs, *ran.metrics)} == {"my-stack"}
    assert [m["ColdStart"] for m in ran.metrics] == [[1.0], [0.0], [0.0]]
    assert [m["Failed"] for m in ran.metrics] == [[0.0], [0.0], [1.0]]
    for log, metrics in zip(ran.logs, ran.metrics, strict=True):
        assert metrics["ComputeTime"] == [pytest.approx(log["compute_s"], abs=1e-6)]
        assert metrics["Received"] == [log["received_bytes"]]
        assert metrics["Sent"] == [log["sent_bytes"]]
        (directive,) = metrics["_aws"]["CloudWatchMetrics"]
        assert directive["Namespace"] == "seqgc"
        assert directive["Dimensions"] == [["service"]]
        units = {metric["Name"]: metric["Unit"] for metric in directive["Metrics"]}
        assert units["ComputeTime"] == "Seconds"
        assert units["Sent"] == "Bytes"


def test_weights_and_large_answers_go_through_the_mount(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "run-9")
    ref = store.publish("cnn", 0, WEIGHTS)
    message = least_squares(
        task=task_of(ref),
        store=StoreRef(kind="directory", location="run-9"),
        bring=False,
        limit_bytes=0,
    )
    ran = run(event(message), environment={"SEQGC_MOUNT": str(tmp_path)})
    receipt = answer_in(ran.replies[0])
    assert isinstance(receipt, ReceiptMessage)
    data = store.get(receipt.key, digest=receipt.digest, size_bytes=receipt.size_bytes)
    answer = decode(data, run_id="run-9")
    assert isinstance(answer, ResultMessage)
    assert answer.results[0].tolist() == expected()
    assert ran.metrics[0]["Stored"] == [receipt.size_bytes]


def test_a_store_that_the_image_does_not_allow_is_a_failure(tmp_path: Path) -> None:
    causes = {
        StoreRef(kind="directory", location="../run-9"): "must be a path below the mount",
        StoreRef(kind="s3", location="s3://elsewhere/run-9"): "must be below s3://training/runs",
    }
    events = [event(least_squares(store=store, bring=False)) for store in causes]
    environment = {"SEQGC_MOUNT": str(tmp_path), "SEQGC_S3": "s3://training/runs"}
    ran = run(*events, environment=environment)
    for cause, answer in zip(causes.values(), map(answer_in, ran.replies), strict=True):
        assert isinstance(answer, FailureMessage)
        assert cause in answer.reason


def test_modules_that_the_image_names_are_imported_before_anyone_asks(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "from seqgc.worker import register\n"
        "register('threes')(lambda settings, fetch_weights: lambda parts: np.full(2, 3.0))\n"
    )
    environment = {"SEQGC_FACTORIES": " mine ,", "PYTHONPATH": str(tmp_path)}
    empty = Task(round=0, worker=0, attempt=0, items=())
    ran = run(
        event(invocation(name="threes")),
        event(least_squares(task=empty)),
        environment=environment,
    )
    answer, other = map(answer_in, ran.replies)
    assert isinstance(answer, ResultMessage)
    assert answer.results[0].tolist() == [3.0, 3.0]
    assert isinstance(other, ResultMessage)  # seqgc's own workloads are there besides


def test_torch_is_imported_once_a_workload_needs_it(tmp_path: Path) -> None:
    sgd = partial(torch.optim.SGD, lr=0.1)
    model = registered_model("a", module="mlp", optimizer=sgd)
    size = 64 * 64 + 64 + 64 * 10 + 10
    ref = DirectoryStore(tmp_path / "run-9").publish("a", 0, np.zeros(size))
    message = invocation(
        name="models",
        settings=workload_of([model], precision="float64").settings,
        store=StoreRef(kind="directory", location="run-9"),
        task=task_of(ref),
    )
    ran = run(event(message), environment={"SEQGC_MOUNT": str(tmp_path)})
    answer = answer_in(ran.replies[0])
    assert isinstance(answer, ResultMessage), answer
    assert len(answer.results[0]) == ResultLayout([64 * 64, 64, 64 * 10, 10]).size
    # With weights of zero, every class has probability 1/10.
    assert answer.results[0][size] == pytest.approx(2.5 * np.log(10))
    assert "torch" in ran.modules


def test_it_traces_if_asked(tmp_path: Path) -> None:
    pytest.importorskip("aws_xray_sdk")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.bind(("127.0.0.1", 0))
        daemon.settimeout(10)
        environment = {
            "SEQGC_TRACE": "1",
            "LAMBDA_TASK_ROOT": str(tmp_path),
            "AWS_XRAY_DAEMON_ADDRESS": f"127.0.0.1:{daemon.getsockname()[1]}",
            "_X_AMZN_TRACE_ID": (
                "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
            ),
        }
        ran = run(event(least_squares()), environment=environment)
        assert isinstance(answer_in(ran.replies[0]), ResultMessage)
        segment = json.loads(daemon.recv(100_000).split(b"\n", 1)[1])
    assert segment["name"] == "## answer"
    assert segment["trace_id"] == "1-5759e988-bd862e3fe1be46a994272793"
