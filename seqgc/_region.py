"""Which AWS region is meant where none is named."""

from __future__ import annotations

import os


def environment_region() -> str | None:
    """Return ``AWS_REGION``, else ``AWS_DEFAULT_REGION``, else None.

    AWS's tools and all of its SDKs but one read the first; botocore knows the second only.
    """
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None
