"""The function on AWS's own emulator and on the local service: the same answers."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from seqgc.local_lambda import LocalLambda
from seqgc.testing import eventually
from tests.local_lambda.calling import HANDLER, call, client

requests = pytest.importorskip("requests")


def _emulator() -> Path | None:
    """The emulator that SEQGC_LAMBDA_RIE names, or that an installed aws-sam-cli brings."""
    if named := os.environ.get("SEQGC_LAMBDA_RIE"):
        return Path(named)
    if (sam := importlib.util.find_spec("samcli")) is None or sam.origin is None:
        return None
    machine = "arm64" if platform.machine() in ("arm64", "aarch64") else "x86_64"
    binary = Path(sam.origin).parent / "local" / "rapid" / f"aws-lambda-rie-{machine}"
    return binary if binary.is_file() and sys.platform == "linux" else None


RIE = _emulator()
pytestmark = pytest.mark.skipif(
    RIE is None, reason="no aws-lambda-rie: install aws-sam-cli, or name it in SEQGC_LAMBDA_RIE"
)


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("rie") / "aws-lambda-rie"
    assert RIE is not None
    binary.write_bytes(RIE.read_bytes())  # a wheel's files need not be executable
    binary.chmod(0o700)
    return binary


@pytest.fixture(scope="module")
def emulator(binary: Path) -> Iterator[str]:
    """The URL of an emulator whose functions have the least time that it knows, a second."""
    with _serving(binary, timeout_s=1) as url:
        yield url


@pytest.fixture(scope="module")
def patient_emulator(binary: Path) -> Iterator[str]:
    """One that, like `patient`, has time for large answers, whatever else the machine does."""
    with _serving(binary, timeout_s=60) as url:
        yield url


@contextmanager
def _serving(binary: Path, *, timeout_s: int) -> Iterator[str]:
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        port, api = one.getsockname()[1], two.getsockname()[1]
    process = subprocess.Popen(
        [
            *(str(binary), "--runtime-interface-emulator-address", f"127.0.0.1:{port}"),
            *("--runtime-api-address", f"127.0.0.1:{api}"),
            *(sys.executable, "-m", "awslambdaric", HANDLER),
        ],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "AWS_LAMBDA_FUNCTION_NAME": "seqgc-worker",
            "AWS_LAMBDA_FUNCTION_TIMEOUT": str(timeout_s),
            "OMP_NUM_THREADS": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _await(port)
        yield f"http://127.0.0.1:{port}/2015-03-31/functions/function/invocations"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await(port: int) -> None:
    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    eventually(listens, "listening of the emulator")


def _ask(url: str, **event: Any) -> Any:
    return requests.post(url, data=json.dumps(event), timeout=90).json()


def _anonymous(value: Any) -> Any:
    """An answer without what differs from request to request."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", json.dumps(value))
    return json.loads(re.sub(r'"(pid|seen)": \d+', r'"\1": 0', text))


EVENTS: list[dict[str, Any]] = [
    {},
    {"padding": "x" * 100_000},
    {"do": "raise"},
    {"do": "answer", "bytes": 100_000},
    {"do": "exit", "code": 3},
    {"do": "exit", "code": 0},
    {"do": "kill"},
    {"do": "answer", "bytes": 6_292_000},
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: str(event)[:30])
def test_same_answer(patient_emulator: str, patient: LocalLambda, event: dict[str, Any]) -> None:
    with closing(client(patient)) as aws:
        ours = call(aws, patient, **event).value
    assert _anonymous(ours) == _anonymous(_ask(patient_emulator, **event))


def test_same_end_at_the_timeout(emulator: str, hasty: LocalLambda) -> None:
    """The emulator says so in plain text, AWS and the service in an error's JSON."""
    event = {"do": "wait", "seconds": 5}
    said = requests.post(emulator, data=json.dumps(event), timeout=20).text
    with closing(client(hasty)) as aws:
        error = call(aws, hasty, **event).value["errorMessage"]
        seen = eventually(lambda: call(aws, hasty).value.get("seen"), "an answer in time")

    assert said == "Task timed out after 1.00 seconds"
    assert error.endswith(said.replace("1.00", "0.50"))
    assert _ask(emulator)["seen"] == 1  # a new process
    assert seen == 1
