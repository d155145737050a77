"""Sequential gradient coding: train on unreliable workers without waiting for stragglers."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
