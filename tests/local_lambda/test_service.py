from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from seqgc.errors import ParameterError, WorkerError
from seqgc.local_lambda import DeployedAs, LocalLambda
from seqgc.testing import eventually
from tests.local_lambda.calling import HANDLER, call, client


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with suppress(FileNotFoundError, ProcessLookupError):
        return _stat(pid)[0] == "Z"
    return not Path(f"/proc/{pid}").exists()


def _stat(pid: int) -> list[str]:
    """What the system says about a process, from its state and its parent on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _refuses(url: str) -> bool:
    address = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((str(address.hostname), int(address.port or 0))) != 0


def test_versions_stay_as_published_and_close_leaves_no_process_port_or_thread() -> None:
    threads = set(threading.enumerate())  # of which those of other tests may end meanwhile
    service = LocalLambda(HANDLER, concurrency=2)
    aws, name = client(service), service.function_name
    pids = [service.pid, call(aws, service).value["pid"]]

    def live(function: str = name, alias: str = "live") -> str:
        return str(aws.get_alias(FunctionName=function, Name=alias)["FunctionVersion"])

    def answer(qualifier: str) -> tuple[str, object]:
        payload = b'{"do": "variables"}'
        got = aws.invoke(FunctionName=name, Qualifier=qualifier, Payload=payload)
        return got["ExecutedVersion"], json.loads(got["Payload"].read()).get("COLOUR")

    assert (live(), answer("live")) == ("1", ("1", None))
    assert service.publish(environment={"COLOUR": "red"}) == "2"
    assert (live(), answer("live")) == ("2", ("2", "red"))
    assert [answer(each)[1] for each in ("1", "2", "$LATEST")] == [None, "red", "red"]
    for unknown in ("3", "0"):
        with pytest.raises(aws.exceptions.ResourceNotFoundException):
            answer(unknown)
    for function, alias in ((name, "other"), ("f", "live"), (f"{name}:live", "live")):
        with pytest.raises(aws.exceptions.ResourceNotFoundException):
            live(function, alias)
    seen = service.statistics()
    assert (seen.requests, seen.cold_starts, seen.environments) == (6, 2, 2)
    pids.append(call(aws, service).value["pid"])
    assert len(set(pids)) == 3
    aws.close()
    assert not any(map(_gone, pids))

    service.close()
    service.close()

    assert all(map(_gone, pids))
    assert _refuses(service.endpoint_url)
    assert _refuses(service.function_url)
    eventually(lambda: threads.issuperset(threading.enumerate()), "the end of all threads")
    with pytest.raises(WorkerError, match="has ended"):
        service.statistics()


def test_close_does_not_wait_for_what_is_computing() -> None:
    service = LocalLambda(HANDLER, concurrency=1, timeout_s=60)
    aws = client(service)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(call, aws, service, do="wait", seconds=50)
        eventually(lambda: service.statistics().environments == 1, "starting")
        begin = time.monotonic()
        service.close()
        assert pending.exception() is not None
    aws.close()
    assert time.monotonic() - begin < 40


_MASTER = """
import sys
from seqgc.local_lambda import LocalLambda
from tests.local_lambda.calling import HANDLER, call, client
service = LocalLambda(HANDLER, concurrency=1)
print(service.pid, call(client(service), service).value["pid"], flush=True)
sys.stdin.read()
"""


def test_service_ends_with_a_master_that_is_killed() -> None:
    root = str(Path(__file__).parents[3])
    master = subprocess.Popen(
        [sys.executable, "-c", _MASTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert master.stdout is not None
    with master, master.stdout:
        pids = list(map(int, master.stdout.readline().split()))
        assert len(pids) == 2
        master.kill()
    eventually(lambda: all(map(_gone, pids)), "the end of both")


@pytest.mark.parametrize("call", ["send", "_send_bytes", "poll"])
def test_service_whose_master_ends_while_it_starts_says_nothing(call: str) -> None:
    """Before it is told what it is to serve, in the midst of that, and before it listens."""
    script = f"""
import os, struct
from multiprocessing.connection import Connection
from seqgc.local_lambda import LocalLambda

def end(connection, *words):
    if {call!r} == "_send_bytes":
        os.write(connection.fileno(), struct.pack("!i", 1000) + bytes(words[0])[:500])
    os._exit(3)

Connection.{call} = end
LocalLambda({HANDLER!r}, concurrency=1)
"""
    # It returns when nobody has the standard error any more.
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (3, "")


def test_parent_of_environments_whose_service_ends_while_it_starts_says_nothing() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    command = [sys.executable, "-m", "seqgc.local_lambda._parent", str(theirs.fileno())]
    with theirs:
        fds = (theirs.fileno(),)
        ended = subprocess.run(command, check=False, capture_output=True, text=True, pass_fds=fds)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_environments_end_with_a_service_that_is_killed() -> None:
    with LocalLambda(HANDLER, concurrency=1) as service:
        aws = client(service)
        environment = call(aws, service).value["pid"]
        os.kill(service.pid, signal.SIGKILL)
        eventually(lambda: _gone(environment), "the end of the environment")
        aws.close()


def test_service_goes_on_while_the_parent_of_environments_stops_and_ends_with_it() -> None:
    """More orders than a socket's buffer takes: it would block, or wait for who waits for it."""
    count = 600
    with LocalLambda(HANDLER, concurrency=count) as service:
        aws = client(service)
        environment = call(aws, service).value["pid"]
        parent = int(_stat(environment)[1])
        os.kill(parent, signal.SIGSTOP)
        name, payload = service.function_name, b'{"do": "wait", "seconds": 60}'
        for _ in range(count):
            aws.invoke(FunctionName=name, Payload=payload, InvocationType="Event")
        eventually(lambda: service.statistics().environments == count, "starting")
        aws.close()
        os.kill(parent, signal.SIGKILL)
        eventually(lambda: all(map(_gone, (environment, service.pid))), "the end of both")


def test_environment_that_dies_between_requests_is_replaced() -> None:
    with LocalLambda(HANDLER, concurrency=1) as service:
        aws = client(service)
        first = call(aws, service).value["pid"]
        os.kill(first, signal.SIGKILL)
        eventually(lambda: service.statistics().environments == 0, "noticing")
        reply = call(aws, service)
        aws.close()
        assert reply.error == ""
        assert reply.value["pid"] != first
        assert "Init Duration" in reply.log
        assert service.statistics().cold_starts == 2


def test_function_sees_its_own_variables_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for the function")
    given = {"SEQGC_FACTORIES": "a.b"}
    with LocalLambda(HANDLER, concurrency=1, mount=tmp_path, environment=given) as service:
        aws = client(service)
        seen = call(aws, service, do="variables").value
        aws.close()

    assert seen["SEQGC_MOUNT"] == str(tmp_path)
    assert seen["SEQGC_FACTORIES"] == "a.b"
    assert seen["AWS_LAMBDA_FUNCTION_NAME"] == "seqgc-worker"
    assert seen["OMP_NUM_THREADS"] == "1"
    assert "AWS_SECRET_ACCESS_KEY" not in seen


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"handler": "nodots"}, "`handler` must be 'module.function'"),
        ({"concurrency": 0}, "`concurrency` must be an integer >= 1"),
        ({"timeout_s": 901.0}, "`timeout_s` must be in"),
        ({"deployed": DeployedAs(memory_mb=64)}, "`memory_mb` must be an integer >= 128"),
        ({"mount": Path("/nowhere/at/all")}, "`mount` must be a directory"),
        ({"deployed": DeployedAs(function_name="no spaces")}, "`function_name` must be"),
    ],
)
def test_bad_arguments(bad: dict, said: str) -> None:
    arguments = {"handler": HANDLER, "concurrency": 1} | bad
    handler = arguments.pop("handler")
    with pytest.raises(ParameterError, match=said):
        LocalLambda(handler, **arguments)
