"""Where tasks are executed."""

from seqgc.backends.local import LocalBackend as LocalBackend
