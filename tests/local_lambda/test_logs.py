"""What a function prints and logs, from its import on, as CloudWatch would have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqgc.backends.lambda_ import Invoking, LambdaBackend
from seqgc.local_lambda import DeployedAs, LocalLambda
from tests.backends.lambda_.constant import Constant
from tests.backends.lambda_.local import inline, open_transport, serve
from tests.local_lambda.calling import call, client

_MODULE = """
import logging
import os
import sys

print("imported")
prepared = [type(each).__name__ for each in logging.getLogger().handlers]
logger = logging.getLogger("own")
logger.propagate = False
logger.addHandler(logging.StreamHandler(sys.stdout))  # keeps the stream, as Powertools' does


def handler(event, context):
    logger.warning("own line")
    logging.getLogger().warning("runtime's line")
    if event.get("exit"):
        os._exit(1)
    return prepared
"""


def test_a_log_begins_with_the_import_and_has_each_line_once(tmp_path: Path) -> None:
    (tmp_path / "speaking.py").write_text(_MODULE)
    deployed = DeployedAs(code=tmp_path)
    with LocalLambda("speaking.handler", concurrency=1, deployed=deployed) as service:
        aws = client(service)
        first, second = call(aws, service), call(aws, service, exit=True)
        third = call(aws, service)  # of another environment
        aws.close()

    assert first.value == ["LambdaLoggerHandler"], "logging is prepared before the import"
    for reply, imported in ((first, True), (second, False), (third, True)):
        said = [line for line in reply.log.splitlines() if "RequestId" not in line]
        assert said[:-1] == ["imported"] * imported + ["own line"]
        assert said[-1].startswith("[WARNING]\t")
        assert said[-1].endswith("\truntime's line")


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "raise ValueError('on purpose')"])
def test_what_fails_while_it_is_imported_is_tried_again_by_the_next(
    tmp_path: Path, end: str
) -> None:
    """And says so in its own log, once."""
    text = f"import pathlib\nprint('imported')\nif not pathlib.Path('good').exists(): {end}\n"
    (tmp_path / "failing.py").write_text(text + "def handler(event, context): return 'good'\n")
    deployed = DeployedAs(code=tmp_path)
    with LocalLambda("failing.handler", concurrency=1, deployed=deployed) as service:
        aws = client(service)
        failed = call(aws, service)
        (tmp_path / "good").touch()
        worked = call(aws, service)
        aws.close()

    assert failed.error == "Unhandled"
    assert failed.log.count("imported") == 1
    assert failed.log.count("[ERROR] ValueError: on purpose") == ("ValueError" in end)
    assert failed.log.count("[WARNING]") == ("ValueError" in end), (
        "the runtime's, not prepared twice"
    )
    assert ("exit status 3" in failed.value["errorMessage"]) == ("SystemExit" in end)
    assert (worked.error, worked.value) == ("", "good")
    assert worked.log.count("imported") == 1


def test_an_invocation_of_the_worker_logs_one_line_of_json(tmp_path: Path) -> None:
    work = Constant(4)
    with serve(tmp_path, concurrency=1) as service:
        transport, invoking = open_transport("boto3", service), Invoking(warm_up_rounds=1)
        with LambdaBackend(1, transport, workload=work.ref, store=inline(), invoking=invoking):
            log = service.log()

    _, line, *others = log.splitlines()
    assert json.loads(line)["message"] == "answered"
    assert [other.split()[0] for other in others] == ["END", "REPORT"]
