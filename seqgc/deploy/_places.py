"""The places of a build context, by which an older one is known that lies among one's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["FILES", "OWN", "PACKAGES", "is_context"]

FILES: Final = ("template.yaml", "Dockerfile", ".dockerignore", "own/requirements.txt")
PACKAGES: Final = ("seqgc", "lambda_handlers")
OWN: Final = "own"


def is_context(folder: Path) -> bool:
    """Say whether a folder has all that a build context has."""
    files, packages = (folder / name for name in FILES), (folder / name for name in PACKAGES)
    return all(path.is_file() for path in files) and all(path.is_dir() for path in packages)
