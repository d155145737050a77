from __future__ import annotations

import asyncio
import os
import socket

from seqgc.local_lambda._fork_channel import Sender, receive, send

COUNT = 2000  # more than the socket's buffer takes


def test_service_goes_on_while_nobody_listens() -> None:
    """Or it would wait for a parent that waits for it."""

    async def scenario() -> list[int]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            sender = Sender(ours)
            for i in range(COUNT):
                sender.send({"kill": i})  # would block here
            got = await asyncio.to_thread(lambda: [receive(theirs)[0] for _ in range(COUNT)])
            sender.close()
        return [message["kill"] for message in got if message is not None]

    assert asyncio.run(scenario()) == list(range(COUNT))


def test_descriptor_travels_with_its_message() -> None:
    async def scenario() -> bytes:
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        with ours, theirs:
            sender = Sender(ours)
            sender.send({"fork": 1}, descriptor=writing)
            message, (copy,) = receive(theirs)
            assert message == {"fork": 1}
            os.write(copy, b"through")
            os.close(copy)
            sender.close()
        with os.fdopen(reading, "rb") as pipe:
            return pipe.read()  # ends, for the sender has closed its own

    assert asyncio.run(scenario()) == b"through"


def test_what_was_not_sent_is_closed() -> None:
    async def scenario() -> int:
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        os.close(reading)
        with ours, theirs:
            sender = Sender(ours)
            for i in range(COUNT):
                sender.send({"kill": i})
            sender.send({"fork": 1}, descriptor=writing)
            sender.close()
        return writing

    writing = asyncio.run(scenario())
    try:
        os.fstat(writing)
    except OSError:
        return
    raise AssertionError("the descriptor is still open")


def test_end_of_the_other_side() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        send(theirs, {"ended": 1, "code": 0})
        theirs.close()
        assert receive(ours) == ({"ended": 1, "code": 0}, [])
        assert receive(ours) == (None, [])
