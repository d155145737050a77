"""The program in a MicroVM: its hooks, and the number of tasks that it computes at once."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
import torch

from lambda_handlers.gradient_worker.microvm_server import HOOKS, MicrovmServer
from seqgc.testing import eventually
from seqgc.testing.scripted import task
from seqgc.wire import (
    InvokeMessage,
    ResultMessage,
    StoreRef,
    TaskMessage,
    WorkloadRef,
    decode,
    encode,
    from_json,
    to_json,
)


@contextmanager
def serving(at_once: int = 8) -> Iterator[MicrovmServer]:
    variables = {"SEQGC_FACTORIES": "tests.backends.scripted"}
    with MicrovmServer(0, variables, host="127.0.0.1", at_once=at_once) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def post(server: MicrovmServer, path: str, body: bytes = b"") -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("POST", path, body, {"Connection": "close"})
    answer = connection.getresponse()
    try:
        return answer.status, answer.read()
    finally:
        connection.close()


def envelope(folder: Path, *names: str) -> bytes:
    message = InvokeMessage(
        request=TaskMessage(task=task(0, 0, *names)),
        workload=WorkloadRef(name="scripted", settings={"folder": str(folder)}),
        store=StoreRef(kind="inline"),
        inline_limit_bytes=6_000_000,
    )
    return to_json(encode(message, run_id="r"))


@pytest.mark.parametrize("hook", ["run", "resume"])
def test_microvms_of_one_image_do_not_draw_the_same_numbers(hook: str) -> None:
    drawn = set()
    with serving() as server:
        for _ in range(2):
            random.seed(7)
            torch.manual_seed(7)
            assert post(server, HOOKS + hook)[0] == 200
            drawn.add((random.random(), torch.rand(1).item()))
    assert len(drawn) == 2


def test_other_hooks_are_answered_and_unknown_ones_refused() -> None:
    with serving() as server:
        for hook in ("ready", "validate", "suspend", "terminate"):
            assert post(server, HOOKS + hook) == (200, b"{}")
        assert post(server, HOOKS + "other")[0] == 404


def test_a_task_too_many_is_not_begun_and_says_so(tmp_path: Path) -> None:
    with serving(at_once=1) as server:
        answers = []
        slow = threading.Thread(
            target=lambda: answers.append(post(server, "/", envelope(tmp_path, "gate a")))
        )
        slow.start()
        eventually((tmp_path / "begun a").exists, "computing")
        status, body = post(server, "/", envelope(tmp_path, "plain"))
        assert (status, list(json.loads(body))) == (429, ["Message"])
        (tmp_path / "go a").touch()
        slow.join()
        for status, body in (answers[0], post(server, "/", envelope(tmp_path, "plain"))):
            assert status == 200
            assert isinstance(decode(from_json(body), run_id="r"), ResultMessage)
