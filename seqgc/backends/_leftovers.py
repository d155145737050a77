"""Removes, when the fork server ends, what a master that was killed could not remove itself.

multiprocessing keeps the fork server's socket in a temporary folder, ``pymp-*``, which the master
removes when its interpreter ends; after SIGTERM or SIGKILL it does not end that way. The fork
server outlives master and workers, and ends in an orderly way then. It imports this module, and
`FOLDER` names the folder in its environment.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from typing import Final

__all__ = ["FOLDER"]

FOLDER: Final = "SEQGC_FORK_SERVER_FOLDER"

# Another process that the master starts at the same moment finds the variable, too: the command
# says which one is the fork server. Workers are forked, and end without calling what is registered.
folder = os.environ.pop(FOLDER, "")
if folder and any("multiprocessing.forkserver" in word for word in sys.orig_argv):
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
