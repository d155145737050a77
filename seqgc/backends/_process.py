"""The master's side of one worker process: from its start to its end, whichever way it ends."""

from __future__ import annotations

import signal
import socket
from contextlib import nullcontext

from seqgc.backends import _forkserver
from seqgc.backends._channel import Channel
from seqgc.backends._child import main
from seqgc.errors import WorkerError

__all__ = ["WorkerProcess"]


class WorkerProcess:
    """A running process of worker ``worker``; after its end, another one takes its place."""

    def __init__(self, worker: int, *, run_id: str, max_bytes: int, factory: bytes) -> None:
        self.worker = worker
        self.ready = False
        self.problem = ""  # why it never became ready, in its own words
        limit = max(max_bytes, len(factory))
        ours, theirs = socket.socketpair()
        try:
            _forkserver.ensure_running()
            self._process = _forkserver.CONTEXT.Process(
                target=main,
                args=(theirs, worker, run_id, limit),
                name=f"seqgc-worker-{worker}",
                daemon=True,  # the interpreter ends it should nobody have closed the backend
            )
            from_script = b"__main__" in factory
            with nullcontext() if from_script else _forkserver.main_script_hidden():
                self._process.start()
        except (OSError, EOFError) as error:
            ours.close()
            raise WorkerError(
                f"worker {worker} did not start ({type(error).__name__}: {error}); too many open "
                "files, or a preloaded module that fails to import",
                worker=worker,
            ) from error
        finally:
            theirs.close()  # or its end would never look closed to us
        self.channel = Channel(ours, max_bytes=max_bytes)
        # Not as an argument: starting a process blocks until it has read those, and a large one,
        # cut short by Ctrl-C, is a traceback in the child.
        self.channel.push(factory)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid or 0

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes readable when the process has ended."""
        return self._process.sentinel

    def terminate(self) -> None:
        """Ask the process to end, without waiting for it."""
        self._process.terminate()

    def bury(self, *, grace_s: float = 1.0) -> str:
        """Release everything of a process that is ending; say how it ended.

        One that has not ended after ``grace_s`` seconds is killed.
        """
        self._process.join(grace_s)
        if self._process.exitcode is None:
            self.problem = self.problem or "worker process did not end by itself, and was killed"
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        self.channel.close()
        self._process.close()
        return self.problem or _how_it_ended(code or 0)


def _how_it_ended(exit_code: int) -> str:
    if exit_code >= 0:
        return f"worker process exited with code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "a signal"
    return f"worker process was killed by {name} ({-exit_code})"
