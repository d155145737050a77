"""Bugs to be planted on the way to functions and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final
from unittest import mock

from seqgc.stores import RetiringStore, directory
from seqgc.wire import MAX_FRAME_BYTES, TaskMessage
from tests.simulation.seams import Calls, Throttle, codec, frames, invocations, messages, objects

_Plant = Callable[[], AbstractContextManager[object]]


def _in_place_of(owner: Any, name: str, make: Callable[[Any], object]) -> _Plant:
    return lambda: mock.patch.object(owner, name, make(getattr(owner, name)))


def _twice(ready: Any) -> Callable[..., Any]:
    return lambda self, *, now: 2 * ready(self, now=now)


def _without_a_window(_: Any) -> Callable[..., Any]:
    def ready(self: Any, *, now: float) -> list[int]:
        tags = [tag for tag, at in self._due.items() if at <= now]
        for tag in tags:
            del self._due[tag]
        return tags

    return ready


def _whatever_went_wrong(replied: Any) -> Callable[..., Any]:
    return lambda self, reply: replied(self, replace(reply, throttled=reply.body is None))


def _of_any_run(_: Any) -> Callable[..., Any]:
    def decode(frame: bytes, *, run_id: str) -> object:  # noqa: ARG001
        return codec._opened(frame, sealed=True, max_bytes=MAX_FRAME_BYTES)[1]

    return decode


def _same_digest(_: Any) -> object:
    digest = SimpleNamespace(update=lambda _: None, digest=lambda: bytes(16))
    return SimpleNamespace(xxh3_128=lambda _: digest, xxh3_128_digest=lambda _: bytes(16))


def _accepts(_: Any) -> Callable[..., None]:
    return lambda *_, **__: None


def _uncompared() -> AbstractContextManager[object]:
    stack = ExitStack()
    for module in (objects, directory):
        stack.enter_context(mock.patch.object(module, "check_blob", _accepts(None)))
    return stack


def _whose_ever(fetch: Any) -> Callable[..., Any]:
    def fetch_any(self: Any, ref: Any) -> Any:
        for _, weights in self._make_room.__self__._warm.values():
            for known, params in weights.cache.items():
                if (known.model, known.version) == (ref.model, ref.version):
                    return params
        return fetch(self, ref)

    return fetch_any


def _at_once(retire: Any) -> Callable[..., Any]:
    def forget(self: Any, item: Any) -> None:
        retire(self, item)
        self._forget(item)

    return forget


FUNCTION_PLANTS: Final[Mapping[str, _Plant]] = MappingProxyType(
    {
        "throttled calls are sent twice": _in_place_of(Throttle, "ready", _twice),
        "nothing limits those that are sent again": _in_place_of(
            Throttle, "ready", _without_a_window
        ),
        "all that fails is sent again": _in_place_of(Calls, "replied", _whatever_went_wrong),
        "answers of other runs count": _in_place_of(messages, "decode", _of_any_run),
        "answers to anything count": _in_place_of(TaskMessage, "check", _accepts),
        "damaged frames are read": _in_place_of(frames, "xxhash", _same_digest),
        "what is read is not compared": _uncompared,
        "warm weights are anybody's": _in_place_of(invocations._RunWeights, "fetch", _whose_ever),
        "weights are deleted at once": _in_place_of(RetiringStore, "_retire", _at_once),
        "calls are never forgotten": _in_place_of(
            Calls, "settled", lambda _: lambda self, tag: self._calls.get(tag)
        ),
    }
)
