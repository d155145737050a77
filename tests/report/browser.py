"""A browser to look at pages with: Debian's Chromium, without a window, over its devtools' pipe.

One JSON object a message, each ended by a zero byte; answers have the number of what they answer,
and all else is an event. See https://chromedevtools.github.io/devtools-protocol.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["CHROMIUM", "Browser", "browser"]

CHROMIUM = shutil.which("chromium")
_ABOVE = 10  # where no file descriptor is that a child gets


class Browser:
    """A tab; ``events`` are those that have come so far."""

    def __init__(self, reader: int, writer: int) -> None:
        self._in, self._out = os.fdopen(reader, "rb"), os.fdopen(writer, "wb")
        self._number, self._session, self._rest = 0, "", b""
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> Any:
        """Send a command, and return what it answers."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            more = self._in.read1(1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def open(self, page: Path) -> None:
        """Open a page, and wait until all of it is there."""
        before = len(self.events)
        self.ask("Page.navigate", url=page.resolve().as_uri())
        while all(event.get("method") != "Page.loadEventFired" for event in self.events[before:]):
            self.events.append(self._next())

    def size(self, width: int, height: int) -> None:
        """Make the window so large, pixels."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def theme(self, name: str) -> None:
        """Ask the page for its light or dark form."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def value(self, script: str) -> Any:
        """Return what an expression comes to in the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def close(self) -> None:
        """Close the pipes."""
        self._out.close()
        self._in.close()


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Yield a browser that keeps its files in the folder ``profile``, and ends with the block."""
    pipes = [*os.pipe(), *os.pipe()]
    theirs_in, ours_out, ours_in, theirs_out = (
        fcntl.fcntl(p, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for p in pipes
    )
    for pipe in pipes:
        os.close(pipe)

    def put() -> None:
        os.dup2(theirs_in, 3)
        os.dup2(theirs_out, 4)

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    flags += ["--no-first-run", "--disable-extensions", "--disable-background-networking"]
    process = subprocess.Popen(
        [CHROMIUM or "chromium", *flags, f"--user-data-dir={profile}"],
        preexec_fn=put,  # noqa: PLW1509 (no other thread forks)
        pass_fds=(3, 4),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    tab = Browser(ours_in, ours_out)
    try:
        yield tab
        tab.ask("Browser.close")
    finally:
        tab.close()
        process.kill()
        process.wait()
