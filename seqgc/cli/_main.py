"""The verbs, and how errors leave the program."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer
from typer.main import get_command

from seqgc.cli import _cost, _demo, _deploy, _doctor, _profile, _replay, _scheme, _train, _tune
from seqgc.cli._options import with_plugins
from seqgc.errors import ParameterError, ProfileError, SeqgcError, one_line

# typer carries a copy of click of its own; this is the one public way to its errors.
_UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

_INTERRUPTED = 130

app = typer.Typer(
    name="seqgc",
    help="Train many networks on unreliable workers and wait for no straggler.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("scheme")(with_plugins(_scheme.scheme))
app.command("replay")(with_plugins(_replay.replay))
app.command("tune")(with_plugins(_tune.tune))
app.add_typer(_profile.app, name="profile")
app.command("train")(_train.train)
app.command("demo")(_demo.demo)
app.command("cost")(with_plugins(_cost.cost))
app.command("deploy")(with_plugins(_deploy.deploy))
app.command("doctor")(with_plugins(_doctor.doctor))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status.

    0: done. 1: workers or weights failed. 2: a wrong parameter, in one line on stderr that names
    the argument, the rule and the value. 130: interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        status = _command()(args=arguments, standalone_mode=False)
    except (ParameterError, ProfileError) as error:
        return _fail(str(error), 2)
    except SeqgcError as error:
        return _fail(str(error), 1)
    except OSError as error:
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}", 1)
    except _UsageError as error:
        return _fail(getattr(error, "format_message", error.__str__)(), 2)
    if status == _INTERRUPTED:  # typer's own translation of Ctrl-C
        return _fail("interrupted", _INTERRUPTED)
    return status if isinstance(status, int) else 0


@cache
def _command() -> Any:  # of typer's own click; made once, which takes longer than most verbs
    return get_command(app)


def _fail(message: str, status: int) -> int:
    line = one_line(message, limit=2000)
    if line:
        sys.stderr.write(f"seqgc: {line}\n")
    return status
