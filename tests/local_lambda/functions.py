"""What the tests deploy: a function that does as its event says."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import numpy as np

_seen = 0


def handler(event: dict[str, Any], context: Any) -> Any:  # noqa: C901 (a table of deeds)
    global _seen  # noqa: PLW0603 (what an environment keeps is the subject)
    _seen += 1
    if "requestContext" in event:
        if event["rawPath"] == "/described":
            return json.loads(event["body"])
        return event if event["rawPath"] == "/echo" else _respond(event["rawPath"])
    match event.get("do"):
        case "wait":
            threading.Event().wait(event["seconds"])
        case "raise":
            raise ValueError("on purpose")
        case "exit":
            os._exit(event["code"])
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "answer":
            return "x" * event["bytes"]
        case "print":
            print(event["text"])
        case "variables":
            return dict(os.environ)
        case "random":
            return float(np.random.random())  # noqa: NPY002 (the global state is the subject)
        case "context":
            return {
                "arn": context.invoked_function_arn,
                "name": context.function_name,
                "memory": int(context.memory_limit_in_mb),
                "left_ms": context.get_remaining_time_in_millis(),
                "client": context.client_context and context.client_context.custom,
            }
    return {"seen": _seen, "pid": os.getpid(), "size": len(event.get("padding", ""))}


def _respond(path: str) -> Any:
    if path == "/raise":
        raise ValueError("on purpose")
    if path == "/binary":
        body = "AAEC"
        return {"statusCode": 201, "body": body, "isBase64Encoded": True, "headers": {"X-A": "b"}}
    return {"message": "plain"}
