"""How long a backend waits at a time."""

from __future__ import annotations

from typing import Final

__all__ = ["LONGEST_WAIT_S"]

LONGEST_WAIT_S: Final = 3600.0
"""Seconds; then it waits again. No system call takes infinity, and some no more than 24 days."""
