"""Parts of the command line that users cannot reach, imported here for all tests."""

import json

from seqgc._command_line import TABLE, Words
from seqgc.cli import _help
from seqgc.cli._main import MEANINGS, Status, command
from seqgc.cli._messages import speaking
from seqgc.cli._run import PreparedRun, prepare
from seqgc.cli._show import busy
from seqgc.config._making import make_callbacks, make_models, make_plan, make_workers
from seqgc.config._names import DATA, LOSSES, MODULES, NOT_TAKEN, OPTIMIZERS, SCHEDULERS


def words() -> Words:
    """The table of completions as the command line has it now."""
    return _help.words(command())


__all__ = [
    "DATA",
    "LOSSES",
    "MEANINGS",
    "MODULES",
    "NOT_TAKEN",
    "OPTIMIZERS",
    "SCHEDULERS",
    "PreparedRun",
    "Status",
    "busy",
    "command",
    "make_callbacks",
    "make_models",
    "make_plan",
    "make_workers",
    "prepare",
    "speaking",
    "words",
]


if __name__ == "__main__":
    TABLE.write_text(json.dumps(words(), indent=1, ensure_ascii=False) + "\n", "utf-8")
